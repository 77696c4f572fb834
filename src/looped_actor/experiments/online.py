"""From a configuration to the parts of a run of online learning: levels, environment, trainer, evaluator."""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from looped_actor.batches import Progress, default_workers, no_progress
from looped_actor.envs import Boxoban, RushHour
from looped_actor.evaluation.examination import Examination
from looped_actor.evaluation.puzzles import LevelPlayer, summary
from looped_actor.experiments.config import OnlineConfig
from looped_actor.experiments.policies import build_net, definition_of
from looped_actor.levels import LevelBank, generate, open_bank, write_bank
from looped_actor.levels.replay import solution_cells
from looped_actor.loop import HaltingRule
from looped_actor.solvers import BoxobanTeacher, RushHourTeacher
from looped_actor.solvers.advice import planes_of
from looped_actor.training import ImitationTrainer, OnlineState, PPOTrainer

ENVIRONMENTS = {"boxoban": Boxoban, "rush-hour": RushHour}
TEACHERS = {"boxoban": BoxobanTeacher, "rush-hour": RushHourTeacher}
LEVELS_FOLDER = "levels"
SPLITS = ("train", "held_out")


def prepare_levels(
    config: OnlineConfig, folder: pathlib.Path, progress: Progress = no_progress
) -> OnlineConfig:
    """Generate the levels of a run where none are given or there yet, and write down which they are."""
    levels, kept = config.levels, folder / LEVELS_FOLDER
    if not levels.train and not all((kept / f"{split}.levels").is_file() for split in SPLITS):
        assert levels.recipe is not None
        recipe, workers = levels.held_out_recipe or levels.recipe, default_workers()
        wanted = {"held_out": levels.held_out_count}
        held_out = generate(recipe, wanted, workers=workers, progress=progress)["held_out"]
        wanted = {"train": levels.train_count}
        train = generate(levels.recipe, wanted, without=held_out, workers=workers, progress=progress)["train"]
        for split, bank in {"held_out": held_out, "train": train}.items():
            write_bank(bank, kept / f"{split}.levels")
    train, held_out = (_open(config, folder, split) for split in SPLITS)
    checked = replace(levels, train_checksum=train.info.checksum, held_out_checksum=held_out.info.checksum)
    return replace(config, levels=checked)


def _open(config: OnlineConfig, folder: pathlib.Path, split: str) -> LevelBank:
    given = getattr(config.levels, split)
    bank = open_bank(given or folder / LEVELS_FOLDER / f"{split}.levels")
    check_bank(config, bank)
    expected = getattr(config.levels, f"{split}_checksum")
    if expected and bank.info.checksum != expected:
        raise ValueError(f"{bank.name}: these are not the levels that the run began with")
    return bank


def check_bank(config: OnlineConfig, bank: LevelBank) -> None:
    """Raise an error if a run cannot be played on a bank."""
    if bank.info.game != config.task:
        raise ValueError(f"{bank.name} holds levels of {bank.info.game}; this run plays {config.task}")
    board = (bank.info.height, bank.info.width)
    if board != config.board and config.arm == "drc":
        raise ValueError(
            f"{bank.name} has boards of {board[0]}x{board[1]}; this DRC was made for "
            f"{config.board[0]}x{config.board[1]}, the one arm that plays boards of one size only"
        )


def environment(config: OnlineConfig, bank: LevelBank, count: int | None = None) -> Boxoban | RushHour:
    """The world of a run, with levels of a bank: all, or the first so many."""
    return ENVIRONMENTS[config.task](bank.on_device(count), config.time_limit)


@dataclass(frozen=True)
class OnlineRun:
    """The parts of a run, made from its configuration and folder."""

    config: OnlineConfig
    folder: pathlib.Path
    mesh: Mesh

    @cached_property
    def trainer(self) -> PPOTrainer | ImitationTrainer:
        """What learns."""
        config = self.config
        parts: Any = {
            "env": environment(config, _open(config, self.folder, "train")),
            "build": lambda rngs: build_net(config, rngs),
            "iterations": config.iterations,
            "mesh": self.mesh,
            "dtype": jnp.float64 if config.double_precision else jnp.float32,
            "acting": config.acting,
        }
        if config.learner == "imitation":
            return ImitationTrainer(config.imitation, **parts, teacher=TEACHERS[config.task]())
        return PPOTrainer(config.ppo, **parts)

    @cached_property
    def held_out(self) -> LevelBank:
        """The levels to evaluate on."""
        return _open(self.config, self.folder, "held_out")

    @cached_property
    def _player(self) -> LevelPlayer:
        count = min(self.config.levels.evaluate_count, len(self.held_out))
        return level_player(self.config, self.held_out, self.mesh, count=count)

    def close(self) -> None:
        """Nothing to let go of."""

    def evaluate(self, state: OnlineState) -> Mapping[str, Any]:
        """Play the held-out levels; of imitation, also ask for the first thing it learns."""
        played = self._player.play(state.weights)
        moves = self.held_out.columns.get("moves")
        facts = summary(played, None if moves is None else moves[: len(played.episodes.success)])
        if self.config.learner == "imitation":
            facts |= self._examination.take(state.weights)
        return facts

    @cached_property
    def _examination(self) -> Examination:
        return examination(self.config, self.held_out, self._player.levels)


def examination(config: OnlineConfig, bank: LevelBank, count: int) -> Examination:
    """Asks policies of a configuration for their actions along optimal solutions of a bank's first levels."""
    cells = np.concatenate([solution_cells(bank.board(level)) for level in range(count)])
    observation = planes_of(cells, config.shape.planes)
    advice = TEACHERS[config.task]().advise(observation)
    return Examination(definition_of(config), observation, advice.optimal)


def level_player(
    config: OnlineConfig,
    bank: LevelBank,
    mesh: Mesh,
    *,
    halting: HaltingRule | None = None,
    count: int | None = None,
) -> LevelPlayer:
    """Plays a bank's levels with the policies of a configuration."""
    count = len(bank) if count is None else count
    most = (halting or config.chosen_arm).max_loops
    env = environment(config, bank, count)
    return LevelPlayer(env, count, definition_of(config), most, mesh, halting, config.acting)
