"""Boards as pictures: text for the terminal, PNG, SVG, and episodes as GIF.

A board is drawn once, as a list of simple shapes in units of a cell; writers turn the shapes into SVG or
pixels. Both games share one palette: warm paper ground, slate walls, wooden boxes and painted vehicles, and
red for what it is all about.
"""

import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.boxoban.rules import Cell as BoxobanCell
from looped_actor.puzzles.catalogue import Board
from looped_actor.puzzles.grid import Position
from looped_actor.puzzles.rush_hour.rules import RushHourBoard, Vehicle
from looped_actor.utils.errors import UserError

PAPER, FLOOR, GRID, WALL, WALL_EDGE = "#fbf8f3", "#f1ebe1", "#e2d9ca", "#5d6470", "#4a505b"
RED, GLASS, SHADOW = "#d6404a", "#eaf3f7", "#cfc4b2"
WOOD, WOOD_DARK, WOOD_DONE, WOOD_DONE_DARK = "#d49a56", "#a8733a", "#6fae75", "#4b8552"
INK = "#2b2e35"
CARS = ("#4f81bd", "#6aa86f", "#e2a93b", "#8a6bb1", "#4aa5a0", "#c97b4a", "#7d95a8", "#b5658b")
"""Cars and trucks take turns with these; a truck is told from a car by its length and its trailer."""
TRUCKS = ("#3f6797", "#4f8a5b", "#bf8a2c", "#6d5293", "#3a8783", "#a5613a")


class Shape(NamedTuple):
    """A rectangle with round corners, a circle (`width` only), or a polygon (`points`)."""

    fill: str
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    radius: float = 0.0
    points: tuple[tuple[float, float], ...] = ()

    @property
    def is_circle(self) -> bool:
        """Whether it is drawn as a circle around (x, y)."""
        return not self.points and self.height == 0.0


class Drawing(NamedTuple):
    """Shapes, back to front, and the size of it all, in cells."""

    width: float
    height: float
    shapes: list[Shape]


def draw(board: Board) -> Drawing:
    """The picture of a board, with a margin around."""
    margin = 0.35
    shapes = [Shape(PAPER, 0, 0, board.width + 2 * margin, board.height + 2 * margin)]
    ground = [Shape(FLOOR, 0, 0, board.width, board.height, 0.12)]
    painted = _boxoban(board) if isinstance(board, BoxobanBoard) else _rush_hour(board)
    shapes += [_moved(shape, margin, margin) for shape in ground + _grid(board) + painted]
    return Drawing(board.width + 2 * margin, board.height + 2 * margin, shapes)


def draw_sheet(boards: Sequence[Board], columns: int | None = None) -> Drawing:
    """Several boards side by side."""
    if not boards:
        raise UserError("there is no board to draw")
    drawings = [draw(board) for board in boards]
    columns = columns or min(len(boards), max(1, round(math.sqrt(len(boards) * 4 / 3))))
    width, height = max(d.width for d in drawings), max(d.height for d in drawings)
    rows = math.ceil(len(drawings) / columns)
    shapes = [Shape(PAPER, 0, 0, columns * width, rows * height)]
    for i, drawing in enumerate(drawings):
        x = i % columns * width + (width - drawing.width) / 2
        y = i // columns * height + (height - drawing.height) / 2
        shapes += [_moved(shape, x, y) for shape in drawing.shapes]
    return Drawing(columns * width, rows * height, shapes)


def _moved(shape: Shape, x: float, y: float) -> Shape:
    points = tuple((px + x, py + y) for px, py in shape.points)
    return shape._replace(x=shape.x + x, y=shape.y + y, points=points)


def _grid(board: Board) -> list[Shape]:
    lines = [Shape(GRID, c - 0.01, 0, 0.02, board.height) for c in range(1, board.width)]
    return lines + [Shape(GRID, 0, r - 0.01, board.width, 0.02) for r in range(1, board.height)]


def _wall(row: int, column: int, walls: frozenset[Position]) -> list[Shape]:
    """A block that runs into its neighbours, so that walls read as one mass."""
    shapes = [Shape(WALL, column, row, 1, 1)]
    if (row + 1, column) not in walls:
        shapes.append(Shape(WALL_EDGE, column, row + 0.86, 1, 0.14))
    return shapes


def _boxoban(board: BoxobanBoard) -> list[Shape]:
    shapes: list[Shape] = []
    for row, column in sorted(board.walls):
        shapes += _wall(row, column, board.walls)
    for row, column in sorted(board.targets):
        x, y = column + 0.5, row + 0.5
        for diameter, fill in ((0.56, RED), (0.42, FLOOR), (0.24, RED)):
            shapes.append(Shape(fill, x, y, diameter))
    for row, column in sorted(board.boxes):
        shapes += _box(row, column, (row, column) in board.targets)
    row, column = board.player
    return shapes + _player(column + 0.5, row + 0.5)


def _box(row: int, column: int, done: bool) -> list[Shape]:
    face, edge = (WOOD_DONE, WOOD_DONE_DARK) if done else (WOOD, WOOD_DARK)
    x, y = column + 0.1, row + 0.1
    crate = [
        Shape(SHADOW, x + 0.02, y + 0.05, 0.8, 0.8, 0.08),
        Shape(edge, x, y, 0.8, 0.8, 0.08),
        Shape(face, x + 0.08, y + 0.08, 0.64, 0.64, 0.04),
    ]
    corner, far = 0.1, 0.7
    slats = (
        ((corner, corner + 0.09), (corner + 0.09, corner), (far, far - 0.09), (far - 0.09, far)),
        ((far - 0.09, corner), (far, corner + 0.09), (corner + 0.09, far), (corner, far - 0.09)),
    )
    crossed = slats[:1] if done else slats
    return crate + [Shape(edge, points=tuple((x + px, y + py) for px, py in slat)) for slat in crossed]


def _player(x: float, y: float) -> list[Shape]:
    return [
        Shape(SHADOW, x - 0.27, y + 0.27, 0.54, 0.12, 0.06),
        Shape("#3f6797", x - 0.25, y - 0.02, 0.5, 0.36, 0.16),
        Shape("#f0c9a0", x, y - 0.16, 0.38),
        Shape(INK, x - 0.07, y - 0.15, 0.055),
        Shape(INK, x + 0.07, y - 0.15, 0.055),
        Shape(RED, x - 0.2, y - 0.36, 0.4, 0.14, 0.07),
    ]


def _rush_hour(board: RushHourBoard) -> list[Shape]:
    shapes: list[Shape] = []
    frame, thickness = WALL, 0.1
    row, width, height = board.red.row, board.width, board.height
    for x, y, w, h in (
        (-thickness, -thickness, width + 2 * thickness, thickness),
        (-thickness, height, width + 2 * thickness, thickness),
        (-thickness, -thickness, thickness, height + 2 * thickness),
        (width, -thickness, thickness, row + thickness),
        (width, row + 1, thickness, height - row - 1 + thickness),
    ):
        shapes.append(Shape(frame, x, y, w, h))
    # The exit: a gap in the frame, and an arrow through it.
    middle = row + 0.5
    arrow = ((width + 0.06, middle - 0.2), (width + 0.3, middle), (width + 0.06, middle + 0.2))
    shapes.append(Shape(RED, points=arrow))
    for position in sorted(board.walls):
        shapes += _wall(*position, board.walls)
    cars = trucks = 0
    for vehicle in _by_lane(board):
        if vehicle.length == 2:
            shapes += _vehicle(vehicle, CARS[cars % len(CARS)])
            cars += 1
        else:
            shapes += _vehicle(vehicle, TRUCKS[trucks % len(TRUCKS)])
            trucks += 1
    return shapes + _vehicle(board.red, RED)


def _by_lane(board: RushHourBoard) -> list[Vehicle]:
    """The vehicles in an order that no move changes, so that each keeps its colour through an episode."""

    def lane(vehicle: Vehicle) -> tuple[bool, int, int]:
        row, column, _, horizontal = vehicle
        return (True, row, column) if horizontal else (False, column, row)

    return sorted(board.others, key=lane)


def _vehicle(vehicle: Vehicle, paint: str) -> list[Shape]:
    """A car seen from above, its nose to the right or down; longer ones have a trailer."""
    length = vehicle.length
    shadow = Shape(SHADOW, 0.1, 0.16, length - 0.16, 0.76, 0.22)
    shapes = []
    wheels = (0.3, length - 0.55)
    for x in wheels:
        shapes += [Shape(INK, x, 0.08, 0.26, 0.1, 0.04), Shape(INK, x, 0.82, 0.26, 0.1, 0.04)]
    shapes.append(Shape(paint, 0.08, 0.13, length - 0.16, 0.74, 0.2))
    light = _mixed(paint, "#ffffff", 0.25)
    if length == 2:
        shapes += [
            Shape(GLASS, 0.42, 0.24, length - 0.92, 0.52, 0.12),
            Shape(light, 0.6, 0.22, length - 1.3, 0.56, 0.08),
        ]
    else:
        cab = length - 0.86
        shapes += [
            Shape(light, 0.16, 0.2, cab - 0.28, 0.6, 0.06),
            Shape(_mixed(paint, "#000000", 0.12), cab - 0.06, 0.2, 0.06, 0.6),
            Shape(GLASS, cab + 0.36, 0.23, 0.16, 0.54, 0.06),
        ]
    shapes += [Shape("#fff3c4", length - 0.15, 0.24, 0.1), Shape("#fff3c4", length - 0.15, 0.76, 0.1)]
    placed = []
    for shape in [shadow, *shapes]:
        if not vehicle.horizontal:
            shape = shape._replace(x=shape.y, y=shape.x)
            if not shape.is_circle:
                shape = shape._replace(width=shape.height, height=shape.width)
        placed.append(_moved(shape, vehicle.column, vehicle.row))
    return placed


def _mixed(colour: str, other: str, share: float) -> str:
    pairs = zip(_rgb(colour), _rgb(other), strict=True)
    return "#" + "".join(f"{round((1 - share) * a + share * b):02x}" for a, b in pairs)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def to_svg(drawing: Drawing, cell: int = 48) -> str:
    """The drawing as an SVG document."""
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
            where = f'x="{s.x:.4g}" y="{s.y:.4g}" width="{s.width:.4g}" height="{s.height:.4g}"'
            lines.append(f'<rect {where}{corners} fill="{s.fill}"/>')
    return "\n".join([*lines, "</svg>", ""])


def to_pixels(drawing: Drawing, cell: int = 48) -> NDArray[np.uint8]:
    """The drawing as an RGB array; `cell` is the side of a cell in pixels."""
    return np.asarray(_image(drawing, cell))


def _image(drawing: Drawing, cell: int) -> Any:
    """Drawn three times too large, and reduced: that smooths edges."""
    from PIL import Image, ImageDraw

    scale = 3 * cell
    large = Image.new("RGB", (round(drawing.width * scale), round(drawing.height * scale)), PAPER)
    pen = ImageDraw.Draw(large)
    for s in drawing.shapes:
        if s.points:
            pen.polygon([(x * scale, y * scale) for x, y in s.points], fill=s.fill)
            continue
        if s.is_circle:
            r = s.width / 2
            box = [(s.x - r) * scale, (s.y - r) * scale, (s.x + r) * scale, (s.y + r) * scale]
            pen.ellipse(box, fill=s.fill)
            continue
        left, top = s.x * scale, s.y * scale
        right, bottom = max(left, (s.x + s.width) * scale - 1), max(top, (s.y + s.height) * scale - 1)
        pen.rounded_rectangle([left, top, right, bottom], s.radius * scale, fill=s.fill)
    size = (max(1, round(drawing.width * cell)), max(1, round(drawing.height * cell)))
    return large.resize(size, Image.Resampling.LANCZOS)


def save(boards: Sequence[Board], path: str | os.PathLike, *, cell: int = 48) -> None:
    """Write one board, or a sheet of several, as .png or .svg."""
    path = pathlib.Path(path)
    drawing = draw(boards[0]) if len(boards) == 1 else draw_sheet(boards)
    if path.suffix == ".svg":
        text = to_svg(drawing, cell)
    elif path.suffix == ".png":
        text = None
    else:
        raise UserError(f"{path}: boards are written as .png or .svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is not None:
        path.write_text(text)
    else:
        _image(drawing, cell).save(path)


def save_episode(
    boards: Sequence[Board], path: str | os.PathLike, *, cell: int = 40, milliseconds: int = 160
) -> None:
    """Write the boards of an episode, one after the other, as .gif; it rests on the last one."""
    from PIL import Image

    path = pathlib.Path(path)
    if path.suffix != ".gif":
        raise UserError(f"{path}: an episode is written as .gif")
    if not boards:
        raise UserError("there is no board to draw")
    frames = [_image(draw(board), cell) for board in boards]
    # One palette for all frames, or colours flicker; the last frame has colours that the first has not.
    both = Image.new("RGB", (frames[0].width, 2 * frames[0].height))
    both.paste(frames[0], (0, 0))
    both.paste(frames[-1], (0, frames[0].height))
    palette = both.quantize(200)
    frames = [frame.quantize(palette=palette, dither=0) for frame in frames]
    durations = [milliseconds] * (len(frames) - 1) + [1200]
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)


def terminal_text(board: Board) -> Any:
    """The board in colour for a terminal, two characters to a cell: a `rich` text."""
    from rich.text import Text

    text = Text()
    paints = _terminal_paints(board)
    for row in range(board.height):
        for column in range(board.width):
            symbols, ink, ground = paints[row][column]
            text.append(symbols, style=f"bold {ink} on {ground}")
        if isinstance(board, RushHourBoard):
            text.append(" ▶" if row == board.red.row else "  ", style=f"bold {RED}")
        text.append("\n" if row + 1 < board.height else "")
    return text


def _terminal_paints(board: Board) -> list[list[tuple[str, str, str]]]:
    if isinstance(board, BoxobanBoard):
        looks = {
            BoxobanCell(0): ("  ", INK, FLOOR),
            BoxobanCell.WALL: ("  ", WALL, WALL),
            BoxobanCell.BOX: ("[]", INK, WOOD),
            BoxobanCell.TARGET: ("()", RED, FLOOR),
            BoxobanCell.BOX | BoxobanCell.TARGET: ("[]", INK, WOOD_DONE),
            BoxobanCell.PLAYER: (":)", PAPER, "#3f6797"),
            BoxobanCell.PLAYER | BoxobanCell.TARGET: (":)", RED, "#3f6797"),
        }
        return [[looks[board.at((r, c))] for c in range(board.width)] for r in range(board.height)]
    paints = [[("  ", INK, FLOOR)] * board.width for _ in range(board.height)]
    for row, column in board.walls:
        paints[row][column] = ("  ", WALL, WALL)
    colours = CARS + TRUCKS
    for i, vehicle in enumerate([board.red, *_by_lane(board)]):
        colour = RED if i == 0 else colours[(i - 1) % len(colours)]
        for row, column in vehicle.cells():
            paints[row][column] = ("══" if vehicle.horizontal else "║║", PAPER, colour)
    return paints
