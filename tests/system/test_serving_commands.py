"""`looped-actor serve` with a real Ray Serve, asked by Triton's client and by hand."""

import asyncio
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import aiohttp
import jax
import numpy as np
import pytest
import tritonclient.http as triton
from test_commands import COMMAND, ROOT, UNOPTIMISED, command, run

import looped_actor
from helpers import thorough
from looped_actor.planning.bench_serving import free_port
from looped_actor.policy.policy import Policy
from looped_actor.policy.pretrained import PRETRAINED
from looped_actor.runs.custom import read_code
from looped_actor.runs.registry import run_of
from looped_actor.runs.run import CustomCode
from looped_actor.serving.protocol import ProtocolError
from looped_actor.serving.server import Replica, Serving, deploy, start

WALK = ROOT / "examples" / "own_world.py"
RUSH_HOUR, CARRIED = "rush-hour-micro", PRETRAINED / "rush-hour-carried"
FIT = 400
"""Requests, into two replicas."""


def begun(*policies, **environment):
    """A server, and its address once it is ready."""
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
def seen(policy):
    return np.random.default_rng(1).integers(0, 2, (40, 6, 6, 7)).astype(np.uint8)


def given(boards):
    inputs = triton.InferInput("observation", list(boards.shape), "UINT8")
    inputs.set_data_from_numpy(boards)
    return [inputs]


def fetched(address, path, body=None, **headers) -> tuple[int, Any, Any]:
    """Status, headers and what is said, by hand."""
    request = urllib.request.Request(f"http://{address}{path}", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers, json.loads(response.read())
    except urllib.error.HTTPError as error:
        said = error.read()
        if said == b"Internal Server Error":  # Ray's own words for who was asked and has died
            return error.code, error.headers, {"error": said.decode()}
        return error.code, error.headers, json.loads(said)


def triton_s_client_gets_the_policy_s_answers(server, policy, seen):
    client = triton.InferenceServerClient(server[1], concurrency=8)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("rush")
    about = client.get_model_metadata("rush")
    assert about["inputs"] == [{"name": "observation", "datatype": "UINT8", "shape": [-1, 6, 6, 7]}]
    assert [one["name"] for one in about["outputs"]] == ["action", "logits", "value", "loops", "stop"]
    assert about["parameters"]["halting"]["rule"] == "PolicyKL"
    expected = policy.act(seen)
    chance, pending = np.random.default_rng(0), []
    for _ in range(30):
        rows = chance.integers(0, len(seen), chance.integers(1, 6))
        pending.append((rows, client.async_infer("rush", given(seen[rows]))))
    for rows, one in pending:
        found = one.get_result()
        np.testing.assert_array_equal(found.as_numpy("action"), expected.action[rows])
        np.testing.assert_array_equal(found.as_numpy("loops"), expected.loops[rows])
    few = client.infer(
        "rush", given(seen[:3]), parameters={"max_loops": 1, "threshold": 0.5}, request_id="me"
    )
    assert few.as_numpy("loops").tolist() == [1, 1, 1]
    assert few.get_response()["id"] == "me"
    late = client.infer("rush", given(seen[:1]), timeout=60_000_000)
    assert "parameters" not in late.get_response()
    client.close()


def a_sequence_goes_on_where_it_was(server, seen):
    policy, memory = looped_actor.load_policy(CARRIED), None
    client, fresh = triton.InferenceServerClient(server[1]), []
    for step, board in enumerate(seen[:4, None]):
        ends = {"sequence_start": step == 0, "sequence_end": step == 3}
        found = client.infer("carried", given(board), sequence_id=7, **ends)
        expected = policy.act(board, memory=memory)
        memory = expected.memory
        assert found.as_numpy("loops").tolist() == expected.loops.tolist()
        assert found.as_numpy("action").tolist() == expected.action.tolist()
        fresh.append(found.get_response()["parameters"]["sequence_fresh"])
    assert fresh == [True, False, False, False]
    lost = client.infer("carried", given(seen[:1]), sequence_id=7)  # it has ended, and is forgotten
    assert lost.get_response()["parameters"] == {"sequence_id": 7, "sequence_fresh": True}
    client.close()


def it_is_asked_by_hand(server, policy, seen):
    data = {"name": "observation", "shape": [1, 6, 6, 7], "datatype": "UINT8", "data": seen[0].tolist()}
    status, _, said = fetched(server[1], "/v2/models/rush/infer", json.dumps({"inputs": [data]}).encode())
    assert status == 200
    told = {one["name"]: one["data"] for one in said["outputs"]}
    assert told["action"] == [policy.act(seen[0]).action]
    assert fetched(server[1], "/v2/models/rush/stats")[2]["answered"] >= 2


WRONG = [
    ("/v2/models/rush/infer", b"{", 400, "the request is not JSON"),
    ("/v2/models/rush/infer", b"{}", 400, "inputs must be a list"),
    ("/v2/models/rush/infer", None, 405, "infer answers POST"),
    ("/v2/models/rush/ready", b"", 405, "this answers GET"),
    ("/v2/models/rush/other", None, 404, "there is nothing at '/v2/models/rush/other'"),
    ("/v2/models/nobody/infer", b"{}", 404, "models are ['rush', 'carried']"),
    ("/", None, 404, "there is nothing at '/'; all paths begin with /v2"),
    ("/nothing", None, 404, "there is nothing at '/nothing'"),
    ("/nothing", b"{}", 404, "there is nothing at '/nothing'"),
    ("/v2nothing", None, 404, "there is nothing at '/v2nothing'"),
    ("/v2/models/rush/infer", b"x" * (2**24 + 1), 413, "at most 16777216 bytes"),
]


def the_handbook_s_client_plays(server):
    page = (ROOT / "docs" / "serving.md").read_text()
    (code,) = re.findall(r"```python\n(# not run.*?)```", page, re.S)
    code = code.replace("127.0.0.1:8000", server[1]).replace('"rush-hour"', '"rush"')
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert re.search(r"solved in \d+ steps; loops of each: \[[\d, ]+\]", done.stdout)


def what_is_wrong_is_said(server):
    for path, body, status, message in WRONG:
        found, _, said = fetched(server[1], path, body)
        assert (found, message in said["error"]) == (status, True), said


def more_than_fit_are_told_to_come_again(server, seen):
    data = {"name": "observation", "shape": [1, 6, 6, 7], "datatype": "UINT8", "data": seen[0].tolist()}

    async def ask(session):
        async with session.post("/v2/models/rush/infer", json={"inputs": [data]}) as response:
            said = await response.json()
            return response.status, response.headers.get("Retry-After"), "too busy" in said.get("error", "")

    async def all_at_once():
        unlimited = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(f"http://{server[1]}", connector=unlimited) as session:
            return await asyncio.gather(*(ask(session) for _ in range(3 * FIT)))

    told = asyncio.run(all_at_once())
    assert set(told) == {(200, None, False), (503, "1", True)}
    assert sum(status == 200 for status, *_ in told) >= FIT / 2
    assert fetched(server[1], "/v2/models/rush/stats")[2]["waiting"] == 0


def it_listens_on_this_machine_alone(server):
    port = int(server[1].rpartition(":")[2])
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    addresses = {line.split()[1] for line in lines if line.split()[3] == "0A"}  # which listen
    assert f"0100007F:{port:04X}" in addresses
    assert f"00000000:{port:04X}" not in addresses


def who_has_asked_is_answered_when_it_ends(server, policy, seen):
    process, address = server
    client = triton.InferenceServerClient(address, concurrency=16)
    asked = [client.async_infer("rush", given(seen)) for _ in range(4)]
    until = time.monotonic() + 60
    while not fetched(address, "/v2/models/rush/stats")[2]["thinking"]:
        assert time.monotonic() < until
    process.send_signal(signal.SIGTERM)
    for one in asked:
        np.testing.assert_array_equal(one.get_result().as_numpy("action"), policy.act(seen).action)
    assert process.wait(60) == 0
    assert process.stdout.read() == "answering who has asked ...\n"
    client.close()


def test_a_server_from_beginning_to_end(policy, seen):
    """One for all, since it takes a while to begin."""
    options = ("--names", "rush", "carried", "--board", "6", "6", "--waiting", str(FIT // 2))
    process, address = server = begun(RUSH_HOUR, CARRIED, *options)
    try:
        assert process.stdout.readline() == f"http://{address}/v2/models/carried\n"
        triton_s_client_gets_the_policy_s_answers(server, policy, seen)
        a_sequence_goes_on_where_it_was(server, seen)
        it_is_asked_by_hand(server, policy, seen)
        the_handbook_s_client_plays(server)
        what_is_wrong_is_said(server)
        more_than_fit_are_told_to_come_again(server, seen)
        it_listens_on_this_machine_alone(server)
        who_has_asked_is_answered_when_it_ends(server, policy, seen)
    finally:
        process.terminate()
        process.wait(60)


def test_a_world_of_one_s_own_is_served_too(tmp_path, monkeypatch):
    """A replica alone, without the server around it; nobody has trained its policy."""
    monkeypatch.setattr(jax.config, "update", lambda *setting: None)  # devices are there already
    world = read_code(WALK)
    own = CustomCode(world.build, world.env)
    made = run_of(run_of(world.config, own=own).completed(), own=own)
    policy = Policy(made, made.new_weights())
    policy.save(tmp_path)
    replica = Replica(asdict(Serving(code=str(WALK))), "walk", str(tmp_path))
    boards = np.random.default_rng(2).integers(0, 2, (5, 4, 4, 3)).astype(np.uint8)
    data = {"name": "observation", "shape": [5, 4, 4, 3], "datatype": "UINT8", "data": boards.tolist()}
    answer, _ = asyncio.run(replica.infer(json.dumps({"inputs": [data]}).encode(), None))
    told = {one["name"]: one["data"] for one in json.loads(answer)["outputs"]}
    expected = policy.act(boards)
    assert told["action"] == expected.action.tolist()
    assert told["loops"] == expected.loops.tolist()
    replica.engine.close()
    with pytest.raises(ValueError, match="--code FILE"):
        Replica(asdict(Serving()), "walk", str(tmp_path))


@pytest.mark.parametrize(("status", "waiting", "timeout"), [(503, 0, 10**9), (504, 1024, 1)])
def test_a_request_that_fails_leaves_the_latent_of_its_sequence(status, waiting, timeout, seen, monkeypatch):
    """A client that tries again, as `Retry-After` invites it to, continues from the carried latent."""
    monkeypatch.setattr(jax.config, "update", lambda *setting: None)  # devices are there already
    policy, memory = looped_actor.load_policy(CARRIED), None
    replica = Replica(asdict(Serving(board=(6, 6))), "carried", str(CARRIED))

    def infer(board, **parameters):
        data = {"name": "observation", "shape": [1, 6, 6, 7], "datatype": "UINT8", "data": board.tolist()}
        body = {"inputs": [data], "parameters": {"sequence_id": 7, **parameters}}
        answer = json.loads(asyncio.run(replica.infer(json.dumps(body).encode(), None))[0])
        told = {one["name"]: one["data"] for one in answer["outputs"]}
        return told["action"][0], told["loops"][0], answer["parameters"]["sequence_fresh"]

    def refused(board, **parameters):
        with monkeypatch.context() as change:
            change.setattr(replica.engine, "max_waiting", waiting)
            with pytest.raises(ProtocolError) as error:
                infer(board, timeout=timeout, **parameters)
        assert error.value.status == status

    for board in seen[:3]:
        refused(board)
        expected = policy.act(board, memory=memory)
        assert infer(board) == (expected.action, expected.loops, memory is None)
        memory = expected.memory
    refused(seen[3], sequence_end=True)
    expected = policy.act(seen[3], memory=memory)
    assert infer(seen[3], sequence_end=True) == (expected.action, expected.loops, False)
    infer(seen[4])
    refused(seen[5], sequence_start=True)  # the episode of this latent is over
    assert infer(seen[5])[2]
    replica.engine.close()


def test_a_policy_that_carries_is_not_served_by_several_replicas():
    """Ray Serve sends a request to any of them, and the latent is in one. Refused before Ray starts."""
    with pytest.raises(ValueError, match=r"carried carries its latent .* serve it with one replica"):
        start({"rush": str(PRETRAINED / RUSH_HOUR), "carried": str(CARRIED)}, Serving(replicas=2))
    with pytest.raises(ValueError, match="serve it with one replica"):
        deploy({"carried": str(CARRIED)}, Serving(replicas=2))


@thorough
def test_a_replica_that_is_killed_is_replaced_and_tokens_are_asked_for(policy, seen):
    process, address = begun(
        RUSH_HOUR, "--names", "rush", "--board", "6", "6", "--replicas", "2", LOOPED_ACTOR_TOKEN="secret"
    )
    try:
        assert fetched(address, "/v2")[0] == fetched(address, "/v2/models/rush")[0] == 401
        bears = {"Authorization": "Bearer secret"}
        assert fetched(address, "/v2", **bears)[0] == 200
        data = {"name": "observation", "shape": [1, 6, 6, 7], "datatype": "UINT8", "data": seen[0].tolist()}
        body = json.dumps({"inputs": [data]}).encode()

        def ask(_):
            return fetched(address, "/v2/models/rush/infer", body, **bears)[0]

        with ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(ask, n) for n in range(400)]
            time.sleep(0.5)
            os.kill(replicas()[0], signal.SIGKILL)
            statuses = [one.result(120) for one in asked]
        assert set(statuses) <= {200, 500, 503}
        assert statuses.count(200) > 300
        until = time.monotonic() + 120
        while len(replicas()) < 2 or ask(0) != 200:
            assert time.monotonic() < until
            time.sleep(0.5)
    finally:
        process.terminate()
        assert process.wait(60) == 0


@thorough
def test_a_policy_is_replaced_without_a_failed_request(seen, tmp_path):
    served = tmp_path / "rush"
    shutil.copytree(PRETRAINED / "rush-hour-micro", served)
    process, address = begun(served, "--names", "rush", "--board", "6", "6", "--replicas", "2")
    data = {"name": "observation", "shape": [1, 6, 6, 7], "datatype": "UINT8", "data": seen[0].tolist()}
    body, over = json.dumps({"inputs": [data]}).encode(), threading.Event()

    def ask():
        statuses = []
        while not over.is_set():
            statuses.append(fetched(address, "/v2/models/rush/infer", body)[0])
        return statuses

    try:
        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(ask) for _ in range(4)]
            (served / "policy.safetensors").write_bytes(b"damaged")
            process.send_signal(signal.SIGHUP)  # what cannot be loaded replaces nothing
            time.sleep(5)
            replace_policy(served, CARRIED)
            process.send_signal(signal.SIGHUP)  # nor does what two replicas cannot serve
            time.sleep(5)
            replace_policy(served, PRETRAINED / RUSH_HOUR, max_loops=4)
            process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == "replace_fields\n"
            over.set()
            statuses = [status for one in asked for status in one.result(60)]
        assert set(statuses) == {200}
        assert fetched(address, "/v2/models/rush")[2]["parameters"]["max_loops"] == 4
    finally:
        over.set()
        process.terminate()
        assert process.wait(60) == 0


def replace_policy(folder, by, **halting):
    """Put another policy into a folder, with changes of its halting rule."""
    shutil.rmtree(folder)
    shutil.copytree(by, folder)
    config = json.loads((folder / "config.json").read_text())
    config["halting"] |= halting
    (folder / "config.json").write_text(json.dumps(config))


def replicas():
    """Processes by their names."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ServeReplica:rush" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere is not a folder"),
        ([RUSH_HOUR, "--address", "8000"], "it must be a host and a port, as 127.0.0.1:8000"),
        ([RUSH_HOUR, "--address", "0.0.0.0:8000"], "put a token that they must bear into"),
        ([RUSH_HOUR, RUSH_HOUR], "give each a --names of its own"),
        ([RUSH_HOUR, "--names", "a/b"], "a policy cannot be called 'a/b'"),
        ([RUSH_HOUR, "--replicas", "0"], "replicas is 0; it must be at least 1"),
    ],
)
def test_mistakes_end_in_one_line(words, message, monkeypatch, capsys):
    monkeypatch.delenv("LOOPED_ACTOR_TOKEN", raising=False)
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, "serve", *words)
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
