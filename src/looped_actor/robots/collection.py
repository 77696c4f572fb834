"""Data collection with OGBench's scripted oracles: over processes, seeded and resumable.

An oracle moves the arm towards a target that the environment has drawn, such as a place for a cube or a
button to press. When it is done, the environment draws the next target. *Play* data come from oracles that
follow a plan with a little noise. *Noisy* data come from closed-loop oracles with noise on their actions and
some random actions, and cover more states.

An episode depends on its seed alone, so the files do not depend on the number of processes. They have
OGBench's format.
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

from looped_actor.robots.ogbench import (
    ACTION_SIZE,
    DATA_KINDS,
    ENVIRONMENTS,
    check_env_name,
    dataset_name,
    episode_seed,
    make_env,
)
from looped_actor.utils.checks import at_least_one
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import writing
from looped_actor.utils.processes import Arrays, Progress, no_progress, remove_parts, run_batches

# These numbers are those of OGBench's own datasets.
PLAN_NOISE, PLAN_SMOOTHING = 0.1, 0.5
"""Noise of plans in play data, and its smoothing over time."""
MAX_ACTION_NOISE = 0.1
"""Largest noise of actions in noisy data. Each episode draws its own."""
ACTION_NOISE_SCALE = np.array([1, 1, 1, 3, 10])
"""Relative noise of each scalar of an action."""
RANDOM_ACTIONS = {"cube-double": 0.1, "cube-triple": 0.1, "puzzle-3x3": 0.2, "scene": 0.1}
"""Share of random actions in noisy data."""
STACKING = {"cube-double": (0.0, 0.25), "cube-triple": (0.05, 0.35)}
"""Bounds of an episode's probability that a cube is to be put on another."""


@dataclass(frozen=True)
class CollectionJob:
    """A dataset to collect."""

    env_name: str
    transitions: int
    """Training transitions, rounded up to whole episodes. A tenth more are collected for validation."""
    seed: int = 0
    episode_transitions: int = 1000
    """Transitions of each episode."""
    kind: str = "play"
    """One of `DATA_KINDS`."""

    def __post_init__(self) -> None:
        at_least_one(self, "transitions", "episode_transitions")
        if self.kind not in DATA_KINDS:
            raise UserError(f"kind is {self.kind!r}; it must be one of {', '.join(DATA_KINDS)}")
        check_env_name(self.env_name)
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}; it must be at least 0")

    @property
    def train_episodes(self) -> int:
        """Number of training episodes."""
        return -(-self.transitions // self.episode_transitions)

    @property
    def validation_episodes(self) -> int:
        """Number of validation episodes."""
        return -(-self.train_episodes // 10)

    @property
    def name(self) -> str:
        """Name of the folder of its finished episodes, which identifies the job."""
        size = f"{self.train_episodes}x{self.episode_transitions}"
        return f"{dataset_name(self.env_name, self.kind)}-{size}-seed{self.seed}"


def collect(
    job: CollectionJob,
    folder: pathlib.Path,
    *,
    workers: int,
    progress: Progress = no_progress,
) -> tuple[pathlib.Path, pathlib.Path]:
    """Collect a dataset, or continue where an earlier call was interrupted.

    Returns the files of training and of validation data, `ENVIRONMENT-KIND-v0.npz` and
    `ENVIRONMENT-KIND-v0-val.npz`.
    """
    train, validation = dataset_paths(job.env_name, job.kind, folder)
    parts = folder / f"{job.name}.parts"
    for path in (train, validation):
        if path.exists() and not parts.exists():  # with parts, this job was interrupted just before its end
            raise UserError(f"{path} is there already; move it away, or collect into another folder")
    folder.mkdir(parents=True, exist_ok=True)
    # Validation episodes count down from -1: a larger dataset of the same seed contains a smaller one.
    numbers = range(-job.validation_episodes, job.train_episodes)
    work = functools.partial(collect_episode, job)
    for done, _ in enumerate(run_batches(work, numbers, workers=workers, parts=parts), 1):
        progress(done * job.episode_transitions, len(numbers) * job.episode_transitions)
    finished = sorted(parts.glob("*.part"))[: len(numbers)]
    write_episodes(validation, finished[: job.validation_episodes])
    write_episodes(train, finished[job.validation_episodes :])
    remove_parts(parts)
    return train, validation


def collect_episode(job: CollectionJob, number: int) -> Arrays:
    """Return all states and actions of an episode. Validation episodes have negative numbers."""
    before = np.random.get_state()  # oracles draw from NumPy's global stream
    try:
        for attempt in range(100):
            address = ENVIRONMENTS.index(job.env_name), int(number < 0), abs(number), attempt
            seed = episode_seed(job.seed, *address)
            np.random.seed(seed)
            episode = _run_oracles(job, seed)
            if job.env_name != "scene" or _is_cube_visible(episode["qpos"]):
                return episode
        raise UserError(f"episode {number} of {job.name}: in none of 100 attempts did the cube stay in sight")
    finally:
        np.random.set_state(before)


def _run_oracles(job: CollectionJob, seed: int) -> Arrays:
    env, oracles = _env_and_oracles(job.env_name, job.kind)
    state, info = env.reset(seed=seed)
    stacking = np.random.uniform(*STACKING[job.env_name]) if job.env_name in STACKING else 0.5
    noise = np.random.uniform(0, MAX_ACTION_NOISE) * ACTION_NOISE_SCALE if job.kind == "noisy" else None
    oracle = oracles[info["privileged/target_task"]]
    oracle.reset(state, info)
    rows: dict[str, list] = {"observations": [], "actions": [], "qpos": [], "qvel": []}
    if job.env_name in ("puzzle-3x3", "scene"):
        rows["button_states"] = []
    steps = job.episode_transitions + 1
    for _ in range(steps):
        action = oracle.select_action(state, info)
        if noise is not None:
            random = np.random.uniform() < RANDOM_ACTIONS[job.env_name]
            action = np.random.uniform(-1, 1, ACTION_SIZE) if random else np.random.normal(action, noise)
        action = np.clip(action, -1, 1)
        rows["observations"].append(state)
        rows["actions"].append(action)
        state, _, _, _, info = env.step(action)
        for key in rows.keys() - {"observations", "actions"}:
            rows[key].append(info[f"prev_{key}"])
        if oracle.done:
            start, info = env.set_new_target(p_stack=stacking)
            oracle = oracles[info["privileged/target_task"]]
            oracle.reset(start, info)
    dtypes = {"button_states": np.int64}
    episode = {key: np.array(values, dtypes.get(key, np.float32)) for key, values in rows.items()}
    episode["terminals"] = np.arange(steps) == steps - 1
    return episode


@functools.cache
def _env_and_oracles(env_name: str, kind: str) -> tuple[Any, dict[str, Any]]:
    """Return an environment, and its oracles by target. Made once in each process: it takes seconds."""
    env = make_env(env_name, terminate_at_goal=False, mode="data_collection")
    env = env.unwrapped  # without OGBench's time limit for evaluation
    style = {"play": "plan", "noisy": "markov"}[kind]
    noise = {"noise": PLAN_NOISE, "noise_smoothing": PLAN_SMOOTHING} if kind == "play" else {}

    def make_oracle(target: str, **options: Any) -> Any:
        module = importlib.import_module(f"ogbench.manipspace.oracles.{style}.{target}_{style}")
        name = f"{target}_{style}_oracle".title().replace("_", "")
        return getattr(module, name)(env=env, **noise, **options)

    if env_name == "puzzle-3x3":
        return env, {"button": make_oracle("button", gripper_always_closed=True)}
    if env_name != "scene":
        return env, {"cube": make_oracle("cube")}
    limit = {"max_step": 100} if kind == "noisy" else {}
    others = {target: make_oracle(target) for target in ("button", "drawer", "window")}
    return env, {"cube": make_oracle("cube", **limit), **others}


def _is_cube_visible(qpos: np.ndarray) -> bool:
    """Return whether the scene's cube stayed on the table or in the drawer, where a camera could see it."""
    y, z = qpos[:, 15], qpos[:, 16]
    return not ((y >= 0.29) | ((y <= -0.3) & ((z < 0.06) | (z > 0.08)))).any()


def write_episodes(path: pathlib.Path, parts: list[pathlib.Path]) -> None:
    """Join episodes in an npz file, one at a time, since all of them may not fit into memory."""
    with safetensors.safe_open(parts[0], framework="numpy") as first:
        keys = sorted(first.keys())

    def read(key: str) -> Iterator[np.ndarray]:
        for part in parts:
            with safetensors.safe_open(part, framework="numpy") as file:
                yield np.ascontiguousarray(file.get_tensor(key))

    with writing(path) as unfinished, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
        for key in keys:
            rows = sum(map(len, read(key)))
            first = next(read(key))
            header = {
                "descr": npy.dtype_to_descr(first.dtype),
                "fortran_order": False,
                "shape": (rows, *first.shape[1:]),
            }
            # A `ZipInfo` made from a name has a constant date: the same data give the same bytes.
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                npy.write_array_header_1_0(member, header)
                for array in read(key):
                    member.write(array.tobytes())


def dataset_paths(env_name: str, kind: str, folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Return the files of training and validation data in a folder."""
    train = folder / f"{dataset_name(env_name, kind)}.npz"
    return train, validation_path(train)


def validation_path(train: pathlib.Path) -> pathlib.Path:
    """Return the file in which OGBench expects the validation data of a dataset."""
    return train.with_name(f"{train.stem}-val.npz")


def download(env_name: str, folder: pathlib.Path, kind: str = "play") -> tuple[pathlib.Path, pathlib.Path]:
    """Download OGBench's own dataset with its loader, and return its files: training and validation data."""
    make_env(env_name)  # raises an error that says what to install, if OGBench is missing
    from ogbench import download_datasets

    name = dataset_name(env_name, kind)
    try:
        download_datasets([name], str(folder))
    except OSError as error:
        raise UserError(
            f"{name} cannot be fetched ({error}); without a network, make a dataset: "
            f"looped-actor robots collect {env_name} --kind {kind}"
        ) from None
    return dataset_paths(env_name, kind, folder)
