"""`looped-actor`: the command line."""

import itertools
import os
import sys
import traceback
from typing import Any, NoReturn

import tyro

from looped_actor.cli.analyse import app as analyse
from looped_actor.cli.analyse import compare, replay
from looped_actor.cli.bench import app as bench
from looped_actor.cli.bench import plan, tune
from looped_actor.cli.evaluate import evaluate
from looped_actor.cli.export import export
from looped_actor.cli.levels import app as levels
from looped_actor.cli.models import models
from looped_actor.cli.ogbench import app as ogbench
from looped_actor.cli.policies import policies
from looped_actor.cli.reproduce import app as reproduce
from looped_actor.cli.serve import serve
from looped_actor.cli.theory import theory
from looped_actor.cli.train import resume, train
from looped_actor.names import OWN_CODE
from looped_actor.utils.checks import brief, printable
from looped_actor.utils.errors import UserError
from looped_actor.utils.interrupts import EXIT_CODE
from looped_actor.version import __version__

COMMANDS: dict[str, tuple[Any, str | None]] = {
    "train": (train, None),
    "resume": (resume, None),
    "policies": (policies, None),
    "eval": (evaluate, None),
    "analyse": (analyse, "Look at what the loops of trained policies do."),
    "compare": (compare, None),
    "replay": (replay, None),
    "export": (export, None),
    "serve": (serve, None),
    "reproduce": (reproduce, "Reproduce the paper's figures and tables by their names."),
    "models": (models, None),
    "plan": (plan, None),
    "tune": (tune, None),
    "theory": (theory, None),
    "levels": (levels, "Build, look at and solve banks of puzzle levels."),
    "ogbench": (ogbench, "Collect or fetch data of robot manipulation, and film policies."),
    "bench": (bench, "Time what halting saves."),
}
"""By name, in the order in which help shows them; those without a word of their own have a docstring."""


def made(in_short: bool = False) -> tyro.extras.SubcommandApp:
    """The application; in short, help says one sentence of each command, and nothing else of it."""
    app = tyro.extras.SubcommandApp()
    for name, (command, about) in COMMANDS.items():
        first = (command.__doc__ or "").partition("\n\n")[0]
        app.command(command, name=name, help=about or (" ".join(first.split()) if in_short else None))
    return app


def main() -> None:
    """Run the command line; a mistake of the user's ends in one line, not in a traceback."""
    sys.unraisablehook = _but_late_callbacks
    try:
        words = sys.argv[1:]
        if words == ["--version"]:
            print(f"looped-actor {__version__}")
            return
        _check_options(words)
        made(in_short=not words or words[0] not in COMMANDS).cli(
            prog="looped-actor",
            description="Policies that think in loops. `looped-actor COMMAND --help` has examples.",
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
        )
    except BrokenPipeError:  # as in `looped-actor ... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt as interrupt:
        print(
            f"looped-actor: {interrupt}" if str(interrupt) else "looped-actor: interrupted", file=sys.stderr
        )
        raise SystemExit(EXIT_CODE) from None
    except Exception as error:
        own = _line_of_own_code(error)
        if own is not None:  # a user wants to see the way there
            traceback.print_exc()
            _end(f"the error above comes from your own code: {own}")
        if isinstance(error, UserError | OSError):
            _end(str(error))
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


def _line_of_own_code(error: Exception) -> str | None:
    """Where a file given as `--code` raised an error, or called what did."""
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [(frame, line) for frame, line in frames if frame.f_globals["__name__"].startswith(OWN_CODE)]
    return f"{own[-1][0].f_code.co_filename}, line {own[-1][1]}" if own else None


def _end(message: str) -> NoReturn:
    print(f"looped-actor: {printable(message)}", file=sys.stderr)
    raise SystemExit(2) from None


def _check_options(arguments: list[str]) -> None:
    """What is wrong with any command in the same way."""
    options = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    for option in options:
        if options.count(option) > 1:  # the last would count and the first be forgotten without a word
            raise UserError(f"{option} is given twice; give it once, with all of its values")
    given = [argument.removeprefix("--out=") for argument in arguments if argument.startswith("--out=")]
    given += [value for option, value in itertools.pairwise(arguments) if option == "--out"]
    for value in given:
        from looped_actor.utils.files import check_writable  # which --help need not wait for

        check_writable(value)  # before hours of work
