"""Loops of every visited state against its distance from solved: is computation spent where it is needed?"""

import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Int, UInt8

from looped_actor.analysis.drawing import (
    COLOURS,
    RUN_COLUMNS,
    TITLES,
    CaptionedFigure,
    FigureKind,
    full_label,
    label_of,
    new_axes,
)
from looped_actor.analysis.options import DifficultyOptions
from looped_actor.analysis.study import Analysis, ProgressFactory, name_policies, run_columns, silent
from looped_actor.analysis.tables import Row, distinct, rows_where
from looped_actor.evaluation.intervals import clustered_mean
from looped_actor.evaluation.levels import Played
from looped_actor.policy.policy import Policy
from looped_actor.puzzles.banks import make_bank
from looped_actor.puzzles.catalogue import GAMES
from looped_actor.puzzles.game import Game
from looped_actor.puzzles.search import SolveStatus
from looped_actor.puzzles.solutions import solve_bank
from looped_actor.puzzles.teachers import distinct_boards
from looped_actor.runs.puzzle import find_test_levels, level_player
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import Progress, default_workers, no_progress

BATCH = 128
"""Levels that each device plays at a time: every state of their episodes is kept."""
NODE_LIMIT = 300_000
"""States after which the search for a solution gives up; the distance is then unknown."""
MIN_LEVELS = 5
"""Means over fewer levels are in the table, and not in the figure."""
LOST, UNKNOWN = -1, -2
"""Instead of a distance: no solution exists any more; the search gave up."""


def analyze_difficulty(
    policies: Sequence[Policy], options: DifficultyOptions, mesh: Mesh, progress: ProgressFactory = silent
) -> str:
    """Play levels, solve every visited state, and tabulate loops by distance from solved."""
    analysis, rows = Analysis(DIFFICULTY, options.out, mesh, progress), list[Row]()
    for name, policy in name_policies(policies).items():
        if policy.config.task not in GAMES:
            raise UserError(
                f"{policy.folder} is of {policy.config.task}: only states of puzzles can be solved"
            )
        game, bank = GAMES[policy.config.task], find_test_levels(policy, options.levels)
        levels = bank.on_device(options.count)
        player = level_player(policy.spec, levels, mesh, carry_latent=policy.carry_latent)
        with progress(f"{name}: playing") as report:
            played = replace(player, batch=BATCH).record(policy.weights, _record_cells, report)
        with progress(f"{name}: solving every state") as report:
            states = visited_states(
                game,
                (bank.info.height, bank.info.width),
                played,
                workers=options.workers or default_workers(),
                parts=analysis.parts,
                progress=report,
            )
        rows += difficulty_table(states, {**run_columns(name, policy.config), "measure": game.distance})
    return analysis.finish(rows)


def _record_cells(state: Any, output: Any) -> Any:
    return state.cells


class VisitedStates(NamedTuple):
    """All decisions of some episodes, one after the other."""

    level: Int[np.ndarray, " s"]
    loops: Int[np.ndarray, " s"]
    new: Bool[np.ndarray, " s"]
    """True if the state had not occurred before in its episode."""
    solved: Bool[np.ndarray, " s"]
    """True if the episode was solved."""
    remaining: Int[np.ndarray, " s"]
    """Pushes or moves of an optimal solution from the state; or `LOST`, or `UNKNOWN`."""


def visited_states(game: Game[Any], shape: tuple[int, int], played: Played, **options: Any) -> VisitedStates:
    """Return the decisions of a trace of cells. The options are those of `solve_distances`."""
    assert played.trace is not None
    recorded, loops, mask = jax.tree.map(np.asarray, played.trace)
    step, level = np.nonzero(mask)
    return VisitedStates(
        level=level,
        loops=loops[step, level],
        new=played.new_states()[level, step],
        solved=np.asarray(played.episodes.success)[level],
        remaining=solve_distances(game, recorded[step, level].reshape(-1, *shape), **options),
    )


def solve_distances(
    game: Game[Any],
    boards: UInt8[np.ndarray, "n h w"],
    *,
    node_limit: int = NODE_LIMIT,
    workers: int = 1,
    parts: pathlib.Path | None = None,
    progress: Progress = no_progress,
) -> Int[np.ndarray, " n"]:
    """Return the pushes (Boxoban) or moves (Rush Hour) of a move-optimal solution, or `LOST` or `UNKNOWN`."""
    distinct, place = distinct_boards(boards)
    bank = make_bank(game, distinct, source="visited states", licence="")
    solutions = solve_bank(bank, node_limit=node_limit, workers=workers, parts=parts, progress=progress)
    counts = solutions.push_counts if game.distance == "pushes" else solutions.move_counts
    distances = counts.astype(np.int64)
    distances[solutions.status == SolveStatus.UNSOLVABLE.value] = LOST
    distances[solutions.status == SolveStatus.NOT_WITHIN_LIMIT.value] = UNKNOWN
    return distances[place]


def difficulty_table(states: VisitedStates, columns: Row) -> list[Row]:
    """Return a row for each outcome and distance, with mean loops over all states and over new ones.

    Intervals count levels, not states: states of one episode are not independent.
    """
    rows = []
    for outcome, chosen in (("solved", states.solved), ("failed", ~states.solved)):
        for remaining in np.unique(states.remaining[chosen]):
            here = chosen & (states.remaining == remaining)
            mean, (low, high) = clustered_mean(states.loops[here], states.level[here])
            new = here & states.new
            new_mean, (new_low, new_high) = clustered_mean(states.loops[new], states.level[new])
            rows.append(
                {
                    **columns,
                    "outcome": outcome,
                    "remaining": {LOST: "lost", UNKNOWN: "unknown"}.get(int(remaining), int(remaining)),
                    "states": int(here.sum()),
                    "levels": len(np.unique(states.level[here])),
                    "loops": mean,
                    "low": low,
                    "high": high,
                    "new_states": int(new.sum()),
                    "loops_new_states": new_mean,
                    "low_new_states": new_low,
                    "high_new_states": new_high,
                }
            )
    return rows


def _draw_difficulty(rows: Sequence[Row]) -> CaptionedFigure:
    """Draw mean loops against remaining pushes or moves, by outcome; below, the numbers of states."""
    runs = distinct(rows, "run")
    figure, axes = new_axes(len(runs), rows=2, height=2.6)
    panels = zip(*axes, runs, strict=True)
    captions = [_draw_run(top, below, rows_where(rows, run=run)) for top, below, run in panels]
    return CaptionedFigure(figure, " ".join(captions))


def _draw_run(top: Any, below: Any, rows: Sequence[Row]) -> str:
    unit = {"pushes": "push", "moves": "move"}[rows[0]["measure"]]
    has_new = rows[0].get("new_states") is not None  # missing in tables of older versions
    slopes = []
    for outcome, colour, offset in (("solved", COLOURS[1], -0.2), ("failed", COLOURS[0], 0.2)):
        known = [row for row in rows_where(rows, outcome=outcome) if isinstance(row["remaining"], int)]
        if not known:
            continue
        all_decisions = _line(known)
        line = _line(known, "_new_states") if has_new else all_decisions
        label = f"{outcome}, new states" if has_new else f"{outcome} episodes"
        shown = np.array([row["levels"] >= MIN_LEVELS for row in known])
        top.plot(line.x[shown], line.loops[shown], color=colour, marker="o", markersize=3, label=label)
        low, high = line.low[shown], line.high[shown]
        top.fill_between(line.x[shown], low, high, color=colour, alpha=0.18, linewidth=0)
        below.bar(line.x + offset, line.states, 0.4, color=colour)
        if has_new:
            style = {"color": colour, "linestyle": "--", "linewidth": 1}
            label = f"{outcome}, all decisions"
            top.plot(all_decisions.x[shown], all_decisions.loops[shown], **style, label=label)
            x, states = all_decisions.x + offset, all_decisions.states
            below.bar(x, states, 0.4, edgecolor=colour, fill=False, linestyle="--")
        if len(known) > 1:
            other = f" ({all_decisions.slope():+.3f} over all decisions)" if has_new else ""
            slopes.append(f"{line.slope():+.3f} loops per remaining {unit} in {outcome} episodes{other}")
    for row in rows_where(rows, remaining="lost"):
        loops = row["loops_new_states"] if has_new else row["loops"]
        label = "unsolvable, new states" if has_new else "unsolvable"
        top.axhline(loops, color=COLOURS[0], linestyle=":", linewidth=1, label=label)
    title = f"{rows[0]['run']}\n{TITLES[rows[0]['task']]}: {label_of(rows[0])}"
    top.set(title=title, ylabel="mean loops (95% interval)")
    below.set(xlabel=f"remaining optimal {rows[0]['measure']}", ylabel="states", yscale="log")
    top.legend(frameon=False, fontsize=8)
    where = "in new states " if has_new else ""
    fits = f"{where}{' and '.join(slopes)}" if slopes else "too few states to fit a line"
    return f"{full_label(rows[0])}: {fits}; {_count_states(rows, has_new)}."


def _count_states(rows: Sequence[Row], has_new: bool) -> str:
    """Return the numbers of states, and mean loops in new ones if the table has them, in words."""
    states, lost = (sum(row["states"] for row in some) for some in (rows, rows_where(rows, remaining="lost")))
    counts = f"{states:,} decisions, {lost:,} of them in states without a solution"
    if not has_new:
        return counts
    means = []
    for outcome in distinct(rows, "outcome"):
        own = rows_where(rows, outcome=outcome)
        new_mean, mean = _mean(own, "loops_new_states", "new_states"), _mean(own, "loops", "states")
        means.append(f"{outcome} {new_mean:.2f} (all decisions {mean:.2f})")
    new_states = sum(row["new_states"] for row in rows)
    return f"mean loops in new states: {', '.join(means)}; {counts}, {new_states:,} of them in new states"


def _mean(rows: Sequence[Row], loops: str, states: str) -> float:
    return np.average([row[loops] for row in rows], weights=[row[states] for row in rows])


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


def _line(rows: Sequence[Row], suffix: str = "") -> _Line:
    """Return the line over all decisions, or with the suffix `_new_states` over new states."""
    columns = {name: f"{name}{suffix}" for name in ("loops", "low", "high")}
    columns |= {"x": "remaining", "states": "new_states" if suffix else "states"}
    arrays = {name: np.array([row[column] for row in rows], float) for name, column in columns.items()}
    return _Line(**arrays)


DIFFICULTY = FigureKind(
    "difficulty",
    (*RUN_COLUMNS, "measure", "outcome", "remaining", "states", "levels", "loops", "low", "high"),
    _draw_difficulty,
)
