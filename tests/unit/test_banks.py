"""Level banks: what is written is read, and nothing else."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from boards import random_boxoban, random_rush_hour
from looped_actor.puzzles.banks import make_bank, open_bank, starter_bank, write_bank
from looped_actor.puzzles.boxoban.generator import BoxobanRecipe
from looped_actor.puzzles.catalogue import BOXOBAN, RUSH_HOUR
from looped_actor.puzzles.generate import generate, split_at_random
from looped_actor.puzzles.grid import LevelError
from looped_actor.puzzles.replay import solution_boards, solution_cells
from looped_actor.puzzles.rush_hour.generator import RushHourRecipe
from looped_actor.puzzles.solutions import open_solutions, solution_wins, solve_bank, write_solutions
from looped_actor.puzzles.sources import read_boxoban, read_boxoban_file, read_rush_hour_database


def some_boards(game, count=20, shape=(5, 5)):
    rng = np.random.default_rng(0)
    make = random_boxoban if game is BOXOBAN else random_rush_hour
    return [make(rng, shape=shape) for _ in range(count)]


@pytest.fixture(params=[BOXOBAN, RUSH_HOUR], ids=["boxoban", "rush-hour"])
def bank(request):
    boards = some_boards(request.param)
    cells = np.stack([board.to_cells() for board in boards])
    columns = {"moves": np.arange(len(boards), dtype=np.uint16)}
    return make_bank(request.param, cells, source="a test", licence="none", columns=columns)


def test_round_trip(bank, tmp_path):
    write_bank(bank, tmp_path / "a.levels")
    write_bank(bank, tmp_path / "b.levels")
    assert (tmp_path / "a.levels").read_bytes() == (tmp_path / "b.levels").read_bytes()
    opened = open_bank(tmp_path / "a.levels")
    assert opened.info == bank.info
    assert isinstance(opened.packed, np.memmap)
    np.testing.assert_array_equal(opened.columns["moves"], np.arange(20))
    assert [opened.board(i) for i in range(20)] == some_boards(bank.game)
    device = opened.on_device()
    assert device.count == 20
    np.testing.assert_array_equal(device.cells(jnp.int32(7)), opened.board(7).to_cells())
    opened.check()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.levels", "b.levels"]


def test_a_level_that_is_not_there(bank):
    with pytest.raises(LevelError, match="no level 20; there are 20"):
        bank.board(20)
    with pytest.raises(LevelError, match="no level -1"):
        bank.board(-1)


def test_every_flipped_bit_is_noticed(bank, tmp_path):
    write_bank(bank, path := tmp_path / "a.levels")
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(whole), 300):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(LevelError, match=r"a\.levels"):
            open_bank(path)


@pytest.mark.parametrize("length", [0, 7, 8, 100, -1])
def test_a_file_cut_short(bank, tmp_path, length):
    write_bank(bank, path := tmp_path / "a.levels")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(LevelError, match=r"a\.levels"):
        open_bank(path)


def test_no_file(tmp_path):
    with pytest.raises(LevelError, match="looped-actor levels build"):
        open_bank(tmp_path / "none.levels")


def test_a_bank_of_nonsense_is_not_made():
    cells = np.zeros((3, 4, 4), np.uint8)
    with pytest.raises(LevelError, match="level 0: 0 players"):
        make_bank(BOXOBAN, cells, source="", licence="")


def test_all_levels_of_the_collection(boxoban_levels, size):
    counts = {"unfiltered/test": 1_000, "medium/valid": 50_000, "hard": 3_332, "unfiltered/valid": 100_000}
    counts |= size({}, {"unfiltered/train": 900_000})
    for split, count in counts.items():
        bank = read_boxoban(boxoban_levels, split)
        assert bank.info.licence == "Apache-2.0"
        assert len(bank) == count
        for first in range(0, count, 100_000):
            cells = bank.cells(slice(first, first + 100_000)).reshape(-1, 100)
            for kind, number in ((2, 4), (4, 4), (8, 1)):  # boxes, targets, player
                assert (((cells & kind) != 0).sum(axis=1) == number).all()
        # The last level of each file, as the file's own text has it.
        at = 0
        for path in sorted((boxoban_levels / split).glob("*.txt")):
            last = path.read_text().rstrip("\n").split("; ")[-1].split("\n", 1)[1]
            at += path.read_text().count(";")
            assert str(bank.board(at - 1)) == last.strip("\n")
        assert at == count


def test_the_fast_reader_reads_what_the_plain_one_does(boxoban_levels):
    path = boxoban_levels / "hard" / "000.txt"
    texts = [block.split("\n", 1)[1].strip("\n") for block in path.read_text().split("; ")[1:]]
    plain = np.stack([BOXOBAN.board.parse(text).to_cells() for text in texts])
    np.testing.assert_array_equal(read_boxoban_file(path), plain)


def test_a_folder_without_levels(tmp_path):
    (tmp_path / "hard").mkdir()
    (tmp_path / "hard" / "000.txt").write_text("; 0\n#.$@#\n")
    assert len(read_boxoban(tmp_path, "hard")) == 1
    with pytest.raises(LevelError, match="splits found there: hard"):
        read_boxoban(tmp_path, "easy")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("; 0\n#@$.#\n\n; 1\n#@$?#\n", 5, "'?'"),
        ("; 0\n#@$.#\n\n; 1\n#@$.#\n##\n", 6, "this row has 2 cells"),
        ("; 0\n#@$.#\n\n; 1\n#@$ .#\n", 5, "a level of 1x6 in a file that began with 1x5"),
        ("; 0\n#@$.#\n\n; 1\n#@$$#\n", 5, "2 boxes for 0 targets"),
        ("; 0\n\n", 1, "no level"),
        ("", 1, "no level"),
        ("; 0\n#@$\u00e9.#\n", 2, "'\u00e9'"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, text, line, problem):
    (path := tmp_path / "bad.txt").write_text(text)
    with pytest.raises(LevelError, match=problem.replace("?", r"\?")) as error:
        read_boxoban_file(path)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_the_rush_hour_database(tmp_path):
    rows = [
        "51 BCDDEoBCFoEGBoFAAGHHHIoGooJIKKLLJMMo 4780",
        "15 ooBoooooBoooAABooooooooooooooooooooo 20",
        "2 .............BAA...B................ 7",
    ]
    (path := tmp_path / "rush.txt").write_text("\n".join(rows) + "\n")
    bank = read_rush_hour_database(path)
    assert list(bank.columns["moves"]) == [15, 2]
    assert list(bank.columns["cluster_size"]) == [20, 7]
    assert len(read_rush_hour_database(path, max_moves=None)) == 3
    path.write_text(rows[1] + "\n3 AAB 2\n")
    with pytest.raises(LevelError, match=r"rush.txt:2: a board of 3 cells in a file that began with 6x6"):
        read_rush_hour_database(path)
    path.write_text(rows[1] + "\nhello\n")
    with pytest.raises(LevelError, match=r"rush.txt:2: expected `moves board clustersize`"):
        read_rush_hour_database(path)


def test_splits_are_disjoint(bank):
    parts = split_at_random(bank, {"test": 3, "valid": 4}, seed=1)
    assert {name: len(part) for name, part in parts.items()} == {"test": 3, "valid": 4, "train": 13}
    numbers = [int(n) for part in parts.values() for n in part.columns["moves"]]
    assert sorted(numbers) == list(range(20))
    with pytest.raises(ValueError, match="do not leave a level for training"):
        split_at_random(bank, {"test": 20}, seed=1)


def test_starter_levels():
    for game in ("boxoban", "rush-hour"):
        bank = starter_bank(game)
        bank.check()
        assert len(bank) == 1000


def test_recipes_refuse_the_impossible():
    for recipe, options in (
        (BoxobanRecipe, {"height": 3}),
        (BoxobanRecipe, {"boxes": 0}),
        (BoxobanRecipe, {"boxes": 30}),
        (BoxobanRecipe, {"min_pulls": 9, "max_pulls": 3}),
        (RushHourRecipe, {"width": 9}),
        (RushHourRecipe, {"min_moves": 0}),
        (RushHourRecipe, {"max_vehicles": 40}),
        (RushHourRecipe, {"max_walls": -1}),
        (RushHourRecipe, {"seed": -1}),
    ):
        with pytest.raises(ValueError, match=r"\d"):
            recipe(**options)


def test_generated_levels_are_what_they_say():
    from looped_actor.puzzles.boxoban import solver as boxoban
    from looped_actor.puzzles.rush_hour import solver as rush_hour

    recipe = BoxobanRecipe(height=7, width=8, boxes=2, seed=5)
    banks = generate(recipe, {"test": 5, "train": 20})
    larger = generate(recipe, {"test": 5, "train": 30})
    assert banks["test"].info == larger["test"].info
    moves = banks["train"].columns["moves"]
    for i in range(20):
        board = banks["train"].board(i)
        assert len(board.boxes) == 2
        assert not board.boxes & board.targets
        assert len(boxoban.solve(board).moves) == moves[i]

    recipe = RushHourRecipe(height=5, width=5, min_vehicles=4, max_vehicles=8, max_walls=2, min_moves=4)
    banks = generate(recipe, {"test": 10, "train": 40})
    boards = [(bank.board(i), bank.columns["moves"][i]) for bank in banks.values() for i in range(len(bank))]
    for board, length in boards[::5]:
        assert len(rush_hour.solve(board).moves) == length >= 4
        assert rush_hour.explore(board).distance.max() == length
    clusters = [frozenset(rush_hour.explore(board).board(i) for i in range(20)) for board, _ in boards[:1]]
    assert all(board not in clusters[0] for board, _ in boards[1:])
    assert any(board.walls for board, _ in boards)


def test_an_exhausted_recipe_says_so():
    recipe = RushHourRecipe(height=4, width=4, min_vehicles=2, max_vehicles=2)
    with pytest.raises(ValueError, match=r"found \d+ different levels of 100000"):
        generate(recipe, {"train": 100_000})


def test_info_is_data(bank):
    assert dataclasses.asdict(bank.info)["count"] == 20


@pytest.mark.parametrize("game", ["boxoban", "rush-hour"])
def test_solutions_of_a_bank_win_its_levels(game, tmp_path):
    bank = starter_bank(game)
    write_solutions(solve_bank(bank, first=2, count=3), tmp_path / "a.solutions")
    solutions = open_solutions(tmp_path / "a.solutions", bank)
    for index in range(3):
        board = bank.board(2 + index)
        assert solution_wins(bank, solutions, index)
        assert len(solution_cells(board)) == len(solution_boards(board)) - 1
        assert solution_boards(board)[-1].solved


def test_recipes_name_everything_that_decides_their_levels():
    """The text is part of the checksum of generated banks, so it must not change."""
    bank = generate(BoxobanRecipe(height=5, width=5, boxes=1), {"test": 1})["test"]
    assert bank.info.source == (
        "generated by looped-actor: height 5, width 5, boxes 1, min_pulls 5, max_pulls 60, floor 0.6, "
        "direct_share 1.0, node_limit 300000, seed 0; levels 0 to 0"
    )
