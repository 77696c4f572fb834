"""The ASGI application: KServe's Open Inference Protocol (V2) for a set of policies.

Any ASGI server can run it: `looped-actor serve` runs it on uvicorn, `ray_app` on Ray Serve.
"""

import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from looped_actor.serving.metrics import Metrics
from looped_actor.serving.model import RETRY_AFTER, ServedModel
from looped_actor.serving.openapi import describe
from looped_actor.serving.options import ServeOptions
from looped_actor.serving.protocol import HEADER_LENGTH, ProtocolError
from looped_actor.utils.checks import shown
from looped_actor.version import __version__

EXTENSIONS = ["binary_tensor_data", "sequence", "statistics"]
HEALTH = ("/v2/health/live", "/v2/health/ready")


def make_app(models: Mapping[str, ServedModel], options: ServeOptions, metrics: Metrics) -> "Admission":
    """Return the application. It looks policies up in `models` at each request, so they can be replaced."""

    def model_of(request: Request) -> ServedModel:
        name = request.path_params["name"]
        if name not in models:
            raise ProtocolError(f"there is no model {shown(name)}; models are {list(models)}", 404)
        return models[name]

    async def live(request: Request) -> Response:
        return respond({})

    async def ready(request: Request) -> Response:
        if any(model.engine.failed for model in models.values()):
            raise ProtocolError("an engine has failed", 503)
        return respond({})

    async def server_metadata(request: Request) -> Response:
        about = {"name": "looped-actor", "version": __version__, "extensions": EXTENSIONS}
        return respond(about | {"models": list(models)})

    async def model_metadata(request: Request) -> Response:
        return respond(model_of(request).metadata())

    async def model_ready(request: Request) -> Response:
        if model_of(request).engine.failed:
            raise ProtocolError("the engine has failed", 503)
        return respond({})

    async def model_stats(request: Request) -> Response:
        return respond(model_of(request).stats())

    async def infer(request: Request) -> Response:
        model_of(request)  # before the body is read
        body = await read_body(request, options.max_bytes)
        # The model is looked up again, since it may have been replaced in the meantime.
        content, headers = await model_of(request).infer(body, request.headers.get(HEADER_LENGTH))
        return Response(content, headers=headers)

    async def prometheus(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(request: Request) -> Response:
        return respond(describe(models, options))

    routes = [
        Route("/v2", server_metadata),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route("/metrics", prometheus),
        Route("/openapi.json", openapi),
    ]
    for prefix in ("/v2/models/{name}", "/v2/models/{name}/versions/1"):
        routes += [
            Route(prefix, model_metadata),
            Route(f"{prefix}/ready", model_ready),
            Route(f"{prefix}/stats", model_stats),
            Route(f"{prefix}/infer", infer, methods=["POST"]),
        ]

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = shown(request.url.path)
        if error.status_code == 405:
            allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
            return respond({"error": f"{path} accepts {allowed}"}, 405, {"Allow": allowed})
        return respond({"error": f"there is nothing at {path}; models are {list(models)}"}, error.status_code)

    handlers: dict[Any, Callable[..., Any]] = {HTTPException: http_error, ProtocolError: protocol_error}
    return Admission(Starlette(routes=routes, exception_handlers=handlers), options)


class Admission:
    """ASGI middleware that refuses requests before their body is read: without a token, or one too many.

    Args:
      app: the application behind it.
      options: token, and queue length. Requests without a valid token do not count.
    """

    def __init__(self, app: Any, options: ServeOptions):
        self._app, self._token = app, f"Bearer {options.token}".encode() if options.token else b""
        self._limit, self._open = options.max_open, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a connection of ASGI."""
        if scope["type"] != "http" or scope["path"] in HEALTH:
            return await self._app(scope, receive, send)
        if self._token:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._token):
                refusal = respond(
                    {"error": "a bearer token is required"}, 401, {"WWW-Authenticate": "Bearer"}
                )
                return await refusal(scope, receive, send)
        if scope["method"] != "POST":
            return await self._app(scope, receive, send)
        if self._open >= self._limit:
            error = ProtocolError(f"too busy: {self._open} requests are open", 503, RETRY_AFTER)
            return await (await protocol_error(None, error))(scope, receive, send)
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1


async def protocol_error(request: Any, error: Any) -> Response:
    """Return the response to an invalid request."""
    retry = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return respond({"error": str(error)}, error.status, retry)


def respond(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(json.dumps(value), status, headers, media_type="application/json")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body of a request, up to a maximum size."""
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise ProtocolError(f"a request has at most {max_bytes} bytes", 413)
    return b"".join(parts)
