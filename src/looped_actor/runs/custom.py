"""A run on a world of the user's own, from its configuration and its code: trainer, evaluation, cost."""

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

from looped_actor.algorithms import Acting, Weights
from looped_actor.algorithms import policy_fn as deciding
from looped_actor.algorithms.online import OnlineState
from looped_actor.algorithms.ppo_trainer import ppo_trainer
from looped_actor.algorithms.trainer import Trainer
from looped_actor.envs import Environment
from looped_actor.envs.spaces import Actions, Observations, check_head, spaces_of
from looped_actor.evaluation.episodes import NumberedEpisodes, as_vector, play_gymnasium
from looped_actor.evaluation.facts import summary
from looped_actor.evaluation.levels import LevelPlayer, Played
from looped_actor.evaluation.requests import EvaluationRequest
from looped_actor.loop import Categorical, HaltingRule, Streaming
from looped_actor.names import OWN_CODE
from looped_actor.policy.policy import Policy
from looped_actor.runs.config import OwnConfig
from looped_actor.runs.run import OnlineRun, Own, Program
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import Progress, no_progress


def read_code(file: pathlib.Path) -> Any:
    """A user's file as a module, with `env`, `build` and perhaps `config`. It is executed."""
    name = OWN_CODE + file.stem
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


@dataclass(frozen=True)
class OwnRun(OnlineRun):
    """The parts of a run, made from its configuration and the user's code; see `Run`."""

    config: OwnConfig

    @property
    def _code(self) -> Own:
        if self.own is None:
            raise UserError(
                f"{self.folder} is of a world of your own, {self.config.task!r}: its net is code, which no "
                "file holds. Give its build function (in Python) or --code FILE.py (to a command that has it)"
            )
        return self.own

    def environment(self) -> Any:
        """The environment in JAX, or a new vector environment of Gymnasium."""
        env = self._code.env
        if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
            raise UserError(
                "an environment of Gymnasium cannot be trained and evaluated on at once: as env, give a "
                "function that makes it, such as lambda: gymnasium.make_vec(...)"
            )
        if env is None:
            raise UserError(f"{self.config.task!r} is a world of your own: give its environment as env")
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

    def completed(self) -> OwnConfig:
        """The configuration with what the environment shows and takes."""
        env = self.environment()
        observations, actions = spaces_of(env)
        _close(env)
        config = replace(self.config, observations=observations, actions=actions)
        _check_net(replace(self, config=config))
        return config

    def build(self, rngs: nnx.Rngs) -> Any:
        """The policy's net, with new weights."""
        return self._code.build(rngs)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """The shape of one observation."""
        return self.spaces[0].one

    def as_taken(self, action: Array) -> Array:
        """A policy's actions as the environment takes them."""
        return self.spaces[1].as_taken(action)

    @property
    def spaces(self) -> tuple[Observations, Actions]:
        """What the environment shows and takes, as the configuration says."""
        observations, actions = self.config.observations, self.config.actions
        if observations is None or actions is None:
            raise UserError(f"{self.folder}: its config.json says nothing of observations or actions")
        return observations, actions

    @property
    def material(self) -> pathlib.Path:
        """Nothing is made for it."""
        return self.folder

    def prepare(self, progress: Progress = no_progress) -> dict[str, str]:
        """There is nothing to make: the environment is the data."""
        return {}

    @property
    def trainer(self) -> Trainer:
        """What learns."""
        return self._trainer

    @cached_property
    def _trainer(self) -> Trainer:
        config = self.config
        assert self.mesh is not None
        parts = config.ppo, self.environment(), self.build, config.iterations, self.mesh
        return ppo_trainer(*parts, dtype=self.dtype, acting=config.acting)

    def evaluate(self, state: OnlineState) -> Mapping[str, Any]:
        """Play episodes that are not those of training."""
        return _summary(self._play(state.weights))

    @cached_property
    def _play(self) -> Callable[..., Played]:
        assert self.mesh is not None
        config = self.config
        policy = Policy(self, self.weights_like)
        return episodes_of(policy, self._held_out, config.episodes, self.mesh, acting=config.acting)

    @cached_property
    def _held_out(self) -> Any:
        return self.environment()

    def play(
        self, policy: Policy, request: EvaluationRequest, progress: Progress = no_progress
    ) -> dict[str, Any]:
        """Play episodes of the world."""
        assert self.mesh is not None
        return played_facts(policy, self._held_out, request, self.mesh, progress)

    def program(self, board: tuple[int, int] | None = None) -> Program:
        """What an exported policy reads and returns."""
        if board is not None:
            raise UserError("boards of other sizes are for puzzles: leave --board out")

        def outputs(decision: Any) -> dict[str, Array]:
            policy = decision.distribution
            told = {"logits": policy.logits} if isinstance(policy, Categorical) else {"mean": policy.mode()}
            value = {} if getattr(decision, "value", None) is None else {"value": decision.value}
            return {"action": self.as_taken(policy.mode()), **told, **value}

        return Program({"observation": self.observation}, lambda observation: observation, outputs)

    def close(self) -> None:
        """Close environments of Gymnasium."""
        if "_trainer" in self.__dict__:
            _close(getattr(self.trainer.collector, "env", None))
        _close(self.__dict__.get("_held_out"))


def _check_net(run: OwnRun) -> None:
    """Raise an error if the net cannot learn to act in the environment."""
    decide: Any = lambda weights, seen: deciding(run.definition, weights)(seen)  # noqa: E731
    decision: Any = jax.eval_shape(decide, run.weights_like, run.observations(1))
    if getattr(decision, "value", None) is None:
        raise UserError("PPO needs a value beside the policy: let build return an ActorCritic")
    check_head(decision.distribution, run.spaces[1])


def _close(env: Any) -> None:
    if isinstance(env, gymnasium.vector.VectorEnv):
        env.close()


def episodes_of(
    policy: Policy,
    env: Any,
    episodes: int,
    mesh: Mesh,
    *,
    halting: HaltingRule | None = None,
    acting: Acting | None = None,
) -> Callable[..., Played]:
    """A function that plays episodes of any environment, by weights of the policy's net.

    Args:
      policy: whose net it is.
      env: an environment in JAX, or one of Gymnasium.
      episodes: how many.
      mesh: the devices; those of Gymnasium are played on one.
      halting: another rule than in training.
      acting: how decisions are computed. Default: streamed; for Gymnasium always in step.
    """
    most = (halting or policy.run.net).max_loops
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        envs = as_vector(env)

        def play(weights: Weights, progress: Progress = no_progress) -> Played:
            act = functools.partial(policy.with_weights(weights).act, halting=halting)
            return play_gymnasium(envs, act, episodes, most, progress=progress)

        return play
    numbered = NumberedEpisodes(env, jax.random.key_data(jax.random.key(0)))
    how: Any = {"halting": halting, "acting": acting or Streaming(), "starting": policy.starting}
    return LevelPlayer(numbered, episodes, policy.run.definition, most, mesh, **how).play


def _summary(played: Played) -> dict[str, Any]:
    """Facts about episodes, under the name that episodes have."""
    facts = summary(played)
    return {"episodes": facts.pop("levels"), **facts}


def played_facts(
    policy: Policy, env: Any, request: EvaluationRequest, mesh: Mesh, progress: Progress = no_progress
) -> dict[str, Any]:
    """What a policy achieves in an environment, as facts that JSON can hold."""
    for_others = ("levels", "solutions", "baselines", "graded", "deviation", "tasks", "workers")
    request.refuse("some options are for puzzles and OGBench's tasks alone", *for_others)
    episodes = request.count or getattr(policy.config, "episodes", 256)
    acting, halting = policy.config.acting, policy.rule(request)
    play = episodes_of(policy, env, episodes, mesh, halting=halting, acting=acting)
    return _summary(play(policy.weights, progress))
