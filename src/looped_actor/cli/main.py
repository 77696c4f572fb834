"""`looped-actor`: the command line."""

import itertools
import os
import sys
import traceback
from typing import Any, NoReturn

import tyro

from looped_actor.cli.analyze import app as analyze
from looped_actor.cli.analyze import compare, replay
from looped_actor.cli.evaluate import evaluate
from looped_actor.cli.export import export
from looped_actor.cli.levels import app as levels
from looped_actor.cli.plan import plan
from looped_actor.cli.pretrained import pretrained
from looped_actor.cli.reproduce import app as reproduce
from looped_actor.cli.robots import app as robots
from looped_actor.cli.serve import serve
from looped_actor.cli.train import resume, train
from looped_actor.names import CUSTOM_CODE
from looped_actor.utils.checks import brief, printable
from looped_actor.utils.errors import UserError
from looped_actor.utils.interrupts import EXIT_CODE
from looped_actor.version import __version__

COMMANDS: dict[str, tuple[Any, str | None]] = {
    "train": (train, None),
    "resume": (resume, None),
    "pretrained": (pretrained, None),
    "eval": (evaluate, None),
    "analyze": (analyze, "Analyze the loops of trained policies."),
    "compare": (compare, None),
    "replay": (replay, None),
    "export": (export, None),
    "serve": (serve, None),
    "reproduce": (reproduce, "Reproduce the paper's figures, tables and theorem."),
    "plan": (plan, None),
    "levels": (levels, "Build, show and solve banks of puzzle levels."),
    "robots": (robots, "Collect or download robot data, and film policies."),
}
"""Commands in the order in which help shows them, with their summary; None: the first line of the
docstring."""
ALIASES = {"analyse": "analyze"}


def make_app(summary: bool = False) -> tyro.extras.SubcommandApp:
    """Return the application; with `summary`, help shows one sentence for each command."""
    app = tyro.extras.SubcommandApp()
    for name, (command, about) in COMMANDS.items():
        first = (command.__doc__ or "").partition("\n\n")[0]
        app.command(command, name=name, help=about or (" ".join(first.split()) if summary else None))
    return app


def main() -> None:
    """Run the command line. Errors of the user end in one line, others in a traceback."""
    sys.unraisablehook = _ignore_late_callbacks
    try:
        words = sys.argv[1:]
        if words and words[0] in ALIASES:
            words[0] = sys.argv[1] = ALIASES[words[0]]
        if words == ["--version"]:
            print(f"looped-actor {__version__}")
            return
        _check_options(words)
        make_app(summary=not words or words[0] not in COMMANDS).cli(
            prog="looped-actor",
            description="Adaptive-depth policies. `looped-actor COMMAND --help` shows options and examples.",
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
        line = _custom_code_line(error)
        if line is not None:
            traceback.print_exc()
            _end(f"the error above comes from your own code: {line}")
        if isinstance(error, UserError | OSError):
            _end(str(error))
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower():  # JAX has no class for it
            _end(f"there is not enough memory ({brief(error)})")
        traceback.print_exc()
        _end(
            f"this is a bug of looped-actor {__version__}. Please report the lines above and the command, as "
            "described in docs/contributing.md"
        )


def _ignore_late_callbacks(unraisable: Any) -> None:
    """Ignore threads of TensorStore that still call after an error in writing a checkpoint."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _custom_code_line(error: Exception) -> str | None:
    """Return file and line in a file given as `--code` that raised the error, or called what did."""
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [(frame, line) for frame, line in frames if frame.f_globals["__name__"].startswith(CUSTOM_CODE)]
    return f"{own[-1][0].f_code.co_filename}, line {own[-1][1]}" if own else None


def _end(message: str) -> NoReturn:
    print(f"looped-actor: {printable(message)}", file=sys.stderr)
    raise SystemExit(2) from None


def _check_options(arguments: list[str]) -> None:
    """Raise an error for mistakes that all commands have in common."""
    options = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    for option in options:
        if options.count(option) > 1:  # or the last would silently win
            raise UserError(f"{option} is given twice; give it once, with all of its values")
    given = [argument.removeprefix("--out=") for argument in arguments if argument.startswith("--out=")]
    given += [value for option, value in itertools.pairwise(arguments) if option == "--out"]
    for value in given:
        from looped_actor.utils.files import check_writable  # not needed for --help

        check_writable(value)  # before hours of work
