"""Results that the paper reports, to compare with those of a study. Shares are of 1."""

from typing import NamedTuple


class Reported(NamedTuple):
    """Success over seeds."""

    mean: float
    deviation: float
    """Sample standard deviation."""


def _percent(*numbers: float) -> tuple[Reported, ...]:
    """Return pairs of mean and deviation, given in percent."""
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return tuple(Reported(mean / 100, deviation / 100) for mean, deviation in pairs)


PUZZLES = {
    ("boxoban", "iso-params"): _percent(0.2, 0.3)[0],
    ("boxoban", "iso-flops"): _percent(42.8, 6.2)[0],
    ("boxoban", "looped"): _percent(81.5, 5.7)[0],
    ("rush-hour", "iso-params"): _percent(41.1, 1.3)[0],
    ("rush-hour", "iso-flops"): _percent(75.2, 9.4)[0],
    ("rush-hour", "looped"): _percent(87.5, 1.0)[0],
}
"""Test levels solved after 1e8 steps of PPO, three seeds. The results of DRC and of fixed loops are only in
figures."""

ROBOT_ARMS = ("iso-params", "iso-flops", "looped")
ROBOT_TASK_NAMES = {
    "cube-double": ("single pnp", "double pnp 1", "double pnp 2", "swap", "stack"),
    "cube-triple": ("single pnp", "triple pnp", "pnp from stack", "cycle", "stack"),
    "puzzle-3x3": ("task 1", "task 2", "task 3", "task 4", "task 5"),
    "scene": ("open", "unlock and lock", "rearrange medium", "put in drawer", "rearrange hard"),
}
_TABLE = {
    "cube-double": (
        _percent(15.2, 7.6, 66.9, 4.2, 67.7, 4.6),
        _percent(50.8, 22.0, 95.6, 3.0, 97.2, 1.8),
        _percent(7.2, 7.6, 88.8, 4.6, 89.6, 13.1),
        _percent(3.2, 4.6, 84.8, 8.3, 93.2, 5.2),
        _percent(0.0, 0.0, 12.8, 3.0, 6.4, 2.6),
        _percent(14.8, 14.1, 52.4, 8.6, 52.0, 7.7),
    ),
    "cube-triple": (
        _percent(2.7, 5.2, 47.4, 7.9, 50.1, 6.1),
        _percent(8.8, 15.3, 93.2, 10.0, 96.8, 1.8),
        _percent(2.8, 6.3, 79.6, 11.1, 80.4, 20.0),
        _percent(2.0, 4.5, 43.6, 18.8, 52.4, 18.0),
        _percent(0.0, 0.0, 4.0, 2.4, 8.0, 2.0),
        _percent(0.0, 0.0, 16.8, 10.4, 12.8, 7.2),
    ),
    "puzzle-3x3": (
        _percent(89.9, 7.5, 91.4, 12.5, 91.4, 7.4),
        _percent(99.6, 0.9, 94.4, 10.4, 96.8, 5.2),
        _percent(94.0, 5.1, 90.8, 14.1, 94.0, 6.9),
        _percent(87.2, 7.8, 91.2, 12.4, 86.0, 11.7),
        _percent(83.2, 14.2, 88.4, 17.1, 88.0, 6.8),
        _percent(85.6, 16.0, 92.4, 10.4, 92.0, 9.6),
    ),
    "scene": (
        _percent(24.2, 4.9, 68.2, 4.6, 69.6, 5.5),
        _percent(62.4, 18.7, 99.2, 1.1, 99.6, 0.9),
        _percent(4.8, 2.7, 96.0, 4.0, 98.0, 2.4),
        _percent(50.0, 7.9, 90.4, 5.2, 92.8, 6.6),
        _percent(3.6, 1.7, 35.2, 5.0, 43.6, 21.5),
        _percent(0.0, 0.0, 20.0, 14.8, 14.0, 13.1),
    ),
}
ROBOTS = {
    (env_name, task, arm): row[column]
    for env_name, rows in _TABLE.items()
    for task, row in enumerate(rows)
    for column, arm in enumerate(ROBOT_ARMS)
}
"""By environment, task (0: all five) and arm: success after 1e6 gradient steps of GCIQL, five seeds."""
