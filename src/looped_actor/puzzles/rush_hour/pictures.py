"""Boards of Rush Hour as shapes and as coloured text, and names of its actions."""

from looped_actor.puzzles.drawing import (
    CARS,
    FLOOR,
    GLASS,
    INK,
    LIGHT,
    PAPER,
    RED,
    SHADOW,
    TRUCKS,
    WALL,
    Shape,
    TerminalCell,
    draw_walls,
    mix_colours,
    move_shape,
)
from looped_actor.puzzles.game import ActionGroup
from looped_actor.puzzles.grid import Direction, Position
from looped_actor.puzzles.rush_hour.rules import RushHourBoard, Vehicle, direction_of


def draw(board: RushHourBoard) -> list[Shape]:
    """Return a board as shapes in units of a cell."""
    cars = trucks = 0
    shapes = _draw_frame(board) + draw_walls(board.walls)
    for vehicle in _by_line(board):
        if vehicle.length == 2:
            shapes += _draw_vehicle(vehicle, CARS[cars % len(CARS)])
            cars += 1
        else:
            shapes += _draw_vehicle(vehicle, TRUCKS[trucks % len(TRUCKS)])
            trucks += 1
    return shapes + _draw_vehicle(board.red, RED)


def _draw_frame(board: RushHourBoard) -> list[Shape]:
    """Return a frame around the board with a gap at the exit, and an arrow through it."""
    row, width, height, thickness = board.red.row, board.width, board.height, 0.1
    shapes = [
        Shape(WALL, x, y, w, h)
        for x, y, w, h in (
            (-thickness, -thickness, width + 2 * thickness, thickness),
            (-thickness, height, width + 2 * thickness, thickness),
            (-thickness, -thickness, thickness, height + 2 * thickness),
            (width, -thickness, thickness, row + thickness),
            (width, row + 1, thickness, height - row - 1 + thickness),
        )
    ]
    middle = row + 0.5
    arrow = ((width + 0.06, middle - 0.2), (width + 0.3, middle), (width + 0.06, middle + 0.2))
    return [*shapes, Shape(RED, points=arrow)]


def _by_line(board: RushHourBoard) -> list[Vehicle]:
    """Return the vehicles in an order that no move changes, so that each keeps its colour."""

    def line(vehicle: Vehicle) -> tuple[bool, int, int]:
        row, column, _, horizontal = vehicle
        return (True, row, column) if horizontal else (False, column, row)

    return sorted(board.others, key=line)


def _draw_vehicle(vehicle: Vehicle, paint: str) -> list[Shape]:
    """Return a car seen from above, its nose to the right or down; longer ones have a trailer."""
    length = vehicle.length
    shapes = [Shape(SHADOW, 0.1, 0.16, length - 0.16, 0.76, 0.22)]
    for x in (0.3, length - 0.55):
        shapes += [Shape(INK, x, 0.08, 0.26, 0.1, 0.04), Shape(INK, x, 0.82, 0.26, 0.1, 0.04)]
    shapes.append(Shape(paint, 0.08, 0.13, length - 0.16, 0.74, 0.2))
    light = mix_colours(paint, "#ffffff", 0.25)
    if length == 2:
        shapes += [
            Shape(GLASS, 0.42, 0.24, length - 0.92, 0.52, 0.12),
            Shape(light, 0.6, 0.22, length - 1.3, 0.56, 0.08),
        ]
    else:
        cab = length - 0.86
        shapes += [
            Shape(light, 0.16, 0.2, cab - 0.28, 0.6, 0.06),
            Shape(mix_colours(paint, "#000000", 0.12), cab - 0.06, 0.2, 0.06, 0.6),
            Shape(GLASS, cab + 0.36, 0.23, 0.16, 0.54, 0.06),
        ]
    shapes += [Shape(LIGHT, length - 0.15, 0.24, 0.1), Shape(LIGHT, length - 0.15, 0.76, 0.1)]
    if not vehicle.horizontal:
        shapes = [_transpose(shape) for shape in shapes]
    return [move_shape(shape, vehicle.column, vehicle.row) for shape in shapes]


def _transpose(shape: Shape) -> Shape:
    if shape.is_circle:
        return shape._replace(x=shape.y, y=shape.x)
    return shape._replace(x=shape.y, y=shape.x, width=shape.height, height=shape.width)


def terminal_rows(board: RushHourBoard) -> list[list[TerminalCell]]:
    """Return a board as coloured text, with an arrow at the exit."""
    rows = [[TerminalCell("  ", INK, FLOOR)] * board.width for _ in range(board.height)]
    for row, column in board.walls:
        rows[row][column] = TerminalCell("  ", WALL, WALL)
    colours = CARS + TRUCKS
    for i, vehicle in enumerate([board.red, *_by_line(board)]):
        colour = RED if i == 0 else colours[(i - 1) % len(colours)]
        for row, column in vehicle.cells():
            rows[row][column] = TerminalCell("══" if vehicle.horizontal else "║║", PAPER, colour)
    for number, row in enumerate(rows):
        row.append(TerminalCell(" ▶" if number == board.red.row else "  ", RED, None))
    return rows


def name_actions(board: RushHourBoard) -> list[ActionGroup]:
    """Return the two slides of each vehicle, which have an action for each of its cells, and all others."""
    groups, named = [], set[int]()
    for number, vehicle in enumerate(board.vehicles):
        cells = [row * board.width + column for row, column in vehicle.cells()]
        for forward in (False, True):
            actions = tuple(2 * cell + forward for cell in cells)
            named.update(actions)
            kind = "car" if vehicle.length == 2 else "truck"
            name = "red" if number == 0 else f"{kind} {vehicle.row + 1},{vehicle.column + 1}"
            groups.append(ActionGroup(f"{name} {direction_of(vehicle, forward).arrow}", actions))
    others = (action for action in range(2 * board.height * board.width) if action not in named)
    return [*groups, ActionGroup("no car", tuple(others))]


def locate_action(board: RushHourBoard, action: int) -> tuple[Position, Direction] | None:
    """Return the cell of an action, and the direction of the slide; None if there is no vehicle."""
    cell = divmod(action // 2, board.width)
    for vehicle in board.vehicles:
        if cell in vehicle.cells():
            return cell, direction_of(vehicle, bool(action % 2))
    return None
