"""Throughput and latency of servers under equal loads, relative to each other, and a figure.

python benchmarks/serving.py --out results/serving.json                                   # the paper's net
python benchmarks/serving.py --policy rush-hour-micro --before ../old --out results/serving_rush_hour.json
python benchmarks/serving.py --policy rush-hour-micro --rows 64 --out results/serving_rows.json

`slots` is `looped-actor serve`. `batches` is the same server with a batcher in place of the engine: it
gathers requests for at most 5 ms and answers a batch when its deepest decision has stopped. `before`, with
--before, is the server of version 0.2 (Ray Serve) in another checkout. All get the same requests in turns,
from a client process on the same cores. At a given load requests arrive at random times, whatever was
answered by then (an open loop), and a latency counts from the moment at which a request was due.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
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
from looped_actor.policy.pretrained import locate
from looped_actor.puzzles.teachers import planes_of
from looped_actor.reproduction.record import write_record
from looped_actor.runs.load import policy_at
from looped_actor.runs.presets import preset
from looped_actor.runs.registry import run_of
from looped_actor.serving.app import make_app
from looped_actor.serving.engine import Answer, Engine
from looped_actor.serving.metrics import Metrics
from looped_actor.serving.model import ServedModel
from looped_actor.serving.options import ServeOptions
from looped_actor.serving.protocol import HEADER_LENGTH, NAMES, InferRequest

NAME = "policy"
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
    shares: tuple[float, ...] = (0.5, 0.8)
    """Loads at which latency is measured, relative to the throughput of the slowest server."""
    rows: int = 1
    """Observations per request."""


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


class BatchingModel(ServedModel):
    """The baseline: decides for whole batches."""

    def __init__(self, name: str, policy: Policy, options: ServeOptions, prescribed: bool):
        spec = policy.spec
        assert spec.halting is not None
        rule = never_converging(spec.halting) if prescribed else spec.halting

        def decide(weights: Weights, inputs: list[Any], caps: Any) -> Any:
            act = make_policy(spec.definition, weights, rule, Packed())
            output = act(spec.to_observation(inputs), caps=caps)
            assert output.loop is not None
            return spec.outputs(output), output.loop.loops, output.loop.stop

        self._decide, self._waiting, self._due = jax.jit(decide), [], None
        super().__init__(name, policy, options)
        self._most = self.engine.rows.count
        size = 1
        while size <= self._most:  # a program for each power of two
            zeros = [np.zeros((size, *one.shape), one.dtype) for one in self.inputs.values()]
            self._decide_batch([(row, 1) for row in zip(*zeros, strict=True)])
            size *= 2

    async def _ask(self, request: InferRequest, limits: dict[str, Any]) -> list[Answer]:
        cap, loop = limits["max_loops"] or self.engine.rows.max_loops, asyncio.get_running_loop()
        futures, began = [], time.monotonic()
        for row in zip(*request.inputs.values(), strict=True):
            futures.append(loop.create_future())
            self._waiting.append(((row, cap), futures[-1]))
        if self._due is None:
            self._due = loop.create_task(self._work())
        found = await asyncio.gather(*futures)
        return [
            Answer(outputs=outputs, loops=loops, stop=reason, seconds=time.monotonic() - began)
            for outputs, loops, reason in found
        ]

    async def _work(self) -> None:
        """Decide for batches until nothing waits."""
        while self._waiting:
            if len(self._waiting) < self._most:
                await asyncio.sleep(BATCH_WAIT)
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            decided = await asyncio.to_thread(self._decide_batch, [one for one, _ in batch])
            for (_, future), result in zip(batch, decided, strict=True):
                future.set_result(result)
        self._due = None

    def _decide_batch(self, requests: list[Any]) -> list[Any]:
        padding = 2 ** (len(requests) - 1).bit_length() - len(requests)
        inputs = [np.stack(values) for values in zip(*(row for row, _ in requests), strict=True)]
        inputs = [np.concatenate([values, values[:1].repeat(padding, axis=0)]) for values in inputs]
        caps = np.array([cap for _, cap in requests] + [1] * padding, np.int32)
        outputs, loops, reason = jax.device_get(self._decide(self.engine.policy.weights, inputs, caps))
        return [
            ({name: values[n] for name, values in outputs.items()}, int(loops[n]), int(reason[n]))
            for n in range(len(requests))
        ]


def serve_batches(folder: str, port: int, prescribed: bool) -> None:
    """Run the server with the baseline, until it is terminated."""
    import uvicorn

    options = ServeOptions(port=port, max_waiting=4096)
    models = {NAME: BatchingModel(NAME, policy_at(pathlib.Path(folder)), options, prescribed)}
    app = make_app(models, options, Metrics())
    settings: Any = {"http": "httptools", "loop": "uvloop", "lifespan": "off", "log_level": "error"}
    uvicorn.run(app, port=port, timeout_graceful_shutdown=5, **settings)


def make_requests(
    names: Sequence[str], batches: Sequence[Sequence[np.ndarray]], depths: np.ndarray | None
) -> list[tuple[bytes, str]]:
    """Return bodies of requests, with prescribed depths if they are given, and the lengths of their
    headers."""
    bodies = []
    for number, values in enumerate(batches):
        header: dict[str, Any] = {
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
        }
        if depths is not None:
            header["parameters"] = {"max_loops": int(depths[number]), "threshold": 0.0}
        text = json.dumps(header).encode()
        bodies.append(
            (b"".join([text, *(np.ascontiguousarray(v).tobytes() for v in values)]), str(len(text)))
        )
    return bodies


def compare_servers(
    given: str | None, benchmark: ServingBenchmark, before: pathlib.Path | None
) -> dict[str, Any]:
    """Measure the servers.

    Args:
      given: name or folder of a policy, which decides about its own test levels. None: the paper's net for
        Boxoban with random weights and prescribed depths.
      benchmark: the loads.
      before: checkout of version 0.2.
    """
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        folder = pathlib.Path(temporary) if given is None else locate(given).resolve()
        if given is None:
            save_paper_policy(folder)
        policy = policy_at(folder)
        if policy.halting is None:
            raise SystemExit(f"{policy.spec.arm} does not loop: all its decisions take equally long")
        results: dict[str, Any] = {"task": policy.spec.task, "rows": benchmark.rows}
        if given is None:
            depths = np.minimum(DISTRIBUTIONS[benchmark.depths].draw(REQUESTS), policy.halting.max_loops)
            inputs = random_inputs(policy, REQUESTS)
            report("the engine alone")
            results |= {"mean_loops": float(depths.mean())}
            results["engine"] = compare_engine(policy, depths, benchmark.rounds)
        else:
            bank, depths = policy.levels, None
            inputs = [planes_of(bank.cells(np.arange(REQUESTS)), policy.spec.observation.shape[-1])]
        rows = [
            [np.take(one, np.arange(n, n + benchmark.rows), axis=0, mode="wrap") for one in inputs]
            for n in range(REQUESTS)
        ]
        bodies = make_requests(list(policy.spec.inputs()), rows, depths)
        urls = start_servers(stack, str(folder), given is None, before)
        return results | apply_loads(benchmark, urls, bodies)


def start_servers(
    stack: contextlib.ExitStack, folder: str, prescribed: bool, before: pathlib.Path | None
) -> dict[str, str]:
    """Start the servers as processes that end with the stack. Return the addresses of their models."""
    command = [sys.executable, "-m", "looped_actor", "serve", folder, "--names", NAME, "--waiting", "4096"]
    ports = {name: free_port() for name in ("slots", "batches", *(["before"] if before else []))}
    commands = {
        "slots": [*command, "--address", f"127.0.0.1:{ports['slots']}"],
        "batches": [sys.executable, __file__, "--serve-batches", folder, str(ports["batches"])]
        + (["--prescribed"] if prescribed else []),
        "before": [*command, "--address", f"127.0.0.1:{ports.get('before')}"],
    }
    for name in ports:
        report(f"starting {name}")
        path = {"PYTHONPATH": str(before / "src")} if name == "before" and before else {}
        process = subprocess.Popen(commands[name], stdout=subprocess.DEVNULL, env=os.environ | path)
        stack.callback(_end, process)
    urls = {name: f"http://127.0.0.1:{port}/v2/models/{NAME}" for name, port in ports.items()}
    for url in urls.values():
        _wait_until_ready(url)
    return {name: f"{url}/infer" for name, url in urls.items()}


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    process.kill()


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready", timeout=5):
            return
        time.sleep(0.5)
    raise SystemExit(f"{url} did not become ready in five minutes")


def report(step: str) -> None:
    """Print progress."""
    print(step, file=sys.stderr, flush=True)


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def apply_loads(
    benchmark: ServingBenchmark, urls: dict[str, str], bodies: Sequence[tuple[bytes, str]]
) -> dict[str, Any]:
    """Measure the throughput of the servers, and their latencies under equal loads."""
    with multiprocessing.get_context("spawn").Pool(1) as client:

        def load(server: str, rate: float | None) -> LoadResult:
            return client.apply(_load, (urls[server], bodies, rate, benchmark.seconds))

        throughput = dict.fromkeys(urls, 0.0)
        for _ in range(benchmark.rounds):
            for server in urls:
                report(f"throughput of {server}")
                throughput[server] = max(throughput[server], load(server, None).per_second)
        results: dict[str, Any] = {
            "saturation": throughput,
            "throughput_ratio": {
                other: throughput["slots"] / throughput[other] for other in urls if other != "slots"
            },
        }
        for share in benchmark.shares:
            rate, loads = share * min(throughput.values()), {server: [] for server in urls}
            for _ in range(benchmark.rounds):
                for server in urls:
                    report(f"{server} at {share:.0%}")
                    loads[server].append(load(server, rate))
            summaries = {server: _summarize(each) for server, each in loads.items()}
            ratios = {
                other: summaries["slots"]["p99"] / summaries[other]["p99"]
                for other in urls
                if other != "slots"
            }
            results[f"at_{share:.0%}"] = {"per_second": rate, **summaries, "p99_ratio": ratios}
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
    for server, colour in zip(results["saturation"], ("#0b7285", "#e8590c", "#868e96"), strict=False):
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
    parser.add_argument("--policy", help="name or folder; default: the paper's net with random weights")
    parser.add_argument("--before", type=pathlib.Path, help="checkout of version 0.2 to compare with")
    parser.add_argument("--rows", type=int, default=1, help="observations per request")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--depths", choices=list(DISTRIBUTIONS), default="boxoban")
    parser.add_argument("--serve-batches", nargs=2, metavar=("FOLDER", "PORT"), help=argparse.SUPPRESS)
    parser.add_argument("--prescribed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_batches is not None:
        folder, port = options.serve_batches
        serve_batches(folder, int(port), options.prescribed)
        return
    benchmark = ServingBenchmark(options.seconds, options.rounds, options.depths, rows=options.rows)
    results = compare_servers(options.policy, benchmark, options.before)
    write_record(options.out, results)
    if options.out is not None:
        draw(results, options.out)


if __name__ == "__main__":
    main()
