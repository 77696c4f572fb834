"""A server that is asked much, too much, and nonsense: what it answers, how long that takes, what it holds.

python benchmarks/serving_faults.py --out results/serving_faults.json [--malformed 100000] [--seconds 60]

Many clients ask for the same boards in batches of all sizes, and must be told what `policy.act` says of them.
Then come requests that must be refused, and three times as many as can be answered.

Starts `looped-actor serve rush-hour-micro` on loopback, and ends it.
"""

import argparse
import asyncio
import collections
import json
import pathlib
import random
import signal
import subprocess
import sys
import time
from typing import Any

import aiohttp
import numpy as np
from looped_actor.planning.bench_serving import free_port
from record import write_record

import looped_actor
from looped_actor.serving.protocol import HEADER_LENGTH

NAME = "rush-hour-micro"
MODEL = f"/v2/models/{NAME}"
BOARDS = np.random.default_rng(0).integers(0, 2, (60, 5, 5, 7)).astype(np.uint8)
"""They need not be levels to be thought about for many lengths of time."""
CLIENTS = 32
MOST_ROWS = 8


def question(boards: np.ndarray = BOARDS[:1], **changes: Any) -> dict[str, Any]:
    """A request that is right, but for the changes."""
    about = {"name": "observation", "shape": list(boards.shape), "datatype": "UINT8", "data": boards.tolist()}
    return {"inputs": [about | changes]}


GOOD = json.dumps(question()).encode()


async def answers(session: aiohttp.ClientSession, count: int) -> dict[str, Any]:
    """Ask for boards in batches, from many clients, and compare with the policy itself."""
    expected = looped_actor.load_policy(NAME).act(BOARDS)
    chance, asked, decisions, wrong = np.random.default_rng(0), iter(range(count)), 0, 0
    begun = time.monotonic()

    async def client() -> None:
        nonlocal decisions, wrong
        for _ in asked:
            rows = chance.integers(0, len(BOARDS), chance.integers(1, MOST_ROWS + 1))
            async with session.post(f"{MODEL}/infer", json=question(BOARDS[rows])) as response:
                told = {output["name"]: output["data"] for output in (await response.json())["outputs"]}
            right = [told["action"], told["loops"]] == [
                expected.action[rows].tolist(),
                expected.loops[rows].tolist(),
            ]
            decisions, wrong = decisions + len(rows), wrong + (not right)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    took = time.monotonic() - begun
    loops = sorted(set(expected.loops.tolist()))
    return {"requests": count, "wrong": wrong, "decisions_per_second": decisions / took, "loops": loops}


def malformed(chance: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    """Method, path, body and headers of something that must be refused."""
    infer, text = f"{MODEL}/infer", GOOD
    junk = chance.randbytes(chance.randrange(1, 400))
    length = {HEADER_LENGTH: str(chance.choice([-1, 0, 1, 10**9, len(text) + 1, "x", "1e3"]))}
    bad_shape = chance.choice(
        [[1, 5, 5], [0, 5, 5, 7], [-1, 5, 5, 7], [1, 5, 5, 8], [10**12, 5, 5, 7], "x", None]
    )
    bad_type = chance.choice(["FP32", "BYTES", "UINT9", 7, None])
    bad_data = chance.choice([[], [0] * 3, "x", {}, [1e400] * 175, ["a"] * 175])
    return chance.choice(
        [
            ("POST", infer, junk, {}),
            ("POST", infer, text[: chance.randrange(len(text) - 1)], {}),
            ("POST", infer, json.dumps(question(shape=bad_shape)).encode(), {}),
            ("POST", infer, json.dumps(question(datatype=bad_type)).encode(), {}),
            ("POST", infer, json.dumps(question(data=bad_data)).encode(), {}),
            ("POST", infer, json.dumps(question(name=junk.hex())).encode(), {}),
            ("POST", infer, json.dumps({"inputs": [{}] * chance.randrange(9)}).encode(), {}),
            ("POST", infer, b"[" * chance.randrange(1, 5000), {}),
            ("POST", infer, text + junk, length),
            ("POST", infer, json.dumps(question() | {"parameters": {"max_loops": "many"}}).encode(), {}),
            ("GET", infer, b"", {}),
            ("POST", MODEL, b"", {}),
            ("GET", f"/v2/models/{junk.hex()[:60]}", b"", {}),
            ("GET", f"/v2/{junk.hex()[:60]}", b"", {}),
            ("POST", "/v2/health/ready", junk, {}),
        ]
    )


async def nonsense(session: aiohttp.ClientSession, count: int, chance: random.Random) -> collections.Counter:
    """How often each status was the answer."""
    statuses, asked = collections.Counter(), iter(range(count))

    async def client() -> None:
        for number in asked:
            method, path, body, headers = malformed(chance)
            async with session.request(method, path, data=body, headers=headers) as response:
                await response.read()
                statuses[response.status] += 1
            if number % 1000 == 0:
                print(f"\r{number:,} of {count:,}", end="", file=sys.stderr, flush=True)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return statuses


async def asked(session: aiohttp.ClientSession) -> tuple[int, float, bool]:
    """Status, seconds, and whether a refusal says when to come again."""
    begun = time.monotonic()
    async with session.post(f"{MODEL}/infer", data=GOOD) as response:
        await response.read()
        return response.status, time.monotonic() - begun, "Retry-After" in response.headers


async def well(session: aiohttp.ClientSession) -> None:
    """Wait until a single question is answered soon."""
    while True:
        status, took, _ = await asked(session)
        if status == 200 and took < 0.25:
            return


async def saturation(session: aiohttp.ClientSession, seconds: float) -> float:
    """Answers per second when clients ask as often as they are answered."""
    until, answers = time.monotonic() + seconds, 0

    async def client() -> None:
        nonlocal answers
        while time.monotonic() < until:
            status, _, _ = await asked(session)
            answers += status == 200  # in a line of its own: `answers += await ...` would forget others'

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return answers / seconds


async def overload(
    session: aiohttp.ClientSession, rate: float, seconds: float, pids: list[int]
) -> dict[str, Any]:
    """Ask at a rate whatever is answered, and then see how soon it answers as before."""
    begun, pending, held = time.monotonic(), [], []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
        pending.append(asyncio.create_task(asked(session)))
        if number % int(rate) == 0:
            held.append(memory_of(pids))
    over = time.monotonic()
    told = await asyncio.gather(*pending)
    await well(session)
    accepted = [took for status, took, _ in told if status == 200]
    refused = [again for status, _, again in told if status == 503]
    return {
        "asked_per_second": rate,
        "answered": len(accepted),
        "refused": len(refused),
        "refused_with_retry_after": sum(refused),
        "other": len(told) - len(accepted) - len(refused),
        "p50": float(np.quantile(accepted, 0.5)),
        "p99": float(np.quantile(accepted, 0.99)),
        "megabytes_at_first": held[0],
        "megabytes_at_most": max(held),
        "seconds_to_recover": time.monotonic() - over,
    }


def memory_of(pids: list[int]) -> float:
    """Resident megabytes of the processes that answer."""
    pages = 0
    for pid in pids:
        pages += int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def serving_processes() -> list[int]:
    """Ray Serve's proxy and replicas, by the names that they give themselves."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes()
        if words.startswith(b"ray::ServeReplica") or words.startswith(b"ray::ProxyActor"):
            found.append(int(path.parent.name))
    return found


async def measured(url: str, given: argparse.Namespace) -> dict[str, Any]:
    connector, patient = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(url, connector=connector, timeout=patient) as session:
        pids = serving_processes()
        await well(session)
        facts: dict[str, Any] = {"answers": await answers(session, given.requests)}
        most = await saturation(session, 10)
        chance = random.Random(0)
        statuses = await nonsense(session, given.malformed // 10, chance)
        before = memory_of(pids)
        statuses += await nonsense(session, given.malformed - given.malformed // 10, chance)
        grown = memory_of(pids) - before
        after = (await asked(session))[0] == 200
        facts["malformed"] = {
            "statuses": statuses,
            "megabytes_grown_after_a_tenth": grown,
            "answered_after": after,
        }
        again = await overload(session, 3 * most, given.seconds, pids)
        return facts | {
            "saturation": most,
            "overload": again,
            "processes_the_same": pids == serving_processes(),
        }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--out")
    options.add_argument("--requests", type=int, default=10_000)
    options.add_argument("--malformed", type=int, default=100_000)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--waiting", type=int, default=256)
    given = options.parse_args()
    address = f"127.0.0.1:{free_port()}"
    words = ["serve", NAME, "--address", address, "--waiting", str(given.waiting)]
    process = subprocess.Popen(
        [sys.executable, "-m", "looped_actor", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        facts = asyncio.run(measured(f"http://{address}", given))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    write_record(given.out, facts)


if __name__ == "__main__":
    main()
