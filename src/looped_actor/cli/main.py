"""`looped-actor`: the command line."""

import itertools
import os
import pathlib
import sys
import traceback
from typing import Any, NoReturn

import tyro

from looped_actor.checks import brief, printable
from looped_actor.cli.analyse import app as analyse
from looped_actor.cli.analyse import compare, replay
from looped_actor.cli.bench import app as bench
from looped_actor.cli.bench import plan, tune
from looped_actor.cli.evaluate import evaluate
from looped_actor.cli.export import export
from looped_actor.cli.levels import app as levels
from looped_actor.cli.models import models
from looped_actor.cli.ogbench import app as ogbench
from looped_actor.cli.reproduce import app as reproduce
from looped_actor.cli.serve import serve
from looped_actor.cli.theory import theory
from looped_actor.cli.train import resume, train
from looped_actor.version import __version__

app = tyro.extras.SubcommandApp()
app.command(train)
app.command(resume)
app.command(name="eval")(evaluate)
app.command(analyse, name="analyse", help="Look at what the loops of trained policies do.")
app.command(compare)
app.command(replay)
app.command(export)
app.command(serve)
app.command(reproduce, name="reproduce", help="Reproduce the paper's figures and tables by their names.")
app.command(models)
app.command(plan)
app.command(tune)
app.command(theory)
app.command(levels, name="levels", help="Build, look at and solve banks of puzzle levels.")
app.command(ogbench, name="ogbench", help="Collect or fetch data of robot manipulation, and film policies.")
app.command(bench, name="bench", help="Time what halting saves.")


def main() -> None:
    """Run the command line; a mistake of the user's ends in one line, not in a traceback."""
    sys.unraisablehook = _but_late_callbacks
    try:
        _check_options(sys.argv[1:])
        app.cli(
            prog="looped-actor",
            description="Policies that think in loops.",
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
        )
    except BrokenPipeError:  # as in `looped-actor ... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (ValueError, OSError) as mistake:
        _end(str(mistake))
    except Exception as error:
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower():  # JAX has no class for it
            _end(f"there is not enough memory for what was asked ({brief(error)})")
        traceback.print_exc()
        _end(
            f"this should not have happened: it is a mistake of looped-actor {__version__}. Please report "
            "the lines above and the command, as its handbook says under Contributing"
        )


def _but_late_callbacks(unraisable: Any) -> None:
    """After an error in writing a checkpoint, raised elsewhere, threads of TensorStore still call."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _end(message: str) -> NoReturn:
    print(f"looped-actor: {printable(message)}", file=sys.stderr)
    raise SystemExit(2) from None


def _check_options(arguments: list[str]) -> None:
    """What is wrong with any command in the same way."""
    options = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    for option in options:
        if options.count(option) > 1:  # the last would count and the first be forgotten without a word
            raise ValueError(f"{option} is given twice; give it once, with all of its values")
    for option, value in itertools.pairwise(arguments):
        if option == "--out":
            from looped_actor.files import check_writable  # which --help need not wait for

            check_writable(pathlib.Path(value))  # before hours of work
