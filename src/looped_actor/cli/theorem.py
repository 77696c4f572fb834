"""`looped-actor reproduce theorem`: run the construction in the proof of Theorem 3.1."""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import tyro

from looped_actor.cli.shared import progress_bar
from looped_actor.utils.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from looped_actor.theory import StepCounts


def theorem(
    *,
    lengths: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16, 24, 32),
    exhaustive: int = 7,
    samples: int = 6,
    seed: int = 0,
    out: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
) -> None:
    """Run the Turing machines of Theorem 3.1: an adaptive and a fixed-runtime policy, and their costs.

    Both policies choose the same, optimal actions in a family of one-step MDPs, whose states have n + 1 bits.
    The adaptive policy halts early on easy states; the fixed-runtime policy takes the same number of steps on
    all states. The command counts the steps of both, compares their actions on all states of small n and on
    states that contain random programs, and runs small machines on the state that contains their own
    description, where no machine that halts within n^2 steps chooses the correct action.

    Example: looped-actor reproduce theorem

    Example: looped-actor reproduce theorem --exhaustive 9 --samples 30 --out theory

    Args:
      lengths: Values of n at which steps are counted. One n takes about 264 n^4 machine steps.
      exhaustive: Largest n for which both policies run on all states.
      samples: Number of states with a random program of one transition.
      seed: Seed of the random programs.
      out: Folder for separation.csv and its figure.
    """
    from rich.console import Console

    from looped_actor.theory import report

    if min((*lengths, exhaustive), default=0) < 2 or samples < 0:
        raise UserError("--lengths and --exhaustive must be at least 2, and --samples at least 0")
    if out is not None:
        from looped_actor.analysis.drawing import check_matplotlib

        check_matplotlib()
    console = Console(highlight=False)
    with progress_bar("counting steps") as progress:
        counts = report.count_all_steps(lengths, progress)
    console.print(_make_cost_table(counts))
    with progress_bar("running all states") as progress:
        for line in report.compare_on_all_states(exhaustive, progress):
            console.print(line)
    with progress_bar("running random programs") as progress:
        console.print(report.compare_on_random_programs(samples, seed, progress))
    console.print(_make_diagonal_table())
    for line in report.describe_scope():
        console.print(line)
    if out is not None:
        from looped_actor.analysis.drawing import draw_table
        from looped_actor.analysis.tables import write_table
        from looped_actor.reproduction.figures import FIGURES

        path = out / "separation.csv"
        write_table(path, report.to_rows(counts))
        print(draw_table(path, FIGURES["separation"]))
        print(f"{path}, .png, .svg")


def _make_cost_table(counts: "Sequence[StepCounts]") -> "Table":
    from rich.table import Table

    from looped_actor.theory import SCAN_COST

    table = Table(
        title="machine steps per decision",
        caption="easy: b = 0; hard states (b = 1) have probability 1 / q(n) and take q(n) steps, as many as "
        f"the fixed-runtime policy on all states; bound: n^2 / (c n + 1), with c = {SCAN_COST}",
    )
    for column in ("n", "fixed", "adaptive: easy", "expected", "c n + 1", "ratio", "bound"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in counts:
        table.add_row(
            str(row.n),
            f"{row.fixed:,}",
            str(row.easy),
            f"{float(row.expected):.4f}",
            str(row.expected_bound),
            f"{float(row.ratio):,.0f}",
            f"{float(row.ratio_bound):.2f}",
        )
    return table


def _make_diagonal_table() -> "Table":
    from rich.table import Table

    from looped_actor.theory import CANDIDATES, run_on_diagonal_state

    table = Table(
        title="small machines on the state that contains their own description",
        caption="the correct action is the opposite of the machine's action if it halts within n^2 steps",
    )
    table.add_column("machine", no_wrap=True)
    for column in ("bits", "n", "steps", "n^2", "action", "correct", "reward"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, machine in CANDIDATES.items():
        run = run_on_diagonal_state(machine)
        columns = run.description_bits, run.n, run.steps, run.n**2, run.action, run.correct_action, run.reward
        table.add_row(name, *(f"{column:,}" for column in columns))
    return table
