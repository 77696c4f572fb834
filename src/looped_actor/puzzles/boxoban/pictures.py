"""Boards of Boxoban as shapes and as coloured text, and names of its actions."""

from looped_actor.puzzles.boxoban.rules import BoxobanBoard, Cell
from looped_actor.puzzles.drawing import (
    BLUE,
    FLOOR,
    INK,
    PAPER,
    RED,
    SHADOW,
    SKIN,
    WALL,
    WOOD,
    WOOD_DARK,
    WOOD_DONE,
    WOOD_DONE_DARK,
    Shape,
    TerminalCell,
    draw_walls,
)
from looped_actor.puzzles.game import ActionGroup
from looped_actor.puzzles.grid import Direction, Position


def draw(board: BoxobanBoard) -> list[Shape]:
    """Return a board as shapes in units of a cell."""
    shapes = draw_walls(board.walls)
    for row, column in sorted(board.targets):
        x, y = column + 0.5, row + 0.5
        for diameter, fill in ((0.56, RED), (0.42, FLOOR), (0.24, RED)):
            shapes.append(Shape(fill, x, y, diameter))
    for row, column in sorted(board.boxes):
        shapes += _draw_box(row, column, (row, column) in board.targets)
    row, column = board.player
    return shapes + _draw_player(column + 0.5, row + 0.5)


def _draw_box(row: int, column: int, done: bool) -> list[Shape]:
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


def _draw_player(x: float, y: float) -> list[Shape]:
    return [
        Shape(SHADOW, x - 0.27, y + 0.27, 0.54, 0.12, 0.06),
        Shape(BLUE, x - 0.25, y - 0.02, 0.5, 0.36, 0.16),
        Shape(SKIN, x, y - 0.16, 0.38),
        Shape(INK, x - 0.07, y - 0.15, 0.055),
        Shape(INK, x + 0.07, y - 0.15, 0.055),
        Shape(RED, x - 0.2, y - 0.36, 0.4, 0.14, 0.07),
    ]


_TERMINAL_CELLS = {
    Cell(0): TerminalCell("  ", INK, FLOOR),
    Cell.WALL: TerminalCell("  ", WALL, WALL),
    Cell.BOX: TerminalCell("[]", INK, WOOD),
    Cell.TARGET: TerminalCell("()", RED, FLOOR),
    Cell.BOX | Cell.TARGET: TerminalCell("[]", INK, WOOD_DONE),
    Cell.PLAYER: TerminalCell(":)", PAPER, BLUE),
    Cell.PLAYER | Cell.TARGET: TerminalCell(":)", RED, BLUE),
}


def terminal_rows(board: BoxobanBoard) -> list[list[TerminalCell]]:
    """Return a board as coloured text."""
    return [
        [_TERMINAL_CELLS[board.cell((row, column))] for column in range(board.width)]
        for row in range(board.height)
    ]


def name_actions(board: BoxobanBoard) -> list[ActionGroup]:
    """Return all actions, an arrow each."""
    return [ActionGroup(direction.arrow, (int(direction),)) for direction in Direction]


def locate_action(board: BoxobanBoard, action: int) -> tuple[Position, Direction]:
    """Return the player's cell, and the direction of the move."""
    return board.player, Direction(action)
