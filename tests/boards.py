"""Random boards for tests: any that the rules allow, not only nice ones."""

import numpy as np

from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.rush_hour.rules import RushHourBoard, Vehicle


def random_boxoban(
    rng: np.random.Generator, *, shape: tuple | None = None, max_side: int = 7, max_boxes: int = 3
) -> BoxobanBoard:
    """Walls, boxes, targets and player anywhere; the border may be open, and few boards can be solved."""
    while True:
        height, width = shape or rng.integers(2, max_side + 1, 2)
        cells = [(int(r), int(c)) for r in range(height) for c in range(width)]
        walls = frozenset(cell for cell in cells if rng.random() < 0.25)
        free = [cell for cell in cells if cell not in walls]
        boxes = int(rng.integers(1, max_boxes + 1))
        if len(free) < 2 * boxes + 1:
            continue
        order = [free[i] for i in rng.permutation(len(free))]
        targets = frozenset(free[i] for i in rng.permutation(len(free))[:boxes])
        return BoxobanBoard(
            int(height), int(width), walls, targets, frozenset(order[1 : boxes + 1]), order[0]
        )


def random_rush_hour(
    rng: np.random.Generator, *, shape: tuple | None = None, max_side: int = 7, max_vehicles: int = 9
) -> RushHourBoard:
    """Vehicles of any length and walls anywhere; the red car in any row, perhaps at the exit already."""
    height, width = (int(n) for n in shape or rng.integers(4, max_side + 1, 2))
    red = Vehicle(int(rng.integers(height)), int(rng.integers(width - 1)), 2, True)
    taken, others = set(red.cells()), []
    for _ in range(int(rng.integers(1, 4 * max_vehicles))):
        horizontal, length = bool(rng.integers(2)), int(rng.integers(2, 4))
        room = (height, width - length + 1) if horizontal else (height - length + 1, width)
        vehicle = Vehicle(int(rng.integers(room[0])), int(rng.integers(room[1])), length, horizontal)
        if not taken & set(vehicle.cells()) and len(others) < max_vehicles - 1:
            others.append(vehicle)
            taken |= set(vehicle.cells())
    cells = [(r, c) for r in range(height) for c in range(width)]
    walls = frozenset(cell for cell in cells if cell not in taken and rng.random() < 0.05)
    return RushHourBoard(height, width, walls, red, tuple(sorted(others)))
