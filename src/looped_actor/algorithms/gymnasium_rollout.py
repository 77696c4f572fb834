"""Rollouts of Gymnasium vector environments: they step on the host, everything else as for those in JAX."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium.vector import VectorEnv as GymnasiumVector
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from looped_actor.algorithms.policy_fn import Weights, make_policy
from looped_actor.algorithms.rollout import (
    ENV_STATE_SPECS,
    TIME_ROWS,
    EnvState,
    Rollout,
    Transition,
    sample_actions,
)
from looped_actor.envs import VectorState
from looped_actor.envs.spaces import Actions, check_head, spaces_of, successes
from looped_actor.envs.vector import EpisodeStatistics
from looped_actor.loop import Carry, empty_carry
from looped_actor.training.sharding import REPLICATED, ROWS, jit_per_device, place
from looped_actor.utils.errors import UserError


class _Step(NamedTuple):
    """Device outputs of one step."""

    action: Shaped[Array, "b ..."]
    env_action: Shaped[Array, "b ..."]
    """The action in the form that the environment takes."""
    log_prob: Float[Array, " b"]
    value: Float[Array, " b"]
    loops: Int[Array, " b"]
    stop: Int[Array, " b"]
    executed: Int[Array, " d"]
    carry: Carry


class GymnasiumRollouts:
    """Rollouts of a Gymnasium vector environment, all copies together.

    Observations are arrays whose last axis holds features; actions are discrete, or vectors that are clipped
    to their bounds. A step counts as a success if the environment's info says `is_success`; the metric is NaN
    if it never does. The environments keep their own state, so a run can be continued from the last state
    only, and a checkpoint holds the policy but not the environments.
    """

    def __init__(self, env: GymnasiumVector, num_envs: int, rollout_steps: int, mesh: Mesh):
        if env.num_envs != num_envs:
            raise UserError(f"num_envs is {num_envs}, and the environment has {env.num_envs} copies")
        if jax.process_count() > 1:
            raise UserError(
                "environments of Gymnasium are trained on by one process, on as many devices as it has"
            )
        self.env, self.rollout_steps, self.mesh = env, rollout_steps, mesh
        self.actions: Actions = spaces_of(env)[1]
        self._reports_success = False
        self._decide = functools.cache(self._compile)

    def init(self, seed: int, root: UInt32[Array, "2"]) -> EnvState:
        """Return all environments at the start of their first episode, without a latent to carry."""
        observation, _ = self.env.reset(seed=seed)
        rows = self.env.num_envs
        statistics = EpisodeStatistics(jnp.zeros(rows), jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool))
        envs = VectorState(
            states=(),
            copy=jnp.arange(rows, dtype=jnp.int32),
            episode=jnp.ones(rows, jnp.int32),
            statistics=statistics,
            level_key=root,
        )
        return self._place(EnvState(envs, observation, jnp.zeros(rows, jnp.int32), empty_carry(rows)))

    def restart(self, seed: int, state: EnvState) -> EnvState:
        """Return the state with new episodes: the state of Gymnasium environments cannot be saved."""
        carry = state.carry.restart(jnp.ones_like(state.carry.reset))
        return self.init(seed, state.envs.level_key)._replace(carry=carry)

    def _place(self, state: EnvState) -> EnvState:
        """Put a state on the devices."""
        specs = jax.tree.broadcast(ENV_STATE_SPECS, state)
        return jax.tree.map(functools.partial(place, self.mesh), state, specs)

    def collect(
        self,
        definition: nnx.GraphDef,
        weights: Weights,
        state: EnvState,
        root: UInt32[Array, "2"],
        first_step: int,
    ) -> tuple[EnvState, Rollout]:
        """Return a rollout. The arguments are those of `rollout.collect`."""
        state, transitions, executed = jax.device_get(state), [], 0
        decide = self._decide(definition)

        def decide_at(step: int) -> _Step:
            return jax.device_get(decide(weights, self._place(state), root, jnp.int32(step)))

        for step in range(self.rollout_steps):
            decided = decide_at(first_step + step)
            state, transition = self._step(state, decided)
            transitions.append(transition)
            executed = executed + decided.executed
        last = decide_at(0)
        steps = jax.tree.map(lambda *leaves: np.stack(leaves), *transitions)
        loops = np.concatenate([steps.loops, last.loops[None]])
        per_device = loops.reshape(len(loops), self.mesh.size, -1).sum(axis=(0, 2)).astype(np.int32)
        on_rows = functools.partial(place, self.mesh, spec=ROWS)
        rollout = Rollout(
            steps=place(self.mesh, steps, TIME_ROWS),
            bootstrap=on_rows(last.value),
            loops=on_rows(per_device),
            executed=on_rows(executed + last.executed),
        )
        return self._place(state), rollout

    def _compile(self, definition: nnx.GraphDef) -> Any:
        """Return the jitted decisions of a net."""

        def decide(
            weights: Weights, state: EnvState, root: UInt32[Array, "2"], step: Int[Array, ""]
        ) -> _Step:
            output = make_policy(definition, weights)(
                state.observation, expected_loops=state.loops, carry=state.carry
            )
            assert output.loop is not None
            assert output.value is not None
            action = sample_actions(output.distribution, state.envs.copy, root, step)
            check_head(output.distribution, self.actions)
            return _Step(
                action=action,
                env_action=self.actions.to_env(action),
                log_prob=output.distribution.log_prob(action),
                value=output.value,
                loops=output.loop.loops,
                stop=output.loop.stop,
                executed=output.loop.executed[None],
                carry=state.carry.update(output.loop.latent),
            )

        return jit_per_device(self.mesh, decide, (REPLICATED, ENV_STATE_SPECS, REPLICATED, REPLICATED), ROWS)

    def _step(self, state: EnvState, decided: _Step) -> tuple[EnvState, Transition]:
        """Carry out one action of every environment, on the host."""
        observation, reward, terminated, truncated, infos = self.env.step(decided.env_action)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        success, before = successes(infos, len(terminated)), state.envs.statistics
        self._reports_success |= success is not None
        episode = EpisodeStatistics(
            returns=(before.returns + reward).astype(np.float32),
            length=before.length + 1,
            success=before.success if success is None else before.success | success,
        )
        dtype = decided.value.dtype
        transition = Transition(
            observation=state.observation,
            action=decided.action,
            log_prob=decided.log_prob,
            value=decided.value,
            reward=np.asarray(reward, dtype),  # type: ignore[arg-type]
            terminated=terminated,  # type: ignore[arg-type]
            truncated=truncated & ~terminated,  # type: ignore[arg-type]
            loops=decided.loops,
            stop=decided.stop,
            episode=episode._replace(success=self._success_metric(episode.success, dtype)),
            carry=state.carry,
        )
        done = terminated | truncated
        running = jax.tree.map(lambda leaf: np.where(done, np.zeros_like(leaf), leaf), episode)
        envs = state.envs._replace(statistics=running, episode=(state.envs.episode + done).astype(np.int32))
        # A copy: some environments write their next observation into the same array.
        return EnvState(envs, np.array(observation), decided.loops, decided.carry.restart(done)), transition  # type: ignore[arg-type]

    def _success_metric(self, success: Bool[Array | np.ndarray, " b"], dtype: Any) -> Any:
        """Return success as numbers, NaN as long as no info had `is_success`."""
        return success.astype(dtype) if self._reports_success else np.full(success.shape, np.nan, dtype)
