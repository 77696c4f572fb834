"""Boxoban against Jumanji's Sokoban on the real test levels: 1,000 levels x 200 steps."""

import jax
import jax.numpy as jnp
import numpy as np
from jumanji.environments.routing.sokoban.env import Sokoban
from jumanji.environments.routing.sokoban.generator import SimpleSolveGenerator
from jumanji.environments.routing.sokoban.types import State

from looped_actor.puzzles.boxoban.env import Boxoban
from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.sources import read_boxoban

STEPS = 200


def test_boards_and_rewards(boxoban_levels):
    bank = read_boxoban(boxoban_levels, "unfiltered/test")
    cells = bank.cells(slice(None))
    ours = Boxoban(bank.on_device())
    # Without a time limit: Jumanji's would be a termination.
    theirs = Sokoban(generator=SimpleSolveGenerator(), time_limit=10 * STEPS)
    fixed = ((cells & Cell.WALL) != 0) * 1 + ((cells & Cell.TARGET) != 0) * 2
    variable = ((cells & Cell.PLAYER) != 0) * 3 + ((cells & Cell.BOX) != 0) * 4
    player = np.argwhere(cells & Cell.PLAYER)[:, 1:]
    count = len(bank)
    their_state = State(
        key=jax.random.split(jax.random.PRNGKey(0), count),
        fixed_grid=jnp.asarray(fixed, jnp.uint8),
        variable_grid=jnp.asarray(variable, jnp.uint8),
        agent_location=jnp.asarray(player, jnp.int32),
        step_count=jnp.zeros(count, jnp.int32),
    )
    our_state = jax.vmap(ours.reset_to)(jnp.arange(count))

    @jax.jit
    def play(our_state, their_state, actions):
        def step(states, action):
            our_state, outcome = jax.vmap(ours.step)(states[0], action)
            their_state, timestep = jax.vmap(theirs.step)(states[1], action)
            board = our_state.cells.reshape(count, 10, 10)
            our_fixed = ((board & Cell.WALL) != 0) * 1 + ((board & Cell.TARGET) != 0) * 2
            our_variable = ((board & Cell.PLAYER) != 0) * 3 + ((board & Cell.BOX) != 0) * 4
            same = (our_fixed == their_state.fixed_grid) & (our_variable == their_state.variable_grid)
            ended = timestep.step_type == 2
            record = (same.all((1, 2)), outcome.reward, timestep.reward, outcome.terminated == ended)
            return (our_state, their_state), (
                *record,
                our_variable != states[1].variable_grid,
            )

        return jax.lax.scan(step, (our_state, their_state), actions)[1]

    actions = jax.random.randint(jax.random.key(1), (STEPS, count), 0, 4)
    same, reward, their_reward, same_end, changed = play(our_state, their_state, actions)
    assert same.all()
    assert same_end.all()
    np.testing.assert_allclose(reward, their_reward, rtol=0, atol=1e-6)
    assert changed.any((2, 3)).mean() > 0.2  # the players did walk
    assert (jnp.abs(reward + 0.1) > 0.5).sum() > 100  # and boxes came onto targets
