"""`looped-actor serve`, with requests by Triton's client and by hand."""

import asyncio
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import jax
import numpy as np
import pytest
import tritonclient.http as triton
from starlette.testclient import TestClient
from test_commands import COMMAND, ROOT, UNOPTIMISED, command, run

import looped_actor
from helpers import thorough
from looped_actor.policy.policy import Policy
from looped_actor.policy.pretrained import PRETRAINED
from looped_actor.runs.config import read_config
from looped_actor.runs.custom import read_code
from looped_actor.runs.registry import run_of
from looped_actor.runs.run import CustomCode
from looped_actor.serving.app import Admission, make_app
from looped_actor.serving.metrics import Metrics
from looped_actor.serving.model import ServedModel
from looped_actor.serving.options import ServeOptions
from looped_actor.serving.protocol import ProtocolError
from looped_actor.serving.server import load_policies
from looped_actor.utils.codec import replace_fields, write_json

WALK = ROOT / "examples" / "custom_environment.py"
RUSH_HOUR, CARRIED = "rush-hour-micro", PRETRAINED / "rush-hour-carried"
QUEUE = 400
"""Requests that wait in the servers of two policies."""


def free_port():
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(*policies, **environment):
    """Start a server; return it and its address once it is ready."""
    address = f"127.0.0.1:{free_port()}"
    words = [*COMMAND, "serve", *map(str, policies), "--address", address]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=os.environ | UNOPTIMISED | environment
    )
    assert process.stdout.readline() == f"http://{address}/v2/models/rush\n"
    return process, address


@pytest.fixture(scope="module")
def policy():
    return looped_actor.load_policy(RUSH_HOUR)


@pytest.fixture(scope="module")
def boards():
    return np.random.default_rng(1).integers(0, 2, (40, 5, 5, 7)).astype(np.uint8)


@pytest.fixture(scope="module")
def large_boards():
    """Return boards that are larger than those of training."""
    return np.random.default_rng(1).integers(0, 2, (6, 6, 6, 7)).astype(np.uint8)


def make_inputs(boards):
    """Return inputs for Triton's client."""
    inputs = triton.InferInput("observation", list(boards.shape), "UINT8")
    inputs.set_data_from_numpy(boards)
    return [inputs]


def fetch(address, path, body=None, **headers) -> tuple[int, Any, Any]:
    """Return status, headers and JSON of a response, without a client library."""
    request = urllib.request.Request(f"http://{address}{path}", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, error.headers, json.loads(error.read())
    except (urllib.error.URLError, ConnectionError, http.client.HTTPException):
        return 0, {}, None


def check_triton_client(server, policy, boards):
    """Check that Triton's client gets the policy's actions and loops."""
    client = triton.InferenceServerClient(server[1], concurrency=8)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("rush")
    about = client.get_model_metadata("rush")
    assert about["inputs"] == [{"name": "observation", "datatype": "UINT8", "shape": [-1, 5, 5, 7]}]
    assert [one["name"] for one in about["outputs"]] == ["action", "logits", "value", "loops", "stop"]
    assert about["parameters"]["halting"]["rule"] == "PolicyKL"
    expected = policy.act(boards)
    rng, pending = np.random.default_rng(0), []
    for _ in range(30):
        rows = rng.integers(0, len(boards), rng.integers(1, 6))
        pending.append((rows, client.async_infer("rush", make_inputs(boards[rows]))))
    for rows, one in pending:
        found = one.get_result()
        np.testing.assert_array_equal(found.as_numpy("action"), expected.action[rows])
        np.testing.assert_array_equal(found.as_numpy("loops"), expected.loops[rows])
    few = client.infer(
        "rush", make_inputs(boards[:3]), parameters={"max_loops": 1, "threshold": 0.5}, request_id="me"
    )
    assert few.as_numpy("loops").tolist() == [1, 1, 1]
    assert few.get_response()["id"] == "me"
    late = client.infer("rush", make_inputs(boards[:1]), timeout=60_000_000)
    assert "parameters" not in late.get_response()
    client.close()


def check_sequence(server, boards):
    """Check that decisions of a sequence continue from the carried latent."""
    policy, carry = looped_actor.load_policy(CARRIED), None
    client, fresh = triton.InferenceServerClient(server[1]), []
    for step, board in enumerate(boards[:4, None]):
        ends = {"sequence_start": step == 0, "sequence_end": step == 3}
        found = client.infer("carried", make_inputs(board), sequence_id=7, **ends)
        expected = policy.act(board, carry=carry)
        carry = expected.carry
        assert found.as_numpy("loops").tolist() == expected.loops.tolist()
        assert found.as_numpy("action").tolist() == expected.action.tolist()
        fresh.append(found.get_response()["parameters"]["sequence_fresh"])
    assert fresh == [True, False, False, False]
    lost = client.infer("carried", make_inputs(boards[:1]), sequence_id=7)  # the sequence has ended
    assert lost.get_response()["parameters"] == {"sequence_id": 7, "sequence_fresh": True}
    client.close()


def check_json_request(server, policy, boards):
    """Check a request that is written by hand."""
    data = {"name": "observation", "shape": [1, 5, 5, 7], "datatype": "UINT8", "data": boards[0].tolist()}
    status, _, response = fetch(server[1], "/v2/models/rush/infer", json.dumps({"inputs": [data]}).encode())
    assert status == 200
    outputs = {one["name"]: one["data"] for one in response["outputs"]}
    assert outputs["action"] == [policy.act(boards[0]).action]
    assert fetch(server[1], "/v2/models/rush/stats")[2]["answered"] >= 2


INVALID = [
    ("/v2/models/rush/infer", b"{", 400, "the request is not JSON"),
    ("/v2/models/rush/infer", b"{}", 400, "inputs must be a list"),
    ("/v2/models/rush/infer", None, 405, "accepts POST"),
    ("/v2/models/rush/ready", b"", 405, "accepts GET, HEAD"),
    (
        "/v2/models/rush/other",
        None,
        404,
        "there is nothing at '/v2/models/rush/other'",
    ),
    ("/v2/models/nobody/infer", b"{}", 404, "models are ['rush', 'carried']"),
    ("/", None, 404, "there is nothing at '/'"),
    ("/nothing", None, 404, "there is nothing at '/nothing'"),
    ("/nothing", b"{}", 404, "there is nothing at '/nothing'"),
    ("/v2nothing", None, 404, "there is nothing at '/v2nothing'"),
    ("/v2/models/rush/infer", b"x" * (2**24 + 1), 413, "at most 16777216 bytes"),
]


def check_documented_client(server):
    """Check that the client of docs/serving.md plays."""
    page = (ROOT / "docs" / "serving.md").read_text()
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "tritonclient" in code)
    code = code.replace("127.0.0.1:8000", server[1]).replace('"rush-hour"', '"rush"')
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^solved in \d+ steps; loops: [\d ]+$", done.stdout, re.M)) == 3


def check_invalid_requests(server):
    """Check statuses and messages of the answers to invalid requests."""
    for path, body, status, message in INVALID:
        found, _, response = fetch(server[1], path, body)
        assert (found, message in response["error"]) == (status, True), response


def check_overload(server, boards):
    """Check that requests that do not fit into the queues are refused with Retry-After."""
    data = {"name": "observation", "shape": [1, 5, 5, 7], "datatype": "UINT8", "data": boards[0].tolist()}

    async def ask(session):
        async with session.post("/v2/models/rush/infer", json={"inputs": [data]}) as response:
            error = (await response.json()).get("error", "")
            return response.status, response.headers.get("Retry-After"), "too busy" in error

    async def ask_all():
        unlimited = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(f"http://{server[1]}", connector=unlimited) as session:
            return await asyncio.gather(*(ask(session) for _ in range(3 * QUEUE)))

    answers = asyncio.run(ask_all())
    assert set(answers) == {(200, None, False), (503, "1", True)}
    assert sum(status == 200 for status, *_ in answers) >= QUEUE / 2
    assert fetch(server[1], "/v2/models/rush/stats")[2]["waiting"] == 0


def check_address(server):
    """Check that the server listens on the loopback interface only."""
    port = int(server[1].rpartition(":")[2])
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    addresses = {line.split()[1] for line in lines if line.split()[3] == "0A"}  # listening
    assert f"0100007F:{port:04X}" in addresses
    assert f"00000000:{port:04X}" not in addresses


def check_shutdown(server, policy, boards):
    """Check that accepted requests are answered after SIGTERM."""
    process, address = server
    client = triton.InferenceServerClient(address, concurrency=16)
    requests = [client.async_infer("rush", make_inputs(boards)) for _ in range(4)]
    until = time.monotonic() + 60
    while not fetch(address, "/v2/models/rush/stats")[2]["looping"]:
        assert time.monotonic() < until
    process.send_signal(signal.SIGTERM)
    for one in requests:
        np.testing.assert_array_equal(one.get_result().as_numpy("action"), policy.act(boards).action)
    assert process.wait(60) == 0
    assert process.stdout.read() == "answering the last requests ...\n"
    client.close()


def test_a_server_from_start_to_shutdown(policy, boards):
    """Check everything on one server: starting one takes long."""
    options = ("--names", "rush", "carried", "--waiting", str(QUEUE // 2))
    process, address = server = start_server(RUSH_HOUR, CARRIED, *options)
    try:
        assert process.stdout.readline() == f"http://{address}/v2/models/carried\n"
        check_triton_client(server, policy, boards)
        check_sequence(server, boards)
        check_json_request(server, policy, boards)
        check_documented_client(server)
        check_invalid_requests(server)
        check_overload(server, boards)
        check_address(server)
        check_shutdown(server, policy, boards)
    finally:
        process.terminate()
        process.wait(60)


def test_an_untrained_policy_of_a_custom_environment_is_served(tmp_path, monkeypatch):
    """Use a replica without the server around it."""
    monkeypatch.setattr(jax.config, "update", lambda *setting: None)  # devices are there already
    module = read_code(WALK)
    code = CustomCode(module.build, module.env)
    spec = run_of(run_of(module.config, code=code).complete_config(), code=code).spec
    policy = Policy(spec, spec.init_weights())
    policy.save(tmp_path)
    options = ServeOptions(code=str(WALK))
    model = ServedModel("walk", load_policies({"walk": str(tmp_path)}, options)["walk"], options)
    boards = np.random.default_rng(2).integers(0, 2, (5, 4, 4, 3)).astype(np.uint8)
    data = {"name": "observation", "shape": [5, 4, 4, 3], "datatype": "UINT8", "data": boards.tolist()}
    answer, _ = asyncio.run(model.infer(json.dumps({"inputs": [data]}).encode(), None))
    outputs = {one["name"]: one["data"] for one in json.loads(answer)["outputs"]}
    expected = policy.act(boards)
    assert outputs["action"] == expected.action.tolist()
    assert outputs["loops"] == expected.loops.tolist()
    model.close()
    with pytest.raises(ValueError, match="--code FILE"):
        load_policies({"walk": str(tmp_path)}, ServeOptions())


@pytest.mark.parametrize(("status", "waiting", "timeout"), [(503, 0, 10**9), (504, 1024, 1)])
def test_a_failed_request_keeps_its_sequence(status, waiting, timeout, large_boards, monkeypatch):
    """A client that retries, as `Retry-After` says, continues from the carried latent."""
    monkeypatch.setattr(jax.config, "update", lambda *setting: None)  # devices are there already
    policy, carry = looped_actor.load_policy(CARRIED), None
    model = ServedModel("carried", policy, ServeOptions(board=(6, 6)))

    def infer(board, **parameters):
        data = {"name": "observation", "shape": [1, 6, 6, 7], "datatype": "UINT8", "data": board.tolist()}
        body = {"inputs": [data], "parameters": {"sequence_id": 7, **parameters}}
        answer = json.loads(asyncio.run(model.infer(json.dumps(body).encode(), None))[0])
        outputs = {one["name"]: one["data"] for one in answer["outputs"]}
        return outputs["action"][0], outputs["loops"][0], answer["parameters"]["sequence_fresh"]

    def check_refusal(board, **parameters):
        with monkeypatch.context() as change:
            change.setattr(model.engine, "max_waiting", waiting)
            with pytest.raises(ProtocolError) as error:
                infer(board, timeout=timeout, **parameters)
        assert error.value.status == status

    for board in large_boards[:3]:
        check_refusal(board)
        expected = policy.act(board, carry=carry)
        assert infer(board) == (expected.action, expected.loops, carry is None)
        carry = expected.carry
    check_refusal(large_boards[3], sequence_end=True)
    expected = policy.act(large_boards[3], carry=carry)
    assert infer(large_boards[3], sequence_end=True) == (expected.action, expected.loops, False)
    infer(large_boards[4])
    check_refusal(large_boards[5], sequence_start=True)  # the episode of this latent is over
    assert infer(large_boards[5])[2]
    model.close()


def test_a_policy_that_carries_is_not_served_by_several_replicas():
    """A request may reach any replica, and the latent is in one."""
    with pytest.raises(ValueError, match=r"carried carries its latent .* serve it with one replica"):
        load_policies(
            {"rush": str(PRETRAINED / RUSH_HOUR), "carried": str(CARRIED)}, ServeOptions(replicas=2)
        )


@thorough
def test_a_killed_replica_is_replaced_and_tokens_are_required(policy, boards):
    options = ("--names", "rush", "--replicas", "2")
    process, address = start_server(RUSH_HOUR, *options, LOOPED_ACTOR_TOKEN="secret")
    try:
        assert fetch(address, "/v2")[0] == fetch(address, "/v2/models/rush")[0] == 401
        headers = {"Authorization": "Bearer secret"}
        assert fetch(address, "/v2", **headers)[0] == 200
        data = {"name": "observation", "shape": [1, 5, 5, 7], "datatype": "UINT8", "data": boards[0].tolist()}
        body = json.dumps({"inputs": [data]}).encode()

        def ask(_):
            return fetch(address, "/v2/models/rush/infer", body, **headers)[0]

        with ThreadPoolExecutor(8) as threads:
            requests = [threads.submit(ask, n) for n in range(400)]
            time.sleep(0.5)
            os.kill(find_replicas(process)[0], signal.SIGKILL)
            statuses = [one.result(120) for one in requests]
        assert set(statuses) <= {200, 0}  # 0: connections that the replica had accepted
        assert statuses.count(200) > 350
        until = time.monotonic() + 120
        while len(find_replicas(process)) < 2 or ask(0) != 200:
            assert time.monotonic() < until
            time.sleep(0.5)
    finally:
        process.terminate()
        assert process.wait(60) == 0


@thorough
def test_a_policy_is_replaced_without_a_failed_request(boards, tmp_path):
    served = tmp_path / "rush"
    shutil.copytree(PRETRAINED / "rush-hour-micro", served)
    process, address = start_server(served, "--names", "rush", "--replicas", "2")
    data = {"name": "observation", "shape": [1, 5, 5, 7], "datatype": "UINT8", "data": boards[0].tolist()}
    body, over = json.dumps({"inputs": [data]}).encode(), threading.Event()

    def ask():
        statuses = []
        while not over.is_set():
            statuses.append(fetch(address, "/v2/models/rush/infer", body)[0])
        return statuses

    try:
        with ThreadPoolExecutor(4) as threads:
            requests = [threads.submit(ask) for _ in range(4)]
            (served / "policy.safetensors").write_bytes(b"damaged")
            process.send_signal(signal.SIGHUP)  # a policy that cannot be loaded is not installed
            time.sleep(5)
            replace_policy(served, CARRIED)
            process.send_signal(signal.SIGHUP)  # nor is one that two replicas cannot serve
            time.sleep(5)
            replace_policy(served, PRETRAINED / RUSH_HOUR, max_loops=4)
            process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == "reloaded\n"
            over.set()
            statuses = [status for one in requests for status in one.result(60)]
        assert set(statuses) == {200}
        assert fetch(address, "/v2/models/rush")[2]["parameters"]["max_loops"] == 4
    finally:
        over.set()
        process.terminate()
        assert process.wait(60) == 0


def replace_policy(folder, by, **halting):
    """Put another policy into a folder, with changes to its halting rule."""
    shutil.rmtree(folder)
    shutil.copytree(by, folder)
    changes = {f"arm.halting.{name}": value for name, value in halting.items()}
    write_json(replace_fields(read_config(by / "config.json"), changes), folder / "config.json")


def find_replicas(process):
    """Return the processes of replicas of a server."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(") ")[2].split()[1])
            command_line = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == process.pid and b"spawn_main" in command_line:
            found.append(int(path.parent.name))
    return found


RAY_SERVE = """
import json, sys, urllib.request
from ray import serve
from looped_actor.serving.ray_app import app
from looped_actor.utils.processes import join_ray

ray = join_ray("local")  # it requires a token of its own
try:
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(app({"policy": "rush-hour-micro", "name": "rush"}), name="rush", route_prefix="/")
    url = f"http://127.0.0.1:{sys.argv[1]}/v2/models/rush/infer"
    answer = json.loads(urllib.request.urlopen(url, data=sys.argv[2].encode(), timeout=60).read())
    print({one["name"]: one["data"] for one in answer["outputs"]}["action"])
finally:
    serve.shutdown()
    ray.shutdown()
"""


@thorough
def test_ray_serve_runs_the_same_application(policy, boards):
    """In another process: Ray cannot send functions whose types the tests check."""
    data = {"name": "observation", "shape": [1, 5, 5, 7], "datatype": "UINT8", "data": boards[0].tolist()}
    done = run(sys.executable, "-c", RAY_SERVE, str(free_port()), json.dumps({"inputs": [data]}))
    assert f"[{policy.act(boards[0]).action}]" in done.stdout.splitlines(), done.stderr[-2000:]


def test_metrics_and_description(policy):
    """The counters of Prometheus, and a description that names every path."""
    model = ServedModel("rush", policy, ServeOptions(), metrics := Metrics())
    client = TestClient(make_app({"rush": model}, ServeOptions(), metrics))
    zeros = {"name": "observation", "shape": [2, 5, 5, 7], "datatype": "UINT8", "data": [0] * 350}
    assert client.post("/v2/models/rush/infer", json={"inputs": [zeros]}).status_code == 200
    assert 'looped_actor_decisions_total{model="rush"} 2.0' in client.get("/metrics").text
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v2", "/metrics", "/v2/models/rush", "/v2/models/rush/infer"} <= paths.keys()
    model.close()


@pytest.mark.parametrize("token", ["", "secret"])
def test_more_requests_than_fit_are_refused_before_their_body_is_read(token):
    async def check():
        release = asyncio.Event()

        async def slow(scope, receive, send):
            await release.wait()

        async def request(**headers):
            sent = []

            async def send(message):
                sent.append(message)

            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            scope = {"type": "http", "method": "POST", "path": "/v2/models/any/infer", "headers": raw}
            await admission(scope, None, send)
            return sent[0]["status"] if sent else None

        admission = Admission(slow, ServeOptions(max_waiting=1, token=token))
        right = {"authorization": f"Bearer {token}"} if token else {}
        if token:
            assert [await request(), await request(authorization="Bearer other")] == [401, 401]
        held = [asyncio.create_task(request(**right)) for _ in range(66)]  # twice the queue, and 64
        await asyncio.sleep(0)
        assert await request(**right) == 503
        release.set()
        assert await asyncio.gather(*held) == [None] * 66
        assert await request(**right) is None

    asyncio.run(check())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere is not a folder"),
        ([RUSH_HOUR, "--address", "8000"], "it must be a host and a port, as 127.0.0.1:8000"),
        ([RUSH_HOUR, "--address", "0.0.0.0:8000"], "put a token into the environment variable"),
        ([RUSH_HOUR, RUSH_HOUR], "give each its own name with --names"),
        ([RUSH_HOUR, "--names", "a/b"], "a policy cannot be named 'a/b'"),
        ([RUSH_HOUR, "--replicas", "0"], "replicas is 0; it must be at least 1"),
    ],
)
def test_mistakes_end_in_one_line(words, message, monkeypatch, capsys):
    monkeypatch.delenv("LOOPED_ACTOR_TOKEN", raising=False)
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, "serve", *words)
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
