"""Shape types are checked in tests, and only there."""

import atexit
import os
import pathlib
import shutil
import sys
import tempfile

import pytest
from jaxtyping import install_import_hook

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from flags import QUICK_TO_COMPILE

# OPTIMISED=1 leaves the compiler at its defaults, as users have it: slower to compile, and other fusions.
if not os.environ.get("OPTIMISED"):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_TO_COMPILE}"

# Many tests, and the commands that they run, compile the same programs. JAX keeps them for the next session;
# its keys contain the program, the flags, the processor and the version of JAX.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    caches = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": str(caches / "looped-actor-tests"),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(4 * 2**30),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
    }
if "LOOPED_ACTOR_TEST_CACHE" not in os.environ:  # this user's own files do not change a test
    os.environ["LOOPED_ACTOR_TEST_CACHE"] = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="cache-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

install_import_hook("looped_actor", "shape_checker.check")

import jax  # noqa: E402
from hypothesis import HealthCheck, Phase, settings  # noqa: E402

# Compilation dominates: a slow first example is no sign of trouble, and examples are few.
# HYPOTHESIS_PROFILE=thorough tries many more than CI has time for.
relaxed = {
    "deadline": None,
    "report_multiple_bugs": False,
    "suppress_health_check": [HealthCheck.too_slow],
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],  # drain_sizes would compile for an hour
}
settings.register_profile("quick", max_examples=10, derandomize=bool(os.environ.get("CI")), **relaxed)
settings.register_profile("thorough", max_examples=100, **relaxed)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

SHARED = pathlib.Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def golden():
    """Load a file of golden vectors; those at the paper's size are too large to be kept with the tests."""
    import numpy as np

    def load(name: str) -> dict:
        path = pathlib.Path(__file__).parent / "golden" / "vectors" / name
        if name == "core_paper_size.npz":
            path = SHARED / "golden" / name
            if not path.exists():
                pytest.skip(f"golden vectors at the paper's size are not here: {path}")
        with np.load(path, allow_pickle=False) as file:
            return dict(file)

    return load


@pytest.fixture(scope="session")
def size():
    """How large a check is: (in CI, in full). THOROUGH=1 runs them in full."""
    return lambda quick, full: full if os.environ.get("THOROUGH") else quick


@pytest.fixture(scope="session")
def boxoban_levels():
    """The folder of the Boxoban collection, or skip where there is none."""
    path = SHARED / "data" / "boxoban-levels"
    if not path.is_dir():
        pytest.skip(f"the Boxoban collection is not here: {path}")
    return path


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield
