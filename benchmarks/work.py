"""How much of halting becomes time: a rollout, an update, an iteration of PPO, and an evaluation.

Each is timed as this library does it (streaming when acting, packed when learning), *frozen* (in step, all
loops computed for every example, as a halted batch does), as the Iso-FLOPs arm, and *bare*: a loop over the
same core, as many calls in full batches, without environment, halting or bookkeeping. All take turns in
one run, and the fastest turn of each counts, because machines are noisy.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from looped_actor.algorithms import PPOConfig, Synchronous, Weights, as_open_loop, no_statistics
from looped_actor.algorithms.online import OnlineState
from looped_actor.algorithms.ppo_trainer import ppo_trainer
from looped_actor.algorithms.trainer import Trainer
from looped_actor.evaluation.levels import LevelEnvironment, LevelPlayer
from looped_actor.loop import FrozenScan, OpenLoop, Streaming
from looped_actor.loop.hardware import default_chunk
from looped_actor.planning.depths import DISTRIBUTIONS, AskedActorCritic, AskedDepths
from looped_actor.planning.timing import take_turns
from looped_actor.policy.policy import Policy
from looped_actor.puzzles.banks import LevelBank, starter_bank
from looped_actor.puzzles.build import generate
from looped_actor.runs.config import OnlineConfig
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.training.sharding import EVERYWHERE, on_each_device, on_every_device
from looped_actor.utils.codec import replaced
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import default_workers

Progress = Callable[[float, str], None]
FROZEN = Synchronous(FrozenScan())


class Saving(NamedTuple):
    """What halting saves in one kind of work."""

    mean_loops: float
    """Loops asked for, per decision."""
    max_loops: int
    """The cap."""
    over_frozen: float
    """Time, relative to the frozen version's. The ideal is `mean_loops / max_loops`."""
    executed_over_asked: float
    """Loops that the hardware computed for each one asked for."""
    over_bare: float
    """Loops asked for per second, relative to the bare engine's."""
    iso_flops_over_frozen: float
    """Time of the Iso-FLOPs arm, relative to the frozen version's."""


@dataclass(frozen=True)
class Turns:
    """How often each contestant is timed."""

    rounds: int
    until: float = math.inf
    """A time of the performance counter: but for the first, no round is begun that would not end by then."""

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.until - time.perf_counter()


@dataclass(frozen=True)
class World:
    """What a net plays: environments to learn from, and levels to evaluate on."""

    train: LevelEnvironment
    held_out: LevelEnvironment
    levels: int


@dataclass(frozen=True)
class Work:
    """A policy at work, and the Iso-FLOPs arm at the same."""

    config: OnlineConfig
    build: Callable[[nnx.Rngs], Any]
    """Makes the looped net."""
    weights: Weights | None
    """Weights of the looped net; None for random ones."""
    world: World
    iso_flops_world: World
    """The same without depths that are asked for, which Iso-FLOPs would not understand."""


def asked_work(loops: str, quick: bool, changes: Mapping[str, Any] = MappingProxyType({})) -> Work:
    """The paper's net with random weights on 10x10 boards, asked for depths of a distribution.

    Args:
      loops: which distribution.
      quick: little work, for a minute.
      changes: of the configuration, by the names of its fields.
    """
    ppo = PPOConfig(num_envs=64, rollout_steps=8, minibatch=128, epochs=1)
    if quick:
        ppo = PPOConfig(num_envs=32, rollout_steps=1, minibatch=32, epochs=1)
    config = replace(preset("boxoban", "paper"), ppo=ppo, time_limit=5 if quick else 16)
    config = replaced(config, changes)
    run = run_of(config).puzzle
    env = run.environment(starter_bank("boxoban"))
    depths = jnp.asarray(DISTRIBUTIONS[loops].draw(4096))
    asking = AskedDepths(env, depths, config.time_limit)
    levels = 64 if quick else 96
    return Work(
        config,
        lambda rngs: AskedActorCritic(run.build(rngs)),
        None,
        World(asking, asking, levels),
        World(env, env, levels),
    )


def policy_work(policy: Policy, bank: LevelBank | None, quick: bool) -> Work:
    """A trained policy at its own task, on levels of a bank, or on new ones of its recipe."""
    config = policy.run.puzzle.config
    if bank is None:
        if config.levels.recipe is None:
            raise UserError("this policy was trained on banks: give one with --levels")
        recipes = config.levels.recipe, config.levels.held_out_recipe or config.levels.recipe
        count, workers = 200 if quick else 1000, default_workers()
        banks = [generate(recipe, {"new": count}, workers=workers)["new"] for recipe in recipes]
    else:
        banks = [bank, bank]
    # Without its optimiser's memory the policy would be thrown off: it stays as it is while it is timed.
    ppo = replace(config.ppo, learning_rate=1e-9, epochs=1 if quick else config.ppo.epochs)
    config = replace(config, ppo=ppo)
    run = run_of(config).puzzle
    train, held_out = (run.environment(bank) for bank in banks)
    world = World(train, held_out, min(len(banks[1]), 1000))
    return Work(config, run.build, policy.weights, world, world)


class Contestant(NamedTuple):
    """A trainer of this work with its state, and a player of its levels."""

    trainer: Trainer
    state: OnlineState
    player: LevelPlayer


def looped_contestant(work: Work, mesh: Mesh) -> Contestant:
    """The looped net at this work."""
    return _contestant(work.config, mesh, work.world, work.build, work.weights)


def _contestant(
    config: OnlineConfig, mesh: Mesh, world: World, build: Callable, trained: Weights | None
) -> Contestant:
    trainer = ppo_trainer(config.ppo, world.train, build, config.iterations, mesh)
    state = trainer.begin(seed=0)
    planes = state.players.observation.shape[-1]
    # Random weights do not scale observations: a depth that is asked for must arrive as it is.
    chosen = trained or state.weights._replace(statistics=no_statistics(planes))
    state = state.with_weights(on_every_device(mesh, chosen))
    cap, definition = config.halting.max_loops, trainer.learner.net.definition
    return Contestant(trainer, state, LevelPlayer(world.held_out, world.levels, definition, cap, mesh))


def _contestants(work: Work, mesh: Mesh) -> dict[str, Contestant]:
    config, looped = work.config, looped_contestant(work, mesh)
    stack = run_of(replace(config, arm="iso-flops"))
    in_step = ppo_trainer(
        config.ppo,
        work.world.train,
        work.build,
        config.iterations,
        mesh,
        acting=FROZEN,
        execution=FrozenScan(),
    )
    frozen = Contestant(in_step, looped.state, replace(looped.player, acting=FROZEN))
    iso_flops = _contestant(config, mesh, work.iso_flops_world, stack.build, None)
    return {"looped": looped, "frozen": frozen, "iso-flops": iso_flops}


def bench_acting(work: Work, mesh: Mesh, turns: Turns, progress: Progress) -> dict[str, Saving]:
    """Time a rollout."""
    contestants = _contestants(work, mesh)
    plays = _compiled_rollouts(contestants, progress)
    asked, executed, mean = _loops_of_rollout(plays["looped"]().rollout)
    bare = compiled({"bare": _bare_acting(contestants["looped"], asked)}, progress)
    times, _ = take_turns(plays | bare, turns.rounds, turns.left, progress)
    return {"rollout": _saving(work, mean, executed / asked, times)}


def bench_evaluation(work: Work, mesh: Mesh, turns: Turns, progress: Progress) -> dict[str, Saving]:
    """Time an evaluation."""
    contestants = _contestants(work, mesh)
    plays = {
        name: functools.partial(c.player.play, on_every_device(mesh, c.state.weights))
        for name, c in contestants.items()
    }
    played = {}
    for name, play in plays.items():
        progress(0.0, f"compiling {name}")
        played[name] = play()
    episodes, executed = played["looped"].episodes, int(played["looped"].executed.sum())
    asked = int(episodes.loops.sum())
    mean = asked / int(episodes.length.sum())
    bare = compiled({"bare": _bare_acting(contestants["looped"], asked)}, progress)
    times, _ = take_turns(plays | bare, turns.rounds, turns.left, progress)
    return {"evaluation": _saving(work, mean, executed / asked, times)}


def bench_training(
    work: Work, mesh: Mesh, turns: Turns, progress: Progress, *, whole: bool = True
) -> dict[str, Saving]:
    """Time a rollout, the updates from it, and a whole iteration.

    Args:
      work: what is timed.
      mesh: the devices.
      turns: how many each contestant takes.
      progress: called with the fraction done and what comes next.
      whole: time also the two in one program. Else their times are added.
    """
    contestants = _contestants(work, mesh)
    plays = _compiled_rollouts(contestants, progress)
    played = {name: play() for name, play in plays.items()}
    learns = compiled(
        {
            name: (c.trainer.programs.learn, (c.trainer.collector.world, c.state, played[name], None))
            for name, c in contestants.items()
        },
        progress,
    )
    ppo = work.config.ppo
    asked, executed, mean = _loops_of_rollout(played["looped"].rollout)
    metrics = learns["looped"]()[1]
    learning_asked = round(ppo.epochs * ppo.steps_per_iteration * mean)
    learning_executed = learning_asked * float(metrics.play.learning_executed)
    looped = contestants["looped"]
    bare = compiled(
        {"acting": _bare_acting(looped, asked), "learning": _bare_learning(looped, learning_asked, mean)},
        progress,
    )
    wholes = {}
    if whole:
        wholes = compiled(
            {
                name: (c.trainer.programs.iterate, (c.trainer.collector.world, c.state))
                for name, c in contestants.items()
            },
            progress,
        )
    groups = {"play": plays, "learn": learns, "bare": bare, "whole": wholes}
    runs = {f"{group} {name}": run for group, some in groups.items() for name, run in some.items()}
    times, _ = take_turns(runs, turns.rounds, turns.left, progress)

    def of(group: str, bare: float) -> dict[str, float]:
        return {name: times[f"{group} {name}"] for name in contestants} | {"bare": bare}

    acting, learning = times["bare acting"], times["bare learning"]
    play, learn = of("play", acting), of("learn", learning)
    both = of("whole", acting + learning) if whole else {name: play[name] + learn[name] for name in play}
    all_executed = (executed + learning_executed) / (asked + learning_asked)
    return {
        "rollout": _saving(work, mean, executed / asked, play),
        "update": _saving(work, mean, learning_executed / learning_asked, learn),
        "iteration": _saving(work, mean, all_executed, both),
    }


def _compiled_rollouts(contestants: dict[str, Contestant], progress: Progress) -> dict[str, Callable]:
    return compiled(
        {
            name: (c.trainer.programs.collect, (c.trainer.collector.world, c.state, None))
            for name, c in contestants.items()
        },
        progress,
    )


def _loops_of_rollout(rollout: Any) -> tuple[int, int, float]:
    """Asked for, executed, and the mean of a decision."""
    asked, executed = (int(jax.device_get(count).sum()) for count in (rollout.asked, rollout.executed))
    return asked, executed, float(rollout.steps.loops.mean())


def _saving(work: Work, mean: float, executed_over_asked: float, times: dict[str, float]) -> Saving:
    return Saving(
        mean_loops=mean,
        max_loops=work.config.halting.max_loops,
        over_frozen=times["looped"] / times["frozen"],
        executed_over_asked=executed_over_asked,
        over_bare=times["bare"] / times["looped"],
        iso_flops_over_frozen=times["iso-flops"] / times["frozen"],
    )


def compiled(jobs: dict[str, tuple[Any, tuple]], progress: Progress) -> dict[str, Callable[[], Any]]:
    """Jitted functions, compiled for their arguments, two at a time since the compiler uses one core."""
    progress(0.0, f"compiling {', '.join(jobs)}")
    with ThreadPoolExecutor(2) as pool:
        programs = pool.map(lambda job: job[0].lower(*job[1]).compile(), jobs.values())
        return {
            name: functools.partial(program, *arguments)
            for (name, (_, arguments)), program in zip(jobs.items(), programs, strict=True)
        }


def _bare_acting(looped: Contestant, loops: int) -> tuple[Any, tuple]:
    """At least `loops` loops over all devices, in batches as large as the stream's."""
    trainer, state = looped.trainer, looped.state
    devices = trainer.mesh.size

    def run(weights: Weights, observation: PyTree) -> Array:
        loop = _loop(trainer, weights)
        rows = math.ceil(len(looped.state.players.loops) / devices)
        slots = Streaming().slots_for(loop, observation, rows)
        x = loop.embed(jax.tree.map(lambda a: jnp.repeat(a[:1], slots, axis=0), observation))
        calls = math.ceil(loops / slots / devices)
        return jax.lax.fori_loop(0, calls, lambda _, z: loop.problem.step(z, x), loop.start(x))

    return _on_each_device(trainer, run, state)


def _bare_learning(looped: Contestant, loops: int, mean: float) -> tuple[Any, tuple]:
    """At least `loops` loops, forward and back, in chunks as large as the learner's."""
    trainer, state = looped.trainer, looped.state
    depth = round(mean)

    def run(weights: Weights, observation: PyTree) -> PyTree:
        loop = _loop(trainer, weights)
        one = loop.embed(jax.tree.map(lambda a: a[:1], observation))
        chunk = default_chunk(loop.start(one).size)
        x = jax.tree.map(lambda a: jnp.repeat(a, chunk, axis=0), one)

        def step(parameters: PyTree, z: Array) -> Array:
            return _loop(trainer, weights._replace(parameters=parameters)).problem.step(z, x)

        def forward(i: Array, carry: tuple) -> tuple:
            z, trail = carry
            return step(weights.parameters, z), trail.at[i].set(z)

        # Each chunk begins where the one before ended, or the compiler would see that all are the same.
        def one_chunk(carry: tuple[PyTree, Array], _: None) -> tuple[tuple[PyTree, Array], None]:
            sums, begin = carry
            trail = jnp.zeros((depth, *begin.shape), begin.dtype)
            end, trail = jax.lax.fori_loop(0, depth, forward, (begin, trail))

            def back(i: Array, carry: tuple) -> tuple:
                sums, cotangent = carry
                _, pull = jax.vjp(step, weights.parameters, trail[depth - 1 - i])
                into_parameters, cotangent = pull(cotangent)
                return jax.tree.map(jnp.add, sums, into_parameters), cotangent

            return (jax.lax.fori_loop(0, depth, back, (sums, end))[0], end), None

        chunks = math.ceil(loops / depth / chunk / trainer.mesh.size)
        nothing = jax.tree.map(jnp.zeros_like, weights.parameters)
        return jax.lax.scan(one_chunk, (nothing, loop.start(x)), None, length=chunks)[0]

    return _on_each_device(trainer, run, state)


def _loop(trainer: Trainer, weights: Weights) -> OpenLoop:
    loop = as_open_loop(trainer.learner.net.definition, weights)
    assert loop is not None
    return loop


def _on_each_device(trainer: Trainer, run: Callable, state: OnlineState) -> tuple[Any, tuple]:
    observation = jax.device_get(state.players.observation)
    given = state.weights, on_every_device(trainer.mesh, observation)
    return on_each_device(trainer.mesh, run, (EVERYWHERE,) * 2, EVERYWHERE), given
