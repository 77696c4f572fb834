"""Deliberate faults, with a seed and a budget: tests of the promises in docs/reliability.md.

python tests/faults/faults.py files --cases 1000000 --minutes 30 --out results/faults_files.json
python tests/faults/faults.py kills --learner ppo --cases 50 --minutes 30 --out results/faults_kills_ppo.json
python tests/faults/faults.py starts --cases 20 --at-once 4 --minutes 60 --out results/faults_starts.json
python tests/faults/faults.py disk --cases 20 --out results/faults_disk.json       # mounts a tmpfs: as root
python tests/faults/faults.py processes --out results/faults_processes.json

files: mutated files of every format that the package reads, each opened under a limit of memory and time.
kills: SIGKILL at moments spread evenly over a whole run; the resumed run must end in the same bytes.
starts: SIGINT and SIGKILL at moments of a run's first minute; the same command, or resume, must end in the
  same bytes, and after SIGINT one sentence is printed, and no traceback.
disk: the disk is full from some moment on; the run must end with a sentence, and resume to the same bytes.
processes: of two that train together one is killed, ended, started twice, or missing.

A broken promise counts as a failure, is printed, and makes the command end with code 1.
"""

import argparse
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from mutated_files import FORMATS, mutate_files

from looped_actor.reproduction.record import write_record

NET = (
    "arm.core.width=8",
    "arm.core.heads=1",
    "arm.core.hidden=24",
    "arm.halting.max_loops=4",
)
PUZZLE = (
    *NET,
    "algorithm.num_envs=16",
    "algorithm.rollout_steps=8",
    "algorithm.minibatch=32",
    "levels.train_count=60",
    "levels.held_out_count=20",
    "levels.evaluate_count=10",
    "evaluate_every=8",
    "checkpoint_every=3",
)
ROBOT = (
    *NET,
    "algorithm.batch=16",
    "algorithm.updates_per_iteration=5",
    "algorithm.hidden=[8]",
    "data.transitions=40",
    "data.episode_transitions=20",
    "episodes=1",
    "time_limit=3",
    "evaluate_every=8",
    "checkpoint_every=3",
)
ITERATIONS = 24
RUNS = {
    "ppo": ["boxoban", "--steps", ITERATIONS * 128, "--set", *PUZZLE],
    "imitation": ["rush-hour", "--learner", "imitation", "--steps", ITERATIONS * 128, "--set", *PUZZLE],
    "gciql": ["cube-double", "--steps", ITERATIONS * 5, "--set", *ROBOT],
}
START = [*RUNS["ppo"], "levels.train_count=400", "evaluate_every=10", "checkpoint_every=3"]
"""Run with more levels than one process generates."""
START[START.index("--steps") + 1] = 120 * 128  # so that it is still learning after a minute
SECONDS_OF_A_START = 60
SENTENCE = re.compile(
    r"^looped-actor: interrupted.*$|^.*: (saved; continue with:|finished; the policy is in) .*$", re.M
)
"""Message of an interrupted run."""
SECONDS_TO_NOTICE = 120
"""Time within which a process must end after one that it trains with."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("fault", choices=["files", "kills", "starts", "disk", "processes"])
    parser.add_argument("--learner", choices=list(RUNS), default="ppo", help="of kills")
    parser.add_argument("--formats", nargs="*", choices=list(FORMATS), default=list(FORMATS), help="of files")
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=1, help="of starts: runs at a time")
    parser.add_argument("--minutes", type=float, default=30.0, help="stop before, if that takes longer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background
    begin, deadline = time.monotonic(), time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if options.fault == "files":
            results = mutate_files(options.formats, options.cases, options.seed, deadline, folder)
        elif options.fault == "kills":
            results = kill_runs(options.learner, options.cases, options.seed, deadline, folder)
        elif options.fault == "starts":
            results = interrupt_starts(options.cases, options.seed, deadline, folder, options.at_once)
        elif options.fault == "disk":
            results = fill_disks(options.cases, options.seed, deadline, folder)
        else:
            results = disturb_pairs(options.cases, folder)
    results |= {"seed": options.seed, "minutes": round((time.monotonic() - begin) / 60, 1)}
    write_record(options.out, results)
    sys.exit(1 if results["failures"] else 0)


class Run:
    """A run by the command line, which a fault may end.

    Args:
      folder: of the run.
      words: of the command.
      together: words that connect processes that train together.
    """

    def __init__(self, folder: pathlib.Path, words: list, together: tuple = ()):
        self.folder, self.words, self.together = folder, words, together
        cache = folder.parent / "compiled"
        # Quick to compile: the speed of programs is not tested here.
        self.env = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
            "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
        }

    def start(self) -> subprocess.Popen:
        """Start to train, or to resume."""
        begun = (self.folder / "config.json").exists()
        words = ["resume", self.folder] if begun else ["train", *self.words, "--out", self.folder]
        command = [sys.executable, "-m", "looped_actor", *map(str, [*words, *self.together])]
        devices = [] if self.together else ["--devices", "1"]
        pipes: Any = {"env": self.env, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([*command, *devices], start_new_session=True, **pipes)

    def finish(self) -> str:
        """Run to the end, and return the output. Raises an error if it fails."""
        output, _ = (process := self.start()).communicate(timeout=1200)
        if process.returncode:
            raise RuntimeError(f"it ended with code {process.returncode}: {output[-600:]}")
        return output

    @property
    def rows(self) -> int:
        """Iterations in metrics.csv."""
        path = self.folder / "metrics.csv"
        return len(path.read_text().splitlines()) - 1 if path.exists() else 0

    @property
    def outcome(self) -> dict[str, bytes]:
        """All files that must be the same after any fault."""
        wanted = ["metrics.csv", "policy/policy.safetensors", "policy/config.json", "provenance.json"]
        files = [self.folder / name for name in wanted] + sorted((self.folder / "evaluations").iterdir())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}


def kill(process: subprocess.Popen) -> None:
    """Kill a process and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def reference(words: list, folder: pathlib.Path) -> tuple[dict[str, bytes], float]:
    """Return the files of an undisturbed run, and its seconds once everything is compiled."""
    Run(folder / "first", words).finish()
    begin = time.monotonic()
    (whole := Run(folder / "whole", words)).finish()
    return whole.outcome, time.monotonic() - begin


def compare(run: Run, whole: dict[str, bytes]) -> str:
    """Finish a run, and return "equal" if it ended in the same bytes, or else the difference."""
    try:
        run.finish()
        found = run.outcome
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return f"not resumed: {error}"
    other = sorted(name for name in whole.keys() | found.keys() if whole.get(name) != found.get(name))
    return f"other bytes in {', '.join(other)}" if other else "equal"


def kill_runs(learner: str, cases: int, seed: int, deadline: float, folder: pathlib.Path) -> dict:
    """Kill each run once, at moments that are spread evenly from its start to its end."""
    whole, seconds = reference(RUNS[learner], folder)
    rng, outcomes, done = random.Random(seed), Counter(), []
    order = list(range(cases))
    rng.shuffle(order)  # the moments of a study that is cut short are spread as well
    for slot in order:
        if time.monotonic() > deadline:
            break
        moment = (slot + rng.random()) / cases * seconds
        run = Run(folder / f"killed{slot}", RUNS[learner])
        process = run.start()
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        kill(process)
        done.append({"second": round(moment, 2), "iterations": run.rows, "outcome": compare(run, whole)})
        outcomes["equal" if done[-1]["outcome"] == "equal" else "failed"] += 1
        print(f"{len(done)} of {cases}: {done[-1]}", flush=True)
        shutil.rmtree(run.folder, ignore_errors=True)
    return {
        "learner": learner,
        "seconds_of_a_run": round(seconds, 1),
        "asked": cases,
        "kills": len(done),
        "equal": outcomes["equal"],
        "failures": [one for one in done if one["outcome"] != "equal"],
        "moments": sorted(one["second"] for one in done),
    }


def interrupt_starts(cases: int, seed: int, deadline: float, folder: pathlib.Path, at_once: int) -> dict:
    """Send both signals at moments that are spread evenly over the first minute, in random order."""
    (whole := Run(folder / "whole", START)).finish()
    expected, rng, done = whole.outcome, random.Random(seed), []
    moments = [(slot + rng.random()) / cases * SECONDS_OF_A_START for slot in range(cases)]
    order = [(number, moment) for number in (signal.SIGINT, signal.SIGKILL) for moment in moments]
    rng.shuffle(order)

    def case(number: signal.Signals, moment: float) -> None:
        if time.monotonic() > deadline:
            return
        run = Run(folder / f"{number.name}{moment}", START)
        about = {"signal": number.name, "second": round(moment, 2), **interrupt(run, number, moment)}
        done.append(about | {"outcome": compare(run, expected)})
        shutil.rmtree(run.folder, ignore_errors=True)
        print(f"{len(done)} of {len(order)}: {done[-1]}", flush=True)

    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(case, *zip(*order, strict=True)))
    wanted = {"problem": None, "outcome": "equal"}
    return {
        "asked": len(order),
        "starts": len(done),
        "failures": [one for one in done if one | wanted != one],
        "cases": sorted(done, key=lambda one: (one["signal"], one["second"])),
    }


def interrupt(run: Run, number: signal.Signals, moment: float) -> dict:
    """Send a signal to all processes of a run, as a terminal does; return its stage and its message."""
    process = run.start()
    with suppress(subprocess.TimeoutExpired):
        process.wait(moment)
    stage = "the end" if process.poll() is not None else reached(run)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    begin, problem = time.monotonic(), None
    try:
        output, _ = process.communicate(timeout=5 * SECONDS_TO_NOTICE)
    except subprocess.TimeoutExpired:
        kill(process)
        output, problem = "", "it hung"
    sentences = [found.group() for found in SENTENCE.finditer(output)]
    noise = [word for word in ("Traceback", "Exception ignored", "Error") if word in output]
    if number == signal.SIGINT and (process.returncode not in (0, 130) or noise or len(sentences) != 1):
        problem = problem or f"code {process.returncode}: {output[-2000:]}"
    if number == signal.SIGINT and "finished" in str(sentences) and stage not in ("learning", "the end"):
        problem = "the signal had no effect"
    return {
        "reached": stage,
        "iterations": run.rows,
        "said": sentences[-1].replace(str(run.folder), "RUN") if sentences else None,
        "seconds_to_end": round(time.monotonic() - begin, 1),
        "problem": problem,
    }


def reached(run: Run) -> str:
    """Return the stage of a run, from its folder."""
    if run.rows:
        return "learning"
    if not (run.folder / "config.json").exists():
        return "imports"
    return "levels" if (run.folder / "preparing").exists() else "compiling"


def fill_disks(cases: int, seed: int, deadline: float, folder: pathlib.Path) -> dict:
    """Fill the disk of each run at a random iteration, and empty it after the run has ended."""
    whole, _ = reference(RUNS["ppo"], folder)
    rng, done = random.Random(seed), []
    for case in range(cases):
        if time.monotonic() > deadline:
            break
        disk = folder / f"disk{case}"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=True)
        try:
            run, iteration = Run(disk / "run", RUNS["ppo"]), rng.randrange(ITERATIONS - 2)
            run.env["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
            done.append({"iteration": iteration, "outcome": fill(run, iteration, disk / "ballast", whole)})
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
        print(f"{len(done)} of {cases}: {done[-1]}", flush=True)
    failures = [one for one in done if one["outcome"] != "equal"]
    return {"asked": cases, "disks": len(done), "equal": len(done) - len(failures), "failures": failures}


def fill(run: Run, iteration: int, ballast: pathlib.Path, whole: dict[str, bytes]) -> str:
    """Fill the disk of a run at an iteration; resume the run after there is room again."""
    process = run.start()
    while run.rows < iteration and process.poll() is None:
        time.sleep(0.002)
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    try:
        output, _ = process.communicate(timeout=SECONDS_TO_NOTICE)
    except subprocess.TimeoutExpired:
        kill(process)
        return "it hung"
    ballast.unlink()
    if process.returncode != 2 or "Traceback" in output or "looped-actor: " not in output:
        return f"it ended with code {process.returncode}: {output[-600:]}"
    return compare(run, whole)


def disturb_pairs(count: int, folder: pathlib.Path) -> dict:
    """Disturb one of two processes, in the first cases of six. A single case is not resumed."""
    whole, cases = Pair(folder / "whole"), {}
    if count > 1:
        whole.finish()

    def lose_and_resume(victim: int, number: signal.Signals) -> Callable[[Pair], dict]:
        def case(pair: Pair) -> dict:
            results = pair.lose(victim, number)
            if count == 1:
                return results
            pair.finish()
            other = {} if pair.outcome == whole.outcome else {"failure": "it was resumed to other bytes"}
            return results | other

        return case

    for name, case in [
        ("the second is killed", lose_and_resume(1, signal.SIGKILL)),
        ("the first is killed", lose_and_resume(0, signal.SIGKILL)),
        ("the second is asked to end", lose_and_resume(1, signal.SIGTERM)),
        ("the first is started twice", Pair.twice),
        ("the first is missing", lambda pair: pair.alone(1)),
        ("the second is missing", lambda pair: pair.alone(0)),
    ][:count]:
        cases[name] = case(Pair(folder / name.replace(" ", "_")))
        print(f"{name}: {cases[name]}", flush=True)
    failures = [{name: case} for name, case in cases.items() if "failure" in case]
    return {"cases": cases, "failures": failures}


class Pair:
    """Two processes that train one run together."""

    def __init__(self, folder: pathlib.Path):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.folder = folder

    def run(self, process: int) -> Run:
        """Return one of the two."""
        place = ("--coordinator", f"127.0.0.1:{self.port}", "--processes", 2, "--process", process)
        return Run(self.folder, RUNS["ppo"], place)

    def finish(self) -> None:
        """Run both to the end."""
        both = [self.run(0).start(), self.run(1).start()]
        outputs = [process.communicate(timeout=1200)[0] for process in both]
        if any(process.returncode for process in both):
            raise RuntimeError(f"they ended with {[p.returncode for p in both]}: {outputs[0][-600:]}")

    @property
    def outcome(self) -> dict[str, bytes]:
        """All files that must be the same."""
        return self.run(0).outcome

    def lose(self, victim: int, number: signal.Signals) -> dict:
        """Send a signal to one in the middle of the run, and return how the other one ends."""
        both = [self.run(0).start(), self.run(1).start()]
        while self.run(0).rows < ITERATIONS // 2 and both[0].poll() is None:
            time.sleep(0.01)
        both[victim].send_signal(number)
        return self._ended(both[1 - victim], both[victim], wanted=0 if number == signal.SIGTERM else 2)

    def alone(self, process: int) -> dict:
        """Start only one of the two."""
        return self._ended(self.run(process).start(), limit=300, advice="process")

    def twice(self) -> dict:
        """Start the first one twice."""
        first = self.run(0).start()
        time.sleep(5)
        found = self._ended(self.run(0).start(), advice="--process 0")
        kill(first)
        return found

    def _ended(
        self,
        process: subprocess.Popen,
        other: subprocess.Popen | None = None,
        *,
        wanted: int = 2,
        advice: str = "resume",
        limit: float = SECONDS_TO_NOTICE,
    ) -> dict:
        begin, other_output = time.monotonic(), ""
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            kill(process)
            return {"failure": f"it had not ended after {limit} seconds"}
        finally:
            if other is not None:
                with suppress(subprocess.TimeoutExpired):
                    other_output, _ = other.communicate(timeout=SECONDS_TO_NOTICE)
                kill(other)
        results = {"seconds": round(time.monotonic() - begin, 1), "code": process.returncode}
        if process.returncode != wanted or (wanted and advice not in output):
            return results | {"failure": output[-4000:], "beside": other_output[-4000:]}
        return results


if __name__ == "__main__":
    main()
