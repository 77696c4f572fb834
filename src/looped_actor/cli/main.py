"""`looped-actor`: the command line."""

import sys

import tyro

from looped_actor.cli.analyse import app as analyse
from looped_actor.cli.analyse import compare, replay
from looped_actor.cli.bench import app as bench
from looped_actor.cli.levels import app as levels
from looped_actor.cli.models import models
from looped_actor.cli.ogbench import app as ogbench
from looped_actor.cli.train import evaluate, resume, train

app = tyro.extras.SubcommandApp()
app.command(train)
app.command(resume)
app.command(name="eval")(evaluate)
app.command(analyse, name="analyse", help="Look at what the loops of trained policies do.")
app.command(compare)
app.command(replay)
app.command(models)
app.command(levels, name="levels", help="Build, look at and solve banks of puzzle levels.")
app.command(ogbench, name="ogbench", help="Collect or fetch data of robot manipulation, and film policies.")
app.command(bench, name="bench", help="Time what halting saves.")


def main() -> None:
    """Run the command line; a mistake of the user's ends in one line, not in a traceback."""
    try:
        app.cli(
            prog="looped-actor",
            description="Policies that think in loops.",
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except (ValueError, ChildProcessError) as mistake:
        print(f"looped-actor: {mistake}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
