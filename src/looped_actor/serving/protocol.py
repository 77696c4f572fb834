"""The Open Inference Protocol (KServe V2) over HTTP: requests and responses as JSON and raw bytes.

Independent of any server. An untrusted body becomes arrays of the declared shapes and types, or a
`ProtocolError` with a status and a message; nothing in it is executed.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from looped_actor.utils.checks import brief, shown
from looped_actor.utils.errors import UserError

HEADER_LENGTH = "Inference-Header-Content-Length"
"""Header with the length of the JSON part of a body; raw bytes follow it."""
DATATYPES = {
    "BOOL": "bool",
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
NAMES = {name: datatype for datatype, name in DATATYPES.items()}


class ProtocolError(Exception):
    """An invalid request, with the message and the status of the response."""

    def __init__(self, message: str, status: int = 400, retry_after: int | None = None):
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class InferRequest(NamedTuple):
    """A parsed request."""

    name: str
    """Its id, which the response repeats."""
    inputs: dict[str, np.ndarray]
    """Batches of inputs by name."""
    rows: int
    parameters: dict[str, Any]
    outputs: dict[str, bool]
    """Requested outputs; True: as raw bytes."""


def parse_request(
    body: bytes,
    header_length: str | None,
    inputs: Mapping[str, jax.ShapeDtypeStruct],
    outputs: list[str],
    most_rows: int,
) -> InferRequest:
    """Parse and check the body of a request.

    Args:
      body: JSON, and raw bytes after it.
      header_length: value of the header `HEADER_LENGTH`. None: all of the body is JSON.
      inputs: shapes of one example by name.
      outputs: names of the available outputs.
      most_rows: maximum number of examples in a request.
    """
    head, rest = _split(body, header_length)
    asked = _object(head, "the request")
    parameters = _object(asked.get("parameters", {}), "parameters")
    arrays, rows = {}, None
    for given in _list(asked, "inputs"):
        name = _object(given, "an input").get("name")
        if not isinstance(name, str) or name not in inputs or name in arrays:
            raise ProtocolError(f"an input is named {shown(name)}; there must be one of each {list(inputs)}")
        arrays[name], rest = _array(given, name, inputs[name], rest, most_rows)
        if rows not in (None, len(arrays[name])):
            raise ProtocolError("inputs are of different numbers of examples")
        rows = len(arrays[name])
    if len(arrays) < len(inputs) or rows is None:
        raise ProtocolError(f"inputs must be {list(inputs)}; given were {list(arrays)}")
    if len(rest):
        raise ProtocolError(f"{len(rest)} unexpected bytes follow the last input")
    raw = _flag(parameters, "binary_data_output")
    wanted = _wanted(asked, raw, outputs) if asked.get("outputs") else dict.fromkeys(outputs, raw)
    name = asked.get("id", "")
    if not isinstance(name, str) or len(name) > 1000:
        raise ProtocolError("id must be a string of up to 1,000 characters")
    return InferRequest(name, {name: arrays[name] for name in inputs}, rows, parameters, wanted)


def format_response(
    request: InferRequest, model: str, outputs: Mapping[str, np.ndarray], parameters: Mapping[str, Any]
) -> tuple[bytes, dict[str, str]]:
    """Return the body of a response and its headers."""
    described, raw = [], []
    for name, as_bytes in request.outputs.items():
        values = np.ascontiguousarray(outputs[name])
        about: dict[str, Any] = {"name": name, "datatype": NAMES[str(values.dtype)]}
        about["shape"] = list(values.shape)
        if as_bytes:
            raw.append(values.astype(values.dtype.newbyteorder("<")).tobytes())
            about["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            about["data"] = values.ravel().tolist()
        described.append(about)
    answer: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": described}
    answer |= {"id": request.name} if request.name else {}
    answer |= {"parameters": dict(parameters)} if parameters else {}
    head = json.dumps(answer).encode()
    if not raw:
        return head, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
    return b"".join([head, *raw]), headers


def tensors(shapes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the metadata of inputs or outputs, for any number of examples."""
    return [
        {"name": name, "datatype": NAMES[str(one.dtype)], "shape": [-1, *one.shape]}
        for name, one in shapes.items()
    ]


def number(parameters: Mapping[str, Any], name: str, kind: type[int] | type[float] = float) -> Any:
    """Return a numeric parameter; None if it is not given."""
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise ProtocolError(f"the parameter {name} is {shown(value)}; it must be of type {kind.__name__}")
    return kind(value)


def _split(body: bytes, header_length: str | None) -> tuple[Any, memoryview]:
    """Return the JSON of a body, and the bytes after it."""
    size = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 12):
            raise ProtocolError(f"{HEADER_LENGTH} is {shown(header_length)}; it must be a number")
        size = int(header_length)
        if size > len(body):
            raise ProtocolError(f"{HEADER_LENGTH} is {size}, and the body has {len(body)} bytes")
    try:
        return json.loads(body[:size]), memoryview(body)[size:]
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the request is not JSON ({brief(error)})") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{what} must be a JSON object, not {shown(value)}")
    return value


def _list(asked: dict[str, Any], name: str) -> list[Any]:
    value = asked.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= 100:
        raise ProtocolError(f"{name} must be a list that names one or more")
    return value


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise ProtocolError(f"the parameter {name} is {shown(value)}; it must be true or false")
    return value


def _wanted(asked: dict[str, Any], raw: bool, outputs: list[str]) -> dict[str, bool]:
    wanted = {}
    for one in _list(asked, "outputs"):
        name, given = _object(one, "an output").get("name"), one.get("parameters", {})
        if not isinstance(name, str) or name not in outputs or name in wanted:
            raise ProtocolError(f"an output is named {shown(name)}; there may be one of each {outputs}")
        given = {"binary_data": raw} | _object(given, "parameters")
        wanted[name] = _flag(given, "binary_data")
    return wanted


def _array(
    given: dict[str, Any], name: str, one: jax.ShapeDtypeStruct, rest: memoryview, most_rows: int
) -> tuple[np.ndarray, memoryview]:
    """Return an input, and the bytes after it."""
    shape, expected = given.get("shape"), NAMES[str(one.dtype)]
    whole = isinstance(shape, list) and all(type(side) is int for side in shape)
    if not (isinstance(shape, list) and whole and _fits(shape, one.shape, most_rows)):
        expected_shape = f"[1 to {most_rows}, {', '.join(map(str, one.shape))}]"
        raise ProtocolError(f"{name} has the shape {shown(shape)}; it must be {expected_shape}")
    if given.get("datatype") != expected:
        raise ProtocolError(
            f"{name} is of the datatype {shown(given.get('datatype'))}; it must be {expected}"
        )
    about = _object(given.get("parameters", {}), "parameters")
    if "binary_data_size" not in about:
        return _from_list(given.get("data"), name, shape, one.dtype), rest
    size, needed = about["binary_data_size"], int(np.prod(shape)) * one.dtype.itemsize
    if type(size) is not int or size != needed or "data" in given:
        raise ProtocolError(f"{name} has {shown(size)} bytes of data; its shape needs {needed}, once")
    if size > len(rest):
        raise ProtocolError(f"{name} needs {size} bytes, and {len(rest)} are left of the body")
    array = np.frombuffer(rest[:size], one.dtype.newbyteorder("<")).reshape(shape)
    return array.astype(one.dtype), rest[size:]


def _fits(shape: list[int], one: tuple[int, ...], most_rows: int) -> bool:
    return len(shape) == 1 + len(one) and tuple(shape[1:]) == one and 1 <= shape[0] <= most_rows


def _from_list(data: Any, name: str, shape: list[int], dtype: np.dtype) -> np.ndarray:
    """Return an array from JSON numbers, flat or nested like the shape."""
    try:
        array = np.asarray(data)
        if array.dtype.kind not in "biuf" or array.size != np.prod(shape):
            raise UserError(f"it must hold {int(np.prod(shape))} numbers")
        with np.errstate(invalid="ignore", over="ignore"):
            fits = array.reshape(shape).astype(dtype)
        if dtype.kind in "biu" and not (fits == array.reshape(shape)).all():
            raise UserError(f"some of its numbers are not of {dtype}")
        return fits
    except (ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(f"data of {name}: {brief(error)}") from None
