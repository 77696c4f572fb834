"""Ctrl-C on the command line prints one sentence, also while modules are imported and when Python exits.

At these times nothing catches `KeyboardInterrupt`, and libraries may turn it into other errors.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130
"""Exit code by the convention of shells: 128 plus the number of the signal."""


def is_command() -> bool:
    """Return whether this process is `looped-actor`, or `python -m looped_actor` before it imports the
    command."""
    name = sys.argv[0] if sys.argv else ""
    return os.path.basename(name) == "looped-actor" or (name == "-m" and "looped_actor" in sys.orig_argv)


@contextmanager
def exit_on_interrupt(
    sentence: Callable[[], str] = lambda: "interrupted before anything was written",
) -> Iterator[None]:
    """Let Ctrl-C end the process immediately. Use it only around work that may be killed and has no workers.

    Args:
      sentence: returns the message to print. Empty: nothing is printed.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        if said := sentence():
            show_cursor = "\r\x1b[K\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
            os.write(2, f"{show_cursor}looped-actor: {said}\n".encode())
        os._exit(EXIT_CODE)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as in the background jobs of a shell script
        signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
