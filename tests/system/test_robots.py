"""OGBench on MuJoCo: data collection, training, evaluation and films."""

import ctypes.util
import itertools
import json
import os

import numpy as np
import pytest
from test_commands import COMMAND, UNOPTIMISED, command, run

from looped_actor.algorithms import Action
from looped_actor.loop import empty_carry
from looped_actor.models.tasks import ROBOT_TASKS
from looped_actor.offline import from_ogbench, open_dataset
from looped_actor.policy.policy import save_policy
from looped_actor.reproduction.grid import RunKey, Study, link_shared_data
from looped_actor.robots import collection
from looped_actor.robots.collection import CollectionJob, collect, validation_path
from looped_actor.robots.critics import critic_results
from looped_actor.robots.evaluation import RobotPlayer, _Rows, summarize_robots
from looped_actor.robots.graded import (
    ARM_SIZE,
    EFFECTOR,
    GRADED,
    count_subtasks,
    make_graded_task,
    measure_motion,
    press,
)
from looped_actor.robots.ogbench import ACTION_SIZE, ENVIRONMENTS, TASKS, RobotEnv, make_env
from looped_actor.runs.folder import begin_run, read_run
from looped_actor.runs.load import policy_at
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.training import Ending, Schedule, fit
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import replace_fields
from looped_actor.utils.tensors import named_leaves

ogbench = pytest.importorskip("ogbench")

RUN_CHANGES = {
    "algorithm.hidden": [8],
    "algorithm.batch": 16,
    "algorithm.updates_per_iteration": 5,
    "data.transitions": 40,
    "data.episode_transitions": 20,
    "episodes": 1,
    "time_limit": 3,
    "evaluate_every": 100,
    "checkpoint_every": 1,
    "total_steps": 20,
}
CORE_CHANGES = {"arm.core.width": 8, "arm.core.heads": 1}
ARM_CHANGES = {
    "mlp": {"arm.hidden": [8]},
    "looped": CORE_CHANGES | {"arm.halting.max_loops": 3},
    "iso-params": CORE_CHANGES,
    "iso-flops": CORE_CHANGES | {"arm.copies": 3},
    "fixed-4": CORE_CHANGES,
}


def tiny(env_name, arm="mlp", **changes):
    """Return a run of four iterations; changes as data__transitions=60."""
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return replace_fields(preset(env_name, "micro", arm), RUN_CHANGES | ARM_CHANGES[arm] | named)


def settings(changes):
    """Return changes as the arguments of --set."""
    return ["--set", *(f"{name}={json.dumps(value)}" for name, value in changes.items())]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Training data of each environment: two episodes, and one for validation next to them."""
    folder = tmp_path_factory.mktemp("data")
    return {
        env_name: collect(CollectionJob(env_name, 40, seed=1, episode_transitions=20), folder, workers=1)[0]
        for env_name in ENVIRONMENTS
    }


@pytest.mark.parametrize("env_name", ENVIRONMENTS)
def test_ogbench_loads_collected_data(env_name, data):
    task = ROBOT_TASKS[env_name]
    for path in (data[env_name], validation_path(data[env_name])):
        theirs, ours = ogbench.load_dataset(path, add_info=True), open_dataset(path)
        assert theirs["observations"].shape == (ours.transitions, task.size)
        assert theirs["actions"].shape == (ours.transitions, task.actions)
        assert np.abs(theirs["actions"]).max() <= 1
        assert theirs["observations"].dtype == theirs["actions"].dtype == np.float32
        assert ("button_states" in theirs) == (env_name in ("puzzle-3x3", "scene"))
        change = np.abs(np.diff(theirs["observations"], axis=0)).max()
        assert 0 < change < 10
        # qpos and qvel are those of the observations: an environment in that state observes the same.
        env = make_env(env_name).unwrapped
        env.reset(options={"task_id": 1})
        kept = ("qpos", "qvel", "button_states") if "button_states" in theirs else ("qpos", "qvel")
        for row in (1, ours.transitions // 2):
            env.set_state(*(theirs[name][row] for name in kept))
            observed, recorded = env.compute_observation(), theirs["observations"][row]
            np.testing.assert_allclose(observed[:12], recorded[:12], atol=1e-5)  # joints and their velocities
            # Positions, in units of 10 cm, are those before the last 2 ms of physics.
            np.testing.assert_allclose(observed[12:], recorded[12:], atol=0.03)
    loaded = ogbench.make_env_and_datasets(
        f"{env_name}-play-v0", dataset_path=str(data[env_name]), dataset_only=True, compact_dataset=True
    )
    assert [len(split["valids"]) for split in loaded] == [42, 21]


def test_runs_of_a_study_record_the_seed_of_their_data(tmp_path):
    """All learn from the same data; the configuration of each is enough to collect them again."""
    changes = RUN_CHANGES | ARM_CHANGES["looped"]
    study, sums = Study(tmp_path, changes=tuple(changes.items())), []
    for seed in (0, 3):
        key = RunKey("puzzle-3x3", "gciql", "looped", seed)
        config, folder = study.config(key), study.folder_of(key)
        link_shared_data(config, folder, tmp_path / "shared")
        assert begin_run(config, folder).seed == seed
        recipe = json.loads((folder / "data" / "recipe.json").read_text())
        assert (recipe["seed"], recipe["transitions"]) == (0, 40)
        sums.append(json.loads((folder / "provenance.json").read_text()))
    assert sums[0] == sums[1]
    assert run_of(config, tmp_path / "alone").prepare().items() <= sums[1].items()
    assert len(list((tmp_path / "shared").iterdir())) == 1


def test_collected_files_do_not_depend_on_workers_or_interruptions(tmp_path, monkeypatch):
    job = CollectionJob("scene", 60, seed=3, episode_transitions=15)
    paths = collect(job, tmp_path / "one", workers=1)
    expected = [path.read_bytes() for path in paths]
    assert [p.read_bytes() for p in collect(job, tmp_path / "two", workers=2)] == expected
    with pytest.raises(ValueError, match="is there already"):
        collect(job, tmp_path / "two", workers=1)

    # Interrupted after three episodes of five: finished episodes are not collected again.
    collect_episode, collected = collection.collect_episode, []

    def interrupt_at(most):
        def collect_or_interrupt(job, number=None):
            if len(collected) == most:
                raise KeyboardInterrupt
            collected.append(number)
            return collect_episode(job, number)

        return collect_or_interrupt

    monkeypatch.setattr(collection, "collect_episode", interrupt_at(3))
    with pytest.raises(KeyboardInterrupt):
        collect(job, tmp_path / "broken", workers=1)
    assert not list((tmp_path / "broken").glob("*.npz"))
    monkeypatch.setattr(collection, "collect_episode", interrupt_at(5))
    with monkeypatch.context() as at_the_end:
        at_the_end.setattr(collection, "remove_parts", interrupt_at(5))  # both files are written
        with pytest.raises(KeyboardInterrupt):
            collect(job, tmp_path / "broken", workers=1)
    assert [p.read_bytes() for p in collect(job, tmp_path / "broken", workers=1)] == expected
    assert collected == [-1, 0, 1, 2, 3]
    assert [path.name for path in sorted((tmp_path / "broken").iterdir())] == [
        "scene-play-v0-val.npz",
        "scene-play-v0.npz",
    ]


@pytest.mark.parametrize("env_name", ENVIRONMENTS)
def test_ogbench_loads_noisy_data(env_name, data, tmp_path):
    job = CollectionJob(env_name, 40, seed=1, episode_transitions=20, kind="noisy")
    train, validation = collect(job, tmp_path, workers=1)
    assert [train.name, validation.name] == [f"{env_name}-noisy-v0.npz", f"{env_name}-noisy-v0-val.npz"]
    loaded = ogbench.make_env_and_datasets(
        f"{env_name}-noisy-v0", dataset_path=str(train), dataset_only=True, compact_dataset=True
    )
    assert [len(split["valids"]) for split in loaded] == [42, 21]
    # Consecutive actions differ more than in play data, which follow a plan.
    changes = [
        np.abs(np.diff(np.load(path)["actions"][:21, :3], axis=0)).mean() for path in (data[env_name], train)
    ]
    assert changes[1] > 1.3 * changes[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "wild"}, "kind is 'wild'; it must be one of play, noisy"),
        ({"env_name": "kitchen"}, "there is no environment 'kitchen'; there are cube-double, "),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
    ],
)
def test_an_invalid_job_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CollectionJob(**({"env_name": "scene", "transitions": 40} | options))


@pytest.mark.parametrize("env_name", ENVIRONMENTS)
def test_an_episode_of_a_task_depends_on_its_seed_alone(env_name):
    env, episodes = RobotEnv(env_name), {}
    for task, seed in [*itertools.product(TASKS, [7]), *itertools.product(reversed(TASKS), [7])]:
        state, goal = env.reset(task, seed)
        assert state.shape == goal.shape == (ROBOT_TASKS[env_name].size,)
        step = env.step(np.full(ACTION_SIZE, 0.5))
        assert not step.done
        assert not step.success
        episode = np.concatenate([state, goal, step.state])
        np.testing.assert_array_equal(episodes.setdefault(task, episode), episode)
        assert env.task_name(task).startswith(f"task{task}")
    assert env.time_limit == {"cube-triple": 1000, "scene": 750}.get(env_name, 500)
    assert len({tuple(episode) for episode in episodes.values()}) == len(TASKS)


@pytest.mark.parametrize("env_name", GRADED)
def test_an_episode_of_a_graded_goal_depends_on_its_seed_alone(env_name):
    env, episodes = RobotEnv(env_name), {}
    for name, seed in [*itertools.product(GRADED[env_name], [1, 2])] * 2:
        episode = np.concatenate(env.reset(name, seed))
        np.testing.assert_array_equal(episodes.setdefault((name, seed), episode), episode)
        assert not env.step(np.zeros(ACTION_SIZE)).success
    assert len({tuple(episode) for episode in episodes.values()}) == len(episodes)
    with pytest.raises(ValueError, match="has no goal '99 presses' by distance"):
        env.reset("99 presses", 0)


def test_a_graded_goal_is_as_many_presses_away_as_its_name_says():
    """All 512 sets of buttons have different effects, so no smaller set reaches the goal."""
    start = np.array([0, 1, 1, 0, 0, 1, 0, 1, 0])
    sets = [buttons for size in range(10) for buttons in itertools.combinations(range(9), size)]
    presses_to = {press(start, np.array(buttons, int)).tobytes(): len(buttons) for buttons in sets}
    assert len(presses_to) == 512
    for presses, name in enumerate(GRADED["puzzle-3x3"], 1):
        for seed in range(20):
            task = make_graded_task("puzzle-3x3", name, seed)
            change = task["init_button_states"] ^ task["goal_button_states"] ^ start
            assert presses_to[change.tobytes()] == presses


def test_a_graded_goal_of_cubes_is_as_far_as_its_name_says():
    for name, seed in [(name, seed) for name in GRADED["cube-double"] for seed in range(50)]:
        task = make_graded_task("cube-double", name, seed)
        (cube, other), (goal, other_goal) = task["init_xyzs"], task["goal_xyzs"]
        np.testing.assert_array_equal(other, other_goal)
        assert np.linalg.norm(cube - other) > 0.08
        if name == "on the other":
            np.testing.assert_allclose(goal - other, [0, 0, 0.04])
        else:
            assert np.linalg.norm(goal - cube) == pytest.approx(int(name[:2]) / 100)
            assert np.linalg.norm(goal - other) > 0.08


def make_player(**options):
    """Return a player of puzzle-3x3, and weights of a policy."""
    spec = run_of(tiny("puzzle-3x3", "looped")).spec
    defaults = {"episodes": 2, "tasks": (1, 3), "rows": 3, "workers": 1, "time_limit": 4}
    return RobotPlayer("puzzle-3x3", spec.definition, **(defaults | options)), spec.init_weights()


def test_episodes_do_not_depend_on_workers():
    played = []
    for workers in (1, 2):
        player, weights = make_player(workers=workers, deviation=0.3)
        try:
            played.append(player.play(weights))
            assert player.play(weights) == played[-1], "the same workers play the same episodes again"
        finally:
            player.close()
    assert played[0] == played[1]
    episodes = played[0].episodes
    assert [(e.task, e.number) for e in episodes] == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert all(len(e.loops) == 4 and not e.success for e in episodes)
    loops = sum(sum(e.loops) for e in episodes)
    assert loops <= played[0].executed <= 1.6 * loops
    results = summarize_robots(played[0], most_loops=3)
    assert results["by_task"].keys() == {"1", "3"}
    assert sum(results["loop_histogram"].values()) == 16
    assert results["loops"] == loops / 16
    assert results["mean_steps"] == 4


def test_noise_depends_on_the_episode_alone():
    class Worker(list):
        send = list.append

    def play(deviation, *episodes):
        """Return the actions of 200 steps of each episode."""
        player, _ = make_player(seed=7, deviation=deviation)
        workers, ones = [Worker() for _ in episodes], np.ones(len(episodes), int)
        rows = _Rows(player, dict(enumerate(workers)), iter(episodes))
        action = Action(
            action=np.full((len(episodes), 5), 0.25),
            loops=ones,
            stop=ones,
            executed=len(episodes),
            carry=empty_carry(len(episodes)),
        )
        for _ in range(200):
            rows.act(action)
        return [np.array([action for _, _, action in worker[1:]]) for worker in workers]

    one, other = play(0.1, (1, 0), (1, 1))
    np.testing.assert_array_equal(play(0.1, (1, 1))[0], other)
    assert not np.allclose(one, other)
    assert abs(one.mean() - 0.25) < 0.02  # six standard errors of a mean of a thousand
    assert one.std() == pytest.approx(0.1, rel=0.15)
    assert (play(0.0, (1, 0))[0] == 0.25).all()


def test_a_worker_that_dies_is_reported():
    player, weights = make_player()
    try:
        player._pool[0]._process.kill()
        with pytest.raises(ChildProcessError, match="MuJoCo died"):
            player.play(weights)
    finally:
        player.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 0}, "at least 1"),
        ({"tasks": (6,)}, "one of \\[1, 2, 3, 4, 5, '1 press'"),
        ({"tasks": ("8 presses",)}, "one of \\[1, 2, 3, 4, 5, '1 press'"),
        ({"rows": 1000, "workers": 2}, "128 at most"),
    ],
)
def test_an_invalid_player_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_player(**options)


CASES = [("cube-double", "looped"), ("puzzle-3x3", "mlp")]
if os.environ.get("THOROUGH"):
    CASES = list(itertools.product(ENVIRONMENTS, ["looped", "iso-params", "iso-flops", "mlp", "fixed-4"]))


@pytest.mark.parametrize(("env_name", "arm"), CASES)
def test_commands_train_and_evaluate_a_policy(env_name, arm, data, tmp_path, monkeypatch, capsys):
    """Two environments, and all of their tasks; with THOROUGH=1 every pair of environment and arm."""
    folder = tmp_path / "run"
    train = ["train", env_name, "--arm", arm, "--data", str(data[env_name]), "--out", str(folder)]
    command(monkeypatch, *train, "--devices", "1", *settings(RUN_CHANGES | ARM_CHANGES[arm]))
    assert "finished; the policy is in" in capsys.readouterr().out
    evaluation = json.loads((folder / "evaluations" / "000000000020.json").read_text())
    assert list(evaluation["by_task"]) == ["1", "2", "3", "4", "5"]
    assert all(task["mean_steps"] == 3 for task in evaluation["by_task"].values())
    assert evaluation["held_out_action_error"] > 0
    if arm == "looped" or os.environ.get("THOROUGH"):
        command(monkeypatch, "eval", str(folder), "--count", "1", "--baselines", "--json")
        results = json.loads(capsys.readouterr().out)
        assert (results["task"], results["arm"]) == (env_name, arm)
        assert results["by_task"].keys() == evaluation["by_task"].keys()
        assert results["baselines"]["random"]["episodes"] == 5
    if (env_name, arm) == ("cube-double", "looped"):
        command(monkeypatch, "eval", str(folder), "--count", "1", "--graded", "--json")
        assert tuple(json.loads(capsys.readouterr().out)["by_task"]) == GRADED[env_name]


def test_a_command_films_an_episode(data, tmp_path):
    if not ctypes.util.find_library("EGL"):
        pytest.skip("rendering needs EGL")
    from PIL import Image

    config = tiny("puzzle-3x3", "looped", data__train=str(data["puzzle-3x3"]))
    save_policy(config, run_of(config).spec.init_weights(), tmp_path / "policy")
    out = tmp_path / "film.gif"
    words = ["robots", "film", str(tmp_path / "policy"), "--task", "2", "--steps", "4", "--size", "96"]
    words += ["--deviation", "0.1", "--every", "1", "--out", str(out)]
    done = run(*COMMAND, *words, MUJOCO_GL="egl", **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    assert "task2, not solved after 4 steps" in done.stdout
    with Image.open(out) as film:
        assert film.n_frames == 5
        assert film.width == 96
        assert film.height > 96


def test_an_interrupted_run_continues_exactly(data, tmp_path):
    config = tiny("cube-double", "looped", data__train=str(data["cube-double"]))
    trainer = run_of(config, tmp_path, all_devices(1)).trainer

    def run_to(folder, iterations):
        folder.mkdir(exist_ok=True)
        schedule = Schedule(iterations, evaluate_every=100, checkpoint_every=1)
        state, ending = fit(
            trainer,
            folder,
            seed=5,
            fingerprint="same",
            schedule=schedule,
            evaluate=lambda state: {"success": 0.0, "loops": 1.0},
        )
        assert ending is Ending.FINISHED
        return state, (folder / "metrics.csv").read_bytes()

    expected, rows = run_to(tmp_path / "whole", 3)
    run_to(tmp_path / "broken", 1)
    resumed, resumed_rows = run_to(tmp_path / "broken", 3)
    assert resumed_rows == rows
    for name, leaf in named_leaves(expected).items():
        np.testing.assert_array_equal(leaf, named_leaves(resumed)[name], err_msg=name)


def test_actors_learn_from_the_critics_of_another_run(data, tmp_path, monkeypatch, capsys):
    options = ["--data", str(data["puzzle-3x3"]), "--devices", "1", *settings(RUN_CHANGES)]
    first, second = tmp_path / "first", tmp_path / "second"
    command(monkeypatch, "train", "puzzle-3x3", "--arm", "critics", "--out", str(first), *options)
    assert f"finished; actors learn from it with --critics {first}" in capsys.readouterr().out
    assert not (first / "policy").exists()
    columns = (first / "metrics.csv").read_text().splitlines()[0]
    assert "critic_loss" in columns
    assert "loops" not in columns
    results = json.loads((first / "evaluations" / "000000000020.json").read_text())
    with pytest.raises(ValueError, match="this is of critics alone, and there is no policy in it"):
        policy_at(first)
    assert -1 <= results["steps_correlation"] <= 1
    assert 0 <= results["prefers"] <= 1
    assert sum(group["pairs"] for group in results["by_steps"].values()) == results["pairs"]
    train = ["train", "puzzle-3x3", "--arm", "iso-params", "--critics", str(first), "--out", str(second)]
    arm = [f"{name}={value}" for name, value in ARM_CHANGES["iso-params"].items()]
    command(monkeypatch, *train, *options, *arm)
    capsys.readouterr()
    assert (second / "critics.safetensors").read_bytes() == (first / "critics.safetensors").read_bytes()
    columns = (second / "metrics.csv").read_text().splitlines()[0]
    assert "behaviour_loss" in columns
    assert "critic_loss" not in columns
    assert "value" not in json.loads((second / "evaluations" / "000000000020.json").read_text())
    (first / "critics.safetensors").unlink()  # a run has its own copy
    resumed = run_of(read_run(second), second, all_devices(1))
    assert resumed.trainer.critics is not None
    for before, after, message in [
        (first, tmp_path / "a", "there is no critics.safetensors in it"),
        (second, tmp_path / "b", "must be \\(16,\\)"),
    ]:
        changes = {"critics": str(before), "algorithm__hidden": [16], "data__train": str(data["puzzle-3x3"])}
        with pytest.raises(ValueError, match=message):
            begin_run(tiny("puzzle-3x3", **changes), after)
    (second / "critics.safetensors").write_bytes((second / "policy" / "policy.safetensors").read_bytes())
    with pytest.raises(ValueError, match="these are not the critics that the run began with"):
        _ = run_of(read_run(second), second, all_devices(1)).trainer


def test_critic_results_tell_good_critics_from_random_ones():
    """States are their time, in data of ten episodes."""
    rows = np.arange(1000)
    states = np.zeros((1000, 37), np.float32)
    states[:, 0] = rows
    actions = np.random.default_rng(0).uniform(-1, 1, (1000, 5)).astype(np.float32)
    dataset = from_ogbench({"observations": states, "actions": actions, "valids": rows % 100 < 99})

    def critics(states, goals, candidates):
        q = -np.abs(candidates - actions[np.asarray(states[:, 0], int)]).sum(axis=1)
        return np.stack([q, q + 1])

    good = critic_results(lambda s, g: s[:, 0] - g[:, 0], critics, dataset, "scene")
    assert good["steps_correlation"] == pytest.approx(-1)
    assert list(good["by_steps"]) == ["1 - 5", "6 - 20", "21 - 50", "51 - 100"]
    assert good["by_steps"]["1 - 5"]["value"] == pytest.approx(-3, abs=0.3)
    assert good["prefers"] > 0.99  # in a few pairs, the other action is the same
    assert good["by_steps"]["51 - 100"]["prefers"] > 0.99
    random = critic_results(lambda s, g: 0 * s[:, 0], lambda s, g, a: a.T[:2], dataset, "scene")
    assert random["steps_correlation"] is None
    assert random["prefers"] == pytest.approx(0.5, abs=0.05)
    assert "by_subtasks" not in good


@pytest.mark.parametrize("env_name", GRADED)
def test_count_subtasks_reads_them_from_states(env_name):
    env = RobotEnv(env_name)
    for number, name in enumerate(GRADED[env_name], 1):
        state, goal = env.reset(name, number)
        expected = number if env_name == "puzzle-3x3" else 1
        assert count_subtasks(env_name, state[None], goal[None]).tolist() == [expected]
        assert count_subtasks(env_name, goal[None], goal[None]).tolist() == [0]


def test_measure_motion_counts_still_steps_and_right_and_wrong_presses():
    state, _ = RobotEnv("puzzle-3x3").reset(1, 0)
    lights = ARM_SIZE + 4 * np.arange(9) + 1
    states = np.repeat(state[None], 6, axis=0)
    states[:, EFFECTOR.start] += [0, 0.1, 0.2, 0.2, 0.2, 0.205]
    first, second = (press(np.zeros(9, int), np.array([button])) for button in (0, 4))
    goal = state.copy()
    goal[lights] = state[lights].astype(int) ^ first
    states[2:, lights] = goal[lights]
    states[4:, lights] = goal[lights].astype(int) ^ second
    motion = measure_motion("puzzle-3x3", states, goal)
    assert motion == (pytest.approx(3 / 5), 1, 1)
    assert measure_motion("scene", states, goal) == (pytest.approx(3 / 5), None, None)


def test_data_of_another_environment_are_refused(data, tmp_path):
    config = tiny("scene", data__train=str(data["cube-double"]))
    with pytest.raises(ValueError, match="has states of 37 numbers and actions of 5; scene has 40 and 5"):
        begin_run(config, tmp_path / "refused")
    config = begin_run(tiny("cube-double", data__train=str(data["cube-double"])), tmp_path / "run")
    (tmp_path / "run" / "provenance.json").write_text(json.dumps({"train": "0" * 64, "held_out": "0" * 64}))
    with pytest.raises(ValueError, match="this is not the data that the run began with"):
        _ = run_of(config, tmp_path / "run", all_devices(1)).trainer
