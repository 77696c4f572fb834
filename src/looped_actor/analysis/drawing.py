"""How tables become figures, and how these look: what all of them share."""

import importlib.util
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from looped_actor.analysis.tables import Row, read_table
from looped_actor.utils.errors import UserError

INK, FAINT, PAPER = "#2b2e35", "#c9c2b6", "#ffffff"
COLOURS = ("#c4552d", "#3f6797", "#6aa86f", "#8a6bb1", "#e2a93b", "#4aa5a0", "#b5658b", "#7d95a8")


class Titles(dict[str, str]):
    """What to call things in figures; what a user has named is called by that name."""

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


def check_matplotlib() -> None:
    """Raise an error if nothing can be drawn: better before long work than after."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("figures need matplotlib: pip install 'looped-actor[figures]'")


def new_axes(columns: int, width: float = 4.6, height: float = 3.6, rows: int = 1) -> tuple[Any, Any]:
    """A figure with panels, empty."""
    check_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # So that equal tables give equal files.
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
    """Write a figure beside its table, as PNG and SVG."""
    import matplotlib.pyplot as plt

    figure.savefig(path.with_suffix(".png"), dpi=160, facecolor=PAPER)
    figure.savefig(path.with_suffix(".svg"), facecolor=PAPER, metadata={"Date": None})
    plt.close(figure)


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
"""What to call the arms, in the order in which they are drawn."""


def label_of(row: Row) -> str:
    """What to call a run in a legend. What was imitated is always said."""
    return f"{ARMS[row['arm']]} ({row['learner']})"


def colour_of(arm: str) -> str:
    """The same for an arm in every figure that compares arms."""
    return COLOURS[list(ARMS).index(arm)]


def shades(count: int) -> list[str]:
    """Colours from light to dark."""
    import matplotlib
    from matplotlib.colors import to_hex

    return [to_hex(c) for c in matplotlib.colormaps["YlOrBr"](np.linspace(0.35, 0.95, count))]


class Drawn(NamedTuple):
    """A figure and what it shows."""

    figure: Any
    sentence: str


class FigureKind(NamedTuple):
    """How a table is drawn."""

    columns: tuple[str, ...]
    """That it must have."""
    draw: Callable[[Sequence[Row]], Drawn]


def draw_table(path: pathlib.Path, kind: FigureKind) -> str:
    """Draw a table as PNG and SVG beside it, and return the sentence that says what it shows."""
    figure, sentence = kind.draw(read_table(path, kind.columns))
    save_figure(figure, path)
    return sentence


ABOUT = ("run", "task", "arm", "learner")
"""What every table says of the run in a row."""
