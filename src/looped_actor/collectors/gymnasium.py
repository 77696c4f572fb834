"""Rollouts of environments of Gymnasium: they step on the host, everything else is as for those in JAX."""

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium.vector import VectorEnv as GymnasiumVector
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from looped_actor.algorithms import Weights, deciding
from looped_actor.collectors.base import EXPERIENCE, PLAYERS, STEPS, Experience
from looped_actor.collectors.rollouts import Players, Rollout, Transition, drawn_actions
from looped_actor.devices import EVERYWHERE, ROWS, on_each_device, placed
from looped_actor.envs import VectorState
from looped_actor.envs.spaces import Actions, check_head, spaces_of, successes
from looped_actor.envs.vector import EpisodeStatistics
from looped_actor.errors import UserError
from looped_actor.loop import Memory


class _Acted(NamedTuple):
    """What the devices decide in one step."""

    action: Shaped[Array, "b ..."]
    taken: Shaped[Array, "b ..."]
    """The same as the environment takes it."""
    log_prob: Float[Array, " b"]
    value: Float[Array, " b"]
    loops: Int[Array, " b"]
    stop: Int[Array, " b"]
    executed: Int[Array, " d"]
    memory: Memory | None


@dataclass(frozen=True)
class GymnasiumCollector:
    """Plays a vector environment of Gymnasium, all copies in step.

    ```python
    same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec("CartPole-v1", 16, vectorization_mode="sync", vector_kwargs=same_step)
    trainer = ppo_trainer(PPOConfig(num_envs=16, ...), envs, build, iterations, all_devices())
    state = trainer.begin(seed=0)
    state, metrics = trainer.iterate(state)
    ```

    Observations are arrays whose last axis holds features; actions are discrete, or vectors that are clipped
    to their bounds. A step counts as a success where the environment's info says `is_success`; the metric is
    NaN if it never does. The
    environments keep their own state, so a run goes on from the last state that `iterate` returned, and what
    can be saved and loaded of it is the policy.
    """

    env: GymnasiumVector
    num_envs: int
    rollout_steps: int
    mesh: Mesh
    on_host: bool = field(default=True, init=False)
    world: tuple[()] = field(default=(), init=False)
    spec: Any = field(default=EXPERIENCE, init=False)

    def __post_init__(self) -> None:
        env = self.env
        if env.num_envs != self.num_envs:
            raise UserError(f"num_envs is {self.num_envs}, and the environment has {env.num_envs} copies")
        _ = self._actions  # or it says what is wrong with the environment
        if jax.process_count() > 1:
            raise UserError(
                "environments of Gymnasium are trained on by one process, on as many devices as it has"
            )

    @functools.cached_property
    def _actions(self) -> Actions:
        return spaces_of(self.env)[1]

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of a rollout."""
        return self.num_envs * self.rollout_steps

    def begin(self, world: tuple[()], root: UInt32[Array, "2"], seed: int) -> Players:
        """All environments at the start of their first episode."""
        observation, _ = self.env.reset(seed=seed)
        rows = self.num_envs
        nothing = EpisodeStatistics(jnp.zeros(rows), jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool))
        copies, episode = jnp.arange(rows, dtype=jnp.int32), jnp.ones(rows, jnp.int32)
        envs = VectorState((), copies, episode, nothing, root)
        return self._placed(Players(envs, observation, jnp.zeros(rows, jnp.int32)))

    def _placed(self, players: Players) -> Players:
        """On the devices."""
        return jax.tree.map(
            functools.partial(placed, self.mesh), players, jax.tree.broadcast(PLAYERS, players)
        )

    def collect(
        self, definition: nnx.GraphDef, world: tuple[()], state: Any, given: None = None
    ) -> Experience:
        """A rollout, on the host."""
        first = int(state.iteration) * self.rollout_steps
        players, transitions, executed = jax.device_get(state.players), [], 0

        def think(step: int) -> _Acted:
            placed = (state.weights, self._placed(players), state.root, jnp.int32(step))
            return jax.device_get(self._think(definition)(*placed))

        for step in range(self.rollout_steps):
            acted = think(first + step)
            players, transition = self._stepped(players, acted)
            transitions.append(transition)
            executed = executed + acted.executed
        last = think(0)
        steps = jax.tree.map(lambda *leaves: np.stack(leaves), *transitions)
        thoughts = np.concatenate([steps.loops, last.loops[None]])
        asked = thoughts.reshape(len(thoughts), self.mesh.size, -1).sum(axis=(0, 2)).astype(np.int32)
        spread = functools.partial(placed, self.mesh)
        rollout = Rollout(
            spread(steps, STEPS),
            *(spread(leaf, ROWS) for leaf in (last.value, asked, executed + last.executed)),
        )
        return Experience(self._placed(players), rollout)

    def resume(self, state: Any, seed: int) -> Any:
        """With new episodes: the state of Gymnasium environments cannot be saved."""
        players, memory = self.begin((), state.root, seed + int(state.iteration)), state.players.memory
        if memory is not None:
            memory = memory.restart(jnp.ones_like(memory.fresh))
        return state._replace(players=players._replace(memory=memory))

    def prefetch(self, state: Any) -> None:
        """The next rollout needs what is being learned."""

    @functools.cached_property
    def _info(self) -> dict[str, bool]:
        """Facts about the environment's info, updated at every step."""
        return {"reports success": False}

    def _reported_success(self, success: Bool[Array | np.ndarray, " b"], dtype: Any) -> Any:
        """Return success as numbers, NaN as long as no info had `is_success`."""
        return (
            success.astype(dtype) if self._info["reports success"] else np.full(success.shape, np.nan, dtype)
        )

    @functools.cached_property
    def _programs(self) -> dict[nnx.GraphDef, Any]:
        return {}

    def _think(self, definition: nnx.GraphDef) -> Any:
        """The jitted decisions of a net, compiled once."""

        def think(
            weights: Weights, players: Players, root: UInt32[Array, "2"], step: Int[Array, ""]
        ) -> _Acted:
            memory = players.memory
            decision = deciding(definition, weights)(
                players.observation, expected_loops=players.loops, memory=memory
            )
            action = drawn_actions(decision.distribution, players.envs.copy, root, step)
            check_head(decision.distribution, self._actions)
            return _Acted(
                action,
                self._actions.as_taken(action),
                decision.distribution.log_prob(action),
                decision.value,
                decision.loop.loops,
                decision.loop.stop,
                decision.loop.executed[None],
                None if memory is None else memory.after(decision.loop.latent),
            )

        if definition not in self._programs:
            given = (EVERYWHERE, PLAYERS, EVERYWHERE, EVERYWHERE)
            self._programs[definition] = on_each_device(self.mesh, think, given, ROWS)
        return self._programs[definition]

    def _stepped(self, players: Players, acted: _Acted) -> tuple[Players, Transition]:
        """Carry out one action of every environment; all of it stays on the host."""
        envs = players.envs
        after, reward, terminated, truncated, infos = self.env.step(acted.taken)
        success = successes(infos, len(terminated))
        self._info["reports success"] |= success is not None
        before = envs.statistics
        episode = EpisodeStatistics(
            returns=(before.returns + reward).astype(np.float32),
            length=before.length + 1,
            success=before.success if success is None else before.success | success,
        )
        transition = Transition(
            players.observation,
            acted.action,
            acted.log_prob,
            acted.value,
            np.asarray(reward, acted.value.dtype),  # type: ignore[arg-type]
            np.asarray(terminated, bool),  # type: ignore[arg-type]
            np.asarray(truncated & ~terminated, bool),  # type: ignore[arg-type]
            acted.loops,
            acted.stop,
            episode._replace(success=self._reported_success(episode.success, acted.value.dtype)),
            players.memory,
        )
        done = terminated | truncated
        running = jax.tree.map(lambda leaf: np.where(done, np.zeros_like(leaf), leaf), episode)
        envs = envs._replace(statistics=running, episode=(envs.episode + done).astype(np.int32))
        # A copy: some environments write their next observation where this one lies.
        memory = None if acted.memory is None else acted.memory.restart(done)
        return Players(envs, np.array(after), acted.loops, memory), transition  # type: ignore[arg-type]
