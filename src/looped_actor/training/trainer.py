"""A trainer is a collector and a learner put together: experience is collected, then learned from.

Everything on the devices runs inside `shard_map`: a device plays its own environments and learns from what
they brought; only gradients and a few sums are exchanged. What neither part does on the host becomes one
program.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, UInt32

from looped_actor.collectors import Collector
from looped_actor.devices import EVERYWHERE, on_each_device, shapes_on
from looped_actor.errors import UserError


@runtime_checkable
class Learner(Protocol):
    """What is learned from experience, and how.

    `net` is what is trained. It has `definition`, the policy's net without weights; `spec`, where the state
    lies; `check(devices)`; and `begin(mesh, root, first)`, the state of a new run, with its `weights` and
    `iteration`. `host` is the learner's part on the host, or None: `ask(mesh, state)` says what the collector
    is given, `advise(mesh, experience)` what `learn` is, and `specs` where both lie.
    """

    @property
    def net(self) -> Any:
        """What is trained."""
        ...

    @property
    def host(self) -> Any:
        """Its part on the host, or None."""
        ...

    def learn(self, world: Any, state: Any, experience: Any, advice: Any) -> tuple[Any, Any]:
        """The next state, and a named tuple of scalars about the iteration."""
        ...


class Programs(NamedTuple):
    """The jitted parts of an iteration; None for what the host does."""

    iterate: Any
    """World and state to the next state and metrics."""
    collect: Any
    """World, state, and what the learner asks for, or None, to experience."""
    learn: Any
    """World, state, experience, and advice from the host, or None, to the next state and metrics."""


@dataclass(frozen=True)
class Trainer:
    """A way to learn: what `fit` runs."""

    collector: Collector
    learner: Learner

    def __post_init__(self) -> None:
        self.learner.net.check(self.mesh.size)

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self.collector.mesh

    @property
    def steps_per_iteration(self) -> int:
        """Environment or gradient steps: what the run's budget counts."""
        return self.collector.steps_per_iteration

    def begin(self, seed: int) -> Any:
        """The state of a new run: a pytree of arrays, on their devices."""
        return self._begin(self.collector.world, jax.random.key_data(jax.random.key(seed)), seed)

    def _begin(self, world: Any, root: UInt32[Array, "2"], seed: int) -> Any:
        return self.learner.net.begin(self.mesh, root, self.collector.begin(world, root, seed))

    def shapes(self) -> tuple[Any, Any]:
        """World and state as shapes, where they would lie: enough to compile its programs.

        The devices of the mesh need not be here. Not for environments that run on the host.
        """
        world, root = self.collector.world, jax.ShapeDtypeStruct((2,), jnp.uint32)
        state = jax.eval_shape(functools.partial(self._begin, seed=0), world, root)
        return shapes_on(self.mesh, world, EVERYWHERE), shapes_on(self.mesh, state, self.learner.net.spec)

    def traces(self) -> dict[str, Callable[[], Any]]:
        """Its programs by name, each traced from shapes when it is called: to be lowered and compiled."""
        programs = self.programs
        if self.collector.on_host:
            raise UserError("what is collected on the host is not planned: data that stays on disk, say")
        if programs.iterate is not None:
            return {"iterate": lambda: programs.iterate.trace(*self.shapes())}

        def learn() -> Any:
            (world, state), (asked, advice) = self.shapes(), self._host_shapes()
            experience = jax.eval_shape(programs.collect, world, state, asked)
            placed = shapes_on(self.mesh, experience, self.collector.spec)
            return programs.learn.trace(world, state, placed, advice)

        return {
            "collect": lambda: programs.collect.trace(*self.shapes(), self._host_shapes()[0]),
            "learn": learn,
        }

    def _host_shapes(self) -> tuple[Any, Any]:
        host = self.learner.host
        return shapes_on(self.mesh, host.shapes(self.collector.world), host.specs)

    def iterate(self, state: Any) -> tuple[Any, Any]:
        """The next state, and a named tuple of scalars about the iteration."""
        world, programs, host = self.collector.world, self.programs, self.learner.host
        if programs.iterate is not None:
            return programs.iterate(world, state)
        asked = None if host is None else host.ask(self.mesh, state)
        if programs.collect is None:
            experience = self.collector.collect(self.learner.net.definition, world, state, asked)
        else:
            experience = programs.collect(world, state, asked)
        advice = None if host is None else host.advise(self.mesh, experience)
        learned = programs.learn(world, state, experience, advice)
        if self.collector.on_host:
            self.collector.prefetch(state)
        return learned

    @functools.cached_property
    def programs(self) -> Programs:
        """An iteration as jitted functions: whole, where the host has no part in it, and its halves."""
        collector, learner = self.collector, self.learner
        collect = functools.partial(collector.collect, learner.net.definition)
        asked, advice = (None, None) if learner.host is None else learner.host.specs

        def iterate(world: Any, state: Any) -> tuple[Any, Any]:
            return learner.learn(world, state, collect(world, state), None)

        on_each = functools.partial(on_each_device, self.mesh)
        given, gives = (EVERYWHERE, learner.net.spec), (learner.net.spec, EVERYWHERE)
        whole = not collector.on_host and learner.host is None
        return Programs(
            iterate=on_each(iterate, given, gives) if whole else None,
            collect=None if collector.on_host else on_each(collect, (*given, asked), collector.spec),
            learn=on_each(learner.learn, (*given, collector.spec, advice), gives),
        )
