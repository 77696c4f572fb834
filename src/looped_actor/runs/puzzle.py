"""A run on a puzzle, from its configuration: levels, environment, trainer, evaluation, cost."""

import functools
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from looped_actor.configs.requests import EvaluationRequest
from looped_actor.configs.runs import SPLITS, LevelsConfig, OnlineConfig, read_provenance
from looped_actor.envs import Boxoban, RushHour, WindowedBoxoban
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
        levels, paths = self.config.levels, {split: self.material / f"{split}.levels" for split in SPLITS}
        if not levels.train and not (self._is_made() and all(path.is_file() for path in paths.values())):
            self.note_recipe()
            assert levels.recipe is not None
            few = levels.held_out_count + levels.train_count <= FEW_LEVELS
            options: Any = {"workers": 1 if few else default_workers(), "progress": progress}
            wanted = {"held_out": levels.held_out_count}
            banks = generate(levels.held_out_recipe or levels.recipe, wanted, **options)
            wanted = {"train": levels.train_count}
            banks |= generate(levels.recipe, wanted, without=banks["held_out"], **options)
            for split, path in paths.items():
                write_bank(banks[split], path)
        return {split: self.bank(split).info.checksum for split in SPLITS}

    def bank(self, split: str) -> LevelBank:
        """The levels of a split, if they are those that the run began with."""
        bank = open_bank(getattr(self.config.levels, split) or self.material / f"{split}.levels")
        self._check(bank)
        if read_provenance(self.folder).get(split, bank.info.checksum) != bank.info.checksum:
            raise ValueError(f"{bank.name}: these are not the levels that the run began with")
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
            raise ValueError(f"{bank.name} holds levels of {bank.info.game}; this run plays {config.task}")
        if board != config.board and (config.arm == "drc" or config.learning.cell_statistics):
            why = "DRC" if config.arm == "drc" else "what scales each cell by its own statistics"
            raise ValueError(
                f"{bank.name} has boards of {board[0]}x{board[1]}; this policy was made for "
                f"{config.board[0]}x{config.board[1]}: {why} plays boards of one size only"
            )

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
        return self._learning_on(self.environment(self.bank("train")))

    def planned_programs(self) -> dict[str, Planned]:
        """Training and evaluation, with zeros for the levels."""
        config, mesh = self.config, self.mesh
        assert mesh is not None
        trainer = self._learning_on(self._planned_environment(config.levels.train_count))
        count, learning = config.levels.evaluate_count, config.learning
        env = self._planned_environment(config.levels.held_out_count)
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

    def _learning_on(self, env: Boxoban | RushHour) -> Trainer:
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
        assert self.mesh is not None
        config, count = self.config, len(bank) if count is None else min(count, len(bank))
        most = (halting or self.net).max_loops
        env = self.environment(bank, count)
        starting = starting or starting_of(self.net)
        how: Any = {"halting": halting, "acting": config.acting, "starting": starting}
        return LevelPlayer(env, count, self.definition, most, self.mesh, **how)

    def evaluate(self, state: OnlineState) -> Mapping[str, Any]:
        """Play the held-out levels; with imitation, also ask for the first thing it learns."""
        player, bank = self._held_out
        facts = summary(player.play(state.weights), _first(bank.columns.get("moves"), player.levels))
        if self.config.learner == "imitation":
            facts |= self._agreement.measure(state.weights)
        return facts

    @cached_property
    def _held_out(self) -> tuple[LevelPlayer, LevelBank]:
        bank = self.bank("held_out")
        return self.player(bank, count=self.config.levels.evaluate_count), bank

    @cached_property
    def _agreement(self) -> Agreement:
        player, bank = self._held_out
        return self.agreement(bank, player.levels)

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
        one_size = self.config.arm == "drc" or self.config.learning.cell_statistics
        if board is not None and board != self.config.board and one_size:
            raise ValueError(f"this policy plays boards of {self.config.board}, and no others")
        if board is not None and min(board) < 1:
            raise ValueError(f"a board of {board[0]} x {board[1]} has no cells")
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
        raise ValueError(f"{solutions}: these are not the solutions of {bank.name} from its first level on")
    if len(found) < len(bank) or (found.status != SolveStatus.SOLVED.value).any():
        raise ValueError(f"{solutions}: not all levels of {bank.name} were solved")
    return found.move_counts
