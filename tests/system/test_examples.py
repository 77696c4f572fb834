"""Every example, run as a user runs it."""

import json
import os
import re
import subprocess
import sys
import time

import nbclient
import nbformat
import numpy as np
import pytest
from test_commands import COMMAND, ROOT, UNOPTIMISED, command, run

from helpers import thorough

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def output_of(name):
    """Return what an example prints."""
    done = run(sys.executable, str(ROOT / "examples" / name))
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text, before):
    return [float(x) for x in re.findall(rf"{before} +([\d.]+)", text)]


def test_custom_training_loop():
    losses = numbers(output_of("custom_training_loop.py"), "loss")
    assert losses[0] > 1.5
    assert losses[-1] < 0.4


def test_recursive_sudoku():
    """A few seconds of training solve some puzzles; what it prints about time is not checked here."""
    example = ROOT / "examples" / "recursive_sudoku.py"
    done = run(sys.executable, str(example), "--minutes", "0.1", "--puzzles", "60", "--test", "40")
    assert done.returncode == 0, done.stderr
    adaptive, fixed = numbers(done.stdout, "solved")[:2], numbers(done.stdout, "always 16 loops: solved")
    assert adaptive[0] >= fixed[0] - 5
    assert "time relative to the fixed depth" in done.stdout


def shorten(name, folder, steps):
    """Write a copy of an example that trains for fewer steps and saves more often; return its path."""
    code = (ROOT / "examples" / name).read_text()
    changes = {r"total_steps=[\d_]+": f"total_steps={steps}", r"checkpoint_every=\d+": "checkpoint_every=1"}
    for before, after in changes.items():
        assert len(re.findall(before, code)) == 1
        code = re.sub(before, after, code)
    path = folder / name
    path.write_text(code)
    return path


def kill_in_training(code, out, after):
    """Kill an example once a checkpoint is there."""
    environment = {**os.environ, **UNOPTIMISED}
    command = [sys.executable, str(code), str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + 300
    while not (out / "checkpoints" / str(after)).is_dir():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not (out / "policy").exists()


CALL = """
import json, pathlib, sys
import jax, numpy as np
from jax import export
folder = pathlib.Path(sys.argv[1])
signature = json.loads((folder / "signature.json").read_text())
program = export.deserialize((folder / signature["program"]).read_bytes())
output = program.call(np.load(sys.argv[2]))
assert "looped_actor" not in sys.modules
print(json.dumps([np.asarray(output["action"]).tolist(), np.asarray(output["loops"]).tolist()]))
"""
LOAD = """
import json, runpy, sys
import numpy as np, looped_actor
code = runpy.run_path(sys.argv[3])
action = looped_actor.load_policy(sys.argv[1], code["build"]).act(np.load(sys.argv[2]))
print(json.dumps([action.action.tolist(), action.loops.tolist()]))
"""


def in_new_process(code, *arguments):
    """Run Python code, and return the JSON that it prints."""
    done = run(sys.executable, "-c", code, *map(str, arguments), **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_run(code, out):
    """Run the example to its end, and check what it prints."""
    done = run(sys.executable, str(code), str(out), **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+% of 256 succeed, mean loops \d", done.stdout), done.stdout


@thorough
def test_custom_environment_is_resumed_by_a_command_and_exported(tmp_path):
    """Without THOROUGH=1, `test_custom_environment` resumes by the example itself, and compares no export."""
    code = shorten("custom_environment.py", tmp_path, 30 * 1024)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    kill_in_training(code, killed, after=2)
    done = run(*COMMAND, "resume", str(killed), "--code", str(code), "--devices", "1", **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    for out in (killed, whole):  # the first has nothing left to train
        check_run(code, out)
    for name in ("metrics.csv", "policy/policy.safetensors", "exported/policy.stablehlo"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    np.save(tmp_path / "observations.npy", np.random.default_rng(0).integers(0, 2, (5, 4, 4, 3), np.uint8))
    loaded = in_new_process(LOAD, whole, tmp_path / "observations.npy", code)
    assert in_new_process(CALL, whole / "exported", tmp_path / "observations.npy") == loaded


def test_custom_environment(tmp_path, monkeypatch, capsys, size):
    code, whole = shorten("custom_environment.py", tmp_path, 5 * 1024), tmp_path / "whole"
    kill_in_training(code, whole, after=2)
    check_run(code, whole)
    assert (whole / "exported" / "policy.stablehlo").is_file()
    results = json.loads(
        printed_by(capsys, monkeypatch, "eval", whole, "--code", code, "--devices", 1, "--json")
    )
    evaluations = sorted((whole / "evaluations").glob("*.json"))
    at_end = json.loads(evaluations[-1].read_text())
    assert {name: results[name] for name in at_end} == at_end
    out = tmp_path / "analysis"
    few = ("--caps", 1, "--fixed", 2, "--count", 16)
    analyses = {"histogram": ("--episodes", 16)} | size({}, {"caps": few})
    for name, options in analyses.items():
        command(monkeypatch, *map(str, ("analyze", name, whole, "--code", code, *options, "--out", out)))
    for name in analyses:
        assert {path.suffix for path in out.glob(f"{name}.*")} == {".csv", ".png", ".svg", ".txt"}
    with pytest.raises(SystemExit):
        command(monkeypatch, "eval", str(whole))
    assert "is of a custom environment, 'walk'" in capsys.readouterr().err
    assert list((whole / "tensorboard").iterdir())


def printed_by(capsys, monkeypatch, *words):
    """Run a command in this process, and return what it prints."""
    capsys.readouterr()
    command(monkeypatch, *map(str, words))
    return capsys.readouterr().out


def test_custom_gymnasium_environment(tmp_path, size, monkeypatch, capsys):
    """A random policy keeps the pole up for about 20 steps."""
    code = shorten("custom_gymnasium_environment.py", tmp_path, size(7, 40) * 1024)
    out = tmp_path / "run"
    kill_in_training(code, out, after=2)
    done = run(sys.executable, str(code), str(out), **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout, "mean episode length")[0] > size(30, 250)
    rows = (out / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + size(7, 40)
    np.save(tmp_path / "observations.npy", np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))
    loaded = in_new_process(LOAD, out, tmp_path / "observations.npy", code)
    assert in_new_process(CALL, out / "exported", tmp_path / "observations.npy") == loaded
    results = json.loads(printed_by(capsys, monkeypatch, "eval", out, "--code", code, "--count", 8, "--json"))
    assert results["episodes"] == 8
    assert results["returns"] == results["mean_steps"] > 20  # a reward of 1 for each step
    compared = printed_by(capsys, monkeypatch, "compare", out, "--out", tmp_path)
    assert "Returns at the end: Looped" in " ".join(compared.split())  # CartPole does not report success
    if not size(False, True):  # `test_custom_environment` has an analysis
        return
    few = ("--count", 4, "--caps", 8, "--fixed", 1, "--out", tmp_path)
    printed = printed_by(capsys, monkeypatch, "analyze", "caps", out, "--code", code, *few)
    assert "the best adaptive setting (cap 8, threshold 0.001) returns" in printed


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_tested(path):
    assert callable(globals()[f"test_{path.stem}"])


QUICKER = {"count=300": "count=24", "count=100": "count=8", "(2, 4, 8, 16, 32)": "()", "range(6)": "range(2)"}


@pytest.mark.parametrize("name", ["watch_a_policy", "adaptive_depth"])
def test_a_notebook_runs_and_shows_its_figures(name, tmp_path, size):
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", 4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # none is committed: they would grow stale
    for before, after in size(QUICKER, {}).items():
        for cell in notebook.cells:
            cell.source = cell.source.replace(before, after)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert sum("image/png" in out.get("data", {}) for out in shown) == {"adaptive_depth": 1}.get(name, 2)
    assert all(out.output_type != "error" for out in shown)
