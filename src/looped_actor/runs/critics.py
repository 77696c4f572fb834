"""A run that learns value and critics alone: actors of any arm learn from them afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flax import nnx

from looped_actor.errors import UserError
from looped_actor.models.cost import count_parameters
from looped_actor.runs.base import Counted
from looped_actor.runs.control import CRITICS_FILE, VALUE_PASSES, ControlRun
from looped_actor.training import Nets, OfflineState

CRITIC_PASSES = 4
"""Forward passes of the critics, as `VALUE_PASSES` of the value: learning, and targets."""


@dataclass(frozen=True)
class CriticsRun(ControlRun):
    """The parts of such a run; see `Run`."""

    makes_policy = False

    @property
    def nets(self) -> Nets:
        """How to build value and critics."""
        return super().nets._replace(actor=None)

    def build(self, rngs: nnx.Rngs) -> Any:
        """There is none: an error that says so."""
        raise UserError(
            f"{self.folder}: this is of critics alone, and there is no policy in it; `looped-actor train "
            f"{self.config.task} --critics RUN` learns one from the {CRITICS_FILE} of such a run"
        )

    def evaluate(self, state: OfflineState) -> Mapping[str, Any]:
        """How good value and critics are."""
        return self.value_facts(state)

    def count(self, loops: float | None = None) -> Counted:
        """Parameters, and FLOPs of a gradient step."""
        value, critics = (nnx.eval_shape(lambda net=net: net(nnx.Rngs(0))) for net in self.nets[:2])
        judging = VALUE_PASSES * value.flops + CRITIC_PASSES * critics.flops
        parameters = count_parameters(value) + count_parameters(critics)
        return Counted(parameters, 0.0, self.config.gciql.batch * judging)

    def update_bytes(self, examples: int) -> int:
        """Memory that a gradient of some examples takes on one device, as the compiler plans it."""
        (trace,) = self._small_trainer(examples).traces().values()
        return trace().lower().compile().memory_analysis().temp_size_in_bytes
