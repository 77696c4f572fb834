"""Pictures of boards: text for the terminal, PNG, SVG, and episodes as GIF."""

import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from looped_actor.puzzles.catalogue import game_of
from looped_actor.puzzles.drawing import FLOOR, GRID, PAPER, Drawing, Shape, move_shape, to_image, to_svg
from looped_actor.puzzles.grid import Board
from looped_actor.utils.errors import UserError

MARGIN = 0.35
"""Space around a board, in cells."""


def draw(board: Board) -> Drawing:
    """Return the picture of a board, with a margin around it."""
    width, height = board.width + 2 * MARGIN, board.height + 2 * MARGIN
    floor = [Shape(FLOOR, 0, 0, board.width, board.height, 0.12)]
    columns = [Shape(GRID, column - 0.01, 0, 0.02, board.height) for column in range(1, board.width)]
    rows = [Shape(GRID, 0, row - 0.01, board.width, 0.02) for row in range(1, board.height)]
    shapes = [*floor, *columns, *rows, *game_of(board).draw(board)]
    paper = Shape(PAPER, 0, 0, width, height)
    return Drawing(width, height, [paper, *(move_shape(shape, MARGIN, MARGIN) for shape in shapes)])


def draw_sheet(boards: Sequence[Board], columns: int | None = None) -> Drawing:
    """Return one picture of several boards, next to each other."""
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
        shapes += [move_shape(shape, x, y) for shape in drawing.shapes]
    return Drawing(columns * width, rows * height, shapes)


def save(boards: Sequence[Board], path: str | os.PathLike, *, cell: int = 48) -> None:
    """Write one board, or a sheet of several, as .png or .svg."""
    path = pathlib.Path(path)
    if path.suffix not in (".png", ".svg"):
        raise UserError(f"{path}: boards are written as .png or .svg")
    drawing = draw(boards[0]) if len(boards) == 1 else draw_sheet(boards)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svg":
        path.write_text(to_svg(drawing, cell))
    else:
        to_image(drawing, cell).save(path)


def save_episode(
    boards: Sequence[Board], path: str | os.PathLike, *, cell: int = 40, milliseconds: int = 160
) -> None:
    """Write the boards of an episode, one after the other, as .gif. The last one is shown longest."""
    from PIL import Image

    path = pathlib.Path(path)
    if path.suffix != ".gif":
        raise UserError(f"{path}: an episode is written as .gif")
    if not boards:
        raise UserError("there is no board to draw")
    frames = [to_image(draw(board), cell) for board in boards]
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
    """Return the board in colour for a terminal, two characters to a cell: a text of `rich`."""
    from rich.text import Text

    text = Text()
    for number, row in enumerate(game_of(board).terminal_rows(board)):
        text.append("\n" if number else "")
        for cell in row:
            ground = f" on {cell.ground}" if cell.ground else ""
            text.append(cell.text, style=f"bold {cell.ink}{ground}")
    return text
