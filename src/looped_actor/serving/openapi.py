"""The OpenAPI description of a server."""

import math
from collections.abc import Mapping
from typing import Any

from looped_actor.serving.model import ServedModel
from looped_actor.serving.options import ServeOptions
from looped_actor.serving.protocol import NAMES, tensors
from looped_actor.version import __version__

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
PARAMETERS = {
    "max_loops": {"type": "integer", "minimum": 1},
    "threshold": {"type": "number", "minimum": 0},
    "timeout": {"type": "integer", "minimum": 1, "description": "Microseconds."},
    "sequence_id": {"type": ["integer", "string"]},
    "sequence_start": {"type": "boolean"},
    "sequence_end": {"type": "boolean"},
    "binary_data_output": {"type": "boolean"},
}


def describe(models: Mapping[str, ServedModel], options: ServeOptions) -> dict[str, Any]:
    """Return the description of all paths, as OpenAPI 3.1."""
    paths: dict[str, Any] = {
        "/v2": _get("Server metadata"),
        "/v2/health/live": _get("Liveness"),
        "/v2/health/ready": _get("Readiness", 503),
        "/metrics": {"get": {"summary": "Metrics", "responses": {"200": _content("text/plain", {})}}},
    }
    for name, model in models.items():
        prefix = f"/v2/models/{name}"
        paths |= {
            prefix: _get("Model metadata"),
            f"{prefix}/ready": _get("Readiness of the model", 503),
            f"{prefix}/stats": _get("Counters of the engine"),
            f"{prefix}/infer": {"post": _infer(model, options)},
        }
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "looped-actor", "version": __version__},
        "paths": paths,
    }
    if options.token:
        description["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        description["security"] = [{"token": []}]
    return description


def _get(summary: str, *errors: int) -> dict[str, Any]:
    responses = {"200": _content("application/json", {"type": "object"})} | _errors(*errors)
    return {"get": {"summary": summary, "responses": responses}}


def _infer(model: ServedModel, options: ServeOptions) -> dict[str, Any]:
    inputs = [_input(name, one, options.max_rows) for name, one in model.inputs.items()]
    request = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string", "maxLength": 1000},
            "inputs": {
                "type": "array",
                "items": {"anyOf": inputs},
                "minItems": len(inputs),
                "maxItems": len(inputs),
            },
            "parameters": {"type": "object", "properties": PARAMETERS},
        },
    }
    described = [one["name"] for one in tensors(model.outputs)]
    return {
        "summary": f"Decide for a batch. Outputs: {', '.join(described)}.",
        "requestBody": {"required": True, **_content("application/json", request)},
        "responses": {
            "200": _content("application/json", {"type": "object"}),
            **_errors(400, 413, 500, 503, 504),
        },
    }


def _input(name: str, one: Any, max_rows: int) -> dict[str, Any]:
    """Return the schema of an input with its data as a flat list."""
    low, high = (0, 1) if one.dtype.kind in "bu" else (-100, 100)
    value = {"type": "integer" if one.dtype.kind in "biu" else "number", "minimum": low, "maximum": high}
    size = math.prod(one.shape)
    return {
        "type": "object",
        "required": ["name", "datatype", "shape", "data"],
        "properties": {
            "name": {"const": name},
            "datatype": {"const": NAMES[str(one.dtype)]},
            "shape": {"const": [1, *one.shape], "description": f"1 to {max_rows} examples."},
            "data": {"type": "array", "items": value, "minItems": size, "maxItems": size},
        },
    }


def _content(media: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "", "content": {media: {"schema": schema}}}


def _errors(*statuses: int) -> dict[str, Any]:
    return {str(status): _content("application/json", ERROR) for status in statuses}
