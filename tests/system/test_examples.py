"""Every example, run as a user would: it must learn what it says. One of three with THOROUGH=1 only."""

import re
import sys

import pytest
from test_commands import ROOT, run

from helpers import thorough

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def output_of(name, **replaced):
    """What an example prints, with some of its numbers replaced."""
    code = (ROOT / "examples" / name).read_text()
    for before, after in replaced.values():
        assert code.count(before) == 1
        code = code.replace(before, after)
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text, before):
    return [float(x) for x in re.findall(rf"{before} +([\d.]+)", text)]


def test_own_training_loop():
    losses = numbers(output_of("own_training_loop.py"), "loss")
    assert losses[0] > 1.5
    assert losses[-1] < 0.4


def test_gymnasium_environment(size):
    """Twenty steps is how long a pole stands by itself."""
    shorter = {"iterations": ("16, 16, 40", f"16, 16, {size(20, 40)}")}
    lengths = numbers(output_of("gymnasium_environment.py", **shorter), "episodes last")
    assert lengths[-1] > size(100, 250)


@thorough
def test_jax_environment():
    """Without THOROUGH=1, PPO on worlds in JAX is tested in tests/learning."""
    arrived = [float(x) for x in re.findall(r"(\d+)% arrive", output_of("jax_environment.py"))]
    assert arrived[-1] > 60


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short_and_tested(path):
    assert callable(globals()[f"test_{path.stem}"])
    assert len(path.read_text().splitlines()) <= 80
