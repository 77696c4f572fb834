"""Ctrl-C on the command line ends in one sentence, also while modules are imported and when Python exits.

There nobody catches `KeyboardInterrupt`, and libraries turn it into errors of their own.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130
"""As shells have it: 128, and the number of the signal."""


def is_command() -> bool:
    """Return whether this process is `looped-actor`, or `python -m looped_actor` on its way to it."""
    name = sys.argv[0] if sys.argv else ""
    return os.path.basename(name) == "looped-actor" or (name == "-m" and "looped_actor" in sys.orig_argv)


@contextmanager
def exit_on_interrupt(sentence: str = "interrupted before anything was written") -> Iterator[None]:
    """Let Ctrl-C end the process at once. Nothing that must be cleaned up may be under way.

    Args:
      sentence: printed then. Empty: nothing is.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        if sentence:
            os.write(sys.stderr.fileno(), f"looped-actor: {sentence}\n".encode())
        os._exit(EXIT_CODE)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
