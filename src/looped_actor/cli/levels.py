"""`looped-actor levels`: build, show and solve banks of levels."""

import contextlib
import pathlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from looped_actor.cli.shared import WorkerOptions, check_files, progress_bar
from looped_actor.names import PUZZLES
from looped_actor.utils.errors import UserError

if TYPE_CHECKING:
    from looped_actor.puzzles.banks import LevelBank

app = tyro.extras.SubcommandApp()
build = tyro.extras.SubcommandApp()
app.command(build, name="build", help="Build banks: generated, or from public collections.")

Bank = Annotated[pathlib.Path, tyro.conf.Positional]


def _open(bank: pathlib.Path) -> "LevelBank":
    """Open the bank of a file, or the levels that come with the package by the name of a game."""
    starter = str(bank) in PUZZLES and not bank.exists()
    if not starter:
        check_files(bank, hint="; `looped-actor levels build` makes one")
    from looped_actor.puzzles.banks import open_bank, starter_bank

    return starter_bank(str(bank)) if starter else open_bank(bank)


def _write(bank: "LevelBank", path: pathlib.Path) -> None:
    from looped_actor.puzzles.banks import write_bank

    write_bank(bank, path)
    print(f"{path}: {len(bank):,} levels")


@dataclass(frozen=True)
class Splits:
    """Splits to write."""

    out: pathlib.Path = pathlib.Path("levels")
    """Folder to write GAME-SPLIT.levels to."""
    train: int | None = None
    """Training levels to generate. Default: 10,000. An import has all that the other splits leave."""
    valid: int | None = None
    """Validation levels. Default: 1,000."""
    test: int | None = None
    """Test levels. Default: 1,000."""

    @property
    def counts(self) -> dict[str, int]:
        """Levels of each split, in the order of generation: a larger train leaves the others as they are."""
        default = {"test": 1_000, "valid": 1_000, "train": 10_000}
        given = {name: getattr(self, name) for name in default}
        return {name: default[name] if count is None else count for name, count in given.items()}

    def refuse(self, reason: str, *options: str) -> None:
        """Raise an error that names the first of these options which was given and does not apply."""
        for option in options:
            if getattr(self, option) is not None:
                raise UserError(f"{reason}: leave --{option} out")


@dataclass(frozen=True)
class BoxobanBoards:
    """Generated boards of Boxoban."""

    height: int = 10
    """Rows, walls included."""
    width: int = 10
    """Columns, walls included."""
    boxes: int = 4
    """Number of boxes."""
    pulls: tuple[int, int] = (5, 60)
    """Minimum and maximum number of pulls in reverse play: more give longer solutions."""
    floor: float = 0.6
    """Minimum share of the inner cells that are floor."""
    direct_share: float = 1.0
    """Share of the easy levels, in which every push brings a box nearer to a target, that is kept."""
    seed: int = 0
    """Seed of the generator."""


@dataclass(frozen=True)
class RushHourBoards:
    """Generated boards of Rush Hour."""

    height: int = 6
    """Rows."""
    width: int = 6
    """Columns."""
    moves: tuple[int, int] = (1, 15)
    """Minimum and maximum number of moves of an optimal solution."""
    vehicles: tuple[int, int] = (8, 13)
    """Minimum and maximum number of vehicles, red car included."""
    max_walls: int = 0
    """Maximum number of walls."""
    seed: int = 0
    """Seed of the generator, or of the draw that splits an import."""


@build.command(name="boxoban")
def build_boxoban(
    *,
    into: Splits,
    source: pathlib.Path | None = None,
    splits: tuple[str, ...] = (),
    boards: BoxobanBoards,
    work: WorkerOptions,
) -> None:
    """Build banks of Boxoban levels: generated, or with --source from a copy of the Boxoban collection.

    Generated levels come from reverse play, are certified by the optimal solver, and are the same for the
    same options with any number of workers. If interrupted, the same command continues.

    Example: looped-actor levels build boxoban --source boxoban-levels --splits unfiltered/train

    Example: looped-actor levels build boxoban --height 7 --width 7 --boxes 2 --train 5000

    Args:
      source: Copy of the repository google-deepmind/boxoban-levels, to import instead of generating.
      splits: Folders of it to import, such as unfiltered/train. Default: all.
    """
    from looped_actor.puzzles.boxoban.generator import BoxobanRecipe
    from looped_actor.puzzles.sources import read_boxoban

    if source is None:
        b = boards
        recipe = BoxobanRecipe(b.height, b.width, b.boxes, *b.pulls, b.floor, b.direct_share, seed=b.seed)
        if splits:
            raise UserError("--splits names folders to import: give --source, or leave --splits out")
        _generate("boxoban", recipe, into, work)
        return
    into.refuse("an import of Boxoban keeps the splits of the collection", "train", "valid", "test")
    found = sorted({str(path.parent.relative_to(source)) for path in source.glob("**/*.txt")})
    for split in splits or [name for name in found if name != "."]:
        with progress_bar(split) as progress:
            bank = read_boxoban(source, split, progress)
        _write(bank, into.out / f"boxoban-{split.replace('/', '-')}.levels")
    if not (splits or found):
        raise UserError(f"{source}: no level files (*.txt) in this folder; is it a copy of boxoban-levels?")


@build.command(name="rush-hour")
def build_rush_hour(
    *,
    into: Splits,
    source: pathlib.Path | None = None,
    licence: str = "not stated: see the source",
    boards: RushHourBoards,
    enumerate_all: bool = False,
    work: WorkerOptions,
) -> None:
    """Build banks of Rush Hour levels: generated, or with --source from the text of the public database.

    A generated level is the hardest board of its cluster (a set of mutually reachable boards). Its length is
    certified by exploring the whole cluster, and no cluster gives two levels, so no board of one split is
    reachable from another. The same options give the same files with any number of workers. If interrupted,
    the same command continues.

    Example: looped-actor levels build rush-hour --train 200000 --valid 10000 --test 10000

    Example: looped-actor levels build rush-hour --train 2000000 --ray auto --out /shared/levels

    Example: looped-actor levels build rush-hour --source rush.txt --valid 10000 --test 10000

    Example: looped-actor levels build rush-hour --enumerate-all --height 5 --width 5

    Args:
      source: Text with rows `moves board clustersize`, to import instead of generating.
      licence: Licence of that text, which is stored with the levels.
      enumerate_all: Build one bank of all interesting positions of a board up to 5x5, instead of a sample.
    """
    from looped_actor.puzzles.generate import enumerate_rush_hour, split_at_random
    from looped_actor.puzzles.rush_hour.generator import RushHourRecipe
    from looped_actor.puzzles.sources import read_rush_hour_database

    if enumerate_all:
        into.refuse("--enumerate-all makes one bank of all positions", "train", "valid", "test")
    elif source is not None:
        into.refuse("an import has for training all that the other splits leave", "train")
    height, width, moves = boards.height, boards.width, boards.moves
    if enumerate_all:
        if max(height, width) > 5:
            raise UserError(f"a {height}x{width} board would take days: at most 5x5 is enumerated here")
        with progress_bar("enumerating") as progress:
            bank = enumerate_rush_hour(height, width, progress=progress)
        _write(bank, into.out / f"rush-hour-all-{height}x{width}.levels")
    elif source is None:
        walls = boards.max_walls
        recipe = RushHourRecipe(height, width, *moves, *boards.vehicles, walls, seed=boards.seed)
        _generate("rush-hour", recipe, into, work)
    else:
        with progress_bar(source.name) as progress:
            bank = read_rush_hour_database(source, max_moves=moves[1], licence=licence, progress=progress)
        wanted = {name: into.counts[name] for name in ("test", "valid")}
        for split, part in split_at_random(bank, wanted, boards.seed).items():
            _write(part, into.out / f"rush-hour-{split}.levels")


def _generate(game: str, recipe: Any, into: Splits, work: WorkerOptions) -> None:
    from looped_actor.puzzles.generate import generate, parts_folder
    from looped_actor.utils.processes import remove_parts

    parts = parts_folder(recipe, into.out / ".unfinished")
    with work.pool() as workers, progress_bar("generating") as progress:
        banks = generate(recipe, into.counts, workers=workers, parts=parts, progress=progress)
    for split, bank in banks.items():
        _write(bank, into.out / f"{game}-{split}.levels")
    remove_parts(parts)
    with contextlib.suppress(OSError):  # where another recipe has unfinished work, the folder stays
        parts.parent.rmdir()


@app.command(name="info")
def info(bank: Bank, /) -> None:
    """Show facts about a bank, and check every level of it.

    Example: looped-actor levels info levels/rush-hour-test.levels

    Args:
      bank: File; or boxoban or rush-hour for the levels that come with the package.
    """
    from rich.console import Console
    from rich.table import Table

    opened = _open(bank)
    opened.check()
    facts = opened.info
    table = Table(title=str(bank), show_header=False)
    table.add_row("game", facts.game)
    table.add_row("levels", f"{facts.count:,}, all valid")
    table.add_row("board", f"{facts.height} x {facts.width}")
    table.add_row("source", facts.source)
    table.add_row("licence", facts.licence)
    table.add_row("checksum", f"{facts.checksum[:16]}..., holds")
    for column, values in opened.columns.items():
        if len(values) and column != "cluster":
            table.add_row(column, f"{values.min():,} to {values.max():,}, mean {values.mean():,.1f}")
    Console(markup=False).print(table)


@app.command(name="show")
def show(
    bank: Bank,
    /,
    *,
    index: int = 0,
    count: int = 1,
    solve: bool = False,
    out: pathlib.Path | None = None,
    cell: int = 40,
) -> None:
    """Show levels in the terminal, or draw them into a file.

    Example: looped-actor levels show rush-hour --index 3

    Example: looped-actor levels show levels/boxoban-test.levels --count 12 --out sheet.png

    Example: looped-actor levels show levels/rush-hour-test.levels --index 7 --solve --out solution.gif

    Args:
      bank: File; or boxoban or rush-hour for the levels that come with the package.
      index: First level to show, counted from 0.
      count: Number of levels.
      solve: Play the optimal solution of one level: in the terminal as text, or as a GIF.
      out: File: .png, .svg or, with --solve, .gif.
      cell: Size of a cell in that picture, in pixels.
    """
    if count < 1:
        raise UserError(f"--count must be at least 1, not {count}")
    if not 4 <= cell <= 200:
        raise UserError(f"--cell must be 4 to 200 pixels, not {cell}")
    opened = _open(bank)
    from looped_actor.puzzles.replay import solution_boards

    boards = [opened.board(i) for i in range(index, index + count)]
    if solve:
        boards = solution_boards(boards[0])
    _present(boards, out, cell, episode=solve)


def _present(boards: list, out: pathlib.Path | None, cell: int, *, episode: bool) -> None:
    from rich.console import Console

    from looped_actor.puzzles.pictures import save, save_episode, terminal_text

    if out is None:
        for board in boards:
            Console(markup=False).print(terminal_text(board), "")
    elif episode:
        save_episode(boards, out, cell=cell)
    else:
        save(boards, out, cell=cell)
    if out is not None:
        print(f"{out}: {len(boards)} {'frames' if episode else 'levels'}")


@app.command(name="solve")
def solve(
    bank: Bank,
    /,
    *,
    out: pathlib.Path | None = None,
    first: int = 0,
    count: int | None = None,
    work: WorkerOptions,
) -> None:
    """Find solutions with the fewest moves, and write them.

    If interrupted, the same command continues.

    Example: looped-actor levels solve levels/boxoban-test.levels --count 100

    Args:
      bank: File with the levels.
      out: File for the solutions. Default: the bank's name, ending in .solutions.
      first: First level to solve, counted from 0.
      count: Number of levels to solve. Default: all from there on.
    """
    opened = _open(bank)
    from looped_actor.puzzles.search import SolveStatus
    from looped_actor.puzzles.solutions import solve_bank, write_solutions
    from looped_actor.utils.processes import remove_parts

    out = out or bank.with_suffix(".solutions")
    parts = out.with_name(f".{out.name}.unfinished")
    with work.pool() as workers, progress_bar("solving") as progress:
        solutions = solve_bank(
            opened,
            first=first,
            count=count,
            workers=workers,
            parts=parts,
            progress=progress,
        )
    write_solutions(solutions, out)
    remove_parts(parts)
    for status in SolveStatus:
        number = int((solutions.status == status.value).sum())
        print(f"{status.words}: {number:,} of {len(solutions):,}")
    solved = solutions.status == SolveStatus.SOLVED.value
    if solved.any():
        lengths = solutions.move_counts[solved]
        print(f"moves: {lengths.min()} to {lengths.max()}, mean {lengths.mean():.1f}\n{out}")
