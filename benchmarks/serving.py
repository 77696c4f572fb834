"""Throughput and latency of a server with slots, relative to one with batches, and a figure.

python benchmarks/serving.py --out results/serving.json [--policy FOLDER] [--seconds 8]

The baseline gathers requests with Ray Serve's `@serve.batch` and lets the policy decide for the whole batch,
which is answered when its deepest decision has stopped. Both servers get the same requests in turns, from a
client process. At a given load requests arrive at random times, whatever was answered by then (an open loop),
and a latency counts from the moment at which a request was due.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import pathlib
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from looped_actor.algorithms import Weights, make_policy, to_streaming
from looped_actor.analysis.drawing import new_axes, save_figure
from looped_actor.loop import Packed, Streaming
from looped_actor.loop.run import Capped, with_caps
from looped_actor.planning.depths import DISTRIBUTIONS, never_converging
from looped_actor.policy.policy import Policy, save_policy
from looped_actor.reproduction.record import write_record
from looped_actor.runs.load import policy_at
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.serving.engine import Answer, Engine
from looped_actor.serving.protocol import HEADER_LENGTH, NAMES, InferRequest
from looped_actor.serving.server import MODELS, Replica, Serving, start, stop

SERVERS = ("slots", "batches")
REQUESTS = 256
"""Different requests, which are repeated."""
BATCH_WAIT = 0.005
"""Seconds that the baseline waits for a batch to fill."""
CLIENTS = 64
"""Concurrent clients in the measurement of throughput."""


class LoadResult(NamedTuple):
    """Measurements under one load."""

    per_second: float
    """Answers per second."""
    latencies: list[float]
    """Latencies of the answers, in seconds."""
    refused: int
    """Requests with another status than 200."""


@dataclass(frozen=True)
class ServingBenchmark:
    """Loads to measure."""

    seconds: float = 8
    """Duration of each load."""
    rounds: int = 2
    """Turns of each server; the best throughput counts, and latencies of all turns."""
    depths: str = "boxoban"
    """Distribution of the loops per decision."""
    shares: tuple[float, ...] = (0.3, 0.5, 0.8, 0.95)
    """Loads at which latency is measured, relative to the throughput of the slower server."""


def save_paper_policy(folder: pathlib.Path) -> None:
    """Write the paper's net for Boxoban with random weights."""
    run = run_of(preset("boxoban", "paper"))
    save_policy(run.config, run.spec.init_weights(), folder)


def random_inputs(policy: Policy, count: int) -> list[np.ndarray]:
    """Return `count` random values of every input."""
    rng = np.random.default_rng(0)
    inputs = policy.spec.inputs().values()
    return [rng.integers(0, 2, (count, *one.shape)).astype(one.dtype) for one in inputs]


def compare_engine(policy: Policy, depths: np.ndarray, rounds: int) -> dict[str, float]:
    """Return the loops per second of an engine without a server, also relative to `Streaming`."""
    inputs, spec = random_inputs(policy, len(depths)), policy.spec
    observation = spec.to_observation([jnp.asarray(values) for values in inputs])
    assert policy.halting is not None
    rule = never_converging(policy.halting)

    # The prescribed depth is the cap of each request.
    @jax.jit
    def stream(weights: Weights) -> Any:
        parts = to_streaming(spec.definition, weights, rule)
        assert parts is not None
        capped = replace(
            parts,
            embed=lambda given: given._replace(x=parts.embed(given.x)),
            initial_latent=lambda given: parts.initial_latent(given.x),
            problem=with_caps(parts.problem),
        )
        return Streaming().decide(capped, Capped(observation, jnp.asarray(depths))).output.loops

    best = {"engine": np.inf, "streaming": np.inf}
    limits = [{"max_loops": int(depth), "threshold": 0.0} for depth in depths]
    with Engine(policy, max_waiting=2 * len(depths)) as engine:
        for turn in range(rounds + 1):  # the first one compiles
            begin = time.monotonic()
            loops = np.asarray(stream(policy.weights))
            middle = time.monotonic()
            rows = zip(*inputs, strict=True)
            futures = [engine.ask(row, **limit) for row, limit in zip(rows, limits, strict=True)]
            answers = [future.result().loops for future in futures]
            end = time.monotonic()
            assert answers == loops.tolist()
            if turn:
                best["streaming"] = min(best["streaming"], middle - begin)
                best["engine"] = min(best["engine"], end - middle)
    return {
        "loops_per_second": int(depths.sum()) / best["engine"],
        "share_of_streaming": best["streaming"] / best["engine"],
    }


def batching_replica() -> type[Replica]:
    """Return the baseline."""
    from ray import serve

    class Batching(Replica):
        def _first_answer(self) -> None:
            spec, rows = self.engine.policy.spec, self.engine.rows
            assert spec.halting is not None
            rule = never_converging(spec.halting)

            def decide(weights: Weights, inputs: list[Any], caps: Any) -> Any:
                policy = make_policy(spec.definition, weights, rule, Packed())
                output = policy(spec.to_observation(inputs), caps=caps)
                assert output.loop is not None
                return spec.outputs(output), output.loop.loops, output.loop.stop

            self.decide = jax.jit(decide)
            super()._first_answer()
            size = 1
            while size <= rows.count:  # a program for each power of two
                zeros = [np.zeros((size, *one.shape), one.dtype) for one in self.inputs.values()]
                self._decide_batch([(row, 1) for row in zip(*zeros, strict=True)])
                size *= 2
            batching: Any = self.one
            batching.set_max_batch_size(rows.count)

        async def _asked(self, question: InferRequest, limits: dict[str, Any]) -> list[Answer]:
            cap, begin = limits["max_loops"] or self.engine.rows.max_loops, time.monotonic()
            rows = zip(*question.inputs.values(), strict=True)
            one: Any = self.one
            found = await asyncio.gather(*(one((row, cap)) for row in rows))
            return [
                Answer(outputs=outputs, loops=loops, stop=reason, seconds=time.monotonic() - begin)
                for outputs, loops, reason in found
            ]

        @serve.batch(max_batch_size=64, batch_wait_timeout_s=BATCH_WAIT)
        async def one(self, requests: list[Any]) -> list[Any]:
            return await asyncio.to_thread(self._decide_batch, requests)

        def _decide_batch(self, requests: list[Any]) -> list[Any]:
            padding = 2 ** (len(requests) - 1).bit_length() - len(requests)
            inputs = [np.stack(values) for values in zip(*(row for row, _ in requests), strict=True)]
            inputs = [np.concatenate([values, values[:1].repeat(padding, axis=0)]) for values in inputs]
            caps = np.array([cap for _, cap in requests] + [1] * padding, np.int32)
            outputs, loops, reason = jax.device_get(self.decide(self.engine.policy.weights, inputs, caps))
            return [
                ({name: values[n] for name, values in outputs.items()}, int(loops[n]), int(reason[n]))
                for n in range(len(requests))
            ]

    return Batching


def make_requests(policy: Policy, depths: np.ndarray) -> list[tuple[bytes, str]]:
    """Return bodies of requests with prescribed depths, and the lengths of their headers."""
    inputs, names, bodies = random_inputs(policy, len(depths)), list(policy.spec.inputs()), []
    for row, depth in enumerate(depths):
        values = [array[row : row + 1] for array in inputs]
        header = {
            "inputs": [
                {
                    "name": name,
                    "shape": list(value.shape),
                    "datatype": NAMES[str(value.dtype)],
                    "parameters": {"binary_data_size": value.nbytes},
                }
                for name, value in zip(names, values, strict=True)
            ],
            "outputs": [{"name": "action"}, {"name": "loops"}],
            "parameters": {"max_loops": int(depth), "threshold": 0.0},
        }
        text = json.dumps(header).encode()
        bodies.append((b"".join([text, *(value.tobytes() for value in values)]), str(len(text))))
    return bodies


def compare_servers(folder: pathlib.Path | None, benchmark: ServingBenchmark) -> dict[str, Any]:
    """Measure both servers.

    Args:
      folder: of a policy. Default: the paper's net for Boxoban, with random weights.
      benchmark: the loads.
    """
    with tempfile.TemporaryDirectory() as temporary:
        if folder is None:
            folder = pathlib.Path(temporary)
            save_paper_policy(folder)
        policy = policy_at(folder)
        if policy.halting is None:
            raise SystemExit(f"{policy.spec.arm} does not loop: all its decisions take equally long")
        depths = np.minimum(DISTRIBUTIONS[benchmark.depths].draw(REQUESTS), policy.halting.max_loops)
        report("starting both servers")
        port = free_port()
        settings = Serving(port=port, max_waiting=4096)
        start(dict.fromkeys(SERVERS, str(folder)), settings, {"batches": batching_replica()})
        try:
            report("the engine alone")
            engine = compare_engine(policy, depths, benchmark.rounds)
            bodies = make_requests(policy, depths)
            loads = apply_loads(benchmark, f"http://127.0.0.1:{port}{MODELS}", bodies)
        finally:
            stop(SERVERS)
    return {"task": policy.spec.task, "mean_loops": float(depths.mean()), "engine": engine, **loads}


def report(step: str) -> None:
    """Print progress."""
    print(step, file=sys.stderr, flush=True)


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def apply_loads(benchmark: ServingBenchmark, url: str, bodies: Sequence[tuple[bytes, str]]) -> dict[str, Any]:
    """Measure the throughput of both servers, and their latencies under equal loads."""
    with multiprocessing.get_context("spawn").Pool(1) as client:

        def load(server: str, rate: float | None) -> LoadResult:
            return client.apply(_load, (f"{url}/{server}/infer", bodies, rate, benchmark.seconds))

        throughput = dict.fromkeys(SERVERS, 0.0)
        for _ in range(benchmark.rounds):
            for server in SERVERS:
                report(f"throughput of {server}")
                throughput[server] = max(throughput[server], load(server, None).per_second)
        results: dict[str, Any] = {
            "saturation": throughput,
            "throughput_ratio": throughput["slots"] / throughput["batches"],
        }
        for share in benchmark.shares:
            rate, loads = share * min(throughput.values()), {server: [] for server in SERVERS}
            for _ in range(benchmark.rounds):
                for server in SERVERS:
                    report(f"{server} at {share:.0%}")
                    loads[server].append(load(server, rate))
            summaries = {server: _summarize(each) for server, each in loads.items()}
            ratio = summaries["slots"]["p99"] / summaries["batches"]["p99"]
            results[f"at_{share:.0%}"] = {"per_second": rate, **summaries, "p99_ratio": ratio}
    return results


def _summarize(loads: list[LoadResult]) -> dict[str, float]:
    """Return quantiles of the latencies of all answers, and counts."""
    seconds = [each for load in loads for each in load.latencies]
    values = np.quantile(seconds, (0.5, 0.95, 0.99)) if seconds else [np.nan] * 3
    quantiles = dict(zip(("p50", "p95", "p99"), map(float, values), strict=True))
    return quantiles | {"answers": len(seconds), "refused": sum(load.refused for load in loads)}


def _load(url: str, bodies: Sequence[tuple[bytes, str]], rate: float | None, seconds: float) -> LoadResult:
    return asyncio.run(_send(url, bodies, rate, seconds))


async def _send(
    url: str, bodies: Sequence[tuple[bytes, str]], rate: float | None, seconds: float
) -> LoadResult:
    """Send requests at a rate, or as fast as `CLIENTS` clients are answered."""
    import aiohttp

    latencies, refused, following = [], [], itertools.cycle(bodies)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def send(due: float) -> None:
            body, length = next(following)
            async with session.post(url, data=body, headers={HEADER_LENGTH: length}) as response:
                await response.read()
                (latencies if response.status == 200 else refused).append(time.monotonic() - due)

        begin = time.monotonic()
        if rate is None:

            async def client() -> None:
                while time.monotonic() < begin + seconds:
                    await send(time.monotonic())

            await asyncio.gather(*(client() for _ in range(CLIENTS)))
        else:
            gaps = np.random.default_rng(0).exponential(1 / rate, int(2 * rate * seconds) + 10)
            due = begin + np.cumsum(gaps)
            pending = []
            for moment in due[due < begin + seconds]:
                await asyncio.sleep(max(0.0, moment - time.monotonic()))
                pending.append(asyncio.create_task(send(float(moment))))
            await asyncio.gather(*pending)
        elapsed = time.monotonic() - begin
    return LoadResult(len(latencies) / elapsed, latencies, len(refused))


def draw(results: dict[str, Any], path: pathlib.Path) -> None:
    """Draw latency against load."""
    figure, ((axis,),) = new_axes(1, width=7, height=4)
    loads = [load for name, load in results.items() if name.startswith("at_")]
    for server, colour in zip(SERVERS, ("#0b7285", "#e8590c"), strict=True):
        for quantile, style in (("p50", "-"), ("p99", "--")):
            rates = [load["per_second"] for load in loads]
            milliseconds = [1000 * load[server][quantile] for load in loads]
            axis.plot(rates, milliseconds, style, marker="o", color=colour, label=f"{server}, {quantile}")
        axis.axvline(results["saturation"][server], color=colour, alpha=0.3)
    axis.set_xlabel("requests per second (vertical lines: throughput)")
    axis.set_ylabel("latency, milliseconds")
    axis.set_yscale("log")
    axis.legend()
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="the record; its figure lies next to it")
    parser.add_argument("--policy", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--depths", choices=list(DISTRIBUTIONS), default="boxoban")
    options = parser.parse_args()
    benchmark = ServingBenchmark(options.seconds, options.rounds, options.depths)
    results = compare_servers(options.policy, benchmark)
    write_record(options.out, results)
    if options.out is not None:
        draw(results, options.out)


if __name__ == "__main__":
    main()
