"""Reproduction: success over seeds, verdicts, the paper's numbers, grids, and processes that die."""

import json
import os
import pathlib
import signal
import time
from typing import get_args

import numpy as np
import pytest

from helpers import thorough
from looped_actor.analysis.tables import read_table, rows_where
from looped_actor.evaluation.intervals import wilson
from looped_actor.models.tasks import TASKS
from looped_actor.names import ArmName, Scale
from looped_actor.reproduction import paper_numbers
from looped_actor.reproduction.artifacts import ARTIFACTS
from looped_actor.reproduction.grid import RunKey, Study
from looped_actor.reproduction.report import write_report
from looped_actor.reproduction.seeds import (
    difference_rows,
    ends_table,
    is_climbing,
    success_over_seeds,
    verdict,
)
from looped_actor.robots.ogbench import ENVIRONMENTS
from looped_actor.robots.ogbench import TASKS as ROBOT_TASKS
from looped_actor.runs.presets import STUDY_EVALUATIONS, STUDY_STEPS, preset
from looped_actor.runs.registry import run_of
from looped_actor.utils.codec import replace_fields, write_json
from looped_actor.utils.files import held, write_whole
from looped_actor.utils.processes import Job, Processes, RayTasks, WorkError, fan_out, visible_devices


def test_success_over_seeds():
    summary = success_over_seeds([50, 60], [100, 100], [None, None])
    assert summary.mean == pytest.approx(0.55)
    assert summary.deviation == pytest.approx(np.sqrt(0.005))
    # Student's t with one degree of freedom: 12.706 standard errors.
    assert summary.seeds == (0.0, 1.0)
    three = success_over_seeds([50, 52, 54], [100, 100, 100], [None] * 3)
    assert three.seeds is not None
    assert three.seeds.low == pytest.approx(0.52 - 4.3027 * 0.02 / np.sqrt(3), abs=1e-4)
    assert three.levels.low < 0.52 < three.levels.high
    assert success_over_seeds([1], [10], [None])[1:3] == (None, None)


def test_seeds_that_play_the_same_levels_are_not_pooled():
    """Copies of a run are worth that run; without outcomes nothing else can be known."""
    marks, alone = "+" * 70 + "-" * 30, wilson(70, 100)
    for outcomes in ([marks] * 3, [None] * 3, [marks, marks, None], [marks, marks, marks[1:]]):
        assert success_over_seeds([70] * 3, [100] * 3, outcomes).levels == pytest.approx(alone)
    # Runs that solve levels independently of each other are worth nearly all of their levels.
    independent = [
        "".join("+-"[int(x)] for x in np.random.default_rng(seed).random(100) < 0.3) for seed in range(3)
    ]
    solved = [marks.count("+") for marks in independent]
    apart = success_over_seeds(solved, [100] * 3, independent).levels
    assert apart.high - apart.low < 0.75 * (alone.high - alone.low)


def evaluation(run, arm, solved, steps=10, **more):
    seed = int(run[-1])
    about = {"run": run, "task": "boxoban", "arm": arm, "learner": "PPO", "seed": seed}
    numbers = {"steps": steps, "played": 500, "solved": solved, "success": solved / 500, "loops": 3.0}
    return {**about, **numbers, "optimal_actions": None, "paper": None, "paper_deviation": None, **more}


def test_the_last_evaluation_counts_and_verdicts_hold_the_interval_of_the_difference():
    rows = [evaluation("a0", "looped", 1, steps=5)]
    rows += [evaluation(f"a{seed}", "looped", 400 + seed) for seed in (0, 1)]
    rows += [evaluation(f"b{seed}", "iso-params", 100 + seed) for seed in (0, 1)]
    rows += [evaluation(f"c{seed}", "iso-flops", solved) for seed, solved in ((0, 300), (1, 380))]
    rows += [evaluation("d0", "drc", 405)]
    ends, apart = ends_table(rows), difference_rows(rows, "looped")
    assert [(row["arm"], row["success"]) for row in ends][:2] == [("looped", 0.801), ("iso-params", 0.201)]
    # Both seeds differ by 300 levels: over levels alone, of one run.
    assert "Looped is 60.0 points ahead of Iso-Params (95% interval 55" in str(
        verdict(ends, apart, "iso-params")
    )
    # By 100 and 21 levels: one degree of freedom.
    assert str(verdict(ends, apart, "iso-flops")).endswith("(95% interval -88.3 to 100.0): undecided.")
    said = str(verdict(ends, apart, "drc"))
    assert "is 1.0 points behind DRC" in said
    assert said.endswith("one seed each, and other seeds may differ by more: undecided.")
    assert verdict(ends, apart, "mlp") is None


def test_arms_are_paired_by_level_where_outcomes_are_recorded():
    """Two arms of which one solves 20 more levels, and all that the other one does."""
    marks = {"looped": "+" * 300 + "-" * 200, "iso-flops": "+" * 280 + "-" * 220}
    for recorded, least in ((True, 0.0), (False, -1.0)):
        rows = [
            evaluation(f"{arm}{seed}", arm, text.count("+"), outcomes=text if recorded else None)
            for arm, text in marks.items()
            for seed in (0, 1)
        ]
        (apart,) = difference_rows(rows, "looped")
        assert (apart["by_level"], apart["ahead"]) == (recorded, pytest.approx(0.04))
        assert (apart["low"] > 0) == recorded
        assert apart["low"] > least


@pytest.mark.parametrize(("last", "climbs"), [(330, False), (345, True)])
def test_an_arm_that_still_climbs_is_not_compared(last, climbs):
    """62% of 500 levels at three quarters of the run, 66 or 69% at its end: 5.9 points apart is enough."""
    rows = [
        evaluation(f"a{seed}", "looped", solved, steps)
        for seed in (0, 1)
        for steps, solved in ((10, 100), (20, 250), (32, 310), (40, last))
    ]
    rows += [evaluation(f"b{seed}", "iso-params", 50, steps) for seed in (0, 1) for steps in (10, 20, 30, 40)]
    rows += [evaluation("a0", "looped", 500, 40, split="test")]
    assert is_climbing(rows_where(rows, arm="looped")) == climbs
    assert not is_climbing(rows_where(rows, arm="iso-params"))
    said = str(verdict(ends_table(rows), difference_rows(rows, "looped"), "iso-params"))
    assert ("too short to compare, Looped still climbs at the end" in said) == climbs
    assert ("ahead of" in said) != climbs


def test_the_papers_table_adds_up():
    """The rate of an environment is the mean of its five tasks: the table was copied without mistakes."""
    means = paper_numbers.ROBOTS
    for env_name in ENVIRONMENTS:
        for arm in paper_numbers.ROBOT_ARMS:
            tasks = [means[env_name, task, arm].mean for task in ROBOT_TASKS]
            overall = means[env_name, 0, arm].mean
            assert np.mean(tasks) == pytest.approx(overall, abs=0.0007), (env_name, arm)
    overall = [
        np.mean([means[env_name, 0, arm].mean for env_name in ENVIRONMENTS])
        for arm in paper_numbers.ROBOT_ARMS
    ]
    assert overall == pytest.approx([0.330, 0.685, 0.697], abs=0.0006)


def test_presets_for_all_22_tasks_and_all_arms():
    """Two puzzles and the five tasks of four environments, at every scale, by every learner and arm."""
    assert 2 + sum(len(paper_numbers.ROBOT_TASK_NAMES[env_name]) for env_name in ENVIRONMENTS) == 22
    for task, shapes in TASKS.items():
        for scale in get_args(Scale):
            for learner in ("ppo",) if task in ENVIRONMENTS else ("ppo", "imitation"):
                for arm in set(get_args(ArmName)) - set(shapes.unfit_arms):
                    config = preset(task, scale, arm, learner)
                    assert (config.task, config.arm.name) == (task, arm)
            whole = preset(task, scale)
            assert run_of(whole).spec.net.flops(whole.shapes.observation(1), 1) > 0


def test_the_grids_of_the_paper():
    sizes = {name: len(artifact.keys()) for name, artifact in ARTIFACTS.items()}
    assert sizes == {
        "boxoban-curves": 12,
        "rush-hour-curves": 12,
        "ogbench-table": 60,
        "ogbench-curves": 60,
        "plan-probes": 3,
        "loops-against-pushes": 3,
        "loop-histograms": 18,
        "adaptive-against-fixed": 12,
    }
    fewer = ARTIFACTS["adaptive-against-fixed"].keys("imitation", seeds=1, max_loops=8)
    assert [key.arm for key in fewer] == ["looped", "fixed-4", "fixed-8"]


def test_a_grid_at_micro_is_shorter_than_its_preset():
    study = Study(pathlib.Path("nowhere"), budget=0.5, changes=(("algorithm.epochs", 1),))
    config = study.config(RunKey("boxoban", "ppo", "drc", 3))
    assert (config.arm.name, config.seed, config.algorithm.epochs) == ("drc", 3, 1)
    assert config.total_steps == STUDY_STEPS["boxoban", "ppo"] // 2
    assert -(-config.iterations // config.evaluate_every) <= STUDY_EVALUATIONS
    rates = {
        arm: Study(pathlib.Path("nowhere")).config(RunKey("rush-hour", "ppo", arm, 0)).algorithm.learning_rate
        for arm in ("looped", "iso-flops", "iso-params")
    }
    assert rates == {"looped": 3e-3, "iso-flops": 3e-3, "iso-params": 1.5e-3}
    paper = Study(pathlib.Path("nowhere"), "paper").config(RunKey("scene", "gciql", "looped", 0))
    assert paper == preset("scene", "paper")


def test_runs_that_an_older_version_began_belong_to_the_same_study():
    """Upgraded configurations spell out the hidden width; later ones have the sizes that a run resolved."""
    results = pathlib.Path(__file__).parents[2] / "results" / "micro_study"
    key = RunKey("boxoban", "imitation", "looped", 1)
    Study(results).check(key)
    with pytest.raises(ValueError, match=r"was begun with algorithm\.epochs = 2, and 3 is asked for"):
        Study(results, changes=(("algorithm.epochs", 3),)).check(key)


def test_a_run_that_has_resolved_its_sizes_belongs_to_the_same_study(tmp_path):
    study, key = Study(tmp_path), RunKey("rush-hour", "ppo", "looped", 0)
    begun = replace_fields(study.config(key), {"microbatch": 8, "slots": 16})
    write_json(begun, study.folder_of(key) / "config.json")
    study.check(key)
    with pytest.raises(ValueError, match="was begun with slots = 16, and 4 is asked for"):
        Study(tmp_path, changes=(("slots", 4),)).check(key)


def die_twice(folder):
    """Dies until it was tried three times."""
    tries = len(list(folder.iterdir()))
    (folder / str(tries)).touch()
    if tries < 2:
        os._exit(9)
    return os.sched_getaffinity(0)


def fail():
    raise KeyError("no such thing")


def save_when_asked(folder):
    """Ends when it is asked to, and says so."""
    signal.signal(signal.SIGTERM, lambda *_: (folder / "saved").touch())
    (folder / "begun").touch()
    while not (folder / "saved").exists():
        time.sleep(0.01)


@pytest.mark.parametrize("kind", [Processes, pytest.param(RayTasks, marks=thorough)])
def test_what_dies_is_tried_again_and_what_fails_is_not(kind, tmp_path, monkeypatch):
    """Also over a real Ray, on this machine."""
    here = pathlib.Path(__file__).parent  # where Ray's workers find `fail`, and what this file imports
    monkeypatch.setenv("PYTHONPATH", f"{here}:{here.parent}")
    seen = []
    with kind(workers=2, retries=2) as pool:
        assert len(pool.submit(die_twice, tmp_path).result()) >= 1
        with pytest.raises(WorkError, match=r"'no such thing' \(KeyError at test_reproduction.py"):
            pool.submit(fail).result()
        jobs = [Job("good", os.getpid), Job("bad", fail)]
        with pytest.raises(ChildProcessError, match=r"1 of 2 failed(.|\n)*bad: 'no such thing'"):
            fan_out(jobs, pool, seen.append, seconds=0.01)
    assert [(status.name, status.state) for status in seen[-1]] == [("good", "finished"), ("bad", "failed")]


def place_of(barrier, variable):
    """The device of a process, once as many processes run as there are devices."""
    (barrier / str(os.getpid())).touch()
    while len(list(barrier.iterdir())) < 2:
        time.sleep(0.01)
    return os.environ[variable]


@pytest.mark.parametrize(
    ("platform", "inherited", "expected"),
    [
        ("gpu", "4,5", ["4", "5"]),
        ("gpu", " 7 , GPU-abc,-1,6", ["7", "GPU-abc"]),
        ("gpu", None, ["0", "1"]),
        ("tpu", "2,3", ["2", "3"]),
    ],
)
def test_processes_use_the_devices_that_the_environment_names(
    platform, inherited, expected, tmp_path, monkeypatch
):
    """No accelerator is needed: the variable is all that a process gets."""
    variable = {"gpu": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}[platform]
    monkeypatch.delenv(variable, raising=False)
    if inherited is not None:
        monkeypatch.setenv(variable, inherited)
    monkeypatch.setattr("looped_actor.utils.processes.devices_here", lambda: (platform, 2))
    with Processes() as pool:
        places = [pool.submit(place_of, tmp_path, variable) for _ in range(2)]
        assert sorted(place.result(300) for place in places) == expected
    with pytest.raises(ValueError, match=f"3 workers were requested, .* there are 2 of type {platform}"):
        Processes(workers=3)


@pytest.mark.parametrize(
    ("value", "expected"), [("", []), ("-1", []), ("0,-1,1", ["0"]), ("GPU-a,MIG-b", ["GPU-a", "MIG-b"])]
)
def test_visible_devices(value, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_devices("CUDA_VISIBLE_DEVICES") == expected


def test_a_pool_that_is_left_has_its_work_saved(tmp_path):
    with Processes(workers=1) as pool:
        future = pool.submit(save_when_asked, tmp_path)
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
    assert (tmp_path / "saved").exists()
    assert future.done()


def test_a_lock_is_held_by_one(tmp_path):
    with held(tmp_path / "lock"), pytest.raises(ValueError, match="it is taken; wait for it, or end it"):
        held(tmp_path / "lock", taken="it is taken").__enter__()
    with held(tmp_path / "lock"):
        pass


def test_the_ogbench_table_and_its_report(tmp_path):
    """From evaluations to rows by environment and task, and to the report."""
    artifact = ARTIFACTS["ogbench-table"]
    keys = artifact.keys(seeds=2, tasks=["scene", "cube-double"])
    study = Study(tmp_path)
    for key in keys:
        tasks = {str(n): {"solved": key.seed + n, "episodes": 10} for n in ROBOT_TASKS}
        facts = {"solved": 15 + 5 * key.seed, "episodes": 50, "by_task": tasks}
        write_whole(study.folder_of(key) / "evaluations" / "000000000100.json", json.dumps(facts).encode())
    out = tmp_path / "artifacts" / "ogbench-table"
    made = {"artifact": "ogbench-table", "scale": "micro", "runs": [list(key) for key in keys]}
    write_whole(out / "made.json", json.dumps(made).encode())
    markdown, _ = write_report(tmp_path)
    rows = read_table(out / "worlds.csv", ("task", "arm", "number", "success", "paper"))
    assert len(rows) == 2 * 3 * 6
    drawer = next(row for row in rows if (row["arm"], row["name"]) == ("looped", "put in drawer"))
    assert (drawer["success"], drawer["paper"], drawer["runs"]) == (0.45, 0.436, 2)
    wanted = ("scene", "iso-flops", 0)
    whole = next(row for row in rows if (row["task"], row["arm"], row["number"]) == wanted)
    assert (whole["success"], whole["paper"]) == (0.35, 0.682)
    assert "| put in drawer | 45.0 +- 7.1% |" in markdown.read_text()
    assert "| **mean of all environments** | 35.0% | - | 19.7% |" in markdown.read_text()


def test_a_run_ends_with_its_test(tmp_path):
    """Curves are of evaluations during training, ends of the test; beside it, levels learned from."""
    artifact, study = ARTIFACTS["rush-hour-curves"], Study(tmp_path)
    keys = artifact.keys(seeds=1, arms=["looped"])
    folder = study.folder_of(keys[0])
    write_json(study.config(keys[0]), folder / "config.json")

    def facts(solved, **more):
        share = {"solved": solved, "levels": 10, "success": solved / 10, "interval_95": [0.1, 0.9]}
        return json.dumps({**share, "loops": 3.0, **more}).encode()

    for steps, solved in ((100, 2), (200, 6)):
        there = folder / "evaluations" / f"{steps:012d}.json"
        write_whole(there, facts(solved, train={"success": (solved + 2) / 10}))
    write_whole(folder / "test.json", facts(5))
    out = tmp_path / "artifacts" / "rush-hour-curves-ppo"
    made = {"artifact": artifact.id, "learner": "ppo", "scale": "micro", "runs": [list(key) for key in keys]}
    write_whole(out / "made.json", json.dumps(made).encode())
    markdown, _ = write_report(tmp_path)
    rows = read_table(out / "curves.csv", ("steps", "split", "success", "train_success"))
    assert [(row["steps"], row["split"], row["success"]) for row in rows] == [
        (100, "valid", 0.2),
        (200, "valid", 0.6),
        (200, "test", 0.5),
    ]
    (end,) = read_table(out / "ends.csv", ("success", "train_success"))
    assert (end["success"], end["train_success"]) == (0.5, 0.8)
    assert "| training levels solved |" in markdown.read_text()
