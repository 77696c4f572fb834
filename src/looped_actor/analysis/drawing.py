"""Figures of tables: their look, and what they have in common."""

import importlib.util
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from looped_actor.analysis.tables import Row, TableError, read_table
from looped_actor.utils.errors import UserError

INK, FAINT, PAPER = "#2b2e35", "#c9c2b6", "#ffffff"
COLOURS = ("#c4552d", "#3f6797", "#6aa86f", "#8a6bb1", "#e2a93b", "#4aa5a0", "#b5658b", "#7d95a8")
RUN_COLUMNS = ("run", "task", "arm", "learner")
"""Columns that describe a run, in every table."""


class CaptionedFigure(NamedTuple):
    """A figure of matplotlib, and a sentence that states its result."""

    figure: Any
    caption: str


class FigureKind(NamedTuple):
    """A kind of figure, drawn from a table."""

    name: str
    """Name of the table and of its files."""
    columns: tuple[str, ...]
    """Columns that the table must have."""
    draw: Callable[[Sequence[Row]], CaptionedFigure]


def draw_table(path: pathlib.Path, kind: FigureKind) -> str:
    """Draw a table as PNG and SVG files next to it, and return the caption."""
    figure, caption = kind.draw(read_table(path, kind.columns))
    save_figure(figure, path)
    return caption


def check_matplotlib() -> None:
    """Raise an error if figures cannot be drawn. Call it before long work."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("figures need matplotlib: pip install 'looped-actor[figures]'")


def new_axes(columns: int, width: float = 4.6, height: float = 3.6, rows: int = 1) -> tuple[Any, Any]:
    """Return a new figure and its axes, shape [rows, columns]. Width and height are those of one panel."""
    check_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # The salt makes SVG files of equal tables equal.
    plt.rcParams.update({"svg.hashsalt": "looped-actor", "font.size": 9.5, "axes.edgecolor": FAINT})
    plt.rcParams.update({"axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK})
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def save_figure(figure: Any, path: pathlib.Path) -> None:
    """Write a figure as PNG and SVG, and close it. The suffix of the path is replaced."""
    import matplotlib.pyplot as plt

    figure.savefig(path.with_suffix(".png"), dpi=160, facecolor=PAPER)
    figure.savefig(path.with_suffix(".svg"), facecolor=PAPER, metadata={"Date": None})
    plt.close(figure)


class Titles(dict[str, str]):
    """Titles by name; a name that is not in it is its own title."""

    def __missing__(self, name: str) -> str:
        return name


TITLES = Titles(
    {
        "boxoban": "Boxoban",
        "rush-hour": "Rush Hour",
        "cube-double": "Cube double",
        "cube-triple": "Cube triple",
        "puzzle-3x3": "Puzzle 3x3",
        "scene": "Scene",
    }
)
"""Titles of the tasks."""
ARMS = Titles(
    {
        "looped": "Looped",
        "iso-params": "Iso-Params",
        "iso-flops": "Iso-FLOPs",
        "drc": "DRC",
        "mlp": "MLP",
        "fixed-4": "4 loops",
        "fixed-8": "8 loops",
        "fixed-16": "16 loops",
    }
)
"""Titles of the arms, in the order in which they are drawn."""


def label_of(row: Row) -> str:
    """Return the arm and the algorithm of a run, for a legend."""
    return f"{ARMS[row['arm']]} ({row['learner']})"


def full_label(row: Row) -> str:
    """Return the name, task, arm and algorithm of a run, for a caption."""
    return f"{row['run']} ({TITLES[row['task']]}, {ARMS[row['arm']]}, {row['learner']})"


def colour_of(arm: str) -> str:
    """Return the colour of an arm, the same in all figures that compare arms."""
    return COLOURS[list(ARMS).index(arm)]


def shades(count: int) -> list[str]:
    """Return colours from light to dark."""
    import matplotlib
    from matplotlib.colors import to_hex

    return [to_hex(c) for c in matplotlib.colormaps["YlOrBr"](np.linspace(0.35, 0.95, count))]


class Measure(NamedTuple):
    """A result by which policies are compared."""

    column: str
    axis: str
    """Label of an axis."""
    verb: str
    """Verb before a value in a caption: a policy solves 50%, or returns -3."""
    number: str
    """Format of a value."""
    has_interval: bool

    def format(self, value: float) -> str:
        """Return a value as text."""
        return self.number.format(value)

    def phrase(self, row: Row) -> str:
        """Return the value of a row as a verb phrase."""
        return f"{self.verb} {self.format(row[self.column])}"

    def values(self, rows: Sequence[Row]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "2 n"] | None]:
        """Return the values of rows, and the lengths of their error bars; None if there are no intervals."""
        columns = (self.column, "low", "high")
        value, low, high = (np.array([row[name] for row in rows], float) for name in columns)
        return value, np.maximum([value - low, high - value], 0) if self.has_interval else None


SUCCESS = Measure(
    column="success", axis="success (95% interval)", verb="solves", number="{:.1%}", has_interval=True
)
RETURNS = Measure(column="returns", axis="mean return", verb="returns", number="{:.3g}", has_interval=False)


def choose_measure(rows: Sequence[Row]) -> Measure:
    """Return the measure that all rows have: success, or returns if success is missing or always 0."""
    measures = [one for one in (SUCCESS, RETURNS) if all(row.get(one.column) is not None for row in rows)]
    if not measures:
        raise TableError(
            "some of these runs report success and no returns, others returns and no success: compare them "
            "separately"
        )
    return measures[-1] if not any(row["success"] for row in rows) else measures[0]
