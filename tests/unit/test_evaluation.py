"""Intervals, bins, players that do not think, and levels played once each."""

import importlib
import pathlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.stats import bootstrap

import looped_actor
from looped_actor import Categorical, Packed, StopReason
from looped_actor.evaluation.baselines import play_at_random, play_greedily
from looped_actor.evaluation.intervals import paired_difference, wilson, wilson_over_levels
from looped_actor.evaluation.levels import play_levels
from looped_actor.evaluation.results import length_bins, summarize
from looped_actor.loop import Streaming
from looped_actor.planning.depths import DISTRIBUTIONS, prescribed_depths
from looped_actor.puzzles.banks import starter_bank
from looped_actor.puzzles.boxoban.env import Boxoban
from looped_actor.puzzles.boxoban.generator import BoxobanRecipe
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.generate import generate
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.rush_hour.rules import RushHourBoard
from looped_actor.robots.evaluation import RobotEpisode, RobotPlayer, RobotsPlayed
from looped_actor.robots.graded import Motion
from looped_actor.runs.registry import run_of
from tiny import tiny

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("solved", "trials", "low", "high"),
    [(5, 10, 0.2366, 0.7634), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson_s_interval(solved, trials, low, high):
    assert wilson(solved, trials) == pytest.approx((low, high), abs=1e-4)


def study(chance, seeds, levels, *, of_runs, gap=0.3):
    """Outcomes of two arms: levels differ in difficulty for all runs, and runs in skill."""

    def arm(skill):
        skills = skill + of_runs * chance.normal(size=(seeds, 1)) + difficulty
        return chance.random((seeds, levels)) < 1 / (1 + np.exp(-skills))

    difficulty = 2 * chance.normal(size=levels)
    return arm(1.5 + gap), arm(1.5)


def share_of(skill, deviation):
    draws = skill + deviation * np.random.default_rng(1).normal(size=1_000_000)
    return float(np.mean(1 / (1 + np.exp(-draws))))


def test_the_interval_over_levels_covers_where_a_pooled_one_does_not():
    """Three runs that hardly differ, on levels that do: 95% of 1,000 studies, where pooling reaches 75%."""
    chance, truth = np.random.default_rng(0), share_of(1.5, 2)
    inside = {"by level": 0, "pooled": 0}
    for _ in range(1_000):
        _, outcomes = study(chance, 3, 300, of_runs=0.0)
        pooled = wilson(int(outcomes.sum()), outcomes.size)
        for name, (low, high) in (("by level", wilson_over_levels(outcomes)), ("pooled", pooled)):
            inside[name] += low <= truth <= high
    assert 935 <= inside["by level"] <= 970
    assert inside["pooled"] < 900


@pytest.mark.parametrize("of_runs", [0.0, 0.2, 0.5])
def test_the_interval_of_a_difference_covers_whether_seeds_or_levels_matter(of_runs):
    chance, deviation = np.random.default_rng(0), np.hypot(2, of_runs)
    truth = share_of(1.8, deviation) - share_of(1.5, deviation)
    apart = [paired_difference(*study(chance, 3, 300, of_runs=of_runs)) for _ in range(1_000)]
    assert np.mean([one.widest.low <= truth <= one.widest.high for one in apart]) >= 0.935
    over_levels_alone = np.mean([one.levels.low <= truth <= one.levels.high for one in apart])
    assert (over_levels_alone > 0.92) == (of_runs < 0.1)


def test_the_interval_over_levels_is_that_of_a_bootstrap():
    first, second = study(np.random.default_rng(0), 3, 1_000, of_runs=0.3)
    by_level = (first.astype(float) - second).mean(axis=0)
    resampled = bootstrap((by_level,), np.mean, rng=np.random.default_rng(0)).confidence_interval
    assert paired_difference(first, second).levels == pytest.approx(tuple(resampled), abs=0.002)


def test_copies_and_arms_that_agree():
    run = np.arange(100) < 70
    copies = np.stack([run] * 5)
    assert wilson_over_levels(copies) == pytest.approx(wilson(70, 100))
    assert wilson_over_levels(copies | True) == pytest.approx(wilson(100, 100))
    assert wilson_over_levels(run[None]) == pytest.approx(wilson(70, 100))
    # Two runs that solve different halves are not infinitely sure.
    assert wilson_over_levels(np.stack([run[30:], ~run[30:]])) == pytest.approx(wilson(70, 140))
    same = paired_difference(copies, copies)
    assert same.mean == 0
    assert same.widest.low < -0.01 < 0.01 < same.widest.high
    assert paired_difference(copies[:1], copies[:1]).seeds is None


@pytest.mark.parametrize("lengths", [[3], [1, 1, 1], [1, 2], list(range(50)), [1] * 90 + [7, 9]])
def test_bins_hold_every_length_once(lengths):
    bins = length_bins(np.array(lengths))
    assert len(bins) <= 8
    for length in lengths:
        assert sum(low <= length <= high for low, high in bins) == 1
    assert all(any(low <= length <= high for length in lengths) for low, high in bins)


def test_greed_pushes_straight_and_does_not_step_back():
    chance = np.random.default_rng(0)
    straight = BoxobanBoard.parse("######\n#@$ .#\n######")
    assert play_greedily(straight, 10, chance) == 2
    assert play_greedily(straight, 1, chance) is None
    around = BoxobanBoard.parse("######\n#    #\n#.$@ #\n######")
    assert play_greedily(around, 20, chance) == 1
    # The box must first go away from its target, around a wall.
    detour = BoxobanBoard.parse("########\n#      #\n# $#.  #\n#@     #\n#      #\n########")
    assert play_greedily(detour, 50, chance) is None
    free = RushHourBoard.parse("....\nAA..\n....\n....")
    assert play_greedily(free, 10, chance) == 2
    blocked = RushHourBoard.parse("..B.\nAAB.\n..C.\n..C.")
    assert play_greedily(blocked, 10, chance) is None


def test_chance_needs_luck_and_time():
    chance = np.random.default_rng(0)
    board = BoxobanBoard.parse("#####\n#@$.#\n#####")
    steps = [play_at_random(board, 1, chance) for _ in range(200)]
    assert 20 < sum(step == 1 for step in steps) < 80
    assert set(steps) == {1, None}


def always(direction):
    """A policy that walks one way, in as many loops as there are boxes on its right half."""

    def decide(observation, *, expected_loops=None, carry=None):
        count = observation.shape[0]
        logits = jnp.broadcast_to(jax.nn.one_hot(direction, 4), (count, 4))
        loops = 1 + observation[:, :, 5:, 1].sum(axis=(1, 2)).astype(jnp.int32)
        stop = jnp.where(loops < 3, StopReason.CONVERGED, StopReason.CAP)
        latent = loops[:, None].astype(jnp.float32)
        loop = SimpleNamespace(loops=loops, stop=stop, executed=loops.max() * count, latent=latent)
        return SimpleNamespace(distribution=Categorical(logits), loop=loop)

    return decide


def test_each_level_is_played_once_by_the_rules():
    bank = starter_bank("boxoban")
    env = Boxoban(bank.on_device(40), time_limit=6)
    for direction in (Direction.UP, Direction.RIGHT):
        levels = jnp.array([*range(40), -1, -1])
        played = play_levels(env, always(direction), levels, most_loops=5).episodes
        assert played.length[-2:].tolist() == [0, 0]
        for level in range(40):
            board, steps = bank.board(level), 0
            while steps < 6 and not board.solved:
                board, steps = board.move(direction), steps + 1
            assert bool(played.success[level]) == board.solved
            assert int(played.length[level]) == steps
            assert int(played.histogram[level].sum()) == steps
            weighted = (np.asarray(played.histogram[level]) * np.arange(1, 6)).sum()
            assert int(played.loops[level]) == weighted


def test_a_benchmark_s_policy_takes_the_loops_that_are_prescribed(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    prescribed = importlib.import_module("prescribed")
    depths = jnp.array(DISTRIBUTIONS["boxoban"].draw(500))
    assert abs(float(depths.mean()) - 9.8) < 0.1
    env = Boxoban(starter_bank("boxoban").on_device(40), time_limit=6)
    config = tiny("boxoban", arm__halting__max_loops=16)
    net = prescribed.PrescribedActor(run_of(config).build(nnx.Rngs(0)), depths)
    state = jax.vmap(env.reset_to)(jnp.arange(30))
    state, _ = jax.vmap(env.step)(state, jnp.zeros(30, int))
    observation = jax.vmap(env.observe)(state).astype(jnp.float32)
    expected = prescribed_depths(observation, depths)
    assert len(np.unique(expected)) > 5
    loops = net(observation, execution=Packed(8)).loop.loops
    np.testing.assert_array_equal(loops, expected)
    streamed = Streaming(8).decide(net.to_streaming(), observation)
    np.testing.assert_array_equal(streamed.output.loops, expected)


def test_a_summary_adds_up():
    bank = starter_bank("boxoban")
    env = Boxoban(bank.on_device(40), time_limit=6)
    played = jax.tree.map(np.asarray, play_levels(env, always(Direction.LEFT), jnp.arange(40), most_loops=5))
    facts = summarize(played, bank.columns["moves"][:40])
    assert facts["levels"] == 40
    assert sum(row["levels"] for row in facts["by_optimal_moves"]) == 40
    assert sum(facts["loop_histogram"].values()) == 240 == facts["mean_steps"] * 40
    assert facts["returns"] == pytest.approx(played.episodes.returns.mean())
    # Why decisions stopped is counted, not guessed from how long they took.
    deep = sum(n for loops, n in facts["loop_histogram"].items() if int(loops) >= 3)
    assert facts["capped"] == deep / 240
    assert facts["non_finite"] == 0


def test_levels_can_be_made_harder_and_kept_apart():
    recipe = {"height": 6, "width": 7, "boxes": 1, "min_pulls": 2, "max_pulls": 20}
    easy = generate(BoxobanRecipe(**recipe), {"easy": 150})["easy"]
    hard = generate(BoxobanRecipe(**recipe, direct_share=0.0), {"hard": 60}, without=[easy])["hard"]
    chance = np.random.default_rng(0)

    def solved(bank):
        return np.mean([play_greedily(bank.board(i), 50, chance) is not None for i in range(len(bank))])

    assert solved(hard) < 0.3 < 0.7 < solved(easy)
    known = {cells.tobytes() for cells in easy.cells(slice(None))}
    assert not any(cells.tobytes() in known for cells in hard.cells(slice(None)))


def test_an_evaluation_of_robots_says_how_it_was_made(monkeypatch):
    """The noise, the episodes' seed and the outcome of each episode; nothing is played here."""
    still = Motion(still=0.0, right=None, wrong=None)
    solved = {1: (True, False), 2: (False, False)}
    episodes = [
        RobotEpisode(t, n, s, [1], [0], still) for t, both in solved.items() for n, s in enumerate(both)
    ]
    monkeypatch.setattr(RobotPlayer, "play", lambda *_: RobotsPlayed(episodes, executed=4))
    policy = looped_actor.load_policy(ROOT / "results" / "robots" / "long" / "far-1.0")
    plain, noisy = (
        looped_actor.evaluate(policy, tasks=(1, 2), count=2, **a) for a in ({}, {"deviation": 0.1})
    )
    assert (plain["deviation"], noisy["deviation"]) == (0.0, 0.1)
    assert noisy["options"] == {"tasks": (1, 2), "count": 2, "deviation": 0.1}
    assert (noisy["outcomes"], noisy["by_task"]["1"]["outcomes"], noisy["seed"]) == ("+---", "+-", 0)
