"""Requests in slots against requests in batches: two servers of one policy, asked the same in turns.

The obvious server gathers requests with Ray Serve's `@serve.batch` and lets the policy decide for the whole
batch, which is answered when its deepest thought has ended. Clients are a process of their own. At a given
load they ask at random times, whatever was answered by then (an open loop), and a latency counts from when a
request was due.
"""

import asyncio
import itertools
import json
import multiprocessing
import pathlib
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from looped_actor.algorithms import Weights, as_open_loop
from looped_actor.algorithms import policy_fn as deciding
from looped_actor.loop import Packed, Streaming
from looped_actor.loop.run import Capped, with_caps
from looped_actor.planning.depths import DISTRIBUTIONS
from looped_actor.policy.policy import Policy, save_policy
from looped_actor.runs.load import policy_at
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.serving.engine import Answer, Engine
from looped_actor.serving.protocol import HEADER_LENGTH, NAMES, Question
from looped_actor.serving.server import MODELS, Replica, Serving, start, stop
from looped_actor.utils.errors import UserError

WAYS = ("slots", "batches")
REQUESTS = 256
"""Different ones, which are repeated."""
BATCH_WAIT = 0.005
"""Seconds that the obvious server waits for a batch to fill."""
CLIENTS = 64
"""At a time, to see how much a server can do."""


class Load(NamedTuple):
    """What came of a load."""

    per_second: float
    """Answers."""
    latencies: list[float]
    """Of them, in seconds."""
    refused: int
    """Requests that got another status than 200."""


@dataclass(frozen=True)
class ServeBench:
    """How to measure."""

    seconds: float = 10
    """Of each load."""
    rounds: int = 2
    """Turns of each way; of throughputs the best counts, latencies are of all."""
    depths: str = "boxoban"
    """Loops that are asked for: a distribution of `looped_actor.planning.depths`."""
    shares: tuple[float, ...] = (0.5, 0.8)
    """Of what the slower way can do: the loads at which latency is measured."""


def paper_policy(folder: pathlib.Path) -> None:
    """Write the paper's net for Boxoban, with random weights: how long it thinks is asked of it."""
    run = run_of(preset("boxoban", "paper", "looped"))
    save_policy(run.config, run.new_weights(), folder)


def boards_of(policy: Policy, count: int) -> list[np.ndarray]:
    """Random observations: of every input, `count`."""
    chance = np.random.default_rng(0)
    return [
        chance.integers(0, 2, (count, *one.shape)).astype(one.dtype)
        for one in policy.run.program().inputs.values()
    ]


def engine_share(policy: Policy, depths: np.ndarray, rounds: int) -> dict[str, float]:
    """Loops per second of an engine without a server, and as a share of those of `Streaming`."""
    seen = boards_of(policy, len(depths))
    best = {"engine": np.inf, "streaming": np.inf}
    observation = policy.run.program().observation(*map(jnp.asarray, seen))
    rule: Any = policy.halting

    # The depth that is asked for is the cap of each request, and no divergence is below zero.
    def stream(weights: Weights) -> Any:
        loop: Any = as_open_loop(policy.run.definition, weights, replace(rule, threshold=0.0))
        within = replace(
            loop,
            embed=lambda given: given._replace(x=loop.embed(given.x)),
            start=lambda given: loop.start(given.x),
            problem=with_caps(loop.problem),
        )
        return Streaming().think(within, Capped(observation, jnp.asarray(depths))).thoughts.loops

    streamed = jax.jit(stream)
    with Engine(policy, most_waiting=2 * len(depths)) as engine:
        for turn in range(rounds + 1):  # the first compiles
            began = time.monotonic()
            loops = np.asarray(streamed(policy.weights))
            halfway = time.monotonic()
            rows = zip(*seen, strict=True)
            limits = [{"max_loops": int(depth), "threshold": 0.0} for depth in depths]
            futures = [engine.ask(one, **own) for one, own in zip(rows, limits, strict=True)]
            answers = [future.result().loops for future in futures]
            ended = time.monotonic()
            assert answers == loops.tolist()
            if turn:
                best["streaming"] = min(best["streaming"], halfway - began)
                best["engine"] = min(best["engine"], ended - halfway)
    asked = int(depths.sum())
    return {
        "loops_per_second": asked / best["engine"],
        "share_of_streaming": best["streaming"] / best["engine"],
    }


def batching_replica() -> type[Replica]:
    """The obvious server."""
    from ray import serve

    class Batching(Replica):
        def _first_answer(self) -> None:
            policy, rows = self.engine.policy, self.engine.rows
            rule: Any = policy.halting

            def decide(weights: Weights, inputs: list[Any], caps: Any) -> Any:
                decided: Any = deciding(
                    policy.run.definition, weights, replace(rule, threshold=0.0), Packed()
                )
                decision = decided(rows.program.observation(*inputs), caps=caps)
                return rows.program.outputs(decision), decision.loop.loops, decision.loop.stop

            self.decide = jax.jit(decide)
            super()._first_answer()
            size = 1
            while size <= rows.count:  # a program for each power of two
                nothing = [np.zeros((size, *one.shape), one.dtype) for one in self.inputs.values()]
                self._batch([(row, 1) for row in zip(*nothing, strict=True)])
                size *= 2
            batching: Any = self.one
            batching.set_max_batch_size(rows.count)

        async def _asked(self, question: Question, limits: dict[str, Any]) -> list[Answer]:
            cap, began = limits["max_loops"] or self.engine.rows.most_loops, time.monotonic()
            rows = zip(*question.inputs.values(), strict=True)
            one: Any = self.one
            found = await asyncio.gather(*(one((row, cap)) for row in rows))
            return [Answer(*told, seconds=time.monotonic() - began) for told in found]

        @serve.batch(max_batch_size=64, batch_wait_timeout_s=BATCH_WAIT)
        async def one(self, asked: list[Any]) -> list[Any]:
            return await asyncio.to_thread(self._batch, asked)

        def _batch(self, asked: list[Any]) -> list[Any]:
            filled = 2 ** (len(asked) - 1).bit_length() - len(asked)
            inputs = [np.stack(values) for values in zip(*(row for row, _ in asked), strict=True)]
            inputs = [np.concatenate([values, values[:1].repeat(filled, axis=0)]) for values in inputs]
            caps = np.array([cap for _, cap in asked] + [1] * filled, np.int32)
            outputs, loops, stop = jax.device_get(self.decide(self.engine.policy.weights, inputs, caps))
            return [
                ({name: values[n] for name, values in outputs.items()}, int(loops[n]), int(stop[n]))
                for n in range(len(asked))
            ]

    return Batching


def requests_of(policy: Policy, depths: np.ndarray) -> list[tuple[bytes, str]]:
    """Bodies, and the lengths of their heads: each asks for a depth."""
    seen = boards_of(policy, len(depths))
    names, bodies = list(policy.run.program().inputs), []
    for row, depth in enumerate(depths):
        values = [array[row : row + 1] for array in seen]
        inputs = [
            {
                "name": name,
                "shape": list(value.shape),
                "datatype": NAMES[str(value.dtype)],
                "parameters": {"binary_data_size": value.nbytes},
            }
            for name, value in zip(names, values, strict=True)
        ]
        about = {"inputs": inputs, "outputs": [{"name": "action"}, {"name": "loops"}]}
        about["parameters"] = {"max_loops": int(depth), "threshold": 0.0}
        head = json.dumps(about).encode()
        bodies.append((b"".join([head, *(value.tobytes() for value in values)]), str(len(head))))
    return bodies


def bench_serving(
    folder: pathlib.Path | None, bench: ServeBench, progress: Callable[[float, str], None]
) -> dict[str, Any]:
    """Measure both ways; facts that JSON can hold.

    Args:
      folder: of a policy. Default: the paper's net for Boxoban.
      bench: how.
      progress: is told how far it is, and what is being done.
    """
    with tempfile.TemporaryDirectory() as there:
        if folder is None:
            folder = pathlib.Path(there)
            paper_policy(folder)
        policy = policy_at(folder)
        if policy.halting is None:
            raise UserError(f"{policy.config.arm} does not loop: all its thoughts are of one length")
        depths = np.minimum(DISTRIBUTIONS[bench.depths].draw(REQUESTS), policy.halting.max_loops)
        facts: dict[str, Any] = {"task": policy.config.task, "mean_loops": float(depths.mean())}
        progress(0.02, "starting both servers")
        port = free_port()
        settings = Serving(port=port, most_waiting=4096)
        start(dict.fromkeys(WAYS, str(folder)), settings, {"batches": batching_replica()})
        try:
            progress(0.15, "the engine alone")
            facts["engine"] = engine_share(policy, depths, bench.rounds)
            bodies = requests_of(policy, depths)
            return facts | _loads(bench, f"http://127.0.0.1:{port}{MODELS}", bodies, progress)
        finally:
            stop(WAYS)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _loads(
    bench: ServeBench, url: str, bodies: list, progress: Callable[[float, str], None]
) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as client:

        def load(way: str, rate: float | None) -> Load:
            return client.apply(_load, (f"{url}/{way}/infer", bodies, rate, bench.seconds))

        most = dict.fromkeys(WAYS, 0.0)
        for turn in range(bench.rounds):
            for way in WAYS:
                progress(0.25 + 0.25 * turn / bench.rounds, f"how much {way} can do")
                most[way] = max(most[way], load(way, None).per_second)
        facts: dict[str, Any] = {"saturation": most, "throughput_ratio": most["slots"] / most["batches"]}
        for number, share in enumerate(bench.shares):
            rate, loads = share * min(most.values()), {way: [] for way in WAYS}
            for turn in range(bench.rounds):
                for way in WAYS:
                    part = (number + turn / bench.rounds) / len(bench.shares)
                    progress(0.5 + 0.5 * part, f"{way} at {share:.0%}")
                    loads[way].append(load(way, rate))
            told = {way: _told(each) for way, each in loads.items()}
            ratio = told["slots"]["p99"] / told["batches"]["p99"]
            facts[f"at_{share:.0%}"] = {"per_second": rate, **told, "p99_ratio": ratio}
    return facts


def _told(loads: list[Load]) -> dict[str, float]:
    """Quantiles of all answers, and how many those are."""
    seconds = [each for load in loads for each in load.latencies]
    values = np.quantile(seconds, (0.5, 0.95, 0.99)) if seconds else [np.nan] * 3
    quantiles = dict(zip(("p50", "p95", "p99"), map(float, values), strict=True))
    return quantiles | {"answers": len(seconds), "refused": sum(load.refused for load in loads)}


def _load(url: str, bodies: list, rate: float | None, seconds: float) -> Load:
    return asyncio.run(_asked(url, bodies, rate, seconds))


async def _asked(url: str, bodies: list, rate: float | None, seconds: float) -> Load:
    """Ask: at a rate, or as often as `CLIENTS` at a time can."""
    import aiohttp

    latencies, refused, following = [], [], itertools.cycle(bodies)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(due: float) -> None:
            body, length = next(following)
            async with session.post(url, data=body, headers={HEADER_LENGTH: length}) as response:
                await response.read()
                (latencies if response.status == 200 else refused).append(time.monotonic() - due)

        began = time.monotonic()
        if rate is None:

            async def client() -> None:
                while time.monotonic() < began + seconds:
                    await ask(time.monotonic())

            await asyncio.gather(*(client() for _ in range(CLIENTS)))
        else:
            gaps = np.random.default_rng(0).exponential(1 / rate, int(2 * rate * seconds) + 10)
            due = began + np.cumsum(gaps)
            pending = []
            for moment in due[due < began + seconds]:
                await asyncio.sleep(max(0.0, moment - time.monotonic()))
                pending.append(asyncio.create_task(ask(float(moment))))
            await asyncio.gather(*pending)
        took = time.monotonic() - began
    return Load(len(latencies) / took, latencies, len(refused))
