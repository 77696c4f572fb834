"""The command line, as `looped-actor` and as `python -m looped_actor`."""

import sys

from looped_actor.utils.interrupts import exit_on_interrupt


def main() -> None:
    """Import the command line and run it."""
    with exit_on_interrupt():
        from looped_actor.cli.main import main as run
    try:
        run()
    finally:
        sys.stdout.flush()
        exit_on_interrupt(str).__enter__()  # Python's own exit takes a while, and all is said


if __name__ == "__main__":
    main()
