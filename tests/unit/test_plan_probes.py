"""Plan probes: accuracy with planted and with shuffled labels, and the labels themselves."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped_actor.analysis.probes import (
    ProbeConfig,
    ProbeSet,
    probe_logits,
    read_probes,
    split_levels,
    train_probes,
    write_probes,
)
from looped_actor.evaluation.intervals import clustered_mean, wilson
from looped_actor.puzzles.boxoban.generator import BoxobanRecipe
from looped_actor.puzzles.boxoban.plans import NONE, guess_accuracy, push_targets, right_pushes
from looped_actor.puzzles.boxoban.rules import BoxobanBoard
from looped_actor.puzzles.boxoban.solver import possible_pushes
from looped_actor.puzzles.generate import generate
from looped_actor.puzzles.grid import Direction
from looped_actor.puzzles.solutions import solve_bank

CLASSES, TOKENS, WIDTH, LEVELS = 8, 12, 32, 1500
CONFIG = ProbeConfig(seeds=2, batch=64)


@pytest.fixture(scope="module")
def planted():
    """Latents in which one random token of each level encodes two pushes, and the others are noise."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, CLASSES, (LEVELS, 2))
    latents = rng.normal(scale=0.5, size=(LEVELS, TOKENS, WIDTH))
    codes = rng.normal(size=(2, CLASSES, WIDTH)) * 2
    token = rng.integers(0, TOKENS, LEVELS)
    mark = np.zeros(WIDTH)
    mark[:3] = 4
    latents[np.arange(LEVELS), token] += mark + codes[0, targets[:, 0]] + codes[1, targets[:, 1]]
    return latents.astype(np.float16), targets.astype(np.int32)


def only_target(targets):
    """Return labels of which the target alone is right."""
    return targets[..., None] == np.arange(CLASSES)


def test_probes_find_a_planted_plan(planted):
    latents, targets = planted
    targets = targets.copy()
    targets[::3, 1] = NONE  # a third of the levels have no second push
    split = split_levels(LEVELS)
    found = train_probes(latents, targets, only_target(targets), split, CONFIG)
    assert found.tested.tolist() == [300, int((targets[split.test, 1] != NONE).sum())]
    assert found.correct.shape == (2, 2)
    assert (found.correct / found.tested[:, None]).min() > 0.95
    anything = np.ones((LEVELS, 2, CLASSES), bool)
    found = train_probes(latents, targets, anything, split, dataclasses.replace(CONFIG, epochs=1))
    assert (found.correct == 300).all(), "every predicted class is right"


def test_probes_score_at_chance_on_shuffled_labels(planted):
    latents, targets = planted
    shuffled = np.random.default_rng(1).permutation(targets)
    found = train_probes(latents, shuffled, only_target(shuffled), split_levels(LEVELS), CONFIG)
    for correct in found.correct[:, 0]:  # seeds share test levels, so each is tested alone
        low, high = wilson(int(correct), 300)
        assert low < 1 / CLASSES < high, correct


def test_probes_are_the_same_after_writing_and_reading(planted, tmp_path):
    latents, targets = planted
    few = targets[:100]
    found = train_probes(latents[:100], few, only_target(few), split_levels(100), ProbeConfig(epochs=1))
    probes = jax.tree.map(lambda array: array[None], found.probes)
    written = ProbeSet(probes=probes, places=(3,), pushes=(1, 2), boxes=2)
    write_probes(written, ProbeConfig(), tmp_path / "probes")
    again = read_probes(tmp_path / "probes")
    assert again[1:] == written[1:]
    one = jax.tree.map(lambda array: array[0, 0, 0], again.probes)
    two = jax.tree.map(lambda array: array[0, 0], found.probes)
    few = jnp.asarray(latents[:3], jnp.float32)
    np.testing.assert_array_equal(probe_logits(one, few), probe_logits(two, few))
    (tmp_path / "probes").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="this is not a file of probes"):
        read_probes(tmp_path / "probes")


def test_a_split_has_every_level_once():
    split = split_levels(1003)
    assert [len(part) for part in split] == [702, 100, 201]
    assert sorted(np.concatenate(split)) == list(range(1003))
    with pytest.raises(ValueError, match="9 levels are too few"):
        split_levels(9)


def walkable_boards(board):
    """Return the boards that the player reaches without pushing, by the plain rules."""
    seen, frontier = {board.player: board}, [board]
    while frontier:
        here = frontier.pop()
        for direction in Direction:
            there = here.move(direction)
            if there.boxes == board.boxes and there.player not in seen:
                seen[there.player] = there
                frontier.append(there)
    return seen.values()


def pushes_by_the_rules(board):
    boxes, possible = sorted(board.boxes), set()
    for here in walkable_boards(board):
        for direction in Direction:
            there = here.move(direction)
            if there.boxes != board.boxes:
                (moved,) = board.boxes - there.boxes
                possible.add(4 * boxes.index(moved) + int(direction))
    return possible


def test_the_accuracy_of_a_guess_is_exact_on_enumerated_boards():
    """All positions of two boxes and a player in a room of 3x3, with every possible push as target once."""
    inner = [(r, c) for r in (1, 2, 3) for c in (1, 2, 3)]
    walls = frozenset((r, c) for r in range(5) for c in range(5) if (r, c) not in inner)
    targets = frozenset({(1, 1), (3, 3)})
    cells, first, expected = [], [], []
    for boxes in itertools.combinations(inner, 2):
        for player in set(inner) - set(boxes):
            board = BoxobanBoard(5, 5, walls, targets, frozenset(boxes), player)
            possible = pushes_by_the_rules(board)
            assert set(np.flatnonzero(possible_pushes(board.to_cells()))) == possible
            for push in possible:
                cells.append(board.to_cells())
                first.append(push)
                expected.append(1 / len(possible))
    assert len(cells) > 400
    cells, expected = np.stack(cells), pytest.approx(np.mean(expected), abs=1e-12)
    right = np.array(first)[:, None] == np.arange(8)
    assert guess_accuracy(cells, right) == expected
    # A level without a push is not counted.
    more = np.append(cells, cells[:1], axis=0), np.append(right, np.zeros_like(right[:1]), axis=0)
    assert guess_accuracy(*more) == expected


def test_targets_are_the_pushes_of_solutions(size):
    """By the plain rules, each push moves its box in its direction, and the last one solves the level."""
    bank = generate(
        BoxobanRecipe(height=7, width=7, boxes=3, min_pulls=5, max_pulls=40), {"a": size(60, 500)}, workers=1
    )["a"]
    solutions = solve_bank(bank)
    ahead = (1, 2, 3, 4, 6, 8, 12, 16)
    targets = push_targets(solutions, ahead)
    for level in range(len(bank)):
        board = bank.board(level)
        boxes, pushes = sorted(board.boxes), []
        for move in solutions.moves(level):
            after = board.move(Direction(int(move)))
            assert after != board
            if after.boxes != board.boxes:
                (left,), (entered,) = board.boxes - after.boxes, after.boxes - board.boxes
                pushes.append(4 * boxes.index(left) + int(move))
                boxes[boxes.index(left)] = entered
            board = after
        assert board.solved
        expected = [pushes[j - 1] if j <= len(pushes) else NONE for j in ahead]
        assert targets[level].tolist() == expected
    right = right_pushes(bank.cells(slice(None)), targets, ahead, workers=2)
    there = targets != NONE
    assert np.take_along_axis(right, np.maximum(targets, 0)[..., None], axis=2)[..., 0][there].all()
    assert not right[~there].any()
    assert right.sum() > there.sum(), "some levels have several shortest solutions"
    given_up = right_pushes(bank.cells(slice(None)), targets, ahead, node_limit=1)
    np.testing.assert_array_equal(given_up.sum(axis=2), there)


def test_the_interval_of_a_clustered_mean():
    """For equal clusters it is the interval of their means."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=50)
    mean, (low, high) = clustered_mean(np.repeat(means, 4), np.repeat(np.arange(50), 4))
    half = 1.959964 * means.std(ddof=1) / np.sqrt(50)
    assert mean == pytest.approx(means.mean())
    assert (low, high) == pytest.approx((mean - half, mean + half), rel=1e-6)
    assert clustered_mean(np.ones(3), np.zeros(3, int))[1] == (-np.inf, np.inf)
