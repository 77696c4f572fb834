"""Evaluation on OGBench's robot tasks: MuJoCo in worker processes, decisions in batches in this one.

Episodes are played together, in *rows*, in two halves: while the workers step one half, this process decides
for the other. A row whose episode ends starts the next one. Results depend on the number of rows, which
decides which row plays which episode, and not on the number of workers.
"""

import functools
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool

from looped_actor.algorithms import Acting, Action, Weights, init_carry, make_acting_policy
from looped_actor.evaluation.intervals import wilson
from looped_actor.evaluation.results import loop_results, outcomes_text
from looped_actor.loop import (
    Carry,
    HaltingRule,
    StopReason,
    StreamablePolicy,
    Streaming,
    StreamOutput,
    empty_carry,
)
from looped_actor.models import GoalObservation
from looped_actor.models.tasks import ROBOT_TASKS
from looped_actor.robots.graded import GRADED, Motion, measure_motion
from looped_actor.robots.ogbench import ACTION_SIZE, TASKS, RobotEnv, episode_seed
from looped_actor.training.sharding import REPLICATED, abstract_shards, to_one_device
from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import Progress, default_workers, end_with_parent, no_progress

MAX_ROWS = 64
"""Rows per worker: the replies for all of them must fit into its pipe while this process sends requests."""

EpisodeId = tuple[int | str, int]
"""A task, and the number of an episode of it."""


class RobotEpisode(NamedTuple):
    """A finished episode."""

    task: int | str
    number: int
    success: bool
    loops: list[int]
    """Loops of every decision."""
    stops: list[int]
    """Reason for which each decision stopped: values of `StopReason`."""
    motion: Motion


class RobotsPlayed(NamedTuple):
    """Episodes, and their cost."""

    episodes: list[RobotEpisode]
    executed: int
    """Loops that the hardware computed."""


@dataclass(frozen=True)
class RobotPlayer:
    """Plays episodes of an environment's tasks with the mean action. Close it when done.

    Args:
      env_name: name of the environment.
      definition: the net without its weights.
      episodes: episodes of each task.
      seed: seed of the episodes.
      tasks: numbers of tasks, or names of graded goals.
      halting: replaces the halting rule of training.
      acting: how decisions are computed.
      rows: episodes played together.
      workers: processes. Default: one for each core.
      time_limit: steps after which an episode is truncated. Default: OGBench's.
      carry_latent: start a decision from the last latent of its episode.
      deviation: standard deviation of noise that is added to the mean action.
    """

    env_name: str
    definition: nnx.GraphDef
    episodes: int
    seed: int = 0
    tasks: tuple[int | str, ...] = TASKS
    halting: HaltingRule | None = None
    acting: Acting = field(default_factory=Streaming)
    rows: int = 16
    workers: int | None = None
    time_limit: int | None = None
    carry_latent: bool = False
    deviation: float = 0.0

    def __post_init__(self) -> None:
        at_least_one(self, "episodes", "rows", "workers")
        workers = self.workers or default_workers()
        if self.rows > MAX_ROWS * workers:
            raise UserError(f"rows is {self.rows}; {workers} workers play {MAX_ROWS * workers} at most")
        known = [*TASKS, *GRADED.get(self.env_name, ())]
        if not self.tasks or not set(self.tasks) <= set(known):
            raise UserError(f"tasks are {list(self.tasks)}; each must be one of {known}")

    def play(self, weights: Weights, progress: Progress = no_progress) -> RobotsPlayed:
        """Return all episodes, ordered by task and number."""
        # On one device of this process: a batch of rows is small, and MuJoCo is what takes the time.
        return self._play(functools.partial(self._decide, to_one_device(weights)), progress)

    def play_at_random(self, progress: Progress = no_progress) -> RobotsPlayed:
        """Return the same episodes, with actions drawn uniformly from their bounds."""
        rng = np.random.default_rng(self.seed)

        def decide(observation: GoalObservation, alive: np.ndarray, carry: Carry | None) -> Action:
            rows = len(alive)
            return Action(
                action=rng.uniform(-1, 1, (rows, ACTION_SIZE)),
                loops=np.ones(rows, int),
                stop=np.full(rows, StopReason.CAP),
                executed=alive.sum(),
                carry=empty_carry(rows),
            )

        return self._play(decide, progress)

    @property
    def _row_count(self) -> int:
        return min(self.rows, self.episodes * len(self.tasks))

    @property
    def rows_of_half(self) -> int:
        """Rows that this process decides for together."""
        return -(-self._row_count // 2)

    def trace(self, mesh: Mesh, weights: Weights, observation: GoalObservation) -> Any:
        """Trace the program that decides for a half, from shapes, for a device that need not be present."""
        alive = jax.ShapeDtypeStruct((self.rows_of_half,), bool)
        return self._decide.trace(*abstract_shards(mesh, (weights, observation, alive), REPLICATED), None)

    def _play(self, decide: Callable[..., Action], progress: Progress) -> RobotsPlayed:
        queue = iter([(task, number) for number in range(self.episodes) for task in self.tasks])
        rows, middle = range(self._row_count), self.rows_of_half
        halves = [
            _Rows(self, {row: self._pool[row % len(self._pool)] for row in half}, queue)
            for half in (rows[:middle], rows[middle:])
            if half
        ]
        played, executed = [], 0
        while any(half.playing for half in halves):
            for half in halves:
                if not half.playing:
                    continue
                played += half.receive()
                progress(len(played), self.episodes * len(self.tasks))
                if half.playing:
                    action = decide(half.observation, half.alive, half.carry)
                    executed += int(action.executed)
                    half.act(action)
        return RobotsPlayed(sorted(played), executed)

    def close(self) -> None:
        """End the workers."""
        for worker in self.__dict__.pop("_pool", ()):
            worker.close()

    @functools.cached_property
    def _pool(self) -> list["_Worker"]:
        """Workers, kept for the next evaluation: environments take seconds to make."""
        return [_Worker(self.env_name) for _ in range(min(self.workers or default_workers(), self.rows))]

    @functools.cached_property
    def _decide(self) -> Any:
        def decide(
            weights: Weights, observation: GoalObservation, alive: Bool[Array, " r"], carry: Carry | None
        ) -> Action:
            policy = make_acting_policy(self.definition, weights, self.acting, self.halting)
            carry = carry or init_carry(self.definition, weights, observation, self.carry_latent)
            if isinstance(policy, StreamablePolicy):
                assert isinstance(self.acting, Streaming)
                streamed = self.acting.decide(policy, observation, alive, carry)
                output, executed = streamed.output, streamed.executed
            else:
                now = policy(observation, carry=carry)
                assert now.loop is not None
                output = StreamOutput(
                    decision=now, loops=now.loop.loops, stop=now.loop.stop, latent=now.loop.latent
                )
                executed = now.loop.executed
            return Action(
                action=output.decision.distribution.mode(),
                loops=output.loops,
                stop=output.stop,
                executed=executed,
                carry=carry.update(output.latent),
            )

        return jax.jit(decide)


def add_noise(action: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """Return an action with Gaussian noise."""
    return action + deviation * rng.normal(size=ACTION_SIZE) if deviation else action


@dataclass
class _OpenEpisode:
    """An episode under way."""

    task: int | str
    number: int
    rng: np.random.Generator
    """Source of the noise of its actions."""
    loops: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)


class _Rows:
    """Half of the rows: their observations, episodes and workers. All start an episode.

    Args:
      player: the environment, and how its episodes are played.
      workers: worker of each row, by the row's number.
      queue: episodes that are not started yet, for both halves.
    """

    def __init__(self, player: RobotPlayer, workers: dict[int, "_Worker"], queue: Iterator[EpisodeId]):
        self._player, self._workers, self._queue = player, list(workers.items()), queue
        rows = len(workers)
        self.alive = np.zeros(rows, bool)
        self.carry: Carry | None = None
        self._states = np.zeros((rows, ROBOT_TASKS[player.env_name].size), np.float32)
        self._goals = np.zeros_like(self._states)
        self._episodes: dict[int, _OpenEpisode] = {}
        self._waiting: list[int] = []
        for row in range(rows):
            self._start_next(row)

    @property
    def playing(self) -> bool:
        return bool(self.alive.any())

    @property
    def observation(self) -> GoalObservation:
        return GoalObservation(jnp.asarray(self._states), jnp.asarray(self._goals))

    def act(self, action: Action) -> None:
        """Send actions to the workers."""
        actions, loops, stops = (np.asarray(a) for a in (action.action, action.loops, action.stop))
        self.carry = action.carry
        for row in np.flatnonzero(self.alive).tolist():
            episode = self._episodes[row]
            episode.loops.append(int(loops[row]))
            episode.stops.append(int(stops[row]))
            self._send(row, "step", add_noise(actions[row], self._player.deviation, episode.rng))

    def receive(self) -> list[RobotEpisode]:
        """Receive observations from the workers; return the episodes that ended, and start others instead."""
        ended, restarted = [], np.zeros_like(self.alive)
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for row in waiting:
                episode, (number, worker) = self._episodes[row], self._workers[row]
                request, state, *rest = worker.receive(number)
                self._states[row] = state
                episode.states.append(state)
                if request == "reset":
                    (self._goals[row],) = rest
                    continue
                done, success = rest
                if done or success or len(episode.loops) == self._player.time_limit:
                    ended.append(self._finish(episode, self._goals[row], success))
                    restarted[row] = True
                    self._start_next(row)
        self.carry = None if self.carry is None else self.carry.restart(restarted)
        return ended

    def _start_next(self, row: int) -> None:
        task, number = next(self._queue, (None, 0))
        self.alive[row] = task is not None
        if task is not None:
            seed = episode_seed(self._player.seed, task, number)
            self._episodes[row] = _OpenEpisode(task, number, np.random.default_rng(seed))
            self._send(row, "reset", task, seed)

    def _finish(self, episode: _OpenEpisode, goal: np.ndarray, success: bool) -> RobotEpisode:
        return RobotEpisode(
            task=episode.task,
            number=episode.number,
            success=success,
            loops=episode.loops,
            stops=episode.stops,
            motion=measure_motion(self._player.env_name, np.stack(episode.states), goal),
        )

    def _send(self, row: int, request: str, *arguments: Any) -> None:
        number, worker = self._workers[row]
        worker.send((request, number, *arguments))
        self._waiting.append(row)


class _Worker:
    """A process that steps environments, one for each of its rows. A row has one request at a time."""

    def __init__(self, env_name: str):
        spawn = multiprocessing.get_context("spawn")  # not forked: JAX has threads
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, env_name), daemon=True)
        self._process.start()
        theirs.close()
        self._replies: dict[int, tuple] = {}

    def send(self, request: tuple) -> None:
        try:
            self._connection.send(request)
        except OSError:
            raise _lost_worker() from None

    def receive(self, row: int) -> tuple:
        """Return the reply to a row's request. Replies to other rows that come first are kept for them."""
        while row not in self._replies:
            try:
                replied, *reply = self._connection.recv()
            except (EOFError, OSError):
                raise _lost_worker() from None
            if reply[0] == "failed":
                raise UserError(reply[1])
            self._replies[replied] = tuple(reply)
        return self._replies.pop(row)

    def close(self) -> None:
        self._connection.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


def _lost_worker() -> ChildProcessError:
    return ChildProcessError(
        "a process that plays MuJoCo died (out of memory? a script without `if __name__ == '__main__':`?): "
        "try again with fewer workers"
    )


def _serve(connection: Connection, env_name: str) -> None:
    """Reset and step environments until the connection is closed; runs in a worker."""
    end_with_parent()
    envs: dict[int, RobotEnv] = {}
    try:
        while True:
            request, row, *arguments = connection.recv()
            if row not in envs:
                envs[row] = RobotEnv(env_name)
            answer = {"reset": envs[row].reset, "step": envs[row].step}[request]
            connection.send((row, request, *answer(*arguments)))
    except (EOFError, OSError):
        return
    except Exception as error:
        connection.send((-1, "failed", f"{env_name}: {error}"))


def summarize_robots(played: RobotsPlayed, most_loops: int) -> dict[str, Any]:
    """Return the results of episodes as JSON."""
    loops, stops = (
        np.concatenate([getattr(episode, name) for episode in played.episodes]) for name in ("loops", "stops")
    )
    histogram = np.bincount(loops, minlength=most_loops + 1)[1:]
    tasks = list(dict.fromkeys(episode.task for episode in played.episodes))
    by_task = {str(task): _results([e for e in played.episodes if e.task == task]) for task in tasks}
    return _results(played.episodes) | {
        # As OGBench reports it: the mean over tasks.
        "success": float(np.mean([results["success"] for results in by_task.values()])),
        **loop_results(histogram, np.bincount(stops, minlength=len(StopReason)), played.executed),
        "by_task": by_task,
    }


def _results(episodes: list[RobotEpisode]) -> dict[str, Any]:
    solved = sum(episode.success for episode in episodes)
    decisions = sum(len(episode.loops) for episode in episodes)
    return {
        "episodes": len(episodes),
        "solved": solved,
        "success": solved / len(episodes),
        "interval_95": list(wilson(solved, len(episodes))),
        "outcomes": outcomes_text(episode.success for episode in episodes),
        "loops": sum(sum(episode.loops) for episode in episodes) / max(decisions, 1),
        "mean_steps": decisions / len(episodes),
        **_mean_motion([episode.motion for episode in episodes]),
    }


def _mean_motion(motions: list[Motion]) -> dict[str, float]:
    """Return means over episodes, without measures that are not known."""
    columns = dict(zip(Motion._fields, zip(*motions, strict=True), strict=True))
    return {name: float(np.mean(values)) for name, values in columns.items() if values[0] is not None}
