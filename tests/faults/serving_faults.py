"""Answers, latencies and memory of a server under correct requests, malformed ones, and too many.

python tests/faults/serving_faults.py --out results/serving_faults.json [--malformed 100000] [--seconds 60]

Many clients request decisions for the same boards in batches of all sizes, and must get what `policy.act`
returns. Then come requests that must be refused, and three times as many as can be answered. Starts
`looped-actor serve rush-hour-micro` on the loopback interface, and ends it.
"""

import argparse
import asyncio
import collections
import json
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import aiohttp
import numpy as np

import looped_actor
from looped_actor.reproduction.record import write_record
from looped_actor.serving.protocol import HEADER_LENGTH

NAME = "rush-hour-micro"
MODEL = f"/v2/models/{NAME}"
BOARDS = np.random.default_rng(0).integers(0, 2, (60, 5, 5, 7)).astype(np.uint8)
"""Random boards: they are no levels, and take many different numbers of loops."""
CLIENTS = 32
MAX_ROWS = 8


def make_request(boards: np.ndarray = BOARDS[:1], **changes: Any) -> dict[str, Any]:
    """Return a correct request, apart from the changes."""
    about = {"name": "observation", "shape": list(boards.shape), "datatype": "UINT8", "data": boards.tolist()}
    return {"inputs": [about | changes]}


GOOD = json.dumps(make_request()).encode()


async def check_answers(session: aiohttp.ClientSession, count: int) -> dict[str, Any]:
    """Request decisions in batches, from many clients, and compare them with the policy."""
    expected = looped_actor.load_policy(NAME).act(BOARDS)
    rng, numbers, decisions, wrong = np.random.default_rng(0), iter(range(count)), 0, 0
    begin = time.monotonic()

    async def client() -> None:
        nonlocal decisions, wrong
        for _ in numbers:
            rows = rng.integers(0, len(BOARDS), rng.integers(1, MAX_ROWS + 1))
            async with session.post(f"{MODEL}/infer", json=make_request(BOARDS[rows])) as response:
                outputs = {one["name"]: one["data"] for one in (await response.json())["outputs"]}
            right = [outputs["action"], outputs["loops"]] == [
                expected.action[rows].tolist(),
                expected.loops[rows].tolist(),
            ]
            decisions, wrong = decisions + len(rows), wrong + (not right)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    elapsed = time.monotonic() - begin
    loops = sorted(set(expected.loops.tolist()))
    return {"requests": count, "wrong": wrong, "decisions_per_second": decisions / elapsed, "loops": loops}


def make_malformed(rng: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    """Return method, path, body and headers of a request that must be refused."""
    infer, text = f"{MODEL}/infer", GOOD
    junk = rng.randbytes(rng.randrange(1, 400))
    length = {HEADER_LENGTH: str(rng.choice([-1, 0, 1, 10**9, len(text) + 1, "x", "1e3"]))}
    bad_shape = rng.choice(
        [[1, 5, 5], [0, 5, 5, 7], [-1, 5, 5, 7], [1, 5, 5, 8], [10**12, 5, 5, 7], "x", None]
    )
    bad_type = rng.choice(["FP32", "BYTES", "UINT9", 7, None])
    bad_data = rng.choice([[], [0] * 3, "x", {}, [1e400] * 175, ["a"] * 175])
    return rng.choice(
        [
            ("POST", infer, junk, {}),
            ("POST", infer, text[: rng.randrange(len(text) - 1)], {}),
            ("POST", infer, json.dumps(make_request(shape=bad_shape)).encode(), {}),
            ("POST", infer, json.dumps(make_request(datatype=bad_type)).encode(), {}),
            ("POST", infer, json.dumps(make_request(data=bad_data)).encode(), {}),
            ("POST", infer, json.dumps(make_request(name=junk.hex())).encode(), {}),
            ("POST", infer, json.dumps({"inputs": [{}] * rng.randrange(9)}).encode(), {}),
            ("POST", infer, b"[" * rng.randrange(1, 5000), {}),
            ("POST", infer, text + junk, length),
            ("POST", infer, json.dumps(make_request() | {"parameters": {"max_loops": "many"}}).encode(), {}),
            ("GET", infer, b"", {}),
            ("POST", MODEL, b"", {}),
            ("GET", f"/v2/models/{junk.hex()[:60]}", b"", {}),
            ("GET", f"/v2/{junk.hex()[:60]}", b"", {}),
            ("POST", "/v2/health/ready", junk, {}),
        ]
    )


async def send_malformed(
    session: aiohttp.ClientSession, count: int, rng: random.Random
) -> collections.Counter:
    """Send malformed requests, and count the statuses of the answers."""
    statuses, numbers = collections.Counter(), iter(range(count))

    async def client() -> None:
        for number in numbers:
            method, path, body, headers = make_malformed(rng)
            async with session.request(method, path, data=body, headers=headers) as response:
                await response.read()
                statuses[response.status] += 1
            if number % 1000 == 0:
                print(f"\r{number:,} of {count:,}", end="", file=sys.stderr, flush=True)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return statuses


async def send(session: aiohttp.ClientSession) -> tuple[int, float, bool]:
    """Send a request; return the status, the seconds, and whether a refusal says when to retry."""
    begin = time.monotonic()
    async with session.post(f"{MODEL}/infer", data=GOOD) as response:
        await response.read()
        return response.status, time.monotonic() - begin, "Retry-After" in response.headers


async def wait_until_idle(session: aiohttp.ClientSession) -> None:
    """Wait until a single request is answered quickly."""
    while True:
        status, seconds, _ = await send(session)
        if status == 200 and seconds < 0.25:
            return


async def measure_throughput(session: aiohttp.ClientSession, seconds: float) -> float:
    """Return the answers per second when clients send as fast as they are answered."""
    until, answers = time.monotonic() + seconds, 0

    async def client() -> None:
        nonlocal answers
        while time.monotonic() < until:
            status, _, _ = await send(session)
            answers += status == 200  # not `answers += await ...`, which would lose the answers of others

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return answers / seconds


async def overload(
    session: aiohttp.ClientSession, rate: float, seconds: float, pids: list[int]
) -> dict[str, Any]:
    """Send at a rate, whatever is answered, and measure the time until the server is idle again."""
    begin, pending, memory = time.monotonic(), [], []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begin + number / rate - time.monotonic()))
        pending.append(asyncio.create_task(send(session)))
        if number % int(rate) == 0:
            memory.append(measure_memory(pids))
    over = time.monotonic()
    results = await asyncio.gather(*pending)
    await wait_until_idle(session)
    accepted = [seconds for status, seconds, _ in results if status == 200]
    refused = [retry for status, _, retry in results if status == 503]
    return {
        "asked_per_second": rate,
        "answered": len(accepted),
        "refused": len(refused),
        "refused_with_retry_after": sum(refused),
        "other": len(results) - len(accepted) - len(refused),
        "p50": float(np.quantile(accepted, 0.5)),
        "p99": float(np.quantile(accepted, 0.99)),
        "megabytes_at_first": memory[0],
        "megabytes_at_most": max(memory),
        "seconds_to_recover": time.monotonic() - over,
    }


def measure_memory(pids: list[int]) -> float:
    """Return the resident megabytes of the processes that answer."""
    pages = 0
    for pid in pids:
        pages += int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def find_processes(server: int) -> list[int]:
    """Return the replicas of a server."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        parent = int(path.read_text().rpartition(") ")[2].split()[1])
        if parent == server and b"spawn_main" in (path.parent / "cmdline").read_bytes():
            found.append(int(path.parent.name))
    return sorted(found)


async def disturb(url: str, server: int, options: argparse.Namespace) -> dict[str, Any]:
    """Send all kinds of requests to a server, and return the measurements."""
    connector, patient = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(url, connector=connector, timeout=patient) as session:
        pids = find_processes(server)
        await wait_until_idle(session)
        answers = await check_answers(session, options.requests)
        throughput = await measure_throughput(session, 10)
        rng = random.Random(0)
        statuses = await send_malformed(session, options.malformed // 10, rng)
        before = measure_memory(pids)
        statuses += await send_malformed(session, options.malformed - options.malformed // 10, rng)
        grown = measure_memory(pids) - before
        answered = (await send(session))[0] == 200
        overloaded = await overload(session, 3 * throughput, options.seconds, pids)
        return {
            "answers": answers,
            "malformed": {
                "statuses": statuses,
                "megabytes_grown_after_a_tenth": grown,
                "answered_after": answered,
            },
            "saturation": throughput,
            "overload": overloaded,
            "processes_the_same": pids == find_processes(server),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--malformed", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--waiting", type=int, default=256)
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    words = ["serve", NAME, "--address", address, "--waiting", str(options.waiting)]
    process = subprocess.Popen(
        [sys.executable, "-m", "looped_actor", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        results = asyncio.run(disturb(f"http://{address}", process.pid, options))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    write_record(options.out, results)


if __name__ == "__main__":
    main()
