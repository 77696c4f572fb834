"""Commands that need no JAX do not import it, and a misspelt name is reported before it is imported."""

import subprocess
import sys

import pytest

from looped_actor.cli import main as cli
from looped_actor.utils.errors import UserError

HEAVY = {"jax", "flax", "numba", "orbax", "scipy.stats"}


def run_listing_imports(*words, cwd=None):
    """Return the modules that `python -X importtime` lists, the exit status, and the rest of the output."""
    command = [sys.executable, "-X", "importtime", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd)
    lines = done.stderr.splitlines()
    names = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    messages = "\n".join(line for line in lines if not line.startswith("import time:"))
    return names, done.returncode, done.stdout + messages


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("pretrained", 0, "rush-hour-micro"),
        ("eval rush-hour-mico", 2, "rush-hour-mico is not a folder"),
        ("eval rush-hour-micro --levels none.levels", 2, "none.levels: there is no such file"),
        ("eval rush-hour-micro --code none.py", 2, "--code none.py: there is no such Python file"),
        ("export nowhere", 2, "nowhere is not a folder"),
        ("replay nowhere", 2, "nowhere is not a folder"),
        ("analyse caps rush-hour-micro nowhere", 2, "nowhere is not a folder"),
        ("compare nowhere", 2, "nowhere is not the folder of a run"),
        ("resume nowhere", 2, "nowhere is not the folder of a run"),
        ("train boxobn", 2, "boxobn"),
        ("train --config none.json", 2, "none.json: there is no such file"),
        ("train boxoban --levels a b", 2, "a: there is no such file"),
        ("levels info none.levels", 2, "none.levels: there is no such file"),
        ("robots film nowhere", 2, "nowhere is not a folder"),
    ],
)
def test_a_command_answers_without_jax(words, status, message, tmp_path):
    names, code, output = run_listing_imports("-m", "looped_actor", *words.split(), cwd=tmp_path)
    assert (code, message in output) == (status, True), output
    assert not HEAVY & names


def test_loading_a_policy_does_not_import_scipy_s_statistics():
    code = "import looped_actor; looped_actor.load_policy('rush-hour-micro')"
    names, returned, output = run_listing_imports("-c", code)
    assert returned == 0, output
    assert "jax" in names
    assert "scipy.stats" not in names


@pytest.mark.parametrize(
    ("error", "is_bug"), [(UserError("give another"), False), (ValueError("shapes (3,) and (4,)"), True)]
)
def test_only_messages_to_users_are_printed_as_such(error, is_bug, monkeypatch, capsys):
    def make_app(summary):
        raise error

    monkeypatch.setattr(cli, "make_app", make_app)
    monkeypatch.setattr("sys.argv", ["looped-actor", "pretrained"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert ("Traceback" in message, "Please report" in message) == (is_bug, is_bug)
    assert str(error) in message
