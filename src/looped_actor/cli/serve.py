"""`looped-actor serve`: policies that answer over HTTP."""

import os
import pathlib
import sys
from typing import TYPE_CHECKING

from looped_actor.cli.shared import Folders
from looped_actor.utils.errors import UserError

if TYPE_CHECKING:
    from looped_actor.serving.server import Serving


def serve(
    policies: Folders,
    /,
    *,
    names: tuple[str, ...] = (),
    address: str = "127.0.0.1:8000",
    replicas: int = 1,
    ray: str = "local",
    slots: int | None = None,
    waiting: int = 1024,
    max_loops: int | None = None,
    board: tuple[int, int] | None = None,
    code: pathlib.Path | None = None,
) -> None:
    """Let policies answer over HTTP, each thought as long as it needs, until SIGTERM or Ctrl-C.

    The protocol is KServe's version 2, which `tritonclient` and others speak. By itself it listens on this
    machine only; elsewhere whoever asks must bear the token in the environment variable LOOPED_ACTOR_TOKEN.
    On SIGHUP the policies are loaded again, and what was served answers until that is done.

    Example: looped-actor serve rush-hour-micro

    Example: looped-actor serve runs/first runs/other --names boxoban rush-hour --replicas 2

    Example: looped-actor serve runs/walk --code examples/own_world.py

    Args:
      policies: Folders of runs or of their policies, or names that `looped-actor policies` lists.
      names: What each is called. Default: as its folder.
      address: Host and port to listen on.
      replicas: Processes for each policy.
      ray: A Ray cluster's address, auto for the one this machine belongs to, or local to start one.
      slots: Thoughts at a time in a replica. Default: what suits its hardware.
      waiting: Requests that may wait in a replica; those above are refused with 503.
      max_loops: No request may think longer. Default: as in training.
      board: Puzzles: rows and columns of the boards. Default: as in training.
      code: Your own environment: a Python file with `env` and `build`. Every replica executes it.
    """
    from looped_actor.serving.gate import TOKEN
    from looped_actor.serving.server import Serving

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"--address {address}: it must be a host and a port, as 127.0.0.1:8000")
    settings = Serving(
        host=host.strip("[]"),
        port=int(port),
        replicas=replicas,
        ray=ray,
        slots=slots,
        most_waiting=waiting,
        most_loops=max_loops,
        board=board,
        code=None if code is None else str(code.resolve()),
        token=os.environ.get(TOKEN, ""),
    )
    _serve(_named(policies, names), settings, address)


def _named(policies: Folders, names: tuple[str, ...]) -> dict[str, str]:
    """The folders of policies, by what these are called."""
    from looped_actor.policy.pretrained import located

    called = names or tuple(_name(policy) for policy in policies)
    if not policies or len(called) != len(policies) or len(set(called)) < len(called):
        raise UserError(f"{len(policies)} policies are called {list(called)}: give each a --names of its own")
    return {name: str(located(policy).resolve()) for name, policy in zip(called, policies, strict=True)}


def _serve(folders: dict[str, str], settings: "Serving", address: str) -> None:
    """Until it is told to end; again from the folders whenever it is told so."""
    from looped_actor.serving.server import deploy, start, stop, told_again

    start(folders, settings)
    for name in folders:
        print(f"http://{address}/v2/models/{name}", flush=True)
    for _ in told_again():
        try:
            deploy(folders, settings)
            print("replaced", flush=True)
        except ValueError as mistake:
            print(f"what was served goes on: {mistake}", file=sys.stderr, flush=True)
    print("answering who has asked ...", flush=True)
    stop(folders)


def _name(folder: pathlib.Path) -> str:
    folder = folder.resolve()
    return folder.parent.name if folder.name == "policy" else folder.name
