"""Times candidates for the microbatch and the slots of a run on this hardware.

The net has random weights, and its decisions take as many loops as those of a trained policy: see
`planning.depths`. Environments are not stepped.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int

from looped_actor.algorithms import to_streaming
from looped_actor.loop import Packed, StreamablePolicy, Streaming, StreamOutput, empty_carry
from looped_actor.loop.microbatch import default_microbatch, default_slots
from looped_actor.loop.packing import even_microbatches
from looped_actor.models.cost import surrogate_gradient
from looped_actor.planning.depths import never_converging, prescribe_depths, prescribed_depths
from looped_actor.planning.plan import assumed_depths
from looped_actor.planning.timing import Report, no_report, take_turns
from looped_actor.runs.robots import RobotRun
from looped_actor.runs.run import Run
from looped_actor.training.sharding import REPLICATED, jit_per_device, replicate
from looped_actor.utils.errors import UserError

FACTORS = (0.25, 0.5, 2, 4)
"""Candidates, relative to the default."""
MIN_GAIN = 0.97
"""A candidate must take less than this share of the default's time to be chosen: smaller gains are noise."""
MAX_CPU_ROWS = 64
"""Examples and environments on a device: a CPU takes a minute for a thousand of the paper's net."""
DECISIONS = 4
"""Decisions of each environment."""


class TimedSizes(NamedTuple):
    """Times of the candidates, relative to the default, which comes first."""

    device: str
    """Kind of the devices."""
    microbatches: dict[int, float]
    """Time of a gradient, by microbatch."""
    slots: dict[int, float]
    """Time of the decisions of many environments, by slots."""

    @property
    def changes(self) -> dict[str, int]:
        """Fields of the configuration to set: `microbatch` and `slots`."""
        return {"microbatch": choose_size(self.microbatches), "slots": choose_size(self.slots)}


def choose_size(times: dict[int, float]) -> int:
    """Return the fastest size, or the first if the gain is too small."""
    fastest = min(times, key=lambda size: times[size])
    return fastest if times[fastest] < MIN_GAIN else next(iter(times))


def time_sizes(run: Run, mesh: Mesh, rounds: int = 4, report: Report = no_report) -> TimedSizes:
    """Time gradients and decisions of a run for a few microbatches and numbers of slots.

    Args:
      run: the run. Its folder is not needed.
      mesh: the devices, all of which compute the same.
      rounds: turns of each candidate; the fastest counts.
      report: called with the fraction that is done, and a description of the next step.
    """
    if run.config.trained == "critics" or run.spec.halting is None:
        raise UserError(
            f"{run.config.trained} does not loop: it has neither a microbatch nor slots to choose"
        )
    work, device = _Work(run, mesh), mesh.devices.flat[0]
    batch, rows = _rows(run, mesh)
    microbatches = _candidates(
        default_microbatch(work.latent_size, device), lambda size: even_microbatches(batch, size)[0]
    )
    slots = _candidates(default_slots(work.latent_size, device), lambda size: min(size, -(-rows // 2)))
    programs: dict[str, Callable[[], Any]] = {}
    for size in microbatches:
        programs[f"microbatches of {size}"] = work.compile(work.gradient(size), batch, report, size)
    for size in slots:
        programs[f"{size} slots"] = work.compile(work.decisions(size), rows, report, size)
    seconds = take_turns(programs, rounds, report=report).seconds
    return TimedSizes(
        device=device.device_kind,
        microbatches=_relative(microbatches, [seconds[f"microbatches of {size}"] for size in microbatches]),
        slots=_relative(slots, [seconds[f"{size} slots"] for size in slots]),
    )


def _rows(run: Run, mesh: Mesh) -> tuple[int, int]:
    """Return the examples of a minibatch and the rows of a stream on each device."""
    algorithm = run.config.algorithm
    if isinstance(run, RobotRun):  # it streams minibatches: see `GCIQL._actor_gradient`
        batch = rows = algorithm.batch // mesh.size
    else:
        batch, rows = algorithm.minibatch // mesh.size, algorithm.num_envs // mesh.size
    most = MAX_CPU_ROWS if mesh.devices.flat[0].platform == "cpu" else max(batch, rows)
    return max(1, min(batch, most)), max(1, min(rows, most))


def _candidates(default: int, fit: Callable[[int], int]) -> list[int]:
    """Return different sizes that fit the work, the default first."""
    sizes = [fit(max(1, round(default * factor))) for factor in (1, *FACTORS)]
    return list(dict.fromkeys(sizes))


def _relative(sizes: Sequence[int], seconds: Sequence[float]) -> dict[int, float]:
    return {size: each / seconds[0] for size, each in zip(sizes, seconds, strict=True)}


class _Work:
    """Gradients and decisions of a run's net with random weights."""

    def __init__(self, run: Run, mesh: Mesh):
        self.spec, self.mesh = run.spec, mesh
        assert run.spec.halting is not None
        self.halting = never_converging(run.spec.halting)
        self.depths = jnp.asarray(assumed_depths(run, None))
        self.weights = replicate(mesh, run.spec.init_weights(run.config.seed))

    @property
    def latent_size(self) -> int:
        """Scalars of a latent."""

        def initial(weights: Any, observation: Any) -> Array:
            policy = self._policy(weights)
            return policy.initial_latent(policy.embed(observation))

        return jax.eval_shape(initial, self.weights, self.spec.observations(1)).size

    def _policy(self, weights: Any) -> StreamablePolicy:
        policy = to_streaming(self.spec.definition, weights, self.halting)
        assert policy is not None
        return prescribe_depths(policy, self.depths)

    def gradient(self, microbatch: int) -> Callable:
        """Return a function that takes the gradient of a minibatch."""
        take_gradient = surrogate_gradient(self.spec.net, Packed(microbatch), self.halting)

        def gradient(weights: Any, observation: Any) -> Any:
            depths = prescribed_depths(observation, self.depths)
            return take_gradient(weights.parameters, weights.fixed, observation, depths, depths).gradient

        return gradient

    def decisions(self, slots: int) -> Callable:
        """Return a function that makes `DECISIONS` decisions for each row."""

        def decide(weights: Any, observation: Any) -> Any:
            rows = len(jax.tree.leaves(observation)[0])

            def observe(decided: Int[Array, " r"], row: Int[Array, " s"]) -> Any:
                # Another observation for each decision, so that it takes other loops.
                return jax.tree.map(lambda leaf: leaf[(row + decided[row]) % rows], observation)

            def settle(
                decided: Int[Array, " r"], ended: Bool[Array, " r"], output: StreamOutput
            ) -> tuple[Int[Array, " r"], Bool[Array, " r"]]:
                decided = decided + ended
                return decided, decided < DECISIONS

            carry = empty_carry(rows)
            return (
                Streaming(slots)
                .run(
                    self._policy(weights),
                    jnp.zeros(rows, jnp.int32),
                    rows,
                    observe,
                    settle,
                    lambda table, row: jax.tree.map(lambda leaf: leaf[row], carry),
                )
                .loops
            )

        return decide

    def compile(self, function: Callable, rows: int, report: Report, size: int) -> Callable[[], Any]:
        """Compile a function of weights and observations for all devices; return it with its arguments
        bound."""
        report(0.0, f"compiling for {size}")
        rng = nnx.Rngs(0)
        observation = replicate(
            self.mesh,
            jax.tree.map(
                lambda one: jax.random.bernoulli(rng(), 0.3, one.shape).astype(one.dtype),
                self.spec.observations(rows),
            ),
        )
        run = jit_per_device(self.mesh, function, (REPLICATED, REPLICATED), REPLICATED)
        compiled = run.lower(self.weights, observation).compile()
        return lambda: compiled(self.weights, observation)
