"""Is computation spent where it is needed: loops of a state against how far it is from solved."""

import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Int, UInt8

from looped_actor.analysis.drawing import ABOUT, COLOURS, TITLES, Drawn, FigureKind, label_of, new_axes
from looped_actor.analysis.requests import DifficultyRequest
from looped_actor.analysis.study import Stage, finish, parts_of, quietly, subjects
from looped_actor.analysis.tables import Row, distinct, of
from looped_actor.evaluation.intervals import clustered_mean
from looped_actor.evaluation.levels import Played
from looped_actor.policy.policy import Policy
from looped_actor.puzzles.banks import make_bank
from looped_actor.puzzles.catalogue import GAMES, Game
from looped_actor.puzzles.solutions import solve_bank
from looped_actor.puzzles.solve_status import SolveStatus
from looped_actor.puzzles.teachers import distinct_boards
from looped_actor.utils.processes import Progress, default_workers, no_progress

FEWEST_LEVELS = 5
"""Means over fewer levels are in the table and not in the figure."""
LEVELS_AT_ONCE = 128
"""Per device: every state of their episodes is kept."""
MEASURES = {"boxoban": "pushes", "rush-hour": "moves"}
LOST, UNKNOWN = -1, -2
"""Instead of a number: there is no solution any more; the search gave up."""


class VisitedStates(NamedTuple):
    """Every decision of a trace, as one long row."""

    level: Int[np.ndarray, " s"]
    loops: Int[np.ndarray, " s"]
    new: Bool[np.ndarray, " s"]
    """Whether the state had not occurred before in its episode."""
    solved: Bool[np.ndarray, " s"]
    """Whether its episode was."""
    remaining: Int[np.ndarray, " s"]
    """Pushes or moves of an optimal solution; or `LOST`, or `UNKNOWN`."""


def remaining_of(
    game: Game,
    boards: UInt8[np.ndarray, "n h w"],
    *,
    workers: int = 1,
    node_limit: int = 300_000,
    parts: pathlib.Path | None = None,
    progress: Progress = no_progress,
) -> Int[np.ndarray, " n"]:
    """Pushes (Boxoban) or moves (Rush Hour) of the solution with the fewest moves, or `LOST` or `UNKNOWN`."""
    distinct, place = distinct_boards(boards)
    bank = make_bank(game, distinct, source="visited states", licence="")
    found = solve_bank(bank, node_limit=node_limit, workers=workers, parts=parts, progress=progress)
    counts = found.push_counts if game.name == "boxoban" else found.move_counts
    remaining = counts.astype(np.int64)
    remaining[found.status == SolveStatus.UNSOLVABLE.value] = LOST
    remaining[found.status == SolveStatus.NOT_WITHIN_LIMIT.value] = UNKNOWN
    return remaining[place]


def visited_states(game: Game, shape: tuple[int, int], played: Played, **options: Any) -> VisitedStates:
    """The decisions of a trace of cells, each with its distance from solved, as `remaining_of` finds it."""
    assert played.trace is not None
    seen, loops, taken = jax.tree.map(np.asarray, played.trace)
    step, level = np.nonzero(taken)
    return VisitedStates(
        level,
        loops[step, level],
        played.new_states()[level, step],
        np.asarray(played.episodes.success)[level],
        remaining_of(game, seen[step, level].reshape(-1, *shape), **options),
    )


def difficulty_table(states: VisitedStates, about: Row) -> list[Row]:
    """Return a row for each outcome and distance: how many states, of how many levels, and their mean loops.

    Over all decisions, and over those about states that are new in their episode. States of one episode are
    alike, so intervals are those of levels drawn anew, not of states.
    """
    rows = []
    for outcome, chosen in (("solved", states.solved), ("failed", ~states.solved)):
        for remaining in np.unique(states.remaining[chosen]):
            here = chosen & (states.remaining == remaining)
            mean, (low, high) = clustered_mean(states.loops[here], states.level[here])
            new = here & states.new
            on_new, (new_low, new_high) = clustered_mean(states.loops[new], states.level[new])
            rows.append(
                {
                    **about,
                    "outcome": outcome,
                    "remaining": {LOST: "lost", UNKNOWN: "unknown"}.get(int(remaining), int(remaining)),
                    "states": int(here.sum()),
                    "levels": len(np.unique(states.level[here])),
                    "loops": mean,
                    "low": low,
                    "high": high,
                    "new_states": int(new.sum()),
                    "loops_new_states": on_new,
                    "low_new_states": new_low,
                    "high_new_states": new_high,
                }
            )
    return rows


def analyse_difficulty(
    policies: Sequence[Policy], request: DifficultyRequest, mesh: Mesh, stage: Stage = quietly
) -> str:
    """Loops of every state that policies visit, against its distance from solved."""
    rows: list[Row] = []
    for subject in subjects(policies, mesh):
        run, task = subject.run.puzzle, subject.policy.config.task
        bank = run.bank_to_play(request.levels)
        player = run.player(bank, starting=subject.policy.starting, count=request.count)
        player = replace(player, batch=LEVELS_AT_ONCE)
        with stage(f"{subject.name}: playing") as progress:
            played = player.record(subject.policy.weights, lambda state, decision: state.cells, progress)
        with stage(f"{subject.name}: solving every state") as progress:
            states = visited_states(
                GAMES[task],
                (bank.info.height, bank.info.width),
                played,
                workers=request.workers or default_workers(),
                node_limit=request.node_limit,
                parts=parts_of(request.out, "difficulty"),
                progress=progress,
            )
        rows += difficulty_table(states, {**subject.about, "measure": MEASURES[task]})
    return finish(request.out, "difficulty", rows, DIFFICULTY)


def _draw(rows: Sequence[Row]) -> Drawn:
    """Draw mean loops against remaining pushes or moves, by outcome; below, how many states there were."""
    runs = distinct(rows, "run")
    figure, axes = new_axes(len(runs), rows=2, height=2.6)
    panels = zip(*axes, runs, strict=True)
    said = [_draw_panel(top, below, of(rows, run=run)) for top, below, run in panels]
    return Drawn(figure, " ".join(said))


def _draw_panel(top: Any, below: Any, rows: Sequence[Row]) -> str:
    task, one = rows[0]["task"], {"pushes": "push", "moves": "move"}[rows[0]["measure"]]
    said, separated = (
        [],
        rows[0].get("new_states") is not None,
    )  # tables of older versions have no such column
    for outcome, colour, aside in (("solved", COLOURS[1], -0.2), ("failed", COLOURS[0], 0.2)):
        known = [row for row in of(rows, outcome=outcome) if isinstance(row["remaining"], int)]
        if not known:
            continue
        every = _line(known, "")
        shown = np.array([row["levels"] >= FEWEST_LEVELS for row in known])
        first, label = (
            (_line(known, "_new_states"), f"{outcome}, new states")
            if separated
            else (every, f"{outcome} episodes")
        )
        top.plot(first.x[shown], first.loops[shown], color=colour, marker="o", markersize=3, label=label)
        low, high = first.low[shown], first.high[shown]
        top.fill_between(first.x[shown], low, high, color=colour, alpha=0.18, linewidth=0)
        below.bar(first.x + aside, first.states, 0.4, color=colour)
        slopes = f"{first.slope():+.3f}" if len(known) > 1 else ""
        if separated:
            style = {"color": colour, "linestyle": "--", "linewidth": 1}
            top.plot(every.x[shown], every.loops[shown], **style, label=f"{outcome}, all decisions")
            below.bar(every.x + aside, every.states, 0.4, edgecolor=colour, fill=False, linestyle="--")
            slopes = slopes and f"{slopes} ({every.slope():+.3f} over all decisions)"
        if slopes:
            said.append(f"{slopes} loops per remaining {one} in {outcome} episodes")
    lost = of(rows, remaining="lost")
    for row in lost:
        loops = row["loops_new_states"] if separated else row["loops"]
        top.axhline(
            loops, color=COLOURS[0], linestyle=":", linewidth=1, label="lost" + ", new states" * separated
        )
    top.set(title=f"{TITLES[task]}: {label_of(rows[0])}", ylabel="mean loops (95% interval)")
    below.set(xlabel=f"remaining optimal {rows[0]['measure']}", ylabel="states", yscale="log")
    top.legend(frameon=False, fontsize=8)
    states, beyond = (sum(row["states"] for row in some) for some in (rows, lost))
    counted = f"{states:,} decisions, {beyond:,} of them where the level is lost"
    if separated:
        counted = (
            f"{sum(row['new_states'] for row in rows):,} states that are new in their episode, of {counted}"
        )
        outcomes = "; ".join(
            f"{outcome} {_means(of(rows, outcome=outcome))}" for outcome in distinct(rows, "outcome")
        )
        counted = f"{counted}; mean loops on new states: {outcomes}"
    fits = " and ".join(said) or "too few states to fit a line"
    return f"{TITLES[task]}, {label_of(rows[0])}: {'on new states ' * separated}{fits} ({counted})."


def _means(rows: Sequence[Row]) -> str:
    """Return the mean loops on new states, and over all decisions, in words."""
    on_new, every = (
        np.average([row[loops] for row in rows], weights=[row[states] for row in rows])
        for loops, states in (("loops_new_states", "new_states"), ("loops", "states"))
    )
    return f"{on_new:.2f} (all decisions {every:.2f})"


class _Line(NamedTuple):
    """Mean loops at each distance."""

    x: np.ndarray
    loops: np.ndarray
    low: np.ndarray
    high: np.ndarray
    states: np.ndarray

    def slope(self) -> float:
        """Return the slope of a line fitted to it, weighted by states."""
        return float(np.polyfit(self.x, self.loops, 1, w=np.sqrt(self.states))[0])


def _line(rows: Sequence[Row], which: str) -> _Line:
    """Return a line over all decisions (`""`) or over new states (`"_new_states"`)."""
    states = "new_states" if which else "states"
    names = ("remaining", f"loops{which}", f"low{which}", f"high{which}", states)
    return _Line(*(np.array([row[name] for row in rows], float) for name in names))


DIFFICULTY = FigureKind(
    (*ABOUT, "measure", "outcome", "remaining", "states", "levels", "loops", "low", "high"), _draw
)
