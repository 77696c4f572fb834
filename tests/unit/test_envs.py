"""Environments of the puzzles: rewards, time limits, resets, random draws, and Gymnasium."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import looped_actor
from looped_actor.envs import VectorEnv
from looped_actor.puzzles.banks import make_bank, starter_bank
from looped_actor.puzzles.boxoban.env import Boxoban, WindowedBoxoban
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.catalogue import BOXOBAN, RUSH_HOUR
from looped_actor.puzzles.rush_hour.env import RushHour
from looped_actor.puzzles.rush_hour.rules import RushHourBoard

RIGHT, LEFT = 1, 3


def boxoban(*texts, **options):
    cells = np.stack([BoxobanBoard.parse(text).to_cells() for text in texts])
    return Boxoban(make_bank(BOXOBAN, cells, source="", licence="").on_device(), **options)


def rush_hour(*texts, **options):
    cells = np.stack([RushHourBoard.parse(text).to_cells() for text in texts])
    return RushHour(make_bank(RUSH_HOUR, cells, source="", licence="").on_device(), **options)


def rewards(env, actions):
    state, found = env.reset_to(jnp.int32(0)), []
    for action in actions:
        state, outcome = env.step(state, jnp.int32(action))
        found.append((round(float(outcome.reward), 5), bool(outcome.terminated), bool(outcome.success)))
    return found


def test_boxoban_rewards():
    env = boxoban("#@$.   *#")
    # Onto the target: one for the box, ten because all are on; then off it again, and nothing for walls.
    assert rewards(env, [RIGHT]) == [(10.9, True, True)]
    assert rewards(boxoban("#@$. $ .#"), [RIGHT, RIGHT, LEFT]) == [
        (0.9, False, False),
        (-1.1, False, False),
        (-0.1, False, False),
    ]
    assert env.time_limit == 120


def test_rush_hour_rewards():
    env = rush_hour("..B.\nAAB.\n....\n....")
    cell = 2 * (4 * 1 + 2) + 1  # B, down
    right = 2 * (4 * 1 + 0) + 1
    # B comes out of the way by its second step: one blocker less. Then the red car: distance 2, 1, 0.
    assert rewards(env, [cell, 2 * (4 * 1 + 2) + 1]) == [(-0.1, False, False), (0.9, False, False)]
    path = [cell, cell, right, 2 * (4 + 1) + 1]
    assert rewards(env, path)[2:] == [(0.9, False, False), (10.9, True, True)]
    assert env.time_limit == 150
    assert env.num_actions == 32


def test_planes():
    seen = boxoban("#@$. *+$."[:6]).observe(boxoban("#@$. *"[:6]).reset_to(jnp.int32(0)))
    assert seen.shape == (1, 6, 4)
    np.testing.assert_array_equal(
        seen[0].T, [[1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    )
    env = rush_hour("AA.B\n...B\nCCCx\n....")
    seen = np.moveaxis(np.asarray(env.observe(env.reset_to(jnp.int32(0)))), -1, 0)
    occupied, red, wall, horizontal, vertical, right, down = seen
    np.testing.assert_array_equal(occupied, [[1, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
    np.testing.assert_array_equal(red[0], [1, 1, 0, 0])
    assert wall.sum() == wall[2, 3] == 1
    np.testing.assert_array_equal(horizontal, [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    assert vertical.sum() == vertical[0, 3] + vertical[1, 3] == 2
    np.testing.assert_array_equal(right, [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    assert down.sum() == down[0, 3] == 1


def test_time_out_is_no_termination():
    vector = VectorEnv(boxoban("#@$ .#", time_limit=3), 2)
    state, first = vector.reset(jax.random.key(0))
    step = jax.jit(VectorEnv.step)
    for t, (actions, ended) in enumerate([([3, 1], [0, 0]), ([3, 1], [0, 1]), ([3, 3], [1, 0])]):
        state, timestep = step(vector, state, jnp.array(actions))
        assert list(timestep.done.astype(int)) == ended, t
        if t == 1:  # the second copy solved its level in two steps
            assert list(timestep.terminated) == [False, True]
            assert not timestep.truncated.any()
            assert timestep.episode.success[1]
            assert timestep.episode.length[1] == 2
            assert float(timestep.episode.returns[1]) == pytest.approx(10.8)
            np.testing.assert_array_equal(timestep.observation[1], first[1])
            assert (timestep.final_observation[1] != first[1]).any()
        if t == 2:  # the first ran out of time; the second is one step into its next episode
            assert list(timestep.truncated) == [True, False]
            assert not timestep.terminated.any()
            assert not timestep.episode.success[0]
            assert list(state.statistics.length) == [0, 1]
            assert list(state.episode) == [2, 2]


def test_solved_in_the_last_step_is_a_termination():
    vector = VectorEnv(boxoban("#@$.#", time_limit=1), 1)
    state, _ = vector.reset(jax.random.key(0))
    _, timestep = vector.step(state, jnp.array([RIGHT]))
    assert timestep.terminated[0]
    assert not timestep.truncated[0]


@pytest.mark.parametrize("env", [Boxoban, RushHour])
def test_a_copy_does_not_depend_on_the_others(env):
    """The same levels and trajectories for copy 5 among 6 and among 40, more than a block of resets."""
    bank = starter_bank("boxoban" if env is Boxoban else "rush-hour")
    env = env(bank.on_device(), time_limit=7)

    def rollout(copies):
        vector = VectorEnv(env, copies)
        actions = jax.random.randint(jax.random.key(3), (30, 40), 0, env.num_actions)[:, :copies]

        def step(state, action):
            state, timestep = vector.step(state, action)
            return state, (timestep.observation, timestep.reward, timestep.done)

        state, first = vector.reset(jax.random.key(1))
        return first, jax.lax.scan(step, state, actions)[1]

    few, many = jax.jit(rollout, static_argnums=0)(6), jax.jit(rollout, static_argnums=0)(40)
    for one, other in zip(jax.tree.leaves(few), jax.tree.leaves(many), strict=True):
        copies = 0 if one.ndim == 4 and one.shape[0] == 6 else 1
        np.testing.assert_array_equal(one, jnp.take(other, jnp.arange(6), axis=copies))
    observations = np.asarray(many[1][0])
    assert many[1][2].sum() >= 4 * 40
    starts = {observations[t, c].tobytes() for t in (6, 13, 20, 27) for c in range(40)}
    assert len(starts) > 100  # new levels, not the same again


@pytest.mark.parametrize("name", ["Boxoban", "RushHour"])
@pytest.mark.filterwarnings("error")
def test_gymnasium_accepts_it(name):
    for mode in (None, "rgb_array", "ansi"):
        check_env(gymnasium.make(f"looped_actor/{name}-v0", render_mode=mode).unwrapped)
    assert looped_actor.__version__


@pytest.mark.parametrize("name", ["Boxoban", "RushHour"])
def test_gymnasium_vector(name):
    vector = gymnasium.make_vec(
        f"looped_actor/{name}-v0", num_envs=3, vectorization_mode="vector_entry_point", time_limit=4
    )
    first, _ = vector.reset(seed=7)
    again, _ = vector.reset(seed=7)
    np.testing.assert_array_equal(first, again)
    assert vector.observation_space.contains(first)
    for t in range(9):
        seen, reward, terminated, truncated, infos = vector.step(np.zeros(3, np.int64))
        assert vector.observation_space.contains(seen)
        assert reward.shape == terminated.shape == (3,)
        assert list(truncated) == [t in (3, 7)] * 3
        if t == 3:
            assert infos["_final_obs"].all()
            assert (infos["final_obs"][0] != seen[0]).any()
            assert list(infos["episode"]["l"]) == [4, 4, 4]
    with pytest.raises(ValueError, match="actions of shape"):
        vector.step(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="actions of shape"):
        vector.step(np.full(3, 99))


def test_gymnasium_errors():
    with pytest.raises(ValueError, match="holds levels of boxoban, not of rush-hour"):
        gymnasium.make("looped_actor/RushHour-v0", levels=starter_bank("boxoban"))
    env = gymnasium.make("looped_actor/Boxoban-v0", disable_env_checker=True).unwrapped
    env.reset(options={"level": 3})
    assert env.current == starter_bank("boxoban").board(3)
    with pytest.raises(ValueError, match="no level 1000"):
        env.reset(options={"level": 1000})
    with pytest.raises(ValueError, match="is not in Discrete"):
        env.step(4)


@pytest.mark.parametrize("name", ["Boxoban", "RushHour"])
def test_the_plain_environment_and_the_jax_one_agree(name):
    plain = gymnasium.make(f"looped_actor/{name}-v0", time_limit=60, disable_env_checker=True).unwrapped
    bank = plain.levels
    env = {"Boxoban": Boxoban, "RushHour": RushHour}[name](bank.on_device(), time_limit=60)
    step = jax.jit(env.step)
    rng = np.random.default_rng(2)
    for level in range(5):
        seen, _ = plain.reset(options={"level": level})
        state = env.reset_to(jnp.int32(level))
        for _ in range(60):
            np.testing.assert_array_equal(seen, env.observe(state))
            action = int(rng.integers(env.num_actions))
            seen, reward, terminated, _, _ = plain.step(action)
            state, outcome = step(state, jnp.int32(action))
            assert reward == pytest.approx(float(outcome.reward), abs=1e-5)
            assert terminated == bool(outcome.terminated)


def test_a_window_shows_what_is_near():
    """Held against a look at every cell."""
    bank = starter_bank("boxoban")
    whole, part = Boxoban(bank.on_device()), WindowedBoxoban(bank.on_device(), radius=2)
    for level in range(5):
        state = whole.reset_to(jnp.int32(level))
        seen, all_of_it = np.asarray(part.observe(state)), np.asarray(whole.observe(state))
        ((row, column, _),) = np.argwhere(all_of_it[..., 3:])
        for r, c in np.ndindex(*all_of_it.shape[:2]):
            near = abs(r - row) <= 2 and abs(c - column) <= 2
            np.testing.assert_array_equal(seen[r, c], all_of_it[r, c] if near else 0)
        assert seen.sum() < all_of_it.sum()
    assert jax.tree.structure(part) != jax.tree.structure(whole)
