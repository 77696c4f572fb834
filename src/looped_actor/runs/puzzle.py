"""Runs on puzzles: levels, environment, trainer, evaluation."""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from looped_actor.algorithms import PPO, Imitation, ImitationConfig, OnlineState, Weights
from looped_actor.evaluation.agreement import Agreement
from looped_actor.evaluation.baselines import baseline_results
from looped_actor.evaluation.levels import LevelPlayer
from looped_actor.evaluation.options import EvaluationOptions
from looped_actor.evaluation.results import summarize
from looped_actor.loop import HaltingRule
from looped_actor.policy.policy import Policy, PolicySpec
from looped_actor.puzzles.banks import DeviceLevels, LevelBank, open_bank, write_bank
from looped_actor.puzzles.catalogue import game_named
from looped_actor.puzzles.generate import generate
from looped_actor.puzzles.gymnasium import PuzzleGym
from looped_actor.puzzles.replay import solution_cells
from looped_actor.puzzles.search import SolveStatus
from looped_actor.puzzles.solutions import open_solutions
from looped_actor.puzzles.teachers import planes_of
from looped_actor.runs.config import LevelsConfig, PuzzleConfig
from looped_actor.runs.provenance import SPLITS, VALID, read_provenance
from looped_actor.runs.run import Run
from looped_actor.training import Trainer
from looped_actor.utils.errors import UserError
from looped_actor.utils.processes import Progress, default_workers, no_progress

LEVELS_FOLDER = "levels"
FEW_LEVELS = 200
"""Levels that are generated faster than other processes start."""
TEST_SEED_OFFSET = 2_000
"""Added to the seed of a recipe for validation levels."""


@dataclass(frozen=True, eq=False)
class PuzzleRun(Run):
    """The parts of a run on a puzzle; see `Run`."""

    config: PuzzleConfig

    def build(self, rngs: nnx.Rngs) -> Any:
        return self.config.arm.build(self.config.shapes, rngs, self.config.recipe_details.initial)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """A board as planes."""
        return jax.ShapeDtypeStruct((*self.config.board, self.config.shapes.planes), jnp.uint8)

    @property
    def material(self) -> pathlib.Path:
        return self.folder / LEVELS_FOLDER

    @property
    def material_recipe(self) -> LevelsConfig:
        return self.config.levels

    def prepare(self, progress: Progress = no_progress) -> dict[str, str]:
        levels = self.config.levels
        splits = SPLITS if levels.train and not levels.valid else (*SPLITS, VALID)
        paths = {split: self.material / f"{split}.levels" for split in splits}
        if not levels.train and not (self.is_made() and all(path.is_file() for path in paths.values())):
            self.note_recipe()
            for split, bank in self._generate(progress).items():
                write_bank(bank, paths[split])
        return {split: self.bank(split).info.checksum for split in splits}

    def _generate(self, progress: Progress) -> dict[str, LevelBank]:
        """Generate banks that share no level."""
        levels = self.config.levels
        recipe, test_recipe = levels.recipe, levels.held_out_recipe or levels.recipe
        assert recipe is not None
        assert test_recipe is not None
        few = levels.held_out_count + levels.train_count <= FEW_LEVELS
        options: Any = {"workers": 1 if few else default_workers(), "progress": progress}
        banks = generate(test_recipe, {"held_out": levels.held_out_count}, **options)
        banks |= generate(recipe, {"train": levels.train_count}, without=[banks["held_out"]], **options)
        valid_recipe = replace(test_recipe, seed=test_recipe.seed + TEST_SEED_OFFSET)
        return banks | generate(
            valid_recipe, {VALID: levels.valid_count}, without=[*banks.values()], **options
        )

    def bank(self, split: str) -> LevelBank:
        """Return the levels of a split, if they are those that the run began with."""
        begun = read_provenance(self.folder)
        given = self.config.levels
        if split == VALID and ((begun and VALID not in begun) or (given.train and not given.valid)):
            return self.bank("held_out")
        bank = open_bank(getattr(given, split) or self.material / f"{split}.levels")
        check_bank(self.spec, bank)
        if begun.get(split, bank.info.checksum) != bank.info.checksum:
            raise UserError(f"{bank.name}: these are not the levels that the run began with")
        return bank

    @cached_property
    def trainer(self) -> Trainer:
        return self.trainer_on(self.bank("train").on_device())

    def trainer_on(self, levels: DeviceLevels) -> Trainer:
        """Return the algorithm on any levels."""
        config = self.config
        assert self.mesh is not None
        options: Any = {
            "env": game_named(config.task).environment(levels, config.time_limit),
            "build": self.build,
            "iterations": config.iterations,
            "mesh": self.mesh,
            "recipe": config.recipe_details,
            "acting": config.acting,
            "execution": config.execution,
            "dtype": self.dtype,
        }
        if isinstance(config.algorithm, ImitationConfig):
            return Imitation(config.algorithm, **options, teacher=game_named(config.task).teacher())
        return PPO(config.algorithm, **options)

    def make_env(self, policy: Policy, **options: Any) -> PuzzleGym:
        chosen: Any = {"time_limit": self.config.time_limit} | options
        return PuzzleGym(find_test_levels(policy), **chosen)

    def find_levels(self, policy: Policy) -> LevelBank:
        return find_test_levels(policy)

    def player_on(self, levels: DeviceLevels) -> LevelPlayer:
        """Return a player of levels with policies of this run."""
        assert self.mesh is not None
        return level_player(self.spec, levels, self.mesh)

    def evaluate(self, state: OnlineState) -> Mapping[str, Any]:
        """Play the validation levels, and as many training levels."""
        return self._play(VALID, state.weights) | {"train": self._play("train", state.weights)}

    def test(self, state: OnlineState) -> Mapping[str, Any]:
        return self._play("held_out", state.weights)

    def _play(self, split: str, weights: Weights) -> dict[str, Any]:
        """Return results on a split; with imitation, also the share of optimal actions."""
        bank, part = self._parts[split]
        played = self._player.play(weights, part=part)
        results = {"bank_checksum": bank.info.checksum}
        results |= summarize(played, _first(bank.columns.get("moves"), len(part)))
        if self.config.by_imitation and split != "train":
            if split not in self._agreements:
                self._agreements[split] = agreement(self.spec, bank, len(part))
            results |= self._agreements[split].measure(weights)
        return results

    @cached_property
    def _parts(self) -> dict[str, tuple[LevelBank, range]]:
        """Bank of each split, and the range of its levels among all levels that are played."""
        parts, first = {}, 0
        for split in (VALID, *SPLITS):
            bank = self.bank(split)
            count = len(bank) if split == "held_out" else min(len(bank), self.config.levels.evaluate_count)
            parts[split] = bank, range(first, first + count)
            first += count
        return parts

    @cached_property
    def _player(self) -> LevelPlayer:
        """A player of all of them: one program, compiled once."""
        tables = [bank.on_device(len(part)) for bank, part in self._parts.values()]
        if len({table.shape for table in tables}) > 1:
            raise UserError(
                "the banks of a run must have boards of one size; `looped-actor eval --levels` plays others"
            )
        packed = jnp.concatenate([table.packed for table in tables])
        player = self.player_on(replace(tables[0], packed=packed))
        per_device = -(-len(self._parts[VALID][1]) // player.mesh.size)
        return replace(player, batch=min(player.batch, per_device))

    @cached_property
    def _agreements(self) -> dict[str, Agreement]:
        return {}


def check_bank(spec: PolicySpec, bank: LevelBank) -> None:
    """Raise an error if a policy cannot play a bank."""
    board = bank.info.height, bank.info.width
    if bank.info.game != spec.task:
        raise UserError(f"{bank.name} holds levels of {bank.info.game}; this run plays {spec.task}")
    if spec.plays_one_size and board != spec.board:
        assert spec.board is not None
        why = "DRC" if spec.arm == "drc" else "what scales each cell by its own statistics"
        raise UserError(
            f"{bank.name} has boards of {board[0]}x{board[1]}; this policy was made for "
            f"{spec.board[0]}x{spec.board[1]}: {why} plays boards of one size only"
        )


def level_player(
    spec: PolicySpec,
    levels: DeviceLevels,
    mesh: Any,
    halting: HaltingRule | None = None,
    carry_latent: bool | None = None,
) -> LevelPlayer:
    """Return a player of levels with policies of a spec."""
    env = game_named(spec.task).environment(levels, spec.config.time_limit)
    return LevelPlayer(
        env=env,
        levels=levels.count,
        definition=spec.definition,
        most_loops=(halting or spec).max_loops,
        mesh=mesh,
        halting=halting,
        acting=spec.config.acting,
        carry_latent=spec.net.carry_latent if carry_latent is None else carry_latent,
    )


def agreement(spec: PolicySpec, bank: LevelBank, count: int) -> Agreement:
    """Return a comparison of policies with the solver, along optimal solutions of a bank's first levels."""
    cells = np.concatenate([solution_cells(bank.board(level)) for level in range(count)])
    observation = planes_of(cells, spec.observation.shape[-1])
    labels = game_named(spec.task).teacher().label(observation)
    return Agreement(spec.definition, observation, labels.optimal)


def find_test_levels(policy: Policy, levels: pathlib.Path | None = None) -> LevelBank:
    """Return the bank that is given, or the test levels of the policy's run, if its folder leads to them."""
    own = pathlib.Path(LEVELS_FOLDER, "held_out.levels")
    candidates = [policy.folder / own, policy.folder.parent / own]
    found = next((path for path in candidates if path.exists()), candidates[0])
    bank = open_bank(levels or policy.config.levels.held_out or found)
    check_bank(policy.spec, bank)
    return bank


def evaluate_on_levels(
    policy: Policy,
    options: EvaluationOptions,
    mesh: Any,
    bank: LevelBank | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Play every level of a bank once. Default: the bank that the options name, or the test levels."""
    task = policy.spec.task
    options.refuse(f"{task} has no robots", "graded", "deviation", "tasks", "workers")
    if bank is None or options.levels is not None:
        bank = find_test_levels(policy, options.levels)
    check_bank(policy.spec, bank)
    halting = policy.spec.with_loop(options)
    levels = bank.on_device(options.count)
    player = level_player(policy.spec, levels, mesh, halting, policy.carry_latent)
    moves = _first(_optimal_moves(options.solutions, bank), player.levels)
    results = {
        "bank": bank.name,
        "bank_checksum": bank.info.checksum,
        "time_limit": policy.config.time_limit,
        **summarize(player.play(policy.weights, progress), moves),
    }
    if options.baselines:
        boards = [bank.board(level) for level in range(player.levels)]
        results["baselines"] = baseline_results(boards, policy.config.time_limit)
    return results


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
