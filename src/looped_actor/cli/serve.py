"""`looped-actor serve`: policies over HTTP."""

import os
import pathlib
import sys
from typing import TYPE_CHECKING

from looped_actor.cli.shared import Folders
from looped_actor.utils.errors import UserError

if TYPE_CHECKING:
    from looped_actor.serving.options import ServeOptions


def serve(
    policies: Folders,
    /,
    *,
    names: tuple[str, ...] = (),
    address: str = "127.0.0.1:8000",
    replicas: int = 1,
    slots: int | None = None,
    waiting: int = 1024,
    max_loops: int | None = None,
    board: tuple[int, int] | None = None,
    code: pathlib.Path | None = None,
) -> None:
    """Serve policies over HTTP until SIGTERM or Ctrl-C. Each decision takes as many loops as it needs.

    The protocol is KServe's version 2, which `tritonclient` and others speak. By default the server listens
    on this machine only; on other addresses clients need the token in the environment variable
    LOOPED_ACTOR_TOKEN. On SIGHUP the policies are loaded again without interruption.

    Example: looped-actor serve rush-hour-micro

    Example: looped-actor serve runs/first runs/other --names boxoban rush-hour --replicas 2

    Example: looped-actor serve runs/walk --code examples/custom_environment.py

    Args:
      policies: Folders of runs or of their policies, or names that `looped-actor pretrained` lists.
      names: Names in URLs. Default: the names of the folders.
      address: Host and port to listen on.
      replicas: Processes that share the port.
      slots: States that loop together in a replica. Default: what suits the device.
      waiting: Length of the queue of a replica; further requests are refused with 503.
      max_loops: Maximum number of loops that a request may ask for. Default: as in training.
      board: Puzzles: rows and columns of the boards. Default: as in training.
      code: Custom environment: a Python file with `env` and `build`. Every replica executes it.
    """
    from looped_actor.serving.options import TOKEN, ServeOptions

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"--address {address}: it must be a host and a port, as 127.0.0.1:8000")
    options = ServeOptions(
        host=host.strip("[]"),
        port=int(port),
        replicas=replicas,
        slots=slots,
        max_waiting=waiting,
        max_loops=max_loops,
        board=board,
        code=None if code is None else str(code.resolve()),
        token=os.environ.get(TOKEN, ""),
    )
    _serve(_named(policies, names), options, address)


def _named(policies: Folders, names: tuple[str, ...]) -> dict[str, str]:
    """Return the folders of policies by their names."""
    from looped_actor.policy.pretrained import locate

    called = names or tuple(_name(policy) for policy in policies)
    if not policies or len(called) != len(policies) or len(set(called)) < len(called):
        raise UserError(
            f"{len(policies)} policies have the names {list(called)}: give each its own name with --names"
        )
    return {name: str(locate(policy).resolve()) for name, policy in zip(called, policies, strict=True)}


def _serve(folders: dict[str, str], options: "ServeOptions", address: str) -> None:
    """Serve until a signal says to stop."""
    from looped_actor.serving.server import Supervisor

    def report(sentence: str) -> None:
        print(sentence, flush=True)

    def warn(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    def ready() -> None:
        for name in folders:
            report(f"http://{address}/v2/models/{name}")

    Supervisor(folders, options, report, warn).run(ready)


def _name(folder: pathlib.Path) -> str:
    folder = folder.resolve()
    return folder.parent.name if folder.name == "policy" else folder.name
