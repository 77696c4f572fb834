"""Evaluation of a finished policy, or of a checkpoint of a run, at any cap and threshold.

Puzzles are played on any bank of levels, OGBench's worlds by their tasks.
"""

import pathlib
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from looped_actor.algorithms import Weights
from looped_actor.analysis.probes import ProbeSet, read_probes
from looped_actor.analysis.replay import Replay, record_episode
from looped_actor.batches import Progress, no_progress
from looped_actor.evaluation.baselines import BASELINES
from looped_actor.evaluation.film import Film, film_episode
from looped_actor.evaluation.intervals import wilson
from looped_actor.evaluation.ogbench import world_summary
from looped_actor.evaluation.puzzles import summary
from looped_actor.experiments.arms import Looped
from looped_actor.experiments.config import OfflineConfig, OnlineConfig, RunConfig
from looped_actor.experiments.offline import world_player
from looped_actor.experiments.online import LEVELS_FOLDER, check_bank, environment, level_player
from looped_actor.experiments.policies import definition_of, finished_policy, load_policy
from looped_actor.experiments.runs import read_run, restore_run
from looped_actor.games.catalogue import GAMES
from looped_actor.levels import LevelBank, open_bank, open_solutions
from looped_actor.loop import FixedLoops, HaltingRule, PolicyKL
from looped_actor.offline.ogbench import TASKS
from looped_actor.solvers import SolveStatus


@dataclass(frozen=True)
class EvaluationRequest:
    """What to play, and how."""

    policy: pathlib.Path
    """The folder of a run or of a policy."""
    levels: pathlib.Path | None = None
    """The bank. Default: the one held out in training."""
    solutions: pathlib.Path | None = None
    """Optimal solutions of the bank, where it has no column of lengths."""
    checkpoint: str | None = None
    """best, latest or an iteration. Default: the finished policy where there is one, else latest."""
    max_loops: int | None = None
    min_loops: int | None = None
    threshold: float | None = None
    count: int | None = None
    """Play only the first so many levels; of a world, so many episodes of each task."""
    baselines: bool = False
    tasks: tuple[int, ...] = TASKS
    """Of a world, which to play."""
    workers: int | None = None
    """Of a world, the processes that step MuJoCo. Default: one for each core."""


def evaluate_policy(
    request: EvaluationRequest, mesh: Mesh, progress: Progress = no_progress
) -> dict[str, Any]:
    """Facts about a policy that JSON can hold: `summary`, and what was played."""
    if request.count is not None and request.count < 1:
        raise ValueError(f"count is {request.count}; it must be at least 1")
    config, weights, name = policy_at(request.policy, mesh, request.checkpoint)
    halting = another_rule(config, request.max_loops, request.min_loops, request.threshold)
    rule = halting or own_rule(config)
    facts = {
        "policy": name,
        "task": config.task,
        "arm": config.arm,
        "learner": config.algorithm,
        "max_loops": config.chosen_arm.max_loops if rule is None else rule.max_loops,
        "threshold": rule.threshold if isinstance(rule, PolicyKL) else None,
    }
    with jax.enable_x64(config.double_precision):
        if isinstance(config, OfflineConfig):
            return facts | _world_facts(request, config, weights, halting, progress)
        assert isinstance(config, OnlineConfig)
        return facts | _puzzle_facts(request, config, weights, halting, mesh, progress)


def _puzzle_facts(
    request: EvaluationRequest,
    config: OnlineConfig,
    weights: Weights,
    halting: HaltingRule | None,
    mesh: Mesh,
    progress: Progress,
) -> dict[str, Any]:
    bank = bank_of(request.policy, config, request.levels)
    count = levels_wanted(request.count, bank)
    played = level_player(config, bank, mesh, halting=halting, count=count).play(weights, progress)
    moves = _optimal_moves(request, bank)
    facts = {
        "bank": bank.name,
        "bank_checksum": bank.info.checksum,
        "time_limit": config.time_limit,
        **summary(played, None if moves is None else moves[:count]),
    }
    if request.baselines:
        facts["baselines"] = baseline_facts(bank, count, config.time_limit)
    return facts


def _world_facts(
    request: EvaluationRequest,
    config: OfflineConfig,
    weights: Weights,
    halting: HaltingRule | None,
    progress: Progress,
) -> dict[str, Any]:
    for option in ("levels", "solutions"):
        if getattr(request, option) is not None:
            raise ValueError(f"{config.task} has no {option}: leave --{option} out")
    player = world_player(
        config,
        episodes=request.count,
        tasks=request.tasks,
        halting=halting,
        workers=request.workers,
    )
    most = (halting or config.chosen_arm).max_loops
    try:
        facts = world_summary(player.play(weights, progress), most)
        if request.baselines:
            facts["baselines"] = {"random": world_summary(player.play_at_random(progress), 1)}
    finally:
        player.close()
    return facts


def baseline_facts(bank: LevelBank, count: int, time_limit: int) -> dict[str, Any]:
    """How policies that do not think fare on the same levels."""
    facts = {}
    for name, play in BASELINES.items():
        random = np.random.default_rng(0)
        steps = [play(bank.board(i), time_limit, random) for i in range(count)]
        solved = [s for s in steps if s is not None]
        facts[name] = {
            "levels": count,
            "solved": len(solved),
            "success": len(solved) / count,
            "interval_95": list(wilson(len(solved), count)),
            "mean_steps": float(np.mean([time_limit if s is None else s for s in steps])),
        }
    return facts


def policy_at(
    folder: pathlib.Path, mesh: Mesh, checkpoint: str | None = None
) -> tuple[RunConfig, Weights, str]:
    """The policy of a folder, a run's or one that a run has written, and what to call it.

    Of a run, `checkpoint` may be best, latest or an iteration. Default: the finished policy, or else latest.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is not a folder; give that of a run, or of a policy that a run has written"
        )
    finished = finished_policy(folder)
    if checkpoint is None and finished is not None:
        policy = load_policy(finished)
        return policy.config, policy.weights, str(folder)
    if finished == folder:
        raise ValueError(f"{folder} is a finished policy and has no checkpoints; give the folder of its run")
    config = read_run(folder)
    state, bookmark = restore_run(config, folder, mesh, checkpoint or "latest")
    return config, state.weights, f"{folder} after {bookmark.steps:,} steps"


def film_policy(
    folder: pathlib.Path, mesh: Mesh, checkpoint: str | None = None, **options: Any
) -> tuple[str, int, Film]:
    """The world of a policy, its cap, and a film of an episode; options are those of `film_episode`."""
    config, weights, _ = policy_at(folder, mesh, checkpoint)
    if not isinstance(config, OfflineConfig):
        raise ValueError(f"{folder} is of {config.task}: films are of OGBench's worlds")
    film = film_episode(config.task, definition_of(config), weights, **options)
    return config.task, config.chosen_arm.max_loops, film


def replay_policy(
    folder: pathlib.Path,
    mesh: Mesh,
    level: int,
    *,
    levels: pathlib.Path | None = None,
    checkpoint: str | None = None,
    probes: pathlib.Path | None = None,
    progress: Progress = no_progress,
) -> Replay:
    """An episode of a puzzle with all its thoughts; `probes` as `analyse probes` has written them."""
    config, weights, _ = policy_at(folder, mesh, checkpoint)
    if not isinstance(config, OnlineConfig):
        raise ValueError(f"{folder} is of {config.task}: `looped-actor ogbench film` shows its episodes")
    bank = bank_of(folder, config, levels)
    bank.board(level)  # or it says that there is no such level
    env, game = environment(config, bank, level + 1), GAMES[config.task]
    read = None if probes is None else _fitting_probes(probes, config, bank.board(level))
    source = pathlib.Path(bank.name).stem
    name = f"{config.arm} by {config.algorithm}"
    return record_episode(
        env,
        level,
        game,
        definition_of(config),
        weights,
        max_loops=config.chosen_arm.max_loops,
        title=f"{folder.resolve().name}: {name}, level {level} of {source}",
        policy=name,
        valued=config.learner == "ppo",
        probes=read,
        progress=progress,
    )


def _fitting_probes(path: pathlib.Path, config: OnlineConfig, board: Any) -> ProbeSet:
    """Probes, if they can read this policy's latents on this board."""
    probes = read_probes(path)
    width = probes.probes.look.shape[-2]
    if not isinstance(config.chosen_arm, Looped) or width != config.core.width:
        raise ValueError(f"{path}: probes of latents of width {width}; this policy has none of these")
    if config.task != "boxoban" or len(board.boxes) != probes.boxes:
        raise ValueError(f"{path}: these probes read pushes of {probes.boxes} boxes; this level has others")
    return probes


def levels_wanted(count: int | None, bank: LevelBank) -> int:
    """So many levels of a bank as were asked for, or as there are."""
    if count is not None and count < 1:
        raise ValueError(f"count is {count}; it must be at least 1")
    return len(bank) if count is None else min(count, len(bank))


def bank_of(policy: pathlib.Path, config: OnlineConfig, levels: pathlib.Path | None = None) -> LevelBank:
    """The bank that is given, or the one held out in training, where the policy's folder leads to it."""
    if levels is not None:
        bank = open_bank(levels)
    elif config.levels.held_out:
        bank = open_bank(config.levels.held_out)
    else:
        own = LEVELS_FOLDER, "held_out.levels"
        beside = [policy.joinpath(*own), policy.parent.joinpath(*own)]
        bank = open_bank(next((path for path in beside if path.exists()), beside[0]))
    check_bank(config, bank)
    return bank


def own_rule(config: RunConfig) -> HaltingRule | None:
    """The halting rule of a policy, as it was trained; None where it does not loop."""
    return config.chosen_arm.halting if isinstance(config.chosen_arm, Looped) else None


def another_rule(
    config: RunConfig,
    max_loops: int | None = None,
    min_loops: int | None = None,
    threshold: float | None = None,
) -> HaltingRule | None:
    """The halting rule of a policy with changes; None where none was asked for."""
    asked = {"max_loops": max_loops, "min_loops": min_loops, "threshold": threshold}
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if not changes:
        return None
    arm = config.chosen_arm
    if not isinstance(arm, Looped):
        raise ValueError(f"{config.arm} does not loop: its depth cannot be changed")
    if isinstance(arm.halting, FixedLoops) and changes.keys() == {"max_loops"}:
        return FixedLoops(changes["max_loops"])
    rule = arm.halting if isinstance(arm.halting, PolicyKL) else config.halting
    if "max_loops" in changes:
        changes.setdefault("min_loops", min(rule.min_loops, changes["max_loops"]))
    return replace(rule, **changes)


def _optimal_moves(request: EvaluationRequest, bank: LevelBank) -> np.ndarray | None:
    if request.solutions is None:
        return bank.columns.get("moves")
    solutions = open_solutions(request.solutions)
    if solutions.job.bank_checksum != bank.info.checksum or solutions.job.first != 0:
        raise ValueError(
            f"{request.solutions}: these are not the solutions of {bank.name} from its first level on"
        )
    if len(solutions) < len(bank) or (solutions.status != SolveStatus.SOLVED.value).any():
        raise ValueError(f"{request.solutions}: not all levels of {bank.name} were solved")
    return solutions.move_counts
