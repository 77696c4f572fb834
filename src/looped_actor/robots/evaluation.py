"""What a policy achieves in OGBench's worlds: MuJoCo in worker processes, decisions in batches here.

Episodes are played side by side, in *rows*, in two halves: while the workers step one half, this
process decides for the other. A row whose episode ends begins the next one at once. Which row plays which
episode depends on the number of rows and not on that of the workers, and so does every number reported.
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

from looped_actor.algorithms import Acted, Acting, Weights, acting_policy, first_memory
from looped_actor.evaluation.facts import loop_facts, outcomes_text
from looped_actor.evaluation.intervals import wilson
from looped_actor.loop import FixedStart, HaltingRule, Memory, OpenLoop, Start, StopReason, Streaming, Thought
from looped_actor.models import GoalObservation
from looped_actor.robots.graded import GRADED, Motion, motion
from looped_actor.robots.ogbench import ACTIONS, TASKS, Arena, episode_seed
from looped_actor.training.sharding import EVERYWHERE, on_one_device, shapes_on
from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import Progress, default_workers, end_with_parent, no_progress

MOST_ROWS = 64
"""Rows per worker: their answers must fit into its pipe while this process is busy asking."""


class WorldEpisode(NamedTuple):
    """One episode, played to its end."""

    task: int | str
    number: int
    success: bool
    loops: list[int]
    """Loops of every decision."""
    stops: list[int]
    """Why each stopped: values of `StopReason`."""
    motion: Motion


class WorldsPlayed(NamedTuple):
    """Episodes, and what they took."""

    episodes: list[WorldEpisode]
    executed: int
    """Loops that the hardware computed."""


@dataclass(frozen=True)
class WorldPlayer:
    """Plays episodes of a world's tasks with the most probable actions. Close it when done.

    Args:
      world: one of OGBench's.
      definition: the net without its weights.
      episodes: of each task.
      seed: of the episodes' starts.
      tasks: which of the five, or goals by distance, by their names.
      halting: replaces the rule that the net was trained with.
      acting: how decisions are computed.
      rows: episodes at play side by side.
      workers: processes. Default: one for each core.
      time_limit: steps after which an episode is cut off. Default: OGBench's.
      starting: where thoughts start.
      deviation: of what is added to the most probable actions, drawn anew for every step.
    """

    world: str
    definition: nnx.GraphDef
    episodes: int
    seed: int = 0
    tasks: tuple[int | str, ...] = TASKS
    halting: HaltingRule | None = None
    acting: Acting = field(default_factory=Streaming)
    rows: int = 16
    workers: int | None = None
    time_limit: int | None = None
    starting: Start = field(default_factory=FixedStart)
    deviation: float = 0.0

    def __post_init__(self) -> None:
        at_least_one(self, "episodes", "rows", "workers")
        workers = self.workers or default_workers()
        if self.rows > MOST_ROWS * workers:
            raise UserError(f"rows is {self.rows}; {workers} workers play {MOST_ROWS * workers} at most")
        known = [*TASKS, *GRADED.get(self.world, ())]
        if not self.tasks or not set(self.tasks) <= set(known):
            raise UserError(f"tasks are {list(self.tasks)}; each must be one of {known}")

    def play(self, weights: Weights, progress: Progress = no_progress) -> WorldsPlayed:
        """All episodes, ordered by task and number."""
        # On one device of this process: a batch of rows is small, and MuJoCo is what takes the time.
        return self._play(functools.partial(self._decide, on_one_device(weights)), progress)

    def play_at_random(self, progress: Progress = no_progress) -> WorldsPlayed:
        """The same episodes, with actions drawn uniformly from their bounds."""
        chance = np.random.default_rng(self.seed)

        def decide(observation: GoalObservation, alive: np.ndarray, memory: None) -> Acted:
            rows = len(alive)
            actions, once = chance.uniform(-1, 1, (rows, ACTIONS)), np.ones(rows, int)
            return Acted(actions, once, StopReason.CAP * once, alive.sum())

        return self._play(decide, progress)

    @property
    def at_play(self) -> int:
        """Episodes at play side by side: no more than there are."""
        return min(self.rows, self.episodes * len(self.tasks))

    @property
    def decided_at_once(self) -> int:
        """Rows of a half."""
        return -(-self.at_play // 2)

    def trace(self, mesh: Mesh, weights: Weights, observation: GoalObservation) -> Any:
        """Its program for a decision of half of the rows, from shapes, for a device that need not be here."""
        alive = jax.ShapeDtypeStruct((self.decided_at_once,), bool)
        return self._decide.trace(*shapes_on(mesh, (weights, observation, alive), EVERYWHERE), None)

    def _play(self, decide: Callable[..., Acted], progress: Progress) -> WorldsPlayed:
        queue = iter([(task, number) for number in range(self.episodes) for task in self.tasks])
        rows, middle = self.at_play, self.decided_at_once
        workers = [self._pool[row % len(self._pool)] for row in range(rows)]
        halves = [
            _Rows(self.world, numbers, workers, self.deviation)
            for numbers in (range(middle), range(middle, rows))
            if numbers
        ]
        for half in halves:
            half.begin(queue, self.seed)
        played, executed = [], 0
        while any(half.playing for half in halves):
            for half in halves:
                if not half.playing:
                    continue
                played += half.receive(queue, self.seed, self.time_limit)
                progress(len(played), self.episodes * len(self.tasks))
                if half.playing:
                    decided = decide(half.observation, half.alive, half.memory)
                    executed += int(decided.executed)
                    half.act(decided)
        return WorldsPlayed(sorted(played), executed)

    def close(self) -> None:
        """Let the workers go."""
        for worker in self.__dict__.pop("_pool", ()):
            worker.close()

    @functools.cached_property
    def _pool(self) -> list["_Worker"]:
        """They stay for the next evaluation: worlds take seconds to make."""
        return [_Worker(self.world) for _ in range(min(self.workers or default_workers(), self.rows))]

    @functools.cached_property
    def _decide(self) -> Any:
        def decide(
            weights: Weights, observation: GoalObservation, alive: Bool[Array, " r"], memory: Memory | None
        ) -> Acted:
            policy = acting_policy(self.definition, weights, self.acting, self.halting)
            memory = memory or first_memory(self.starting, self.definition, weights, observation)
            if isinstance(policy, OpenLoop):
                assert isinstance(self.acting, Streaming)
                streamed = self.acting.think(policy, observation, alive, memory)
                thought, executed = streamed.thoughts, streamed.executed
            else:
                now = policy(observation, memory=memory)
                thought = Thought(now, now.loop.loops, now.loop.stop, now.loop.latent)
                executed = now.loop.executed
            action = thought.decision.distribution.mode()
            if memory is not None:
                assert thought.latent is not None
                memory = memory.after(thought.latent)
            return Acted(action, thought.loops, thought.stop, executed, memory)

        return jax.jit(decide)


def shaken(action: np.ndarray, deviation: float, chance: np.random.Generator) -> np.ndarray:
    """An action with noise of that deviation."""
    return action + deviation * chance.normal(size=ACTIONS) if deviation else action


class _Rows:
    """Half of the rows: what they see, and who plays them."""

    def __init__(self, world: str, numbers: range, workers: list["_Worker"], deviation: float):
        self.world, self.numbers, self.workers = world, numbers, [workers[n] for n in numbers]
        self.deviation, self._chance = deviation, [np.random.default_rng(0)] * len(numbers)
        self.alive = np.zeros(len(numbers), bool)
        self.memory: Memory | None = None
        self._episode: list[tuple[int | str, int]] = [(0, 0)] * len(numbers)
        self._thoughts: list[list[tuple[int, int]]] = [[] for _ in numbers]  # loops, and why they stopped
        self._seen: list[list[np.ndarray]] = [[] for _ in numbers]  # the states of an episode

    @property
    def playing(self) -> bool:
        return bool(self.alive.any())

    @property
    def observation(self) -> GoalObservation:
        return GoalObservation(jnp.asarray(self.states), jnp.asarray(self.goals))

    def begin(self, queue: Iterator[tuple[int | str, int]], seed: int) -> None:
        """Begin an episode in every row; what they see is there after `receive`."""
        self._waiting = []
        for row in range(len(self.numbers)):
            self._begin(row, queue, seed)

    def _begin(self, row: int, queue: Iterator[tuple[int | str, int]], seed: int) -> None:
        episode = next(queue, None)
        self.alive[row] = episode is not None
        if episode is None:
            return
        self._episode[row], self._thoughts[row] = episode, []
        self._chance[row] = np.random.default_rng(episode_seed(seed, *episode))
        self.workers[row].send(("begin", self.numbers[row], episode[0], episode_seed(seed, *episode)))
        self._waiting.append(row)

    def act(self, decided: Acted) -> None:
        """Let the workers carry out decisions."""
        actions, loops, stops = (np.asarray(a) for a in (decided.action, decided.loops, decided.stop))
        self.memory = decided.memory
        for row in np.flatnonzero(self.alive):
            self._thoughts[row].append((int(loops[row]), int(stops[row])))
            action = shaken(actions[row], self.deviation, self._chance[row])
            self.workers[row].send(("step", self.numbers[row], action))
            self._waiting.append(int(row))

    def receive(
        self, queue: Iterator[tuple[int | str, int]], seed: int, time_limit: int | None
    ) -> list[WorldEpisode]:
        """Take what the workers saw. Rows whose episode ended begin another; what ended is returned."""
        ended, over = [], np.zeros(len(self.numbers), bool)
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for row in waiting:
                what, *seen = self.workers[row].receive(self.numbers[row])
                if what == "begun":
                    self._see(row, *seen)
                    continue
                state, final, success = seen
                self.states[row] = state
                self._seen[row].append(state)
                if final or success or len(self._thoughts[row]) == time_limit:
                    loops, stops = (list(values) for values in zip(*self._thoughts[row], strict=True))
                    about = motion(self.world, np.stack(self._seen[row]), self.goals[row])
                    task, number = self._episode[row]
                    ended.append(WorldEpisode(task, number, success, loops, stops, about))
                    over[row] = True
                    self._begin(row, queue, seed)
        self.memory = None if self.memory is None else self.memory.restart(over)
        return ended

    def _see(self, row: int, state: np.ndarray, goal: np.ndarray) -> None:
        if not hasattr(self, "states"):
            self.states = np.zeros((len(self.numbers), len(state)), np.float32)
            self.goals = np.zeros_like(self.states)
        self.states[row], self.goals[row], self._seen[row] = state, goal, [state]


class _Worker:
    """A process that steps worlds, one for each of its rows. A row has one question at a time."""

    def __init__(self, world: str):
        spawn = multiprocessing.get_context("spawn")  # not forked: JAX has threads
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, world), daemon=True)
        self._process.start()
        theirs.close()
        self._answers: dict[int, tuple] = {}

    def send(self, question: tuple) -> None:
        try:
            self._connection.send(question)
        except OSError:
            raise _lost() from None

    def receive(self, row: int) -> tuple:
        """The answer to a row's question. Those of other rows may come first, and are kept for them."""
        while row not in self._answers:
            try:
                of_row, *answer = self._connection.recv()
            except (EOFError, OSError):
                raise _lost() from None
            if answer[0] == "failed":
                raise UserError(answer[1])
            self._answers[of_row] = tuple(answer)
        return self._answers.pop(row)

    def close(self) -> None:
        self._connection.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


def _lost() -> ChildProcessError:
    return ChildProcessError(
        "a process that plays MuJoCo died (out of memory? a script without `if __name__ == '__main__':`?): "
        "try again with fewer workers"
    )


def _serve(connection: Connection, world: str) -> None:
    """In a worker: play rows until nobody asks any more."""
    end_with_parent()
    arenas: dict[int, Arena] = {}
    try:
        while True:
            what, row, *about = connection.recv()
            if row not in arenas:
                arenas[row] = Arena(world)
            if what == "begin":
                connection.send((row, "begun", *arenas[row].begin(*about)))
            else:
                step = arenas[row].step(*about)
                connection.send((row, "stepped", step.state, step.over, step.success))
    except (EOFError, OSError):
        return
    except Exception as error:
        connection.send((-1, "failed", f"{world}: {error}"))


def world_summary(played: WorldsPlayed, most_loops: int) -> dict[str, Any]:
    """Facts about episodes that JSON can hold."""
    loops, stops = (
        np.concatenate([getattr(e, name) for e in played.episodes]) for name in ("loops", "stops")
    )
    histogram = np.bincount(loops, minlength=most_loops + 1)[1:]
    tasks = list(dict.fromkeys(episode.task for episode in played.episodes))
    by_task = {str(task): _facts([e for e in played.episodes if e.task == task]) for task in tasks}
    return _facts(played.episodes) | {
        # As OGBench reports it: the mean over tasks.
        "success": float(np.mean([facts["success"] for facts in by_task.values()])),
        **loop_facts(histogram, np.bincount(stops, minlength=len(StopReason)), played.executed),
        "by_task": by_task,
    }


def _facts(episodes: list[WorldEpisode]) -> dict[str, Any]:
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
        **_motions([episode.motion for episode in episodes]),
    }


def _motions(motions: list[Motion]) -> dict[str, float]:
    """Means over episodes, of what is known."""
    told = {name: [getattr(motion, name) for motion in motions] for name in Motion._fields}
    return {name: float(np.mean(values)) for name, values in told.items() if values[0] is not None}
