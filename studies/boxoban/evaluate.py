"""What a policy of this study achieves: on levels, and on held-out labelled states."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int, UInt8
from labels import Labels
from looped_actor.devices import all_devices
from looped_actor.envs.puzzle import Boxoban
from looped_actor.games.boxoban_jax import BoxobanState
from looped_actor.games.catalogue import BOXOBAN
from looped_actor.levels.bank import make_bank
from looped_actor.solvers.advice import planes_of

from looped_actor.algorithms import Advised, Weights, deciding, imitation_loss
from looped_actor.envs import Outcome
from looped_actor.evaluation.levels import LevelPlayer
from looped_actor.loop import StopReason

MAX_LOOPS = 16
REMEMBERED = 8
"""Every so many steps a board is remembered."""


@functools.partial(jax.tree_util.register_dataclass, data_fields=("env",), meta_fields=())
@dataclass(frozen=True)
class UntilRepeated:
    """Boxoban in which an episode ends, unsolved, as soon as the remembered board returns.

    The greedy policy depends on the board alone, so that from there it would go round until the time limit.
    """

    env: Boxoban
    time_limit = 120
    num_actions = 4

    def start(self, level: Int[Array, ""]) -> tuple[BoxobanState, Array, Array]:
        """Return the state of a level."""
        state = self.env.start(level)
        return state, jnp.zeros_like(state.cells), jnp.int32(0)

    def reset(self, key: Array) -> tuple[BoxobanState, Array, Array]:
        """Return the state of a random level."""
        state = self.env.reset(key)
        return state, jnp.zeros_like(state.cells), jnp.int32(0)

    def step(self, state: Any, action: Int[Array, ""]) -> tuple[Any, Outcome]:
        """Move, and end the episode where it cannot be solved any more by this policy."""
        board, remembered, count = state
        remembered = jnp.where(count % REMEMBERED == 0, board.cells, remembered)
        after, outcome = self.env.step(board, action)
        repeated = (after.cells == remembered).all()
        return (after, remembered, count + 1), outcome._replace(terminated=outcome.terminated | repeated)

    def observe(self, state: Any) -> UInt8[Array, "h w 4"]:
        """Return the planes of the board."""
        return self.env.observe(state[0])


AT_ONCE = 64
"""Levels played together, between two looks at signals."""


def evaluate(
    definition: nnx.GraphDef, weights: Weights, levels: UInt8[np.ndarray, "n 8 8"], stop: Any
) -> dict[str, float] | None:
    """Return the share of levels solved greedily in 120 steps, mean loops, and how many decisions halted.

    Boards that return are cut off, so loops are those of decisions on boards that are mostly new. None where
    `stop.asked` becomes true.
    """
    bank = make_bank(BOXOBAN, levels, source="boxoban-levels, cropped", licence="see the source")
    env, count = UntilRepeated(Boxoban(bank.on_device())), len(levels)
    player = LevelPlayer(env, count, definition, MAX_LOOPS, all_devices(1), batch=AT_ONCE)
    solved = decisions = loops = capped = 0
    for first in range(0, count, AT_ONCE):
        if stop.asked:
            return None
        episodes = player.play(weights, part=range(first, min(count, first + AT_ONCE))).episodes
        solved, decisions = solved + episodes.success.sum(), decisions + episodes.length.sum()
        loops, capped = loops + episodes.loops.sum(), capped + episodes.stops[:, StopReason.CAP].sum()
    return {
        "success": float(solved / count),
        "played_loops": float(loops / decisions),
        "halted": float(1 - capped / decisions),
    }


@functools.partial(jax.jit, static_argnums=0)
def _terms(definition: nnx.GraphDef, weights: Weights, example: Advised) -> Any:
    return imitation_loss(deciding(definition, weights), example)


def held_out_accuracy(
    definition: nnx.GraphDef, weights: Weights, labels: Labels, count: int = 2048, batch: int = 256
) -> dict[str, float]:
    """Return loss, accuracy and loops on `count` of the labelled states, always the same."""
    rows = np.random.default_rng(0).choice(len(labels.cells), count, replace=False)
    sums = np.zeros(3)
    for part in rows.reshape(-1, batch):
        example = Advised(
            planes_of(labels.cells[part], 4), labels.optimal[part], labels.remaining[part].astype(np.int32)
        )
        loss, terms = _terms(definition, weights, example)
        sums += [float(value.sum()) for value in (loss, terms.accuracy, terms.loops)]
    return dict(zip(("valid_loss", "valid_accuracy", "valid_loops"), sums / count, strict=True))
