"""`looped-actor theory`: the paper's theorem, executed."""

import pathlib
from typing import TYPE_CHECKING, Annotated

import tyro

from looped_actor.cli.shared import progress_bar
from looped_actor.utils.errors import UserError

if TYPE_CHECKING:
    from looped_actor.theory import Costs


def theory(
    *,
    lengths: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16, 24, 32),
    exhaustive: int = 7,
    samples: int = 6,
    seed: int = 0,
    out: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
) -> None:
    """Run the proof that adaptive policies can be cheaper than every fixed one, by an unbounded factor.

    Two Turing machines choose the same actions in a family of one-step MDPs. One halts early where the
    state is easy, the other spends the same number of steps on every state. Counts their steps, tries them
    on all states of short lengths and on states that hold random programs, and shows small machines the one
    state that each of them must get wrong: the one that holds its own description.

    Example: looped-actor theory

    Example: looped-actor theory --exhaustive 9 --samples 30 --out theory

    Args:
      lengths: The n at which steps are counted. A count takes 132 n^4 machine steps and some.
      exhaustive: Try both machines on every state up to this n.
      samples: How many random programs, of one entry, to hide in states and try both machines on.
      seed: Of the random programs.
      out: Write separation.csv and its figure here.
    """
    from rich.console import Console

    from looped_actor.theory import demonstration

    if min((*lengths, exhaustive), default=0) < 2 or samples < 0:
        raise UserError("--lengths and --exhaustive begin at 2, and --samples at 0")
    if out is not None:
        from looped_actor.analysis.drawing import check_matplotlib

        check_matplotlib()
    console = Console()
    with progress_bar("counting steps") as progress:
        counted = demonstration.count_costs(lengths, progress)
    console.print(_costs_table(counted))
    with progress_bar("trying all states") as progress:
        for line in demonstration.try_all_states(exhaustive, progress):
            console.print(line, highlight=False)
    with progress_bar("trying random programs") as progress:
        console.print(demonstration.try_programs(samples, seed, progress), highlight=False)
    console.print(_trials_table())
    for line in demonstration.what_is_proof_only():
        console.print(line, highlight=False)
    if out is not None:
        from looped_actor.analysis.drawing import draw_table
        from looped_actor.analysis.tables import write_table
        from looped_actor.reproduction.figures import FIGURES

        path = out / "separation.csv"
        write_table(path, demonstration.as_rows(counted))
        print(draw_table(path, FIGURES["separation"]))
        print(f"{path}, .png, .svg")


def _table(title: str, caption: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]):
    from rich.table import Table

    table = Table(title=title, caption=caption)
    for column in columns:
        table.add_column(column, justify="left" if column == "it answers" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _costs_table(counted: "list[Costs]"):
    from looped_actor.theory import SCAN_COST

    return _table(
        "machine steps of a decision",
        "easy states have b = 0; hard ones take as long as the fixed policy, q(n), and have probability "
        f"1 / q(n); bound: n^2 / (c n + 1), with c = {SCAN_COST}",
        ("n", "fixed", "adaptive: easy", "expected", "c n + 1", "ratio", "bound"),
        [
            (
                str(row.n),
                f"{row.fixed:,}",
                str(row.easy),
                f"{float(row.adaptive):.4f}",
                str(row.most),
                f"{float(row.ratio):,.0f}",
                f"{float(row.bound):.2f}",
            )
            for row in counted
        ],
    )


def _trials_table():
    from looped_actor.theory import CANDIDATES, on_own_state

    trials = {name: on_own_state(machine) for name, machine in CANDIDATES.items()}
    return _table(
        "small machines on the state that holds their own description",
        "within n^2 steps, the right action is the other one",
        ("it answers", "bits", "n", "steps", "n^2", "action", "right", "reward"),
        [
            (name, *(f"{x:,}" for x in (t.bits, t.n, t.steps, t.n**2, t.action, t.right_action, t.reward)))
            for name, t in trials.items()
        ],
    )
