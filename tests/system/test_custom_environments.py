"""Custom environments: training, evaluation, loading, and input that is refused; see also `test_examples`."""

import json
import pathlib
import re
from dataclasses import replace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from test_commands import ROOT, command

import looped_actor
from helpers import evaluated
from looped_actor import CustomConfig, Outcome, PPOConfig, VectorGym, WandbLogger
from looped_actor.envs.spaces import ContinuousActions
from looped_actor.puzzles.banks import open_bank, starter_bank
from looped_actor.utils.errors import PolicyError

SAME_STEP = {"autoreset_mode": AutoresetMode.SAME_STEP}


@jax.tree_util.register_static
class Count:
    """Name the bit that is shown, three times."""

    time_limit, num_actions = 3, 2

    def reset(self, key):
        return jax.random.bernoulli(key, shape=(4,))

    def step(self, state, action):
        right = action == state[0]
        return jnp.roll(state, 1), Outcome(jnp.float32(right), terminated=jnp.array(False), success=right)

    def observe(self, state):
        return state.astype(jnp.float32)


def build(rngs, width=8):
    core = looped_actor.CoreConfig(width, heads=1, layers=1)
    return looped_actor.Actor(
        looped_actor.VectorTokenizer(4, width, rngs=rngs),
        looped_actor.LoopedTrunk(core, looped_actor.PolicyKL(max_loops=3), convolution=False, rngs=rngs),
        looped_actor.ReadoutLogits(width, 2, rngs=rngs),
        looped_actor.ValueHead(width, rngs=rngs),
    )


PPO = PPOConfig(num_envs=8, rollout_steps=4, minibatch=16, epochs=1)
CONFIG = CustomConfig(
    task="count", total_steps=64, algorithm=PPO, episodes=12, evaluate_every=1, checkpoint_every=1
)


class RecordingLogger:
    """A logger that keeps all rows."""

    def __init__(self):
        self.rows, self.closed = [], False

    def log(self, group, numbers, steps):
        self.rows.append((group, steps, dict(numbers)))

    def close(self):
        self.closed = True


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder, policy, logger, and the reports that a callback got."""
    folder, logger, reports = tmp_path_factory.mktemp("custom") / "run", RecordingLogger(), []
    policy = looped_actor.train(
        CONFIG, folder, env=Count(), build=build, report=reports.append, loggers=[logger]
    )
    return folder, policy, logger, reports


def test_loggers_and_callbacks_get_everything(trained):
    folder, _, logger, reports = trained
    assert [(group, steps) for group, steps, _ in logger.rows] == [
        ("training", 32),
        ("evaluation", 32),
        ("training", 64),
        ("evaluation", 64),
    ]
    assert logger.closed
    lines = (folder / "metrics.csv").read_text().splitlines()
    named = dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))
    exact = logger.rows[2][2]
    assert float(named["loss"]) == exact["loss"]
    assert "steps_per_second" in exact
    assert "steps_per_second" not in named
    assert [report.steps for report in reports] == [32, 64]
    assert reports[-1].metrics["loss"] == exact["loss"]
    assert reports[-1].evaluation["returns"] == logger.rows[3][2]["returns"]


def test_wandb_keeps_a_run_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tmp_path / "config.json").write_text("{}")
    ids, summary = set(), {}
    for _ in range(2):  # resumed, it is the same run
        logger = WandbLogger("looped", tmp_path)
        logger.log("training", {"loss": 0.5, "success": float("nan")}, 32)
        ids.add(logger._run.id)
        summary = dict(logger._run.summary)
        logger.close()
    assert len(ids) == 1
    assert summary["training/loss"] == 0.5
    assert summary["steps"] == 32
    assert "training/success" not in summary
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_the_same_call_resumes(trained):
    folder, policy, _, _ = trained
    before = (folder / "metrics.csv").read_bytes()
    again = looped_actor.train(CONFIG, folder, env=Count(), build=build)
    assert again.weights.checksum == policy.weights.checksum
    assert (folder / "metrics.csv").read_bytes() == before
    with pytest.raises(ValueError, match="a run with another configuration"):
        looped_actor.train(replace(CONFIG, seed=1), folder, env=Count(), build=build)


def test_it_is_evaluated_like_the_built_in_ones(trained):
    folder, policy, _, _ = trained
    results = looped_actor.evaluate(policy, Count())
    last = json.loads(sorted((folder / "evaluations").glob("*.json"))[-1].read_text())
    assert {name: results[name] for name in last} == last
    assert results["episodes"] == 12
    assert results["mean_steps"] == 3
    assert looped_actor.evaluate(policy, Count(), max_loops=2, threshold=0.0)["loops"] == 2
    assert looped_actor.evaluate(policy)["returns"] == results["returns"]  # its own environment
    outside = looped_actor.evaluate(policy, VectorGym(Count(), 5), count=12)
    assert outside["episodes"] == 12
    assert outside["mean_steps"] == 3
    assert outside.keys() == results.keys()


def test_it_is_a_vector_environment_of_gymnasium():
    envs = VectorGym(Count(), 5)
    assert envs.single_observation_space.low.min() == -np.inf
    observation, _ = envs.reset(seed=0)
    for _ in range(3):
        observation, reward, *_ = envs.step(observation[:, 0].astype(int))
        assert (reward == 1).all()


def test_it_is_saved_and_loaded_by_its_build_function(trained, tmp_path):
    folder, policy, _, _ = trained
    observation = np.eye(4, dtype=np.float32)
    policy.save(tmp_path)
    for place in (folder, folder / "policy", tmp_path):
        loaded = looped_actor.load_policy(place, build)
        np.testing.assert_array_equal(loaded(observation).value, policy(observation).value)
    with pytest.raises(ValueError, match=r"its net is code, which no file holds.*build function.*--code"):
        looped_actor.load_policy(folder)
    with pytest.raises(PolicyError, match=r"is \(.*8.*\); for its config.json it must be"):
        looped_actor.load_policy(folder, lambda rngs: build(rngs, 16))
    with pytest.raises(ValueError, match="is a custom environment: give it as env"):
        looped_actor.evaluate(looped_actor.load_policy(folder, build))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("env = build = None\ndef oh no", "--code .*custom.py, line 2: expected"),
        ("import nowhere_to_be_found", "ModuleNotFoundError.*your own code: .*custom.py, line 1"),
        (
            "env = 1\ndef build(rngs):\n    raise ValueError('mine')",
            "mine.*your own code: .*custom.py, line 3",
        ),
    ],
)
def test_an_error_names_the_line_of_the_user_s_code(trained, tmp_path, monkeypatch, capsys, code, message):
    file = tmp_path / "custom.py"
    file.write_text(code)
    with pytest.raises(SystemExit):
        command(monkeypatch, "eval", str(trained[0]), "--code", str(file))
    assert re.search(message, " ".join(capsys.readouterr().err.split()))


def cart_poles():
    return gymnasium.make_vec("CartPole-v1", 8, vectorization_mode="sync", vector_kwargs=SAME_STEP)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (None, "give it as env"),
        (cart_poles, "has 8 copies"),
        (cart_poles(), "as env, give a function that makes it"),
        (lambda: 3, "env is of type int: it must have reset, step, observe"),
        (object(), "env is of type object: it must have reset"),
        (type("Plain", (), dict(vars(Count)))(), "decorate the class with @jax.tree_util.register_static"),
        (lambda: gymnasium.make_vec("CartPole-v1", 8, vectorization_mode="sync"), "one step late"),
    ],
)
def test_unfit_environments_are_refused(env, message, tmp_path):
    config = replace(CONFIG, algorithm=replace(PPO, num_envs=4))
    with pytest.raises(ValueError, match=message):
        looped_actor.train(config, tmp_path / "run", env=env, build=build)


def test_a_net_that_does_not_fit_is_refused(tmp_path):
    def three_actions(rngs):
        net = build(rngs)
        net.policy = looped_actor.ReadoutLogits(8, 3, rngs=rngs)
        return net

    def no_value(rngs):
        net = build(rngs)
        return looped_actor.Actor(net.tokenizer, net.trunk, net.policy)

    for net, message in (
        (three_actions, "a Categorical of 3 actions, and the environment takes DiscreteActions.count=2"),
        (no_value, "PPO needs a value"),
    ):
        with pytest.raises(ValueError, match=message):
            looped_actor.train(CONFIG, tmp_path / "run", env=Count(), build=net)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": None}, "says nothing of observations or actions"),
        ({"observations": {"shape": [], "dtype": "float32"}}, "at least one axis"),
        ({"observations": {"shape": [4], "dtype": "object"}}, "dtype is 'object'"),
        ({"actions": {"type": "DiscreteActions", "count": 0}}, "count is 0"),
        ({"actions": {"type": "ContinuousActions", "low": [0.0], "high": []}}, "1 lower and 0 upper"),
    ],
)
def test_an_untrusted_configuration_is_checked(change, message, trained, tmp_path):
    folder = trained[0]
    for name in ("policy.safetensors", "config.json"):
        (tmp_path / name).write_bytes((folder / "policy" / name).read_bytes())
    data = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(data | change))
    with pytest.raises(ValueError, match=message):
        looped_actor.load_policy(tmp_path, build)


def test_names_of_the_paper_s_tasks_are_refused():
    with pytest.raises(ValueError, match="one of the paper's: give yours another name"):
        CustomConfig(task="boxoban")


def test_actions_are_clipped_to_the_bounds_that_there_are():
    space = ContinuousActions((-1.0, None), (None, 2.0))
    clipped = space.to_env(jnp.array([[-3.0, -3.0], [3.0, 3.0]]))
    np.testing.assert_array_equal(clipped, [[-1, -3], [3, 2]])


def test_a_puzzle_is_evaluated_on_a_bank_a_file_or_an_environment(tmp_path):
    run = ROOT / "results" / "micro_rush_hour"
    policy = looped_actor.load_policy(run)
    path = pathlib.Path(starter_bank("rush-hour").name)
    by_command = evaluated(run, levels=path, count=6)
    for on in (path, open_bank(path)):
        assert looped_actor.evaluate(policy, on, count=6, mesh=looped_actor.all_devices(1)) == by_command
    played = looped_actor.evaluate(policy, gymnasium.make("looped_actor/RushHour-v0"), count=3)
    assert played["episodes"] == 3
