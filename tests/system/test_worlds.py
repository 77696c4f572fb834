"""OGBench on MuJoCo, for real: data collected, policies trained on it, played and filmed."""

import ctypes.util
import itertools
import json
import os

import numpy as np
import pytest
from test_commands import COMMAND, UNOPTIMISED, command, run

from looped_actor.algorithms import Acted
from looped_actor.models.tasks import TASKS as SHAPES
from looped_actor.offline import from_ogbench, open_dataset
from looped_actor.reproduction.grid import RunKey, Study, _stock_up
from looped_actor.robots import collection
from looped_actor.robots.collection import CollectionJob, collect
from looped_actor.robots.evaluation import WorldPlayer, _Rows, world_summary
from looped_actor.robots.graded import ARM, GRADED, HAND, graded_task, motion, pressed, subtasks_left
from looped_actor.robots.ogbench import ACTIONS, TASKS, WORLDS, Arena, make_world
from looped_actor.robots.values import value_facts
from looped_actor.runs.folder import begin_run, read_run
from looped_actor.runs.load import policy_at
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.training import Ending, Schedule, fit
from looped_actor.training.sharding import all_devices
from looped_actor.utils.codec import replaced
from looped_actor.utils.tensors import named_leaves
from tiny import WORLD_CHANGES

ogbench = pytest.importorskip("ogbench")


def tiny(world, arm="mlp", **changes):
    return replaced(
        preset(world, "micro", arm), WORLD_CHANGES | {k.replace("__", "."): v for k, v in changes.items()}
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A little of each world: two episodes to learn from, one held out."""
    folder = tmp_path_factory.mktemp("data")
    return {
        world: collect(CollectionJob(world, 40, seed=1, episode_transitions=20), folder, workers=1)[0]
        for world in WORLDS
    }


@pytest.mark.parametrize("world", WORLDS)
def test_what_is_collected_is_what_ogbench_loads(world, data):
    shape = SHAPES[world]
    for path in (data[world], data[world].with_name(data[world].stem + "-val.npz")):
        theirs, ours = ogbench.load_dataset(path, add_info=True), open_dataset(path)
        assert theirs["observations"].shape == (ours.transitions, shape.size)
        assert theirs["actions"].shape == (ours.transitions, shape.actions)
        assert np.abs(theirs["actions"]).max() <= 1
        assert theirs["observations"].dtype == theirs["actions"].dtype == np.float32
        assert ("button_states" in theirs) == (world in ("puzzle-3x3", "scene"))
        moved = np.abs(np.diff(theirs["observations"], axis=0)).max()
        assert 0 < moved < 10
        # The states are those of the world: put into it, qpos and qvel give them back.
        inside = make_world(world).unwrapped
        inside.reset(options={"task_id": 1})
        kept = ("qpos", "qvel", "button_states") if "button_states" in theirs else ("qpos", "qvel")
        for row in (1, ours.transitions // 2):
            inside.set_state(*(theirs[name][row] for name in kept))
            found, kept_state = inside.compute_observation(), theirs["observations"][row]
            np.testing.assert_allclose(found[:12], kept_state[:12], atol=1e-5)  # joints and their speeds
            # Places, in units of 10 cm, are those before the last 2 ms of physics.
            np.testing.assert_allclose(found[12:], kept_state[12:], atol=0.03)
    loaded = ogbench.make_env_and_datasets(
        f"{world}-play-v0", dataset_path=str(data[world]), dataset_only=True, compact_dataset=True
    )
    assert [len(split["valids"]) for split in loaded] == [42, 21]


def test_runs_of_a_study_record_the_seed_of_their_data(tmp_path):
    """All learn from the same data; the configuration of each is enough to collect them again."""
    study, sums = Study(tmp_path, changes=tuple(WORLD_CHANGES.items())), []
    for seed in (0, 3):
        key = RunKey("puzzle-3x3", "gciql", "looped", seed)
        config, folder = study.config(key), study.folder_of(key)
        _stock_up(config, folder, tmp_path / "stock")
        assert begin_run(config, folder).seed == seed
        recipe = json.loads((folder / "data" / "recipe.json").read_text())
        assert (recipe["seed"], recipe["transitions"]) == (0, 40)
        sums.append(json.loads((folder / "provenance.json").read_text()))
    assert sums[0] == sums[1]
    assert run_of(config, tmp_path / "alone").prepare().items() <= sums[1].items()
    assert len(list((tmp_path / "stock").iterdir())) == 1


def test_any_number_of_workers_makes_the_same_bytes_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    job = CollectionJob("scene", 60, seed=3, episode_transitions=15)
    paths = collect(job, tmp_path / "one", workers=1)
    expected = [path.read_bytes() for path in paths]
    assert [p.read_bytes() for p in collect(job, tmp_path / "two", workers=2)] == expected
    with pytest.raises(ValueError, match="is there already"):
        collect(job, tmp_path / "two", workers=1)

    # Interrupted after three episodes of five; what is finished is not played again.
    real, played = collection.collect_episode, []

    def stops_at(most):
        def episode(one):
            if len(played) == most:
                raise KeyboardInterrupt
            played.append(one.number)
            return real(one)

        return episode

    monkeypatch.setattr(collection, "collect_episode", stops_at(3))
    with pytest.raises(KeyboardInterrupt):
        collect(job, tmp_path / "broken", workers=1)
    assert not list((tmp_path / "broken").glob("*.npz"))
    monkeypatch.setattr(collection, "collect_episode", stops_at(5))
    with monkeypatch.context() as at_the_end:
        at_the_end.setattr(collection, "forget", stops_at(5))  # both files are written, and it is killed
        with pytest.raises(KeyboardInterrupt):
            collect(job, tmp_path / "broken", workers=1)
    assert [p.read_bytes() for p in collect(job, tmp_path / "broken", workers=1)] == expected
    assert played == [-1, 0, 1, 2, 3]
    assert [path.name for path in sorted((tmp_path / "broken").iterdir())] == [
        "scene-play-v0-val.npz",
        "scene-play-v0.npz",
    ]


@pytest.mark.parametrize("world", WORLDS)
def test_noisy_data_goes_astray_and_is_what_ogbench_loads(world, data, tmp_path):
    job = CollectionJob(world, 40, seed=1, episode_transitions=20, kind="noisy")
    path, held_out = collect(job, tmp_path, workers=1)
    assert [path.name, held_out.name] == [f"{world}-noisy-v0.npz", f"{world}-noisy-v0-val.npz"]
    loaded = ogbench.make_env_and_datasets(
        f"{world}-noisy-v0", dataset_path=str(path), dataset_only=True, compact_dataset=True
    )
    assert [len(split["valids"]) for split in loaded] == [42, 21]
    # One action says little of the next: a planned hand goes on as it went.
    jumps = [np.abs(np.diff(np.load(one)["actions"][:21, :3], axis=0)).mean() for one in (data[world], path)]
    assert jumps[1] > 1.3 * jumps[0]
    with pytest.raises(ValueError, match="kind is 'wild'; it must be one of play, noisy"):
        CollectionJob(world, 40, kind="wild")


@pytest.mark.parametrize("world", WORLDS)
def test_every_task_begins_and_steps_and_depends_on_its_seed_alone(world):
    arena, again = Arena(world), {}
    for task, seed in [*itertools.product(TASKS, [7]), *itertools.product(reversed(TASKS), [7])]:
        state, goal = arena.begin(task, seed)
        assert state.shape == goal.shape == (SHAPES[world].size,)
        first = arena.step(np.full(ACTIONS, 0.5))
        assert not first.over
        assert not first.success
        seen = np.concatenate([state, goal, first.state])
        np.testing.assert_array_equal(again.setdefault(task, seen), seen)
        assert arena.task_name(task).startswith(f"task{task}")
    assert arena.time_limit == {"cube-triple": 1000, "scene": 750}.get(world, 500)
    assert len({tuple(seen) for seen in again.values()}) == len(TASKS)


@pytest.mark.parametrize("world", GRADED)
def test_goals_by_distance_begin_and_depend_on_their_seed_alone(world):
    arena, again = Arena(world), {}
    for name, seed in [*itertools.product(GRADED[world], [1, 2])] * 2:
        seen = np.concatenate(arena.begin(name, seed))
        np.testing.assert_array_equal(again.setdefault((name, seed), seen), seen)
        assert not arena.step(np.zeros(ACTIONS)).success
    assert len({tuple(seen) for seen in again.values()}) == len(again)
    with pytest.raises(ValueError, match="has no goal '99 presses' by distance"):
        arena.begin("99 presses", 0)


def test_as_many_presses_are_needed_as_a_goal_by_distance_says():
    """No other set of buttons makes the same lights, and no button is worth pressing twice."""
    start = np.array([0, 1, 1, 0, 0, 1, 0, 1, 0])
    sets = [s for size in range(10) for s in itertools.combinations(range(9), size)]
    made = {pressed(start, np.array(s, int)).tobytes(): len(s) for s in sets}
    assert len(made) == 512
    for presses, name in enumerate(GRADED["puzzle-3x3"], 1):
        for seed in range(20):
            task = graded_task("puzzle-3x3", name, seed)
            change = task["init_button_states"] ^ task["goal_button_states"] ^ start
            assert made[change.tobytes()] == presses


def test_cubes_of_goals_by_distance_lie_where_they_should():
    for name, seed in [(name, seed) for name in GRADED["cube-double"] for seed in range(50)]:
        task = graded_task("cube-double", name, seed)
        (one, other), (goal, stays) = task["init_xyzs"], task["goal_xyzs"]
        np.testing.assert_array_equal(other, stays)
        assert np.linalg.norm(one - other) > 0.08
        if name == "on the other":
            np.testing.assert_allclose(goal - other, [0, 0, 0.04])
        else:
            assert np.linalg.norm(goal - one) == pytest.approx(int(name[:2]) / 100)
            assert np.linalg.norm(goal - other) > 0.08


def player(**options):
    config = tiny("puzzle-3x3", "looped")
    run = run_of(config)
    given = {"episodes": 2, "tasks": (1, 3), "rows": 3, "workers": 1, "time_limit": 4} | options
    return WorldPlayer("puzzle-3x3", run.definition, **given), run.new_weights()


def test_episodes_do_not_depend_on_the_workers():
    played = []
    for workers in (1, 2):
        own, weights = player(workers=workers, deviation=0.3)
        try:
            played.append(own.play(weights))
            assert own.play(weights) == played[-1], "workers stay, and play the same again"
        finally:
            own.close()
    assert played[0] == played[1]
    assert [(e.task, e.number) for e in played[0].episodes] == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert all(len(e.loops) == 4 and not e.success for e in played[0].episodes)
    asked = sum(sum(e.loops) for e in played[0].episodes)
    assert asked <= played[0].executed <= 1.6 * asked
    facts = world_summary(played[0], most_loops=3)
    assert facts["by_task"].keys() == {"1", "3"}
    assert sum(facts["loop_histogram"].values()) == 16
    assert facts["loops"] == asked / 16
    assert facts["mean_steps"] == 4


def test_noise_belongs_to_an_episode():
    class Worker(list):
        send = list.append

    def actions(deviation, *episodes):
        workers = [Worker() for _ in episodes]
        rows = _Rows("puzzle-3x3", range(len(episodes)), workers, deviation)
        rows.begin(iter(episodes), seed=7)
        for _ in range(200):
            once = np.ones(len(episodes), int)
            rows.act(Acted(np.full((len(episodes), 5), 0.25), once, once, once.sum()))
        return [np.array([sent[2] for sent in worker[1:]]) for worker in workers]

    one, other = actions(0.1, (1, 0), (1, 1))
    np.testing.assert_array_equal(actions(0.1, (1, 1))[0], other)
    assert not np.allclose(one, other)
    assert abs(one.mean() - 0.25) < 0.02  # six deviations of a mean of a thousand
    assert one.std() == pytest.approx(0.1, rel=0.15)
    assert (actions(0.0, (1, 0))[0] == 0.25).all()


def test_a_worker_that_dies_is_told_of():
    own, weights = player()
    try:
        own._pool[0]._process.kill()
        with pytest.raises(ChildProcessError, match="MuJoCo died"):
            own.play(weights)
    finally:
        own.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 0}, "at least 1"),
        ({"tasks": (6,)}, "one of \\[1, 2, 3, 4, 5, '1 press'"),
        ({"tasks": ("8 presses",)}, "one of \\[1, 2, 3, 4, 5, '1 press'"),
        ({"rows": 1000, "workers": 2}, "128 at most"),
    ],
)
def test_a_player_that_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        player(**options)


CASES = [("cube-double", "looped"), ("puzzle-3x3", "mlp")]
if os.environ.get("THOROUGH"):
    CASES = list(itertools.product(WORLDS, ["looped", "iso-params", "iso-flops", "mlp", "fixed-4"]))


@pytest.mark.parametrize(("world", "arm"), CASES)
def test_a_policy_is_trained_and_evaluated_by_commands(world, arm, data, tmp_path, monkeypatch, capsys):
    """All worlds, their twenty tasks, and all arms; every pair of world and arm with THOROUGH=1."""
    settings = [f"{name}={json.dumps(value)}" for name, value in WORLD_CHANGES.items()]
    folder = tmp_path / "run"
    begun = ["train", world, "--arm", arm, "--data", str(data[world]), "--out", str(folder), "--devices", "1"]
    command(monkeypatch, *begun, "--set", *settings)
    assert "finished; the policy is in" in capsys.readouterr().out
    at_end = json.loads((folder / "evaluations" / "000000000020.json").read_text())
    assert list(at_end["by_task"]) == ["1", "2", "3", "4", "5"]
    assert all(task["mean_steps"] == 3 for task in at_end["by_task"].values())
    assert at_end["held_out_action_error"] > 0
    if arm == "looped" or os.environ.get("THOROUGH"):
        command(monkeypatch, "eval", str(folder), "--count", "1", "--baselines", "--json")
        facts = json.loads(capsys.readouterr().out)
        assert (facts["task"], facts["arm"]) == (world, arm)
        assert facts["by_task"].keys() == at_end["by_task"].keys()
        assert facts["baselines"]["random"]["episodes"] == 5
    if (world, arm) == ("cube-double", "looped"):
        command(monkeypatch, "eval", str(folder), "--count", "1", "--graded", "--json")
        assert tuple(json.loads(capsys.readouterr().out)["by_task"]) == GRADED[world]


def test_a_film_shows_the_loops(data, tmp_path):
    if not ctypes.util.find_library("EGL"):
        pytest.skip("there is no EGL here to draw with")
    from PIL import Image

    config = tiny("puzzle-3x3", "looped", data__train=str(data["puzzle-3x3"]))
    parts = run_of(config, tmp_path, all_devices(1))
    from looped_actor.policy.policy import save_policy

    save_policy(config, parts.trainer.begin(0).weights, tmp_path / "policy")
    out = tmp_path / "film.gif"
    command = ["ogbench", "film", str(tmp_path / "policy"), "--task", "2", "--steps", "4", "--size", "96"]
    command += ["--deviation", "0.1", "--every", "1", "--out", str(out)]
    done = run(*COMMAND, *command, MUJOCO_GL="egl", **UNOPTIMISED)
    assert done.returncode == 0, done.stderr
    assert "task2, not solved after 4 steps" in done.stdout
    with Image.open(out) as film:
        assert film.n_frames == 5
        assert film.width == 96
        assert film.height > 96


def test_an_interrupted_run_ends_as_one_that_was_not(data, tmp_path):
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

    whole, rows = run_to(tmp_path / "whole", 3)
    run_to(tmp_path / "broken", 1)
    again, rows_again = run_to(tmp_path / "broken", 3)
    assert rows_again == rows
    for name, leaf in named_leaves(whole).items():
        np.testing.assert_array_equal(leaf, named_leaves(again)[name], err_msg=name)


def test_actors_learn_from_the_critics_of_another_run(data, tmp_path, monkeypatch, capsys):
    settings = [f"{name}={json.dumps(value)}" for name, value in WORLD_CHANGES.items()]
    given = ["--data", str(data["puzzle-3x3"]), "--devices", "1", "--set", *settings]
    first, second = tmp_path / "first", tmp_path / "second"
    command(monkeypatch, "train", "puzzle-3x3", "--learn", "critics", "--out", str(first), *given)
    assert f"finished; actors learn from it with --critics {first}" in capsys.readouterr().out
    assert not (first / "policy").exists()
    head = (first / "metrics.csv").read_text().splitlines()[0]
    assert "critic_loss" in head
    assert "loops" not in head
    facts = json.loads((first / "evaluations" / "000000000020.json").read_text())
    with pytest.raises(ValueError, match="this is of critics alone, and there is no policy in it"):
        policy_at(first)
    assert -1 <= facts["steps_correlation"] <= 1
    assert 0 <= facts["prefers"] <= 1
    assert sum(group["pairs"] for group in facts["by_steps"].values()) == facts["pairs"]
    from_them = ["train", "puzzle-3x3", "--arm", "iso-params", "--critics", str(first), "--out", str(second)]
    command(monkeypatch, *from_them, *given)
    capsys.readouterr()
    assert (second / "critics.safetensors").read_bytes() == (first / "critics.safetensors").read_bytes()
    head = (second / "metrics.csv").read_text().splitlines()[0]
    assert "behaviour_loss" in head
    assert "critic_loss" not in head
    assert "value" not in json.loads((second / "evaluations" / "000000000020.json").read_text())
    (first / "critics.safetensors").unlink()  # a run has its own copy
    resumed = run_of(read_run(second), second, all_devices(1))
    assert resumed.trainer.learner.net.given is not None
    for before, after, message in [
        (first, tmp_path / "a", "there is no critics.safetensors in it"),
        (second, tmp_path / "b", "must be \\(16,\\)"),
    ]:
        wrong = tiny("puzzle-3x3", critics=str(before), gciql__hidden=[16])
        with pytest.raises(ValueError, match=message):
            begin_run(replaced(wrong, {"data.train": str(data["puzzle-3x3"])}), after)
    (second / "critics.safetensors").write_bytes((second / "policy" / "policy.safetensors").read_bytes())
    with pytest.raises(ValueError, match="these are not the critics that the run began with"):
        _ = run_of(read_run(second), second, all_devices(1)).trainer


def test_a_value_that_knows_the_way_is_told_from_one_that_does_not():
    """Of states that say when they are, on data of ten episodes."""
    rows = np.arange(1000)
    states = np.zeros((1000, 37), np.float32)
    states[:, 0] = rows
    actions = np.random.default_rng(0).uniform(-1, 1, (1000, 5)).astype(np.float32)
    made = from_ogbench({"observations": states, "actions": actions, "valids": rows % 100 < 99})

    def critics(states, goals, tried):
        near = -np.abs(tried - actions[np.asarray(states[:, 0], int)]).sum(axis=1)
        return np.stack([near, near + 1])

    knows = value_facts(lambda s, g: s[:, 0] - g[:, 0], critics, made, "scene")
    assert knows["steps_correlation"] == pytest.approx(-1)
    assert list(knows["by_steps"]) == ["1 - 5", "6 - 20", "21 - 50", "51 - 100"]
    assert knows["by_steps"]["1 - 5"]["value"] == pytest.approx(-3, abs=0.3)
    assert knows["prefers"] > 0.99  # now and then the other action is the same
    assert knows["by_steps"]["51 - 100"]["prefers"] > 0.99
    guesses = value_facts(lambda s, g: 0 * s[:, 0], lambda s, g, a: a.T[:2], made, "scene")
    assert guesses["steps_correlation"] is None
    assert guesses["prefers"] == pytest.approx(0.5, abs=0.05)
    assert "by_subtasks" not in knows


@pytest.mark.parametrize("world", GRADED)
def test_subtasks_are_counted_in_states(world):
    arena = Arena(world)
    for number, name in enumerate(GRADED[world], 1):
        state, goal = arena.begin(name, number)
        expected = number if world == "puzzle-3x3" else 1
        assert subtasks_left(world, state[None], goal[None]).tolist() == [expected]
        assert subtasks_left(world, goal[None], goal[None]).tolist() == [0]


def test_motion_is_told_from_standing_still():
    """A hand that is carried along, a button that is pressed rightly and one that is not."""
    state, goal = Arena("puzzle-3x3").begin(1, 0)
    lights = ARM + 4 * np.arange(9) + 1
    states = np.repeat(state[None], 6, axis=0)
    states[:, HAND.start] += [0, 0.1, 0.2, 0.2, 0.2, 0.205]
    first, second = (pressed(np.zeros(9, int), np.array([button])) for button in (0, 4))
    goal = state.copy()
    goal[lights] = state[lights].astype(int) ^ first
    states[2:, lights] = goal[lights]
    states[4:, lights] = goal[lights].astype(int) ^ second
    found = motion("puzzle-3x3", states, goal)
    assert found == (pytest.approx(3 / 5), 1, 1)
    assert motion("scene", states, goal) == (pytest.approx(3 / 5), None, None)


def test_data_of_another_world_is_refused(data, tmp_path):
    config = tiny("scene", data__train=str(data["cube-double"]))
    with pytest.raises(ValueError, match="has states of 37 numbers and actions of 5; scene has 40 and 5"):
        begin_run(config, tmp_path / "refused")
    config = begin_run(tiny("cube-double", data__train=str(data["cube-double"])), tmp_path / "run")
    (tmp_path / "run" / "provenance.json").write_text(json.dumps({"train": "0" * 64, "held_out": "0" * 64}))
    with pytest.raises(ValueError, match="this is not the data that the run began with"):
        _ = run_of(config, tmp_path / "run", all_devices(1)).trainer
