"""KServe's protocol: what is asked is understood, and whatever else is sent is refused in words."""

import json

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_actor.serving.options import ServeOptions
from looped_actor.serving.protocol import (
    HEADER_LENGTH,
    ProtocolError,
    format_response,
    number,
    parse_request,
    tensors,
)

INPUTS = {
    "state": jax.ShapeDtypeStruct((2, 3), np.dtype("uint8")),
    "goal": jax.ShapeDtypeStruct((3,), np.dtype("float32")),
}
STATE, GOAL = np.arange(12, dtype=np.uint8).reshape(2, 2, 3), np.linspace(-1, 1, 6, dtype=np.float32)
OUTPUTS = ["action", "logits"]


def read(body, header_length=None, most_rows=4):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse_request(text, header_length, INPUTS, OUTPUTS, most_rows)


def asked(**changes):
    state = {"name": "state", "shape": [2, 2, 3], "datatype": "UINT8", "data": STATE.ravel().tolist()}
    goal = {"name": "goal", "shape": [2, 3], "datatype": "FP32", "data": GOAL.reshape(2, 3).tolist()}
    return {"inputs": [state, goal]} | changes


def in_bytes():
    """The same in raw bytes: body, and the length of its head."""
    about = asked(parameters={"binary_data_output": True})
    raw = [STATE.tobytes(), GOAL.tobytes()]
    for one, data in zip(about["inputs"], raw, strict=True):
        del one["data"]
        one["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps(about).encode()
    return head + b"".join(raw), str(len(head))


def test_numbers_come_as_json_or_as_bytes():
    for question in (read(asked(id="7")), read(*in_bytes())):
        np.testing.assert_array_equal(question.inputs["state"], STATE)
        np.testing.assert_array_equal(question.inputs["goal"], GOAL.reshape(2, 3))
        assert question.inputs["state"].dtype == np.uint8
        assert (question.rows, list(question.inputs)) == (2, ["state", "goal"])
    assert read(asked()).outputs == {"action": False, "logits": False}
    assert read(*in_bytes()).outputs == {"action": True, "logits": True}


def test_answers_are_json_or_bytes_as_was_asked():
    told = {"action": np.array([3, 1], np.int32), "logits": np.ones((2, 4), np.float32)}
    wanted = [{"name": "logits", "parameters": {"binary_data": True}}, {"name": "action"}]
    question = read(asked(id="7", outputs=wanted))
    body, headers = format_response(question, "net", told, {"late": True})
    size = int(headers[HEADER_LENGTH])
    head = json.loads(body[:size])
    assert (head["id"], head["model_name"], head["parameters"]) == ("7", "net", {"late": True})
    logits, action = head["outputs"]
    assert action == {"name": "action", "datatype": "INT32", "shape": [2], "data": [3, 1]}
    assert logits["parameters"] == {"binary_data_size": 32}
    np.testing.assert_array_equal(np.frombuffer(body[size:], "<f4"), np.ones(8))
    body, headers = format_response(read(asked()), "net", told, {})
    assert HEADER_LENGTH not in headers
    assert json.loads(body)["outputs"][1]["data"] == [1.0] * 8
    assert tensors(INPUTS)[0] == {"name": "state", "datatype": "UINT8", "shape": [-1, 2, 3]}


def changed(**changes):
    """A request whose first input is not what it should be."""
    about = asked()
    about["inputs"][0] = {k: v for k, v in (about["inputs"][0] | changes).items() if v is not None}
    return about


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the request is not JSON"),
        (b"\xff\xfe", "the request is not JSON"),
        (b"[" * 100_000, "the request is not JSON"),
        ([], "the request must be a JSON object"),
        ({}, "inputs must be a list"),
        ({"inputs": [3]}, "an input must be a JSON object"),
        ({"inputs": asked()["inputs"][:1]}, "inputs must be ['state', 'goal']; given were ['state']"),
        ({"inputs": asked()["inputs"][:1] * 2}, "an input is named 'state'; there must be one of each"),
        (changed(name=["state"]), "an input is named ['state']"),
        (changed(shape=[2, 3, 2]), "state has the shape [2, 3, 2]; it must be [1 to 4, 2, 3]"),
        (changed(shape=[5, 2, 3]), "it must be [1 to 4, 2, 3]"),
        (changed(shape=[0, 2, 3]), "it must be [1 to 4, 2, 3]"),
        (changed(shape=[-2, 2, 3]), "it must be [1 to 4, 2, 3]"),
        (changed(shape=[2.0, 2, 3]), "it must be [1 to 4, 2, 3]"),
        (changed(shape=None), "state has the shape None"),
        (changed(datatype="FP32"), "state is of the datatype 'FP32'; it must be UINT8"),
        (changed(datatype=None), "state is of the datatype None"),
        (changed(data=None), "data of state"),
        (changed(data=[1] * 11), "it must hold 12 numbers"),
        (changed(data=[[1, 2], [3]]), "data of state"),
        (changed(data=["1"] * 12), "it must hold 12 numbers"),
        (changed(data=[256] * 12), "some of its numbers are not of uint8"),
        (changed(data=[0.5] * 12), "some of its numbers are not of uint8"),
        (changed(data=[10**400] * 12), "data of state"),
        (changed(data=None, parameters={"binary_data_size": 12}), "12 bytes, and 0 are left"),
        (changed(parameters={"binary_data_size": 12}), "its shape needs 12, once"),
        (changed(data=None, parameters={"binary_data_size": 13}), "has 13 bytes of data"),
        (changed(data=None, parameters={"binary_data_size": True}), "its shape needs 12"),
        (changed(parameters=3), "parameters must be a JSON object"),
        (asked(parameters=[]), "parameters must be a JSON object"),
        (asked(parameters={"binary_data_output": 1}), "it must be true or false"),
        (asked(outputs=[{"name": "value"}]), "an output is named 'value'"),
        (asked(outputs=[{"name": "action"}] * 2), "there may be one of each"),
        (asked(outputs=3), "outputs must be a list"),
        (asked(id=3), "id must be a string"),
    ],
)
def test_what_is_wrong_is_said(body, message):
    with pytest.raises(ProtocolError) as refused:
        read(body)
    assert message in str(refused.value)
    assert refused.value.status == 400


@pytest.mark.parametrize("length", ["-1", "x", "", "999999", "1" * 40, "٣"])
def test_the_length_of_the_head_is_looked_at(length):
    with pytest.raises(ProtocolError, match=HEADER_LENGTH):
        read(in_bytes()[0], length)


def test_bytes_that_nobody_asked_for_are_refused():
    body, length = in_bytes()
    with pytest.raises(ProtocolError, match="3 unexpected bytes follow the last input"):
        read(body + b"abc", length)


@given(st.data())
def test_whatever_is_sent_is_understood_or_refused(data):
    """Bytes of a good request, some of them changed, cut off or repeated."""
    body, length = in_bytes() if data.draw(st.booleans()) else (json.dumps(asked()).encode(), None)
    body = bytearray(body)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        question = read(bytes(body), length)
    except ProtocolError as refused:
        assert refused.status == 400
    else:
        assert question.inputs["state"].shape[1:] == (2, 3)


def test_parameters_are_numbers():
    assert number({"max_loops": 3}, "max_loops", int) == 3
    assert number({"threshold": 1}, "threshold") == 1.0
    assert number({}, "threshold") is None
    for value in (True, "3", 2.5, None, []):
        if value is not None:
            with pytest.raises(ProtocolError, match="the parameter max_loops"):
                number({"max_loops": value}, "max_loops", int)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_nobody_else_is_let_in_without_a_token(host):
    with pytest.raises(ValueError, match="LOOPED_ACTOR_TOKEN"):
        ServeOptions(host=host)
    assert ServeOptions(host=host, token="secret").host == host
    assert {ServeOptions(host=one).token for one in ("127.0.0.1", "::1", "localhost")} == {""}
