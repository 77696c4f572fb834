"""A policy as an object: compiled once, NumPy in and out, and an error where it cannot understand."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import looped_actor
from looped_actor import Carry, DiagonalGaussian, FixedLoops, GoalObservation, Packed, PolicyKL, PolicyOutput
from looped_actor.evaluation.options import LoopOptions
from looped_actor.loop import EarlyExit, LatentResidual
from looped_actor.policy.policy import Policy
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of

ROOT = pathlib.Path(__file__).parents[2]
BOARD = (5, 5, 7)


@pytest.fixture(scope="module")
def policy():
    return looped_actor.load_policy(ROOT / "results" / "micro_rush_hour" / "policy")


def boards(count):
    return np.random.default_rng(count).integers(0, 2, (count, *BOARD), np.uint8)


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: COMPILED.append(event))


def compilations():
    """How many programs XLA has compiled, as JAX's monitoring counts them."""
    return COMPILED.count("/jax/core/compile/backend_compile_duration")


def test_nothing_is_compiled_after_the_first_call_of_a_shape(policy):
    key, deeper = jax.random.key(0), PolicyKL(max_loops=3)
    calls = [
        lambda seed: policy.act(boards(1)[0] ^ seed),
        lambda seed: policy.act(boards(4) ^ seed),
        lambda seed: policy.act(boards(4) ^ seed, key=jax.random.fold_in(key, seed)),
        lambda seed: policy.act(boards(4) ^ seed, halting=deeper),
        lambda seed: policy(boards(4) ^ seed),
    ]
    before = compilations()
    for call in calls:
        call(0)
    assert compilations() > before
    before = compilations()
    for call in calls:
        for seed in (1, 0, 1):
            jax.block_until_ready(call(seed))
    # What is the default needs no program of its own, and other weights of the same net need none. Nor does a
    # carry that holds nothing: an episode of a policy that carries no latent is one program.
    acted = policy.act(boards(4), execution=Packed(), halting=policy.halting)
    policy.act(boards(4), carry=acted.carry)
    policy(boards(4), carry=acted.carry)
    doubled = jax.tree.map(lambda leaf: 2 * np.asarray(leaf), policy.weights)
    policy.with_weights(doubled).act(boards(4))
    assert compilations() == before


def test_one_is_a_row_of_a_batch(policy):
    seen = boards(4)
    many = policy.act(seen)
    assert all(isinstance(value, np.ndarray) for value in many[:3])
    for row, one in enumerate(seen):
        alone = policy.act(one)
        assert (alone.action, alone.loops) == (many.action[row], many.loops[row])
        assert np.shape(alone.action) == np.shape(alone.loops) == ()
    decision = policy(seen)
    np.testing.assert_array_equal(many.action, decision.distribution.mode())
    np.testing.assert_array_equal(many.loops, decision.loop.loops)
    as_lists = policy.act(seen[0].tolist())
    assert as_lists.action == many.action[0]


def test_halting_and_execution_are_the_callers(policy):
    seen = boards(3)
    assert (policy.act(seen, halting=FixedLoops(2)).loops == 2).all()
    assert (policy(seen, halting=FixedLoops(2)).loop.loops == 2).all()
    early = policy.act(seen, execution=EarlyExit())
    np.testing.assert_array_equal(early.loops, policy.act(seen).loops)


def test_a_key_draws_from_the_policy(policy):
    seen = np.repeat(boards(1), 4000, axis=0)
    drawn = policy.act(seen, key=jax.random.key(1), halting=FixedLoops(1)).action
    chances = jax.nn.softmax(policy(seen[:1], halting=FixedLoops(1)).distribution.logits[0])
    shares = np.bincount(drawn, minlength=50) / len(drawn)
    np.testing.assert_allclose(shares, chances, atol=0.03)
    again = policy.act(seen, key=jax.random.key(1), halting=FixedLoops(1)).action
    np.testing.assert_array_equal(drawn, again)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((5, 5, 6)),
        np.zeros((5, 7)),
        np.zeros((1, 1, *BOARD)),
        np.zeros((0, *BOARD)),
        np.full(BOARD, "x"),
        {"observation": np.zeros(BOARD)},
        None,
    ],
    ids=["planes", "too few axes", "too many axes", "none", "text", "dictionary", "nothing"],
)
def test_what_it_does_not_read_is_said(policy, wrong):
    with pytest.raises(ValueError, match=r"not what this policy reads: arrays of shape \(any, any, 7\)"):
        policy.act(wrong)


def test_a_call_wants_a_batch(policy):
    with pytest.raises(ValueError, match="for a single one there is `act`"):
        policy(boards(1)[0])


def test_robots_act_within_their_bounds():
    spec = run_of(preset("cube-double", "micro")).spec
    weights = spec.init_weights()
    large = jax.tree.map(lambda leaf: 30 * leaf, weights.parameters)
    policy = Policy(spec, weights._replace(parameters=large))
    state, goal = np.random.default_rng(0).normal(size=(2, 37)).astype(np.float32)
    acted = policy.act(GoalObservation(state, goal), halting=FixedLoops(2))
    assert acted.action.shape == (5,)
    assert np.abs(acted.action).max() == 1
    with pytest.raises(ValueError, match=r"reads: GoalObservation\(state, goal\) of vectors of shape \(37\)"):
        policy.act(state)


def test_it_predicts_as_evaluation_helpers_expect(policy):
    """The calls of `stable_baselines3.common.evaluation.evaluate_policy`, which needs PyTorch."""
    envs = gymnasium.make_vec(
        "looped_actor/RushHour-v0",
        2,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )
    observations, _ = envs.reset(seed=0)
    states, episode_starts = None, np.ones(2, bool)
    for _ in range(3):
        actions, states = policy.predict(
            observations, state=states, episode_start=episode_starts, deterministic=True
        )
        assert envs.action_space.contains(actions.astype(np.int64))
        np.testing.assert_array_equal(actions, policy.act(observations).action)
        observations, _, terminated, truncated, _ = envs.step(actions)
        episode_starts = terminated | truncated
    assert states.is_empty
    drawn = [policy.predict(observations, deterministic=False)[0] for _ in range(8)]
    assert len({tuple(actions) for actions in drawn}) > 1


def test_other_types_of_numbers_are_cast_and_not_compiled_for(policy):
    seen = boards(4)
    right = policy.act(seen)
    before = compilations()
    for kind in (np.int64, np.int8, bool, np.float32, np.float64):
        np.testing.assert_array_equal(policy.act(seen.astype(kind)).action, right.action)
    np.testing.assert_array_equal(policy.act(seen.tolist()).loops, right.loops)
    assert compilations() == before
    # What an integer cannot hold is not rounded.
    half = policy(np.full((1, *BOARD), 0.5, np.float64), halting=FixedLoops(1)).distribution.logits
    none = policy(np.zeros((1, *BOARD), np.float64), halting=FixedLoops(1)).distribution.logits
    assert np.abs(np.asarray(half) - np.asarray(none)).max() > 0


def test_what_is_not_finite_is_warned_of_once(policy):
    policy = policy.with_carry(None).with_weights(policy.weights)  # one that has not warned yet
    seen = boards(1)[0].astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.act(seen)
    seen[0, 0, 0] = np.nan
    with pytest.warns(RuntimeWarning, match="an observation holds NaN"):
        policy.act(seen)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.act(seen)


def test_a_policy_shows_what_it_is(policy):
    shown = repr(looped_actor.load_policy("rush-hour-micro"))
    card = "task='rush-hour', arm='looped', board=(5, 5), max_loops=8, parameters="
    assert shown.startswith(f"Policy('rush-hour-micro', {card}")
    robot = run_of(preset("cube-double", "micro", "mlp")).spec
    assert "board" not in repr(Policy(robot, robot.weights_like))
    assert "max_loops" not in repr(Policy(robot, robot.weights_like))


MISTAKES = {
    "act(seen, key=0)": "key is 0: give jax.random.key(0)",
    "act(seen, halting=32)": "halting is 32: give a rule, as FixedLoops(32)",
    "act(seen, execution='packed')": "execution is 'packed': give one such as Packed()",
    "act(seen, carry=3)": "carry must be that of the last call for the same 1 episodes, or None",
    "act((seen, {}))": "its first part, as in `observation, info = env.reset()`",
    "act([[1, 2], [3]])": "not what this policy reads",
    "__call__(seen[None], halting=3)": "halting is 3: give a rule",
    "evaluate('CartPole-v1')": 'make it, as gymnasium.make("CartPole-v1")',
    "evaluate('nowhere.levels')": "nowhere.levels: there is no such file",
    "evaluate(7)": "an environment of type int cannot be played: give a bank of levels",
    "evaluate(counts=5)": "there is no option 'counts': did you mean count?",
    "export('there', platform='cpu')": "there is no option 'platform': did you mean platforms?",
}


def test_a_mistake_in_a_call_is_said_in_one_sentence(tmp_path):
    """In a process of its own: here, checks of types would be faster than what users see."""
    code = """
import functools, json, sys, warnings, numpy as np, looped_actor
policy = looped_actor.load_policy("rush-hour-micro")
for name in ("evaluate", "export"):
    setattr(policy, name, functools.partial(getattr(looped_actor, name), policy))
seen, said = np.zeros((5, 5, 7), np.uint8), {}
for call in json.loads(sys.argv[1]):
    try:
        eval("policy." + call)
        said[call] = "nothing"
    except Exception as error:
        said[call] = type(error).__mro__[-4].__name__ + ": " + str(error)
with warnings.catch_warnings(record=True) as caught:
    policy.act(np.full((5, 5, 7), np.nan))
said["place"] = [one.filename for one in caught]
print(json.dumps(said))
"""
    command = [sys.executable, "-c", code, json.dumps(list(MISTAKES))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["place"] == ["<string>"]  # the caller's line
    for call, message in MISTAKES.items():
        assert message in said[call], call
        assert said[call].startswith("ValueError: "), call
        assert len(said[call].splitlines()) == 1


SPEC = run_of(preset("rush-hour", "micro")).spec
ROBOT = run_of(preset("cube-double", "micro")).spec


def test_inputs_are_named_arrays_of_one_observation():
    assert SPEC.inputs() == {"observation": jax.ShapeDtypeStruct(BOARD, np.uint8)}
    assert SPEC.inputs((6, 8)) == {"observation": jax.ShapeDtypeStruct((6, 8, 7), np.uint8)}
    vector = jax.ShapeDtypeStruct((37,), np.float32)
    assert list(ROBOT.inputs().items()) == [("state", vector), ("goal", vector)]
    arrays = [np.zeros(37), np.ones(37)]
    assert ROBOT.to_observation(arrays) == GoalObservation(*arrays)
    assert SPEC.to_observation(arrays[:1]) is arrays[0]
    assert (SPEC.board, ROBOT.board) == ((5, 5), None)


@pytest.mark.parametrize(
    ("config", "board", "message"),
    [
        (preset("cube-double", "micro"), (5, 5), "board"),
        (preset("rush-hour", "micro"), (0, 5), "a board of 0 x 5 has no cells"),
        (preset("rush-hour", "micro", "drc"), (6, 6), r"plays boards of \(5, 5\), and no others"),
    ],
)
def test_a_board_that_a_policy_does_not_read_is_refused(config, board, message):
    with pytest.raises(ValueError, match=message):
        run_of(config).spec.inputs(board)


def test_outputs_are_named_arrays_of_a_batch():
    weights, seen = SPEC.init_weights(), boards(3)
    output = Policy(SPEC, weights)(seen)
    outputs = SPEC.outputs(output)
    assert list(outputs) == ["action", "logits", "value"]
    np.testing.assert_array_equal(outputs["action"], output.distribution.mode())
    np.testing.assert_array_equal(outputs["logits"], output.distribution.logits)
    np.testing.assert_array_equal(outputs["value"], output.value)
    mean = jnp.array([[-3.0, 0.0, 0.5, 1.0, 2.0]])
    outputs = ROBOT.outputs(PolicyOutput(DiagonalGaussian(mean, jnp.zeros((1, 5)))))
    assert list(outputs) == ["action", "mean"]
    np.testing.assert_array_equal(outputs["action"], [[-1, 0, 0.5, 1, 1]])  # as the environment takes them
    np.testing.assert_array_equal(outputs["mean"], mean)


def test_initial_weights_are_those_of_a_seed():
    one, again, other = (SPEC.init_weights(seed) for seed in (0, 0, 1))
    assert one.checksum == again.checksum != other.checksum
    like = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), SPEC.weights_like)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), one) == like
    assert one.statistics.mean.shape == SPEC.statistics_shape == (7,)
    assert SPEC.parameters == sum(leaf.size for leaf in jax.tree.leaves(one.parameters))


@pytest.mark.parametrize(
    ("arm", "options", "rule"),
    [
        ("looped", {}, None),
        ("looped", {"carry_latent": True}, None),
        ("looped", {"max_loops": 32}, PolicyKL(max_loops=32)),
        ("looped", {"max_loops": 1}, PolicyKL(min_loops=1, max_loops=1)),
        ("looped", {"threshold": 0.0, "min_loops": 4}, PolicyKL(threshold=0.0, min_loops=4, max_loops=8)),
        ("fixed-4", {"max_loops": 9}, FixedLoops(9)),
        ("fixed-4", {"threshold": 0.1}, PolicyKL(threshold=0.1, max_loops=4)),
    ],
)
def test_options_of_the_loop_change_the_rule_of_training(arm, options, rule):
    assert run_of(preset("rush-hour", "micro", arm)).spec.with_loop(LoopOptions(**options)) == rule


def test_a_rule_of_another_kind_keeps_its_kind():
    config = preset("rush-hour", "micro")
    config = dataclasses.replace(config, arm=dataclasses.replace(config.arm, halting=LatentResidual()))
    changed = run_of(config).spec.with_loop(LoopOptions(max_loops=3))
    assert changed == LatentResidual(max_loops=3)
    stack = run_of(preset("rush-hour", "micro", "iso-flops")).spec
    with pytest.raises(ValueError, match="iso-flops does not loop: its depth cannot be changed"):
        stack.with_loop(LoopOptions(max_loops=3))


def test_a_carry_is_that_of_the_same_episodes(policy):
    with pytest.raises(ValueError, match="carry must be that of the last call for the same 4 episodes"):
        policy.act(boards(4), carry=Carry(np.zeros((3, 0)), np.ones(3, bool)))
    carried = policy.with_carry(True)
    first = carried.act(boards(4))
    assert not first.carry.is_empty
    assert first.carry.latent.shape[0] == 4
    second = carried.act(boards(4), carry=first.carry)
    np.testing.assert_array_equal(carried.act(boards(4), carry=None).loops, first.loops)
    begun = carried.act(boards(4), carry=second.carry.restart(np.ones(4, bool)))
    np.testing.assert_array_equal(begun.loops, first.loops)
    np.testing.assert_array_equal(begun.action, first.action)
    # An empty carry is that of a policy which carries nothing: episodes begin.
    np.testing.assert_array_equal(
        carried.act(boards(4), carry=policy.act(boards(4)).carry).loops, first.loops
    )
    assert policy.act(boards(4)).carry.is_empty


def test_a_policy_makes_its_environment_and_knows_its_levels():
    policy = looped_actor.load_policy("rush-hour-micro")
    env = policy.make_env()
    assert env.levels.info.checksum == policy.levels.info.checksum
    assert (len(policy.levels), env.time_limit) == (1000, policy.config.time_limit)
    observation, _ = env.reset(options={"level": 14})
    assert observation.shape == BOARD
    assert policy.make_env(time_limit=3).time_limit == 3
    assert repr(policy.levels).endswith("1000 levels of rush-hour, 5x5)")


def test_a_policy_without_levels_says_so(tmp_path):
    run = run_of(preset("cube-double", "micro"))
    with pytest.raises(ValueError, match="cube-double is not played on levels"):
        Policy(run.spec, run.spec.weights_like).levels  # noqa: B018
