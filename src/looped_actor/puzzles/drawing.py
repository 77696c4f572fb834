"""Drawings: simple shapes in units of a cell, written as SVG or as pixels.

All games share one palette: warm paper ground, slate walls, wooden boxes and painted vehicles, and red for
the goal.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PAPER, FLOOR, GRID, WALL, WALL_EDGE = "#fbf8f3", "#f1ebe1", "#e2d9ca", "#5d6470", "#4a505b"
RED, GLASS, SHADOW = "#d6404a", "#eaf3f7", "#cfc4b2"
WOOD, WOOD_DARK, WOOD_DONE, WOOD_DONE_DARK = "#d49a56", "#a8733a", "#6fae75", "#4b8552"
INK, BLUE, SKIN, LIGHT = "#2b2e35", "#3f6797", "#f0c9a0", "#fff3c4"
CARS = ("#4f81bd", "#6aa86f", "#e2a93b", "#8a6bb1", "#4aa5a0", "#c97b4a", "#7d95a8", "#b5658b")
"""Colours that cars take in turn. A truck differs from a car in its length and its trailer."""
TRUCKS = (BLUE, "#4f8a5b", "#bf8a2c", "#6d5293", "#3a8783", "#a5613a")


class Shape(NamedTuple):
    """A rectangle with round corners, a circle (`width` only), or a polygon (`points` only)."""

    fill: str
    x: float = 0.0
    """Left side; of a circle, the centre."""
    y: float = 0.0
    """Upper side; of a circle, the centre."""
    width: float = 0.0
    """Width; of a circle, the diameter."""
    height: float = 0.0
    radius: float = 0.0
    """Radius of the corners."""
    points: tuple[tuple[float, float], ...] = ()

    @property
    def is_circle(self) -> bool:
        return not self.points and self.height == 0.0


class Drawing(NamedTuple):
    """Shapes, back to front, and the size of the whole, in cells."""

    width: float
    height: float
    shapes: list[Shape]


class TerminalCell(NamedTuple):
    """Characters with a colour, on a colour or on the terminal's own."""

    text: str
    ink: str
    ground: str | None


def move_shape(shape: Shape, x: float, y: float) -> Shape:
    """Return a shape moved to the right and down."""
    points = tuple((px + x, py + y) for px, py in shape.points)
    return shape._replace(x=shape.x + x, y=shape.y + y, points=points)


def draw_walls(walls: frozenset[tuple[int, int]]) -> list[Shape]:
    """Return blocks that run into their neighbours, so that walls read as one mass."""
    shapes = []
    for row, column in sorted(walls):
        shapes.append(Shape(WALL, column, row, 1, 1))
        if (row + 1, column) not in walls:
            shapes.append(Shape(WALL_EDGE, column, row + 0.86, 1, 0.14))
    return shapes


def mix_colours(colour: str, other: str, share: float) -> str:
    """Return a colour with a share of another one."""
    pairs = zip(_rgb(colour), _rgb(other), strict=True)
    return "#" + "".join(f"{round((1 - share) * a + share * b):02x}" for a, b in pairs)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def to_svg(drawing: Drawing, cell: int = 48) -> str:
    """Return a drawing as an SVG document; `cell` is the side of a cell in pixels."""
    size = f'width="{drawing.width * cell:g}" height="{drawing.height * cell:g}"'
    box = f'viewBox="0 0 {drawing.width:g} {drawing.height:g}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box}>']
    for s in drawing.shapes:
        if s.points:
            points = " ".join(f"{x:.4g},{y:.4g}" for x, y in s.points)
            lines.append(f'<polygon points="{points}" fill="{s.fill}"/>')
        elif s.is_circle:
            lines.append(f'<circle cx="{s.x:.4g}" cy="{s.y:.4g}" r="{s.width / 2:.4g}" fill="{s.fill}"/>')
        else:
            corners = f' rx="{s.radius:.4g}"' if s.radius else ""
            place = f'x="{s.x:.4g}" y="{s.y:.4g}" width="{s.width:.4g}" height="{s.height:.4g}"'
            lines.append(f'<rect {place}{corners} fill="{s.fill}"/>')
    return "\n".join([*lines, "</svg>", ""])


def to_pixels(drawing: Drawing, cell: int = 48) -> NDArray[np.uint8]:
    """Return a drawing as an RGB array, shape [height, width, 3]; `cell` is the side of a cell in pixels."""
    return np.asarray(to_image(drawing, cell))


def to_image(drawing: Drawing, cell: int) -> Any:
    """Return a drawing as an image of Pillow.

    It is drawn three times too large and reduced, which smooths edges.
    """
    from PIL import Image, ImageDraw

    scale = 3 * cell
    large = Image.new("RGB", (round(drawing.width * scale), round(drawing.height * scale)), PAPER)
    pen = ImageDraw.Draw(large)
    for s in drawing.shapes:
        if s.points:
            pen.polygon([(x * scale, y * scale) for x, y in s.points], fill=s.fill)
        elif s.is_circle:
            r = s.width / 2
            box = [(s.x - r) * scale, (s.y - r) * scale, (s.x + r) * scale, (s.y + r) * scale]
            pen.ellipse(box, fill=s.fill)
        else:
            left, top = s.x * scale, s.y * scale
            right, bottom = max(left, (s.x + s.width) * scale - 1), max(top, (s.y + s.height) * scale - 1)
            pen.rounded_rectangle([left, top, right, bottom], s.radius * scale, fill=s.fill)
    size = (max(1, round(drawing.width * cell)), max(1, round(drawing.height * cell)))
    return large.resize(size, Image.Resampling.LANCZOS)
