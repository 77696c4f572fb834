"""`looped-actor serve`: policies that answer over HTTP."""

import os
import pathlib

from looped_actor.cli.shared import Folders

TOKEN = "LOOPED_ACTOR_TOKEN"


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
) -> None:
    """Let policies answer over HTTP, each thought as long as it needs, until SIGTERM or Ctrl-C.

    The protocol is KServe's version 2, which `tritonclient` and others speak. By itself it listens on this
    machine only; elsewhere whoever asks must bear the token in the environment variable LOOPED_ACTOR_TOKEN.

    Example: looped-actor serve runs/first

    Example: looped-actor serve runs/first runs/other --names boxoban rush-hour --replicas 2

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
    """
    from looped_actor.serving.server import Serving, start, stop, until_told

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"--address {address}: it must be a host and a port, as 127.0.0.1:8000")
    settings = Serving(
        host=host.strip("[]"),
        port=int(port),
        replicas=replicas,
        ray=ray,
        slots=slots,
        most_waiting=waiting,
        most_loops=max_loops,
        board=board,
        token=os.environ.get(TOKEN, ""),
    )
    called = names or tuple(_name(policy) for policy in policies)
    if not policies or len(called) != len(policies) or len(set(called)) < len(called):
        raise ValueError(
            f"{len(policies)} policies are called {list(called)}: give each a --names of its own"
        )
    start({name: str(policy.resolve()) for name, policy in zip(called, policies, strict=True)}, settings)
    for name in called:
        print(f"http://{address}/v2/models/{name}")
    until_told()
    print("answering who has asked ...", flush=True)
    stop(called)


def _name(folder: pathlib.Path) -> str:
    folder = folder.resolve()
    return folder.parent.name if folder.name == "policy" else folder.name
