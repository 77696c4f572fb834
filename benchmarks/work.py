"""Rollouts, updates and evaluations whose executions are compared by `savings.py`.

Each is timed as this library does it (streaming when acting, packed when learning), *frozen* (synchronously,
all loops computed for every example, as a halted batch does), as the Iso-FLOPs arm, and *bare*: a loop over
the same core, as many calls in full batches, without environment, halting or bookkeeping. All take turns in
one run, and the fastest turn counts.
"""

import functools
import math
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, PyTree
from prescribed import PrescribedActor

from looped_actor.algorithms import PPO, OnlineState, PPOConfig, Synchronous, Weights, to_streaming
from looped_actor.algorithms.online import STATE_SPECS
from looped_actor.algorithms.rollout import ENV_STATE_SPECS, ROLLOUT_SPECS, collect
from looped_actor.evaluation.levels import LevelEnvironment, LevelPlayer
from looped_actor.loop import FrozenScan, StreamablePolicy, Streaming
from looped_actor.loop.microbatch import default_microbatch
from looped_actor.models.arms import Looped, Stacked
from looped_actor.planning.depths import DISTRIBUTIONS
from looped_actor.planning.timing import take_turns
from looped_actor.policy.policy import Policy
from looped_actor.puzzles.banks import LevelBank, starter_bank
from looped_actor.puzzles.catalogue import game_named
from looped_actor.puzzles.generate import generate
from looped_actor.runs.config import PuzzleConfig
from looped_actor.runs.presets import preset
from looped_actor.training.sharding import REPLICATED, jit_per_device, replicate
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import default_workers

FROZEN = Synchronous(FrozenScan())


class Saving(NamedTuple):
    """Effect of halting on the time of one kind of work."""

    mean_loops: float
    """Loops needed, per decision."""
    max_loops: int
    """Cap."""
    over_frozen: float
    """Time relative to the frozen version. The ideal is `mean_loops / max_loops`."""
    executed_over_needed: float
    """Loops that the hardware computed for each loop needed."""
    over_bare: float
    """Loops needed per second, relative to the bare loop."""
    iso_flops_over_frozen: float
    """Time of the Iso-FLOPs arm, relative to the frozen version."""


@dataclass(frozen=True)
class Turns:
    """Number of turns of each contestant."""

    rounds: int
    until: float = math.inf
    """Time of the performance counter by which all rounds but the first must end."""

    @property
    def seconds(self) -> float:
        """Seconds left."""
        return self.until - time.perf_counter()


@dataclass(frozen=True, kw_only=True)
class Work:
    """A policy, and environments to learn from and to evaluate on."""

    config: PuzzleConfig
    build: Callable[[nnx.Rngs], Any]
    """Makes the looped net."""
    weights: Weights | None
    """Weights of the looped net; None for random ones."""
    train: LevelEnvironment
    test: LevelEnvironment
    levels: int
    """Levels of an evaluation."""

    @property
    def arm(self) -> Looped:
        """The looped arm."""
        assert isinstance(self.config.arm, Looped)
        return self.config.arm


def prescribed_work(depths: str, quick: bool) -> Work:
    """Return the paper's net with random weights on boards of 10x10, with prescribed depths.

    Args:
      depths: name of a distribution.
      quick: little work, for a minute.
    """
    algorithm = PPOConfig(num_envs=64, rollout_steps=8, minibatch=128, epochs=1)
    if quick:
        algorithm = PPOConfig(num_envs=32, rollout_steps=1, minibatch=32, epochs=1)
    config = preset("boxoban", "paper")
    config = replace(config, algorithm=algorithm, recipe="default", time_limit=5 if quick else 16)
    env: Any = game_named("boxoban").environment(starter_bank("boxoban").on_device(), config.time_limit)
    table = jnp.asarray(DISTRIBUTIONS[depths].draw(4096))
    return Work(
        config=config,
        build=lambda rngs: PrescribedActor(config.arm.build(config.shapes, rngs), table),
        weights=None,
        train=env,
        test=env,
        levels=64 if quick else 96,
    )


def policy_work(policy: Policy, bank: LevelBank | None, quick: bool) -> Work:
    """Return a trained policy on its own task, on levels of a bank or on new ones of its recipe."""
    config = policy.config
    if not isinstance(config, PuzzleConfig) or not isinstance(config.arm, Looped):
        raise UserError(f"{policy.name} is no looped policy of a puzzle")
    if bank is None:
        if config.levels.recipe is None:
            raise UserError("this policy was trained on banks: give one with --levels")
        recipes = config.levels.recipe, config.levels.held_out_recipe or config.levels.recipe
        count, workers = 200 if quick else 1000, default_workers()
        banks = [generate(recipe, {"new": count}, workers=workers)["new"] for recipe in recipes]
    else:
        banks = [bank, bank]
    # Without its optimizer state training would move the policy: the learning rate keeps it as it is.
    epochs = 1 if quick else config.algorithm.epochs
    assert isinstance(config.algorithm, PPOConfig)
    config = replace(config, algorithm=replace(config.algorithm, learning_rate=1e-9, epochs=epochs))
    game = game_named(config.task)
    train, test = (game.environment(some.on_device(), config.time_limit) for some in banks)
    return Work(
        config=config,
        build=policy.spec.build,
        weights=policy.weights,
        train=train,  # type: ignore[arg-type]
        test=test,  # type: ignore[arg-type]
        levels=min(len(banks[1]), 1000),
    )


class Contestant(NamedTuple):
    """A trainer with its state, and a player of levels."""

    trainer: PPO
    state: OnlineState
    player: LevelPlayer

    def rollout(self) -> tuple[Any, tuple]:
        """Return the program of a rollout, and its arguments."""
        trainer = self.trainer

        def run(vector: Any, state: OnlineState) -> Any:
            steps = trainer.config.rollout_steps
            return collect(
                vector,
                state.env_state,
                trainer.learner.definition,
                state.weights,
                trainer.acting,
                state.root,
                state.iteration * steps,
                steps,
            )

        specs = (ENV_STATE_SPECS, ROLLOUT_SPECS)
        program = jit_per_device(trainer.mesh, run, (REPLICATED, STATE_SPECS), specs)
        return program, (trainer.vector, self.state)

    def update(self, env_state: Any, rollout: Any) -> tuple[Any, tuple]:
        """Return the program of the updates from a rollout, and its arguments."""
        trainer = self.trainer
        return trainer._learn_jit, (None, self.state, env_state, rollout)

    def iteration(self) -> tuple[Any, tuple]:
        """Return the program of a whole iteration, and its arguments."""
        return self.trainer._iterate_jit, (self.trainer.vector, self.state)


def make_contestants(work: Work, mesh: Mesh) -> dict[str, Contestant]:
    """Return the looped net, the same computed synchronously by frozen scans, and Iso-FLOPs."""
    config, arm = work.config, work.arm

    algorithm = config.algorithm
    assert isinstance(algorithm, PPOConfig)

    def make(build: Callable, weights: Weights | None, **options: Any) -> Contestant:
        trainer = PPO(algorithm, work.train, build, config.iterations, mesh, **options)
        state = trainer.init(seed=0)
        if weights is not None:
            state = state.with_weights(replicate(mesh, weights))
        acting = {"acting": options["acting"]} if options else {}
        player = LevelPlayer(
            work.test, work.levels, trainer.learner.definition, arm.max_loops, mesh, **acting
        )
        return Contestant(trainer, state, player)

    stack = Stacked(arm.core, arm.max_loops)
    return {
        "looped": make(work.build, work.weights),
        "frozen": make(work.build, work.weights, acting=FROZEN, execution=FrozenScan()),
        "iso-flops": make(lambda rngs: stack.build(config.shapes, rngs), None),
    }


def time_rollout(work: Work, mesh: Mesh, turns: Turns) -> dict[str, Saving]:
    """Time a rollout."""
    contestants = make_contestants(work, mesh)
    rollouts = compile_all({name: one.rollout() for name, one in contestants.items()})
    needed, executed, mean = _count_loops(rollouts["looped"]()[1])
    bare = compile_all({"bare": _bare_acting(contestants["looped"], needed)})
    seconds = take_turns(rollouts | bare, turns.rounds, turns.seconds, report).seconds
    return {"rollout": _saving(work, mean, executed / needed, seconds)}


def time_evaluation(work: Work, mesh: Mesh, turns: Turns) -> dict[str, Saving]:
    """Time an evaluation. The frozen version continues until its last level ends."""
    contestants = make_contestants(work, mesh)
    plays = {
        name: functools.partial(one.player.play, replicate(mesh, one.state.weights))
        for name, one in contestants.items()
    }
    played = {}
    for name, play in plays.items():
        report(0.0, f"compiling {name}")
        played[name] = play()
    episodes, executed = played["looped"].episodes, int(played["looped"].executed.sum())
    needed = int(episodes.loops.sum())
    bare = compile_all({"bare": _bare_acting(contestants["looped"], needed)})
    seconds = take_turns(plays | bare, turns.rounds, turns.seconds, report).seconds
    return {"evaluation": _saving(work, needed / int(episodes.length.sum()), executed / needed, seconds)}


def time_iteration(work: Work, mesh: Mesh, turns: Turns, whole: bool = True) -> dict[str, Saving]:
    """Time a rollout, the updates from it, and a whole iteration.

    Args:
      work: the policy and its environments.
      mesh: the devices.
      turns: turns of each contestant.
      whole: also time both in one program. Else their times are added.
    """
    contestants = make_contestants(work, mesh)
    rollouts = compile_all({name: one.rollout() for name, one in contestants.items()})
    collected = {name: rollout() for name, rollout in rollouts.items()}
    updates = compile_all({name: one.update(*collected[name]) for name, one in contestants.items()})
    algorithm = work.config.algorithm
    needed, executed, mean = _count_loops(collected["looped"][1])
    metrics = updates["looped"]()[1]
    learning_needed = round(algorithm.epochs * algorithm.steps_per_iteration * mean)
    learning_executed = learning_needed * float(metrics["learning_executed"])
    looped = contestants["looped"]
    bare = compile_all(
        {
            "acting": _bare_acting(looped, needed),
            "learning": _bare_learning(looped, learning_needed, mean),
        }
    )
    iterations = {}
    if whole:
        iterations = compile_all({name: one.iteration() for name, one in contestants.items()})
    groups = {"rollout": rollouts, "update": updates, "bare": bare, "iteration": iterations}
    programs = {f"{group} {name}": run for group, some in groups.items() for name, run in some.items()}
    seconds = take_turns(programs, turns.rounds, turns.seconds, report).seconds

    def times(group: str, bare: float) -> dict[str, float]:
        return {name: seconds[f"{group} {name}"] for name in contestants} | {"bare": bare}

    acting, learning = times("rollout", seconds["bare acting"]), times("update", seconds["bare learning"])
    both = {name: acting[name] + learning[name] for name in acting}
    if whole:
        both = times("iteration", both["bare"])
    all_executed = (executed + learning_executed) / (needed + learning_needed)
    return {
        "rollout": _saving(work, mean, executed / needed, acting),
        "update": _saving(work, mean, learning_executed / learning_needed, learning),
        "iteration": _saving(work, mean, all_executed, both),
    }


def _count_loops(rollout: Any) -> tuple[int, int, float]:
    """Return the loops that a rollout needed and executed, and their mean per decision."""
    needed, executed = (int(jax.device_get(count).sum()) for count in (rollout.loops, rollout.executed))
    return needed, executed, float(rollout.steps.loops.mean())


def _saving(work: Work, mean: float, executed_over_needed: float, seconds: Mapping[str, float]) -> Saving:
    return Saving(
        mean_loops=mean,
        max_loops=work.arm.max_loops,
        over_frozen=seconds["looped"] / seconds["frozen"],
        executed_over_needed=executed_over_needed,
        over_bare=seconds["bare"] / seconds["looped"],
        iso_flops_over_frozen=seconds["iso-flops"] / seconds["frozen"],
    )


def compile_all(programs: dict[str, tuple[Any, tuple]]) -> dict[str, Callable[[], Any]]:
    """Compile jitted functions for their arguments, two at a time since the compiler uses one core."""
    report(0.0, f"compiling {', '.join(programs)}")
    with ThreadPoolExecutor(2) as pool:
        compiled = pool.map(lambda program: program[0].lower(*program[1]).compile(), programs.values())
        return {
            name: functools.partial(run, *arguments)
            for (name, (_, arguments)), run in zip(programs.items(), compiled, strict=True)
        }


def report(fraction: float, step: str) -> None:
    """Print progress."""
    print(f"{fraction:4.0%} {step}", file=sys.stderr)


def _bare_acting(looped: Contestant, loops: int) -> tuple[Any, tuple]:
    """Return a program of at least `loops` loops over all devices, in batches as large as those of the
    stream."""
    trainer, state = looped.trainer, looped.state
    devices = trainer.mesh.size

    def run(weights: Weights, observation: PyTree) -> Array:
        policy = _streamable(trainer, weights)
        rows = math.ceil(len(state.env_state.loops) / devices)
        slots = Streaming().slots_for(policy, observation, rows)
        x = policy.embed(jax.tree.map(lambda a: jnp.repeat(a[:1], slots, axis=0), observation))
        calls = math.ceil(loops / slots / devices)
        return jax.lax.fori_loop(0, calls, lambda _, z: policy.problem.step(z, x), policy.initial_latent(x))

    return _on_all_devices(trainer, run, state)


def _bare_learning(looped: Contestant, loops: int, mean: float) -> tuple[Any, tuple]:
    """Return a program of at least `loops` loops, forward and back, in microbatches as large as the
    learner's."""
    trainer, state = looped.trainer, looped.state
    depth = round(mean)

    def run(weights: Weights, observation: PyTree) -> PyTree:
        policy = _streamable(trainer, weights)
        one = policy.embed(jax.tree.map(lambda a: a[:1], observation))
        microbatch = default_microbatch(policy.initial_latent(one).size)
        x = jax.tree.map(lambda a: jnp.repeat(a, microbatch, axis=0), one)

        def step(parameters: PyTree, z: Array) -> Array:
            return _streamable(trainer, weights._replace(parameters=parameters)).problem.step(z, x)

        def forward(i: Array, carry: tuple) -> tuple:
            z, trail = carry
            return step(weights.parameters, z), trail.at[i].set(z)

        # Each microbatch begins where the last one ended, or the compiler would see that all are the same.
        def one_microbatch(carry: tuple[PyTree, Array], _: None) -> tuple[tuple[PyTree, Array], None]:
            sums, begin = carry
            trail = jnp.zeros((depth, *begin.shape), begin.dtype)
            end, trail = jax.lax.fori_loop(0, depth, forward, (begin, trail))

            def back(i: Array, carry: tuple) -> tuple:
                sums, cotangent = carry
                _, pull = jax.vjp(step, weights.parameters, trail[depth - 1 - i])
                into_parameters, cotangent = pull(cotangent)
                return jax.tree.map(jnp.add, sums, into_parameters), cotangent

            return (jax.lax.fori_loop(0, depth, back, (sums, end))[0], end), None

        count = math.ceil(loops / depth / microbatch / trainer.mesh.size)
        zeros = jax.tree.map(jnp.zeros_like, weights.parameters)
        return jax.lax.scan(one_microbatch, (zeros, policy.initial_latent(x)), None, length=count)[0]

    return _on_all_devices(trainer, run, state)


def _streamable(trainer: PPO, weights: Weights) -> StreamablePolicy:
    policy = to_streaming(trainer.learner.definition, weights)
    assert policy is not None
    return policy


def _on_all_devices(trainer: PPO, run: Callable, state: OnlineState) -> tuple[Any, tuple]:
    observation = replicate(trainer.mesh, jax.device_get(state.env_state.observation))
    program = jit_per_device(trainer.mesh, run, (REPLICATED, REPLICATED), REPLICATED)
    return program, (state.weights, observation)
