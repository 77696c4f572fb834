"""The rules in JAX against the plain ones, over random play on random boards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boards import random_boxoban, random_rush_hour
from looped_actor.puzzles.boxoban import rules_jax as boxoban_jax
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.rush_hour import rules_jax as rush_hour_jax

STEPS = 250


def play_boxoban(board, actions):
    for action in actions:
        board = board.move(Direction(int(action)))
        yield board.to_cells(), len(board.boxes - board.targets)


def play_rush_hour(board, actions):
    for action in actions:
        board = board.slide(divmod(int(action) // 2, board.width), bool(action % 2))
        yield board.to_cells(), board.blockers, board.distance_to_exit


def boxoban_history(boards, actions):
    def step(state, action):
        state = jax.vmap(lambda s, a: boxoban_jax.move(s, a, boards.shape[1:]))(state, action)
        return state, (state.cells.reshape(boards.shape), state.unplaced)

    return jax.lax.scan(step, jax.vmap(boxoban_jax.initial_state)(boards), actions)[1]


def rush_hour_history(boards, actions):
    def step(state, action):
        state = jax.vmap(lambda s, a: rush_hour_jax.slide(s, a, boards.shape[1:]))(state, action)
        return state, (state.cells.reshape(boards.shape), state.blockers, state.distance_to_exit)

    return jax.lax.scan(step, jax.vmap(rush_hour_jax.initial_state)(boards), actions)[1]


@pytest.mark.parametrize("game", ["boxoban", "rush-hour"])
@pytest.mark.parametrize("shape", [(4, 4), (5, 7), (7, 5), (6, 6)])
def test_random_play(game, shape, size):
    """In full: 4 shapes x 1,000 boards x 250 steps = 1,000,000 steps of each game."""
    rng = np.random.default_rng([*shape, len(game)])
    make = random_boxoban if game == "boxoban" else random_rush_hour
    boards = [make(rng, shape=shape) for _ in range(size(10, 1000))]
    actions = rng.integers(0, 4 if game == "boxoban" else 2 * shape[0] * shape[1], (STEPS, len(boards)))
    history = jax.jit(boxoban_history if game == "boxoban" else rush_hour_history)
    play = play_boxoban if game == "boxoban" else play_rush_hour
    fast = [
        np.asarray(part) for part in history(jnp.stack([b.to_cells() for b in boards]), jnp.asarray(actions))
    ]
    for i, board in enumerate(boards):
        for t, (cells, *facts) in enumerate(play(board, actions[:, i])):
            np.testing.assert_array_equal(fast[0][t, i], cells, err_msg=f"{board}\nstep {t}")
            assert [int(part[t, i]) for part in fast[1:]] == facts, f"{board}\nstep {t}"
    moved = (fast[0][1:] != fast[0][:-1]).any(axis=(2, 3))
    assert moved.mean() > 0.02  # random play does change the board


def test_large_boards():
    """Boards of more than 256 cells take the wider index."""
    rng = np.random.default_rng(5)
    board = random_boxoban(rng, shape=(17, 19), max_boxes=12)
    actions = rng.integers(0, 4, (200, 1))
    cells, _ = jax.jit(boxoban_history)(jnp.asarray(board.to_cells())[None], jnp.asarray(actions))
    for t, (plain, _) in enumerate(play_boxoban(board, actions[:, 0])):
        np.testing.assert_array_equal(cells[t, 0], plain)
