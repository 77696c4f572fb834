"""What a collector is, and where what it collects lies on the devices."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, UInt32

from looped_actor.collectors.rollouts import Players, Rollout
from looped_actor.devices import DATA, EVERYWHERE, ROWS
from looped_actor.envs import VectorState


@runtime_checkable
class Collector(Protocol):
    """Where experience comes from: environments, or a dataset."""

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        ...

    @property
    def steps_per_iteration(self) -> int:
        """Environment or gradient steps: what the run's budget counts."""
        ...

    @property
    def on_host(self) -> bool:
        """Whether the host collects; `collect` is then a call, otherwise a part of the program."""
        ...

    @property
    def world(self) -> Any:
        """What is collected from, on all devices: an argument of the program."""
        ...

    @property
    def spec(self) -> Any:
        """Where the experience lies, as specifications."""
        ...

    def begin(self, world: Any, root: UInt32[Array, "2"], seed: int) -> Any:
        """The first experience, by which a learner's state begins."""
        ...

    def collect(self, definition: nnx.GraphDef, world: Any, state: Any, given: Any = None) -> Any:
        """The experience of an iteration, by the policy as it is; `given` is what the learner asks for."""
        ...

    def resume(self, state: Any, seed: int) -> Any:
        """A state of the run that was restored from a checkpoint, made fit to resume from."""
        ...

    def prefetch(self, state: Any) -> None:
        """Called while the devices learn from what the host collected from this state."""
        ...


PLAYERS = Players(VectorState(ROWS, ROWS, ROWS, ROWS, EVERYWHERE), ROWS, ROWS, ROWS)
STEPS: Any = PartitionSpec(None, DATA)
"""Time-major, environments over the devices."""


class Experience(NamedTuple):
    """What online learners learn from: where the environments are now, and how they got there."""

    players: Players
    rollout: Rollout


EXPERIENCE = Experience(PLAYERS, Rollout(STEPS, ROWS, ROWS, ROWS))
