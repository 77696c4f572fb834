"""A run on a puzzle, from its configuration: levels, environment, trainer, evaluation, cost."""

import functools
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from looped_actor.algorithms import Weights
from looped_actor.configs.material import LevelsConfig
from looped_actor.configs.provenance import SPLITS, VALID, read_provenance
from looped_actor.configs.requests import EvaluationRequest
from looped_actor.configs.runs import OnlineConfig
from looped_actor.envs import Boxoban, RushHour, WindowedBoxoban
from looped_actor.errors import UserError
from looped_actor.evaluation.agreement import Agreement
from looped_actor.evaluation.baselines import baseline_facts
from looped_actor.evaluation.facts import summary
from looped_actor.evaluation.levels import LevelPlayer
from looped_actor.games.catalogue import game_named
from looped_actor.levels import DeviceLevels, LevelBank, generate, open_bank, open_solutions, write_bank
from looped_actor.levels.replay import solution_cells
from looped_actor.loop import HaltingRule, Start, starting_of
from looped_actor.processes import Progress, default_workers, no_progress
from looped_actor.runs.base import OnlineRun, Planned, Program
from looped_actor.runs.policy import Policy
from looped_actor.solvers import BoxobanTeacher, RushHourTeacher, SolveStatus
from looped_actor.solvers.advice import planes_of
from looped_actor.training import OnlineState, Trainer, imitation_trainer, ppo_trainer

ENVIRONMENTS = {"boxoban": Boxoban, "rush-hour": RushHour}
TEACHERS = {"boxoban": BoxobanTeacher, "rush-hour": RushHourTeacher}
LEVELS_FOLDER = "levels"
DECISIONS_OF_A_LEVEL = 60
"""Assumed where an evaluation is planned."""
PAPER_LEVELS = 900_000
"""Levels of Boxoban to learn from, as the paper had."""

FEW_LEVELS = 200
"""That are made sooner than other processes have started to make them."""
OTHER_SEED = 2_000
"""Added to the seed of a recipe, for levels to watch learning by."""


@dataclass(frozen=True)
class PuzzleRun(OnlineRun):
    """The parts of a run, made from its configuration and folder; see `Run`."""

    config: OnlineConfig
    given: LevelBank | None = None
    """Levels to play by default, instead of those held out in training."""

    @property
    def puzzle(self) -> "PuzzleRun":
        """This plays a puzzle."""
        return self

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """A board as planes."""
        return jax.ShapeDtypeStruct((*self.config.board, self.config.shape.planes), jnp.uint8)

    @property
    def material(self) -> pathlib.Path:
        """The folder of generated levels."""
        return self.folder / LEVELS_FOLDER

    @property
    def recipe(self) -> LevelsConfig:
        """How its levels are generated."""
        return self.config.levels

    def prepare(self, progress: Progress = no_progress) -> dict[str, str]:
        """Generate levels where none are given or there yet; returns checksums by split."""
        levels = self.config.levels
        splits = SPLITS if levels.train and not levels.valid else (*SPLITS, VALID)
        paths = {split: self.material / f"{split}.levels" for split in splits}
        if not levels.train and not (self._is_made() and all(path.is_file() for path in paths.values())):
            self.note_recipe()
            for split, bank in self._generated(progress).items():
                write_bank(bank, paths[split])
        return {split: self.bank(split).info.checksum for split in splits}

    def _generated(self, progress: Progress) -> dict[str, LevelBank]:
        """Banks of which none has a level of another."""
        levels = self.config.levels
        recipe, other = levels.recipe, levels.held_out_recipe or levels.recipe
        assert recipe is not None
        assert other is not None
        few = levels.held_out_count + levels.train_count <= FEW_LEVELS
        options: Any = {"workers": 1 if few else default_workers(), "progress": progress}
        banks = generate(other, {"held_out": levels.held_out_count}, **options)
        banks |= generate(recipe, {"train": levels.train_count}, without=[banks["held_out"]], **options)
        other = replace(other, seed=other.seed + OTHER_SEED)
        return banks | generate(other, {VALID: levels.valid_count}, without=[*banks.values()], **options)

    def bank(self, split: str) -> LevelBank:
        """The levels of a split, if they are those that the run began with."""
        begun = read_provenance(self.folder)
        given = self.config.levels
        if split == VALID and ((begun and VALID not in begun) or (given.train and not given.valid)):
            return self.bank("held_out")
        bank = open_bank(getattr(given, split) or self.material / f"{split}.levels")
        self._check(bank)
        if begun.get(split, bank.info.checksum) != bank.info.checksum:
            raise UserError(f"{bank.name}: these are not the levels that the run began with")
        return bank

    def bank_to_play(self, levels: pathlib.Path | None = None) -> LevelBank:
        """The bank that is given, or the one held out in training, where the policy's folder leads to it."""
        own = pathlib.Path(LEVELS_FOLDER, "held_out.levels")
        beside = [self.folder / own, self.folder.parent / own]
        default = self.config.levels.held_out or next((p for p in beside if p.exists()), beside[0])
        bank = open_bank(levels or default) if levels or self.given is None else self.given
        self._check(bank)
        return bank

    def _check(self, bank: LevelBank) -> None:
        """Raise an error if the run cannot be played on a bank."""
        config, board = self.config, (bank.info.height, bank.info.width)
        if bank.info.game != config.task:
            raise UserError(f"{bank.name} holds levels of {bank.info.game}; this run plays {config.task}")
        if board != config.board and self._plays_one_size:
            why = "DRC" if config.arm == "drc" else "what scales each cell by its own statistics"
            raise UserError(
                f"{bank.name} has boards of {board[0]}x{board[1]}; this policy was made for "
                f"{config.board[0]}x{config.board[1]}: {why} plays boards of one size only"
            )

    @property
    def _plays_one_size(self) -> bool:
        return self.config.arm == "drc" or self.config.learning.cell_statistics

    def environment(self, bank: LevelBank, count: int | None = None) -> Boxoban | RushHour:
        """The puzzle, with all levels of a bank or its first `count`."""
        return self._environment_of(bank.on_device(count))

    def _environment_of(self, levels: DeviceLevels) -> Boxoban | RushHour:
        config = self.config
        if config.window is not None:
            return WindowedBoxoban(levels, config.time_limit, config.window)
        return ENVIRONMENTS[config.task](levels, config.time_limit)

    @property
    def trainer(self) -> Trainer:
        """What learns. Opens the training levels."""
        return self._trainer

    @cached_property
    def _trainer(self) -> Trainer:
        return self.learning_on(self.environment(self.bank("train")))

    def planned_programs(self) -> dict[str, Planned]:
        """Training and evaluation, with zeros for the levels."""
        config, mesh = self.config, self.mesh
        assert mesh is not None
        trainer = self.learning_on(self._planned_environment(config.levels.train_count))
        count, learning = 2 * config.levels.evaluate_count, config.learning
        env = self._planned_environment(config.levels.held_out_count + count)
        how: Any = {"acting": config.acting, "starting": starting_of(self.net)}
        player = LevelPlayer(env, count, self.definition, self.net.max_loops, mesh, **how)
        rows, batch = learning.num_envs // mesh.size, learning.minibatch // mesh.size
        trained = {
            name: Planned(trace, rows, learning.rollout_steps + 1, batch)
            for name, trace in trainer.traces().items()
        }
        at_once = min(player.batch, -(-count // mesh.size))
        trace = functools.partial(player.trace, self.weights_like)
        return trained | {"evaluate": Planned(trace, at_once, DECISIONS_OF_A_LEVEL)}

    def _planned_environment(self, count: int) -> Boxoban | RushHour:
        rows, columns = self.config.board
        count = PAPER_LEVELS if self.config.levels.train else count
        packed = np.broadcast_to(np.uint8(0), (count, (rows * columns + 1) // 2))  # takes no memory
        levels = DeviceLevels(packed, game_named(self.config.task).kinds, (rows, columns))
        return self._environment_of(levels)

    def learning_on(self, env: Boxoban | RushHour) -> Trainer:
        """What learns, on an environment with any levels."""
        config = self.config
        parts: Any = {
            "env": env,
            "build": self.build,
            "iterations": config.iterations,
            "mesh": self.mesh,
            "dtype": self.dtype,
            "acting": config.acting,
        }
        if config.learner == "imitation":
            return imitation_trainer(config.imitation, **parts, teacher=TEACHERS[config.task]())
        return ppo_trainer(config.ppo, **parts)

    def player(
        self,
        bank: LevelBank,
        *,
        halting: HaltingRule | None = None,
        starting: Start | None = None,
        count: int | None = None,
    ) -> LevelPlayer:
        """Plays the levels of a bank, or its first `count`, with policies of this configuration."""
        return self._player_on(bank.on_device(count), halting, starting)

    def _player_on(
        self, levels: DeviceLevels, halting: HaltingRule | None = None, starting: Start | None = None
    ) -> LevelPlayer:
        assert self.mesh is not None
        most, env = (halting or self.net).max_loops, self._environment_of(levels)
        starting = starting or starting_of(self.net)
        how: Any = {"halting": halting, "acting": self.config.acting, "starting": starting}
        return LevelPlayer(env, levels.count, self.definition, most, self.mesh, **how)

    def evaluate(self, state: OnlineState) -> Mapping[str, Any]:
        """Play levels to watch learning by, and as many of those that it learns from."""
        return self._watched(VALID, state.weights) | {"train": self._watched("train", state.weights)}

    def test(self, state: OnlineState) -> Mapping[str, Any]:
        """Play all levels that were held out."""
        return self._watched("held_out", state.weights)

    def _watched(self, split: str, weights: Weights) -> dict[str, Any]:
        """Facts about some levels; with imitation, also about the first thing it learns."""
        bank, part = self._parts[split]
        played = self._player.play(weights, part=part)
        facts = {"bank_checksum": bank.info.checksum}
        facts |= summary(played, _first(bank.columns.get("moves"), len(part)))
        if self.config.learner == "imitation" and split != "train":
            if split not in self._agreements:
                self._agreements[split] = self.agreement(bank, len(part))
            facts |= self._agreements[split].measure(weights)
        return facts

    @cached_property
    def _parts(self) -> dict[str, tuple[LevelBank, range]]:
        """What is played for facts about a split, and where it is among all levels that are played."""
        parts, first = {}, 0
        for split in (VALID, *SPLITS):
            bank = self.bank(split)
            count = len(bank) if split == "held_out" else min(len(bank), self.config.levels.evaluate_count)
            parts[split] = bank, range(first, first + count)
            first += count
        return parts

    @cached_property
    def _player(self) -> LevelPlayer:
        """Plays all of them: one program, compiled once."""
        tables = [bank.on_device(len(part)) for bank, part in self._parts.values()]
        if len({table.shape for table in tables}) > 1:
            raise UserError(
                "the banks of a run must have boards of one size; `looped-actor eval --levels` plays others"
            )
        packed = jnp.concatenate([table.packed for table in tables])
        player = self._player_on(replace(tables[0], packed=packed))
        at_once = -(-len(self._parts[VALID][1]) // player.mesh.size)
        return replace(player, batch=min(player.batch, at_once))

    @cached_property
    def _agreements(self) -> dict[str, Agreement]:
        return {}

    def agreement(self, bank: LevelBank, count: int) -> Agreement:
        """Compares policies with the solver along optimal solutions of a bank's first levels."""
        cells = np.concatenate([solution_cells(bank.board(level)) for level in range(count)])
        observation = planes_of(cells, self.config.shape.planes)
        advice = TEACHERS[self.config.task]().advise(observation)
        return Agreement(self.definition, observation, advice.optimal)

    def play(
        self, policy: Policy, request: EvaluationRequest, progress: Progress = no_progress
    ) -> dict[str, Any]:
        """Play every level of a bank once."""
        request.refuse(f"{self.config.task} has no robots", "graded", "deviation", "tasks", "workers")
        bank = self.bank_to_play(request.levels)
        how: Any = {"halting": policy.rule(request), "starting": policy.starting}
        player = self.player(bank, **how, count=request.count)
        moves = _first(_optimal_moves(request.solutions, bank), player.levels)
        facts = {
            "bank": bank.name,
            "bank_checksum": bank.info.checksum,
            "time_limit": self.config.time_limit,
            **summary(player.play(policy.weights, progress), moves),
        }
        if request.baselines:
            boards = [bank.board(level) for level in range(player.levels)]
            facts["baselines"] = baseline_facts(boards, self.config.time_limit)
        return facts

    def program(self, board: tuple[int, int] | None = None) -> Program:
        """What an exported policy reads and returns, on boards of any size."""
        one = self.observation
        if board is not None and board != self.config.board and self._plays_one_size:
            raise UserError(f"this policy plays boards of {self.config.board}, and no others")
        if board is not None and min(board) < 1:
            raise UserError(f"a board of {board[0]} x {board[1]} has no cells")
        shape = one.shape if board is None else (*board, one.shape[-1])
        inputs = {"observation": jax.ShapeDtypeStruct(shape, one.dtype)}

        def outputs(decision: Any) -> dict[str, Array]:
            policy = decision.distribution
            return {"action": policy.mode(), "logits": policy.logits, "value": decision.value}

        return Program(inputs, lambda observation: observation, outputs)


def _first(values: np.ndarray | None, count: int) -> np.ndarray | None:
    return None if values is None else values[:count]


def _optimal_moves(solutions: pathlib.Path | None, bank: LevelBank) -> np.ndarray | None:
    if solutions is None:
        return bank.columns.get("moves")
    found = open_solutions(solutions)
    if found.job.bank_checksum != bank.info.checksum or found.job.first != 0:
        raise UserError(f"{solutions}: these are not the solutions of {bank.name} from its first level on")
    if len(found) < len(bank) or (found.status != SolveStatus.SOLVED.value).any():
        raise UserError(f"{solutions}: not all levels of {bank.name} were solved")
    return found.move_counts
