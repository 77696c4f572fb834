"""The paper's figures by name: a grid of runs that is killed, Ray, plans and reports."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest
from test_commands import COMMAND, UNOPTIMISED, command

from helpers import thorough
from looped_actor.puzzles.generate import generate
from looped_actor.puzzles.rush_hour.generator import RushHourRecipe
from looped_actor.reproduction.artifacts import ARTIFACTS
from looped_actor.reproduction.grid import RunKey, Study, is_finished
from looped_actor.utils.processes import RayTasks, fan_out

CHANGES = {
    "arm.core.width": 8,
    "arm.core.heads": 1,
    "arm.core.hidden": 24,
    "arm.halting.max_loops": 4,
    "algorithm.num_envs": 16,
    "algorithm.rollout_steps": 8,
    "algorithm.minibatch": 32,
    "levels.train_count": 60,
    "levels.held_out_count": 20,
    "levels.evaluate_count": 10,
    "evaluate_every": 8,
    "checkpoint_every": 2,
    "total_steps": 16 * 128,
}
SETTINGS = [f"{name}={json.dumps(value)}" for name, value in CHANGES.items()]
FIGURE = ["loops-against-pushes", "--seeds", "2"]
KEYS = [RunKey("boxoban", "ppo", "looped", seed) for seed in (0, 1)]


def start(folder):
    command = [*COMMAND, "reproduce", "run", *FIGURE, "--workers", "2", "--out", str(folder)]
    command += ["--set", *SETTINGS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=os.environ | UNOPTIMISED, **pipes)


def workers_of(process):
    """Return the processes of a pool, by their parent."""
    found = []
    for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            words = pathlib.Path("/proc", child, "cmdline").read_text()
            if "multiprocessing.spawn" in words:
                found.append(int(child))
    return found


def rows_of(study, key):
    try:
        return len((study.folder_of(key) / "metrics.csv").read_text().splitlines()) - 1
    except OSError:
        return 0


def wait_for(condition, process=None):
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.stderr.read()
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the folder of a grid that ran without interruption."""
    folder = tmp_path_factory.mktemp("grid")
    output, error = (process := start(folder)).communicate(timeout=400)
    assert process.returncode == 0, error
    assert "2 runs, 0 of them finished" in output
    return folder


def same_files(first, second):
    names = [f"runs/{key.name}/metrics.csv" for key in KEYS]
    names += [f"runs/{key.name}/policy/policy.safetensors" for key in KEYS]
    names += [f"artifacts/loops-against-pushes-ppo/difficulty.{kind}" for kind in ("csv", "txt", "svg")]
    return [
        name for name in [*names, "report.md"] if (first / name).read_bytes() != (second / name).read_bytes()
    ]


@thorough
def test_a_killed_grid_ends_as_an_undisturbed_one(undisturbed, tmp_path):
    """First a worker is killed, which is restarted; then the parent, with which its workers end."""
    study = Study(tmp_path)
    process = start(tmp_path)
    wait_for(lambda: min(rows_of(study, key) for key in KEYS) >= 3, process)
    victims = workers_of(process)
    os.kill(victims[0], signal.SIGKILL)
    wait_for(lambda: set(workers_of(process)) - set(victims), process)
    wait_for(lambda: max(rows_of(study, key) for key in KEYS) >= 8, process)
    process.kill()
    process.communicate(timeout=60)
    assert not (tmp_path / "report.md").exists()
    _, error = (again := start(tmp_path)).communicate(timeout=400)
    assert again.returncode == 0, error
    assert same_files(undisturbed, tmp_path) == []


@thorough
def test_finished_runs_and_their_tables_are_not_made_again(undisturbed):
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*.safetensors")}
    table = undisturbed / "artifacts/loops-against-pushes-ppo/difficulty.csv"
    before[table] = table.stat().st_mtime_ns
    output, error = (once_more := start(undisturbed)).communicate(timeout=200)
    assert once_more.returncode == 0, error
    assert "2 runs, 2 of them finished" in output
    assert {path: path.stat().st_mtime_ns for path in before} == before


@thorough
def test_over_ray_with_a_worker_killed(undisturbed, tmp_path, monkeypatch):
    """Of two workers of a real Ray one is killed during its run, which continues in another one."""
    for name, value in UNOPTIMISED.items():
        monkeypatch.setenv(name, value)
    study = Study(tmp_path, changes=tuple(CHANGES.items()))
    killed = []

    def kill_once(statuses):
        folder = study.folder_of(KEYS[0])
        if not killed and 3 <= rows_of(study, KEYS[0]) < 21:
            holders = [
                int(p.name) for p in pathlib.Path("/proc").glob("[0-9]*") if _holds(p, folder / "train.lock")
            ]
            killed.extend(holders)
            os.kill(holders[0], signal.SIGKILL)

    with RayTasks("local", workers=2) as pool:
        fan_out([study.job(key) for key in KEYS], pool, kill_once, seconds=0.1)
    assert killed
    for key in KEYS:
        for name in ("metrics.csv", "policy/policy.safetensors"):
            mine, theirs = (folder / "runs" / key.name / name for folder in (tmp_path, undisturbed))
            assert mine.read_bytes() == theirs.read_bytes(), (key, name)


@thorough
def test_batches_of_levels_over_ray():
    recipe, wanted = RushHourRecipe(height=5, width=5), {"some": 10}
    with RayTasks("local", workers=2, reuse=True) as pool:
        by_ray = generate(recipe, wanted, workers=pool)["some"]
    assert by_ray.info.checksum == generate(recipe, wanted, workers=1)["some"].info.checksum


def _holds(process, path):
    try:
        return any(os.path.realpath(link) == str(path) for link in (process / "fd").iterdir())
    except OSError:
        return False


def test_one_command_makes_tables_and_figures_again(undisturbed, tmp_path):
    shutil.copytree(undisturbed / "artifacts", tmp_path / "artifacts")
    for path in [*tmp_path.rglob("*.png"), *tmp_path.rglob("*.svg")]:
        path.unlink()
    (tmp_path / "notes.md").write_text(
        "## In short\n\n- It *works*.\n- `So` it does.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    done = subprocess.run(
        [*COMMAND, "reproduce", "report", "--out", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    markdown, page = ((tmp_path / f"report.{kind}").read_text() for kind in ("md", "html"))
    assert (
        markdown.replace(
            "## In short\n\n- It *works*.\n- `So` it does.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n", ""
        )
        == (undisturbed / "report.md").read_text()
    )
    assert "<li>It <em>works</em>.</li>" in page
    assert page.count("data:image/png;base64,") == 1
    assert not re.search(r'(src|href)="(?!data:)', page)
    missing = page.partition("Not made in this study")[2]
    assert [name for name in ARTIFACTS if name not in missing] == ["loops-against-pushes"]


def test_other_settings_in_the_same_folder_are_refused(undisturbed):
    command = [*COMMAND, "reproduce", "run", *FIGURE, "--out", str(undisturbed), "--set", *SETTINGS, "seed=3"]
    done = subprocess.run([*command[:-1], "arm.core.layers=2"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "was begun with arm.core.layers = 1, and 2 is asked for now" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "figure-1"], "there is no 'figure-1' in the paper; there are boxoban-curves"),
        (["plan"], "which figure?"),
        (["plan", "boxoban-curves", "--tasks", "scene"], "does not show scene; it can show boxoban"),
        (["plan", "boxoban-curves", "--arms", "mlp"], "does not compare mlp; it compares looped"),
        (["plan", "adaptive-against-fixed", "--arms", "fixed-4"], "looped must be among its arms"),
        (["plan", "boxoban-curves", "--seeds", "0"], "seeds is 0"),
        (["plan", "boxoban-curves", "--budget", "0"], "budget is 0"),
        (["plan", "boxoban-curves", "--set", "algorithm.lr=1"], "no run has this field"),
        (["plan", "boxoban-curves", "--accelerator", "abacus"], "there is no figure for 'abacus'"),
        (["plan", "boxoban-curves", "--seeds", "1", "--seeds", "2"], "--seeds is given twice"),
        (["report", "--out", "nowhere"], "nothing was made here yet"),
        (["run", "boxoban-curves", "--workers", "0"], "workers must be at least 1"),
    ],
)
def test_mistakes_end_in_one_line(words, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, "reproduce", *words)
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_plan_counts_finished_runs(undisturbed, monkeypatch, capsys):
    words = ["plan", *FIGURE[:1], "--seeds", "3", "--json", "--out", str(undisturbed), "--set", *SETTINGS]
    command(monkeypatch, "reproduce", *words)
    (row,) = json.loads(capsys.readouterr().out)["loops-against-pushes"]
    assert (row["runs"], row["finished"], row["begun"], row["steps"]) == (3, 2, 0, 16 * 128)
    assert row["expected_flops"] == pytest.approx(9.8 / 16 * row["flops"], rel=0.01)
    assert row["hours_here"] > 0
    assert all(is_finished(Study(undisturbed).folder_of(key)) for key in KEYS)
