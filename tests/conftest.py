"""Shape types are checked in tests, and only there."""

import os
import pathlib
import sys

import pytest
from jaxtyping import install_import_hook

sys.path.insert(0, str(pathlib.Path(__file__).parent))
install_import_hook("looped_actor", "shape_checker.check")

import jax  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# Compilation dominates: a slow first example is no sign of trouble.
settings.register_profile(
    "default",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("default")

SHARED = pathlib.Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def golden():
    """Load a file of golden vectors, or skip where there are none."""
    import numpy as np

    def load(name: str) -> dict:
        path = SHARED / "golden" / name
        if not path.exists():
            pytest.skip(f"golden vectors are not here: {path}")
        with np.load(path, allow_pickle=False) as file:
            return dict(file)

    return load


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield
