"""Runs on custom environments: trainer and evaluation."""

import functools
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import gymnasium
import jax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array

from looped_actor.algorithms import PPO, Acting, OnlineState, Weights, make_policy
from looped_actor.envs import Environment
from looped_actor.envs.gymnasium import VectorGym
from looped_actor.envs.spaces import Actions, Observations, check_head, spaces_of
from looped_actor.evaluation.episodes import NumberedEpisodes, as_vector, play_gymnasium
from looped_actor.evaluation.levels import LevelPlayer, Played
from looped_actor.evaluation.options import EvaluationOptions
from looped_actor.evaluation.results import summarize
from looped_actor.loop import HaltingRule, Streaming
from looped_actor.names import CUSTOM_CODE
from looped_actor.policy.policy import Policy
from looped_actor.runs.config import CustomConfig
from looped_actor.runs.run import CustomCode, Run
from looped_actor.training import Trainer
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import Progress, no_progress

DEFAULT_EPISODES = 256


def read_code(file: pathlib.Path) -> Any:
    """Execute a user's file, and return it as a module with `env`, `build` and perhaps `config`."""
    name = CUSTOM_CODE + file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise UserError(f"--code {file}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UserError(f"--code {error.filename}, line {error.lineno}: {error.msg}") from None
    for wanted in ("env", "build"):
        if not hasattr(module, wanted):
            raise UserError(f"--code {file}: there is no `{wanted}` in it")
    return module


@dataclass(frozen=True, eq=False)
class CustomRun(Run):
    """The parts of a run on a custom environment; see `Run`."""

    config: CustomConfig

    @property
    def _code(self) -> CustomCode:
        if self.code is None:
            raise UserError(
                f"{self.folder} is of a custom environment, {self.config.task!r}: its net is code, which no "
                "file holds. Give its build function (in Python) or --code FILE.py (to a command that has it)"
            )
        return self.code

    def environment(self) -> Any:
        """Return the environment in JAX, or a new vector environment of Gymnasium."""
        env = self._code.env
        if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
            raise UserError(
                "one environment of Gymnasium cannot serve both training and evaluation: as env, give a "
                "function that makes it, such as lambda: gymnasium.make_vec(...)"
            )
        if env is None:
            raise UserError(f"{self.config.task!r} is a custom environment: give it as env")
        made = env() if isinstance(env, type) or (callable(env) and not isinstance(env, Environment)) else env
        if not isinstance(made, Environment | gymnasium.vector.VectorEnv):
            raise UserError(
                f"env is of type {type(made).__name__}: it must have reset, step, observe, time_limit and "
                "num_actions as `looped_actor.Environment` says, or be a function that makes a vector "
                "environment of Gymnasium"
            )
        if not isinstance(made, gymnasium.vector.VectorEnv) and jax.tree_util.all_leaves([made]):
            raise UserError(
                f"JAX does not know how to pass a {type(made).__name__} to compiled functions: decorate the "
                "class with @jax.tree_util.register_static, or with register_dataclass if it holds arrays"
            )
        return made

    def complete_config(self) -> CustomConfig:
        env = self.environment()
        observations, actions = spaces_of(env)
        _close(env)
        completed = replace(self, config=replace(self.config, observations=observations, actions=actions))
        _check_net(completed)
        return super(CustomRun, completed).complete_config()

    def build(self, rngs: nnx.Rngs) -> Any:
        return self._code.build(rngs)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        return self.spaces[0].one

    def to_env(self, action: Array) -> Array:
        return self.spaces[1].to_env(action)

    @property
    def spaces(self) -> tuple[Observations, Actions]:
        """Observations and actions of the environment, by the configuration."""
        observations, actions = self.config.observations, self.config.actions
        if observations is None or actions is None:
            raise UserError(f"{self.folder}: its config.json says nothing of observations or actions")
        return observations, actions

    def make_env(self, policy: Policy, **options: Any) -> Any:
        env = self.environment()
        return VectorGym(env, **({"num_envs": 1} | options)) if isinstance(env, Environment) else env

    @property
    def material(self) -> pathlib.Path:
        return self.folder

    def prepare(self, progress: Progress = no_progress) -> dict[str, str]:
        return {}

    @cached_property
    def trainer(self) -> Trainer:
        config = self.config
        assert self.mesh is not None
        return PPO(
            config.algorithm,
            self._training_env,
            self.build,
            config.iterations,
            self.mesh,
            recipe=config.recipe_details,
            acting=config.acting,
            execution=config.execution,
            dtype=self.dtype,
        )

    @cached_property
    def _training_env(self) -> Any:
        return self.environment()

    @cached_property
    def evaluation_env(self) -> Any:
        """The environment, for evaluation."""
        return self.environment()

    def evaluate(self, state: OnlineState) -> Mapping[str, Any]:
        """Play episodes that training does not use."""
        return _summarize_episodes(self._play(state.weights))

    @cached_property
    def _play(self) -> Callable[..., Played]:
        assert self.mesh is not None
        config = self.config
        policy = Policy(self.spec, self.spec.weights_like)
        return episode_player(policy, self.evaluation_env, config.episodes, self.mesh, acting=config.acting)

    def close(self) -> None:
        for name in ("_training_env", "evaluation_env"):
            _close(self.__dict__.get(name))


def _check_net(run: CustomRun) -> None:
    """Raise an error if the net cannot learn to act in the environment."""
    spec = run.spec
    output = jax.eval_shape(
        lambda weights, o: make_policy(spec.definition, weights)(o), spec.weights_like, spec.observations(1)
    )
    if output.value is None:
        raise UserError("PPO needs a value in addition to the policy: give the Actor a ValueHead")
    check_head(output.distribution, run.spaces[1])


def _close(env: Any) -> None:
    if isinstance(env, gymnasium.vector.VectorEnv):
        env.close()


def episode_player(
    policy: Policy,
    env: Any,
    episodes: int,
    mesh: Mesh,
    *,
    halting: HaltingRule | None = None,
    acting: Acting | None = None,
) -> Callable[..., Played]:
    """Return a function that plays episodes of any environment, with weights of the policy's net.

    Args:
      policy: the policy.
      env: an environment in JAX, or one of Gymnasium.
      episodes: number of episodes.
      mesh: the devices; environments of Gymnasium are played on one.
      halting: replaces the halting rule of training.
      acting: how decisions are computed. Default: streamed; for Gymnasium always synchronously.
    """
    most_loops = (halting or policy.spec).max_loops
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        envs = as_vector(env)

        def play(weights: Weights, progress: Progress = no_progress) -> Played:
            act = functools.partial(policy.with_weights(weights).act, halting=halting)
            return play_gymnasium(envs, act, episodes, most_loops, progress=progress)

        return play
    numbered = NumberedEpisodes(env, jax.random.key_data(jax.random.key(0)))
    return LevelPlayer(
        env=numbered,
        levels=episodes,
        definition=policy.spec.definition,
        most_loops=most_loops,
        mesh=mesh,
        halting=halting,
        acting=acting or Streaming(),
        carry_latent=policy.carry_latent,
    ).play


def _summarize_episodes(played: Played) -> dict[str, Any]:
    results = summarize(played)
    return {"episodes": results.pop("levels"), **results}


def evaluate_in_env(
    policy: Policy, env: Any, options: EvaluationOptions, mesh: Mesh, progress: Progress = no_progress
) -> dict[str, Any]:
    """Play episodes of an environment."""
    others = ("levels", "solutions", "baselines", "graded", "deviation", "tasks", "workers")
    options.refuse("some options are for puzzles and OGBench's tasks alone", *others)
    config = policy.config
    episodes = options.count or (config.episodes if isinstance(config, CustomConfig) else DEFAULT_EPISODES)
    halting = policy.spec.with_loop(options)
    play = episode_player(policy, env, episodes, mesh, halting=halting, acting=config.acting)
    return _summarize_episodes(play(policy.weights, progress))
