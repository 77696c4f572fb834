"""How sure a share is."""

from typing import NamedTuple

import numpy as np

Z_95 = 1.959963984540054  # 97.5th percentile of the standard normal


class Interval(NamedTuple):
    """Between these, with 95% confidence."""

    low: float
    high: float


def wilson(successes: int, trials: int) -> Interval:
    """Wilson's interval of a share: sensible near 0 and 1, and for few trials."""
    if trials == 0:
        return Interval(0.0, 1.0)
    share, spread = successes / trials, Z_95**2 / trials
    middle = (share + spread / 2) / (1 + spread)
    half = Z_95 * np.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    low = 0.0 if successes == 0 else float(middle - half)
    return Interval(low, 1.0 if successes == trials else float(middle + half))
