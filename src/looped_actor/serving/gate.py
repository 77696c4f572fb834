"""Refuses at the entrance, where it costs least, what is more than the replicas can hold.

A refusal by a replica, or by the queue of Ray Serve, costs the proxy as much as an answer, and the proxy is
what is short first. So a cluster that is started here has a gate in its proxy; on one that was there before,
the engines refuse.
"""

import json
import os
from typing import Any

VARIABLE = "LOOPED_ACTOR_MOST_INSIDE"
RETRY_AFTER = 1
"""Seconds after which one who is refused may ask again."""


class Gate:
    """An ASGI application in front of another.

    Args:
      app: the other one.
      most: requests that it works on at a time. One more is refused; questions about health always pass.
    """

    def __init__(self, app: Any, most: int):
        self._app, self._most, self._inside = app, most, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI says."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        if self._inside >= self._most:
            body = json.dumps({"error": f"too busy: {self._inside} requests are being answered"}).encode()
            headers = [(b"content-type", b"application/json"), (b"retry-after", b"%d" % RETRY_AFTER)]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            return await send({"type": "http.response.body", "body": body})
        self._inside += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._inside -= 1


def put_up(most: int) -> None:
    """Let the proxy of a Ray that this process starts have a gate."""
    os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = f"{__name__}.{guards.__name__}"
    os.environ[VARIABLE] = str(most)


def guards() -> list[Any]:
    """Called by Ray Serve in its proxy."""
    from starlette.middleware import Middleware

    return [Middleware(Gate, most=int(os.environ[VARIABLE]))]
