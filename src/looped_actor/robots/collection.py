"""Data made here: OGBench's scripted oracles at work, over processes, seeded and resumable.

An oracle works towards a target that the world has chosen (move a cube, press a button, pull a drawer); then
it is given the next. In *play* it follows a plan that is shaken a little, and hardly leaves its way. In
*noisy* data its actions are shaken, some are random, and it finds back: they cover more of the world.

Each episode depends on its seed alone, so any number of processes makes the same files. They are what
OGBench itself loads.
"""

import functools
import importlib
import pathlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.lib import format as npy

from looped_actor.robots.ogbench import ACTIONS, KINDS, WORLDS, dataset_name, episode_seed, make_world
from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import writing
from looped_actor.utils.processes import Arrays, Progress, forget, no_progress, run_batches

PLAN_NOISE, PLAN_SMOOTHING = 0.1, 0.5
"""Noise of the oracles' plans, as in OGBench's own play datasets."""
ACTION_NOISE = 0.1
"""The most noise of actions, as in OGBench's own noisy datasets: an episode has some of it."""
NOISE_OF_AN_ACTION = np.array([1, 1, 1, 3, 10])
"""How much of that a move, a turn and the gripper get."""

# Probability of stacking when a cube is to be placed: drawn for each episode between these.
_STACKING = {"cube-double": (0.0, 0.25), "cube-triple": (0.05, 0.35)}
# Of noisy data: how many actions are random.
_RANDOM_ACTIONS = {"puzzle-3x3": 0.2, "cube-double": 0.1, "cube-triple": 0.1, "scene": 0.1}


@dataclass(frozen=True)
class CollectionJob:
    """What to collect."""

    world: str
    transitions: int
    """To learn from; a tenth more is held out. Rounded up to whole episodes."""
    seed: int = 0
    episode_transitions: int = 1000
    """Transitions of each episode."""
    kind: str = "play"
    """Of OGBench's two."""

    def __post_init__(self) -> None:
        at_least_one(self, "transitions", "episode_transitions")
        if self.kind not in KINDS:
            raise UserError(f"kind is {self.kind!r}; it must be one of {', '.join(KINDS)}")
        if self.world not in WORLDS:
            raise UserError(f"there is no world {self.world!r}; there are {', '.join(WORLDS)}")
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}; it must be at least 0")

    @property
    def train_episodes(self) -> int:
        """Episodes to learn from."""
        return -(-self.transitions // self.episode_transitions)

    @property
    def held_out_episodes(self) -> int:
        """Episodes that are held out."""
        return -(-self.train_episodes // 10)

    @property
    def name(self) -> str:
        """The name of its folder of finished episodes, which no other job has."""
        size = f"{self.train_episodes}x{self.episode_transitions}"
        return f"{dataset_name(self.world, self.kind)}-{size}-seed{self.seed}"


@dataclass(frozen=True)
class EpisodeJob:
    """One of its episodes."""

    world: str
    seed: int
    number: int
    transitions: int
    kind: str = "play"


def collect(
    job: CollectionJob,
    folder: pathlib.Path,
    *,
    workers: int,
    progress: Progress = no_progress,
) -> tuple[pathlib.Path, pathlib.Path]:
    """Collect into `WORLD-KIND-v0.npz` and `WORLD-KIND-v0-val.npz`; goes on where it was interrupted."""
    train, held_out = files_of(job.world, job.kind, folder)
    parts = folder / f"{job.name}.parts"
    for path in (train, held_out):
        if path.exists() and not parts.exists():  # else this job was interrupted when it was nearly done
            raise UserError(f"{path} is there already; move it away, or collect into another folder")
    folder.mkdir(parents=True, exist_ok=True)
    # Numbers below zero are held out. More transitions of a seed are more of the same.
    numbers = [*range(-job.held_out_episodes, 0), *range(job.train_episodes)]
    tasks = [EpisodeJob(job.world, job.seed, n, job.episode_transitions, job.kind) for n in numbers]
    done = 0
    total = len(tasks) * job.episode_transitions
    for _ in run_batches(collect_episode, tasks, workers=workers, parts=parts):
        done += job.episode_transitions
        progress(done, total)
    finished = sorted(parts.glob("*.part"))[: len(tasks)]
    write_episodes(held_out, finished[: job.held_out_episodes])
    write_episodes(train, finished[job.held_out_episodes :])
    forget(parts)
    return train, held_out


def collect_episode(job: EpisodeJob) -> Arrays:
    """All states and actions of one episode."""
    before = np.random.get_state()  # oracles draw from NumPy's global stream
    try:
        for attempt in range(100):
            held_out = int(job.number < 0)
            seed = episode_seed(job.seed, WORLDS.index(job.world), held_out, abs(job.number), attempt)
            np.random.seed(seed)
            episode = _play(job.world, job.kind, seed, job.transitions + 1)
            if job.world != "scene" or _cube_in_sight(episode["qpos"]):
                return episode
        raise UserError(f"{job}: in none of 100 attempts did the cube stay in sight")
    finally:
        np.random.set_state(before)


def _play(world: str, kind: str, seed: int, steps: int) -> Arrays:
    env, oracles = _workshop(world, kind)
    state, about = env.reset(seed=seed)
    stacking = np.random.uniform(*_STACKING[world]) if world in _STACKING else 0.5
    noise = np.random.uniform(0, ACTION_NOISE) * NOISE_OF_AN_ACTION if kind == "noisy" else None
    oracle = oracles[about["privileged/target_task"]]
    oracle.reset(state, about)
    rows: dict[str, list] = {"observations": [], "actions": [], "qpos": [], "qvel": []}
    if world in ("puzzle-3x3", "scene"):
        rows["button_states"] = []
    for _ in range(steps):
        action = oracle.select_action(state, about)
        if noise is not None:
            astray = np.random.uniform() < _RANDOM_ACTIONS[world]
            action = np.random.uniform(-1, 1, ACTIONS) if astray else np.random.normal(action, noise)
        action = np.clip(action, -1, 1)
        rows["observations"].append(state)
        rows["actions"].append(action)
        state, _, _, _, about = env.step(action)
        for key in rows.keys() - {"observations", "actions"}:
            rows[key].append(about[f"prev_{key}"])
        if oracle.done:
            seen, about = env.set_new_target(p_stack=stacking)
            oracle = oracles[about["privileged/target_task"]]
            oracle.reset(seen, about)
    kinds = {"button_states": np.int64}
    episode = {key: np.array(values, kinds.get(key, np.float32)) for key, values in rows.items()}
    episode["terminals"] = np.arange(steps) == steps - 1
    return episode


@functools.cache
def _workshop(world: str, kind: str) -> tuple[Any, dict[str, Any]]:
    """A world to work in, and who can. Made once in each process: it takes seconds."""
    env = make_world(world, terminate_at_goal=False, mode="data_collection")
    env = env.unwrapped  # without OGBench's time limit for evaluation
    school = {"play": "plan", "noisy": "markov"}[kind]
    how = {"noise": PLAN_NOISE, "noise_smoothing": PLAN_SMOOTHING} if kind == "play" else {}

    def oracle(thing: str, **more: Any) -> Any:
        module = importlib.import_module(f"ogbench.manipspace.oracles.{school}.{thing}_{school}")
        return getattr(module, f"{thing}_{school}_oracle".title().replace("_", ""))(env=env, **how, **more)

    if world == "puzzle-3x3":
        return env, {"button": oracle("button", gripper_always_closed=True)}
    if world != "scene":
        return env, {"cube": oracle("cube")}
    patience = {"max_step": 100} if kind == "noisy" else {}  # as in OGBench's own
    others = {thing: oracle(thing) for thing in ("button", "drawer", "window")}
    return env, {"cube": oracle("cube", **patience), **others}


def _cube_in_sight(qpos: np.ndarray) -> bool:
    """Whether the scene's cube stayed on the table or in the drawer: elsewhere a camera could not see it."""
    y, z = qpos[:, 15], qpos[:, 16]
    return not ((y >= 0.29) | ((y <= -0.3) & ((z < 0.06) | (z > 0.08)))).any()


def write_episodes(path: pathlib.Path, parts: list[pathlib.Path]) -> None:
    """Join episodes into an npz file, one at a time: millions of rows never lie in memory together."""
    with safetensors.safe_open(parts[0], framework="numpy") as first:
        keys = sorted(first.keys())

    def pieces(key: str) -> Iterator[np.ndarray]:
        for part in parts:
            with safetensors.safe_open(part, framework="numpy") as file:
                yield np.ascontiguousarray(file.get_tensor(key))

    with writing(path) as unfinished, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
        for key in keys:
            rows = sum(len(piece) for piece in pieces(key))
            like = next(pieces(key))
            about = {"descr": npy.dtype_to_descr(like.dtype), "fortran_order": False}
            # Given by name, a member has zip's first date, whenever it is written: same data, same bytes.
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                npy.write_array_header_1_0(member, about | {"shape": (rows, *like.shape[1:])})
                for piece in pieces(key):
                    member.write(piece.tobytes())


def files_of(world: str, kind: str, folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """What to learn from, and what is held out."""
    name = dataset_name(world, kind)
    train = folder / f"{name}.npz"
    return train, held_out_beside(train)


def held_out_beside(train: pathlib.Path) -> pathlib.Path:
    """Where OGBench keeps what is held out from a dataset."""
    return train.with_name(f"{train.stem}-val.npz")


def download(world: str, folder: pathlib.Path, kind: str = "play") -> tuple[pathlib.Path, pathlib.Path]:
    """OGBench's own dataset, by OGBench's own loader."""
    make_world(world)  # says what to install, where OGBench is missing
    from ogbench import download_datasets

    name = dataset_name(world, kind)
    try:
        download_datasets([name], str(folder))
    except OSError as error:
        raise UserError(
            f"{name} cannot be fetched ({error}); without a network, make a dataset: "
            f"looped-actor ogbench collect {world} --kind {kind}"
        ) from None
    return files_of(world, kind, folder)
