"""XLA compiles as in tests/: initial weights are drawn in float32, and their last digits depend on that."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))

from flags import QUICK_TO_COMPILE

os.environ["XLA_FLAGS"] = QUICK_TO_COMPILE
