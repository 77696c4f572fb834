"""Refuse requests in the proxy, where it costs least: without a token, to unknown paths, or one too many.

A refusal by a replica, or by the queue of Ray Serve, costs the proxy as much as an answer, and the proxy is
what is short first. So a cluster that is started here has a gate in its proxy; on one that was there before,
the replicas and their engines refuse.
"""

import hmac
import json
import os
from typing import Any

from looped_actor.utils.checks import shown

MOST, TOKEN = "LOOPED_ACTOR_MOST_INSIDE", "LOOPED_ACTOR_TOKEN"
"""Variables of the environment, from which the proxy has its limits."""
RETRY_AFTER = 1
"""Seconds after which one who is refused may ask again."""
STRANGER = "a bearer token is asked for"
RAY_PATHS = ("/-/healthz", "/-/routes")
"""Answered by Ray Serve itself."""


def bears(authorization: str, token: str) -> bool:
    """Whether a request may come in, by its header; an empty token is for everyone."""
    return not token or hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())


class Gate:
    """An ASGI application in front of another.

    Args:
      app: the other one.
      most: requests that it works on at a time. One more is refused; questions about health always pass.
      token: what they must bear. Strangers are not counted, so that they cannot keep others out.
    """

    def __init__(self, app: Any, most: int, token: str = ""):
        self._app, self._most, self._token, self._inside = app, most, token, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI says."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path = scope["path"]
        if path not in RAY_PATHS and not f"{path}/".startswith("/v2/"):  # Ray Serve answers in plain text
            why = f"there is nothing at {shown(path)}; all paths begin with /v2"
            return await _refuse(send, 404, why)
        if scope["method"] != "POST":
            return await self._app(scope, receive, send)
        borne = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        if not bears(borne, self._token):
            return await _refuse(send, 401, STRANGER)
        if self._inside >= self._most:
            again = (b"retry-after", b"%d" % RETRY_AFTER)
            return await _refuse(send, 503, f"too busy: {self._inside} requests are being answered", again)
        self._inside += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._inside -= 1


async def _refuse(send: Any, status: int, why: str, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"application/json"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": why}).encode()})


def put_up(most: int, token: str) -> None:
    """Let the proxy of a Ray that this process starts have a gate."""
    os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = f"{__name__}.{guards.__name__}"
    os.environ |= {MOST: str(most), TOKEN: token}


def guards() -> list[Any]:
    """Called by Ray Serve in its proxy."""
    from starlette.middleware import Middleware

    return [Middleware(Gate, most=int(os.environ[MOST]), token=os.environ[TOKEN])]
