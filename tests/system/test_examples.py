"""Every example, run as a user would: it must do what it says."""

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


def output_of(name, **replace_fields):
    """What an example prints, with some of its numbers replace_fields."""
    code = (ROOT / "examples" / name).read_text()
    for before, after in replace_fields.values():
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


def shortened(name, folder, steps):
    """A copy of an example that trains for less, and saves more often."""
    code = (ROOT / "examples" / name).read_text()
    changes = {r"total_steps=[\d_]+": f"total_steps={steps}", r"checkpoint_every=\d+": "checkpoint_every=1"}
    for before, after in changes.items():
        assert len(re.findall(before, code)) == 1
        code = re.sub(before, after, code)
    path = folder / name
    path.write_text(code)
    return path


def killed_in_training(code, out, after):
    """Kill the example once a checkpoint is there, so that it must go on."""
    environment = {**os.environ, **UNOPTIMISED}
    command = [sys.executable, str(code), str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
    until = time.monotonic() + 300
    while not (out / "checkpoints" / str(after)).is_dir():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < until
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
seen = np.load(sys.argv[2])
acted = program.call(seen)
assert "looped_actor" not in sys.modules
print(json.dumps([np.asarray(acted["action"]).tolist(), np.asarray(acted["loops"]).tolist()]))
"""
LOAD = """
import json, runpy, sys
import numpy as np, looped_actor
code = runpy.run_path(sys.argv[3])
acted = looped_actor.load_policy(sys.argv[1], code["build"]).act(np.load(sys.argv[2]))
print(json.dumps([acted.action.tolist(), acted.loops.tolist()]))
"""


def in_a_new_process(code, *arguments):
    done = run(sys.executable, "-c", code, *map(str, arguments), **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def arrives(code, out):
    done = run(sys.executable, str(code), str(out), **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+% of 256 arrive, mean loops \d", done.stdout), done.stdout


@thorough
def test_own_world_is_resumed_by_a_command_and_exported(tmp_path):
    """The default run resumes it as the example does, and exports the world of Gymnasium."""
    code = shortened("own_world.py", tmp_path, 30 * 1024)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed_in_training(code, killed, after=2)
    done = run(*COMMAND, "resume", str(killed), "--code", str(code), "--devices", "1", **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    for out in (killed, whole):  # the first has nothing left to train
        arrives(code, out)
    for name in ("metrics.csv", "policy/policy.safetensors", "exported/policy.stablehlo"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    np.save(tmp_path / "seen.npy", np.random.default_rng(0).integers(0, 2, (5, 4, 4, 3), np.uint8))
    loaded = in_a_new_process(LOAD, whole, tmp_path / "seen.npy", code)
    assert in_a_new_process(CALL, whole / "exported", tmp_path / "seen.npy") == loaded


def test_own_world(tmp_path, monkeypatch, capsys, size):
    code, whole = shortened("own_world.py", tmp_path, 5 * 1024), tmp_path / "whole"
    killed_in_training(code, whole, after=2)
    arrives(code, whole)
    assert (whole / "exported" / "policy.stablehlo").is_file()
    facts = json.loads(said_by(capsys, monkeypatch, "eval", whole, "--code", code, "--devices", 1, "--json"))
    evaluations = sorted((whole / "evaluations").glob("*.json"))
    at_end = json.loads(evaluations[-1].read_text())
    assert {name: facts[name] for name in at_end} == at_end
    out = tmp_path / "analysis"
    few = ("--caps", 1, "--fixed", 2, "--count", 16)
    analyses = {"histogram": ("--episodes", 16)} | size({}, {"caps": few})
    for name, options in analyses.items():
        command(monkeypatch, *map(str, ("analyse", name, whole, "--code", code, *options, "--out", out)))
    for name in analyses:
        assert {path.suffix for path in out.glob(f"{name}.*")} == {".csv", ".png", ".svg", ".txt"}
    with pytest.raises(SystemExit):
        command(monkeypatch, "eval", str(whole))
    assert "is of a world of your own, 'walk'" in capsys.readouterr().err
    assert list((whole / "tensorboard").iterdir())


def said_by(capsys, monkeypatch, *words):
    """What a command prints, in this process."""
    capsys.readouterr()
    command(monkeypatch, *map(str, words))
    return capsys.readouterr().out


def test_own_gymnasium_world(tmp_path, size, monkeypatch, capsys):
    """Twenty steps is how long a pole stands by itself."""
    code = shortened("own_gymnasium_world.py", tmp_path, size(7, 40) * 1024)
    out = tmp_path / "run"
    killed_in_training(code, out, after=2)
    done = run(sys.executable, str(code), str(out), **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout, "stands for")[0] > size(30, 250)
    rows = (out / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + size(7, 40)
    np.save(tmp_path / "seen.npy", np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))
    loaded = in_a_new_process(LOAD, out, tmp_path / "seen.npy", code)
    assert in_a_new_process(CALL, out / "exported", tmp_path / "seen.npy") == loaded
    facts = json.loads(said_by(capsys, monkeypatch, "eval", out, "--code", code, "--count", 8, "--json"))
    assert facts["episodes"] == 8
    assert facts["returns"] == facts["mean_steps"] > 20  # a reward of 1 for each step
    compared = said_by(capsys, monkeypatch, "compare", out, "--out", tmp_path)
    assert "Returns at the end: Looped" in " ".join(compared.split())  # nobody says what a success is
    if not size(False, True):  # `test_own_world` has an analysis
        return
    few = ("--count", 4, "--caps", 8, "--fixed", 1, "--out", tmp_path)
    said = said_by(capsys, monkeypatch, "analyse", "caps", out, "--code", code, *few)
    assert "the best adaptive setting (cap 8, threshold 0.001) returns" in said


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short_and_tested(path):
    assert callable(globals()[f"test_{path.stem}"])
    assert len(path.read_text().splitlines()) <= 80


QUICKER = {"count=300": "count=24", "count=100": "count=8", "(2, 4, 8, 16, 32)": "()", "range(6)": "range(2)"}


@pytest.mark.parametrize("name", ["watch_a_policy_think", "adaptive_depth"])
def test_a_notebook_runs_and_shows_what_it_says(name, tmp_path, size):
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
