"""What a policy achieves on levels: success with its interval, by optimal length, and loops."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Integer

from looped_actor.algorithms import Acting, Weights, thinking
from looped_actor.batches import Progress, no_progress
from looped_actor.devices import DATA, EVERYWHERE, ROWS, on_each_device, on_every_device
from looped_actor.evaluation.intervals import wilson
from looped_actor.evaluation.play import (
    Episodes,
    LevelEnvironment,
    Played,
    level_batches,
    play_levels,
    stream_levels,
)
from looped_actor.loop import HaltingRule, OpenLoop, Streaming

MOST_BINS = 8


@dataclass(frozen=True)
class LevelPlayer:
    """Plays every level of an environment once, spread over all devices.

    Args:
      env: holds the levels.
      levels: how many it holds.
      definition: the net without its weights.
      most_loops: its cap.
      mesh: the devices.
      halting: replaces the rule that the net was trained with.
      acting: how decisions are computed. What does not loop is always played in step.
      batch: levels that each device is given at a time.
    """

    env: LevelEnvironment
    levels: int
    definition: nnx.GraphDef
    most_loops: int
    mesh: Mesh
    halting: HaltingRule | None = None
    acting: Acting = field(default_factory=Streaming)
    batch: int = 512

    def play(self, weights: Weights, progress: Progress = no_progress) -> Played:
        """An episode of each level, as arrays of this process."""
        parts = []
        for chosen in level_batches(self.levels, self.batch, self.mesh.size):
            part = self._play(self._placed_env, weights, on_every_device(self.mesh, chosen))
            parts.append(jax.tree.map(np.asarray, part))
            progress(int(chosen.max()) + 1, self.levels)
        episodes, executed = jax.tree.map(lambda *some: np.concatenate(some), *parts)
        return Played(jax.tree.map(lambda all: all[: self.levels], episodes), executed)

    @functools.cached_property
    def _placed_env(self) -> LevelEnvironment:
        return on_every_device(self.mesh, self.env)

    @functools.cached_property
    def _play(self) -> Callable[..., Played]:
        def play_own(env: LevelEnvironment, weights: Weights, levels: Any) -> Played:
            policy = thinking(self.definition, weights, self.acting, self.halting)
            if isinstance(policy, OpenLoop):
                assert isinstance(self.acting, Streaming)
                played = stream_levels(env, policy, levels, self.most_loops, self.acting)
            else:
                played = play_levels(env, policy, levels, self.most_loops)
            played = played._replace(executed=played.executed[None])
            # Every process sees all of them, so that all processes report the same.
            return jax.tree.map(lambda a: jax.lax.all_gather(a, DATA, tiled=True), played)

        return on_each_device(self.mesh, play_own, (EVERYWHERE, EVERYWHERE, ROWS), EVERYWHERE)


def summary(played: Played, optimal_moves: Integer[np.ndarray, " n"] | None = None) -> dict[str, Any]:
    """Facts about episodes that JSON can hold.

    Args:
      played: an episode for each level.
      optimal_moves: the length of each level's shortest solution, where it is known.
    """
    episodes = played.episodes
    histogram = episodes.histogram.sum(axis=0)
    facts = _facts(episodes, np.ones(len(episodes.success), bool)) | {
        "executed_over_asked": int(played.executed.sum()) / max(int(episodes.loops.sum()), 1),
        "capped": float(histogram[-1] / max(histogram.sum(), 1)),
        "loop_histogram": {str(i + 1): int(n) for i, n in enumerate(histogram)},
    }
    if optimal_moves is not None:
        facts["by_optimal_moves"] = [
            {"moves": [low, high], **_facts(episodes, (optimal_moves >= low) & (optimal_moves <= high))}
            for low, high in length_bins(optimal_moves)
        ]
    return facts


def _facts(episodes: Episodes, chosen: np.ndarray) -> dict[str, Any]:
    levels, solved = int(chosen.sum()), int(episodes.success[chosen].sum())
    decisions = max(int(episodes.length[chosen].sum()), 1)
    return {
        "levels": levels,
        "solved": solved,
        "success": solved / levels,
        "interval_95": list(wilson(solved, levels)),
        "loops": float(episodes.loops[chosen].sum() / decisions),
        "mean_steps": float(episodes.length[chosen].mean()),
        "returns": float(episodes.returns[chosen].mean(dtype=np.float64)),
    }


def length_bins(lengths: Integer[np.ndarray, " n"]) -> list[tuple[int, int]]:
    """At most eight ranges of lengths that hold about equally many levels each, and none that is empty."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, MOST_BINS + 1), method="nearest"))
    lows = [int(edges[0]), *(int(edge) + 1 for edge in edges[1:-1])]
    bins = zip(lows, [int(edge) for edge in edges[1:]] or lows, strict=True)
    return [(low, high) for low, high in bins if ((lengths >= low) & (lengths <= high)).any()]
