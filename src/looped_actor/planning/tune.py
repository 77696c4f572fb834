"""What suits the hardware at hand: a few chunks and numbers of slots, timed in turn."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from looped_actor.algorithms import as_open_loop
from looped_actor.loop.hardware import computing, default_chunk, default_slots
from looped_actor.loop.packing import even_chunks
from looped_actor.planning.bench_work import (
    Contestant,
    Progress,
    Work,
    asked_work,
    compiled,
    looped_contestant,
)
from looped_actor.planning.timing import take_turns

FACTORS = (0.25, 0.5, 1, 2, 4)
"""Of what is the default, tried."""
WORTH = 0.97
"""Of its time must be left for a change of the default: less is noise."""


class Tuned(NamedTuple):
    """What was timed on a kind of device: relative to the default, the first of each."""

    kind: str
    chunks: dict[int, float]
    """Time of an update, by the examples that are learned from together."""
    slots: dict[int, float]
    """Time of a rollout, by the states that are thought about together."""
    latent: int
    """Numbers of a latent."""

    @property
    def chunk(self) -> int:
        """The best of the chunks."""
        return _best(self.chunks)

    @property
    def slot(self) -> int:
        """The best number of slots."""
        return _best(self.slots)


def _best(times: dict[int, float]) -> int:
    fastest = min(times, key=lambda size: times[size])
    return fastest if times[fastest] < WORTH else next(iter(times))


def tuning_work(mesh: Mesh) -> Work:
    """The paper's net at Boxoban's reported depths; on accelerators, many boards at once."""
    on_cpu = mesh.devices.flat[0].platform == "cpu"  # one update of 512 boards takes a minute there
    boards = 64 if on_cpu else 1024
    return asked_work("boxoban", on_cpu, {"ppo.num_envs": boards, "ppo.minibatch": boards})


def tune(work: Work, mesh: Mesh, rounds: int, progress: Progress) -> Tuned:
    """Time updates and rollouts of this work on these devices, for a few chunks and numbers of slots."""
    first = looped_contestant(work, mesh)
    latent = _latent_size(first)
    ppo, played = work.config.ppo, first.trainer.programs.collect(*_given(first), None)
    batch, rows = ppo.minibatch // mesh.size, ppo.num_envs // mesh.size
    chunks = _tried(default_chunk(latent), lambda size: even_chunks(batch, size)[0])
    slots = _tried(default_slots(latent), lambda size: min(size, -(-rows // 2)))
    jobs = {f"chunks of {chunk}": _job(work, mesh, "learn", (played, None), chunk=chunk) for chunk in chunks}
    jobs |= {f"{count} slots": _job(work, mesh, "collect", (None,), slots=count) for count in slots}
    times, _ = take_turns(compiled(jobs, progress), rounds, math.inf, progress)
    return Tuned(
        mesh.devices.flat[0].device_kind,
        _relative(chunks, [times[f"chunks of {chunk}"] for chunk in chunks]),
        _relative(slots, [times[f"{count} slots"] for count in slots]),
        latent,
    )


def _latent_size(contestant: Contestant) -> int:
    loop = as_open_loop(contestant.trainer.learner.net.definition, contestant.state.weights)
    assert loop is not None
    one = jax.tree.map(lambda leaf: leaf[:1], jax.device_get(contestant.state.players.observation))
    return math.prod(jax.eval_shape(lambda x: loop.start(loop.embed(x)), one).shape)


def _tried(usual: int, used: Callable[[int], int]) -> list[int]:
    """Sizes that differ once they are fitted to the work, the default first."""
    sizes = [used(max(1, round(usual * factor))) for factor in (1, *FACTORS)]
    return list(dict.fromkeys(sizes))


def _given(contestant: Contestant) -> tuple[Any, Any]:
    return contestant.trainer.collector.world, contestant.state


class _Sized(NamedTuple):
    """A jitted function that computes so many at once."""

    function: Any
    sizes: dict[str, int]

    def lower(self, *arguments: Any) -> Any:
        with computing(**self.sizes):
            return self.function.lower(*arguments)


def _job(work: Work, mesh: Mesh, program: str, more: tuple, **sizes: int) -> tuple[_Sized, tuple]:
    """A program, and its arguments. Of a new trainer, or JAX would find it traced already."""
    contestant = looped_contestant(work, mesh)
    return _Sized(getattr(contestant.trainer.programs, program), sizes), (*_given(contestant), *more)


def _relative(sizes: Sequence[int], times: Sequence[float]) -> dict[int, float]:
    return {size: time / times[0] for size, time in zip(sizes, times, strict=True)}
