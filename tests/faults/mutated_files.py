"""Mutated files of every format that the package reads: samples, mutations, and workers that open them."""

import json
import multiprocessing
import pathlib
import random
import resource
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

MEMORY = 4 * 2**30
"""Bytes that opening files may add to a process."""
SECONDS = 30
"""Time that opening a file may take."""
WORKERS = 2
FEW = 1_000
"""Number of cases up to which a second process would mostly import."""
ODD = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**30,
    1e308,
    float("nan"),
    "",
    "\x1b[31m",
    "{{",
    [],
    {},
    [[]],
    "x" * 999,
]
WORDS = [
    b"0",
    b"-1",
    b"99999999999999999999",
    b"1e308",
    b"null",
    b"[]",
    b"{",
    b'"',
    b"\x00",
    b"\xff\xff",
    b"\n",
]


class Format(NamedTuple):
    """A file format."""

    make: Callable[[pathlib.Path], None]
    """Writes a sample into a folder."""
    open: Callable[[pathlib.Path], object]
    """Opens the files of a folder."""
    share: float = 1.0
    """Number of cases relative to others: some formats are slow to open."""


def mutate_files(formats: list[str], cases: int, seed: int, deadline: float, folder: pathlib.Path) -> dict:
    """Open mutated files in worker processes; return the counts of the outcomes by format."""
    spawn = multiprocessing.get_context("spawn")
    for name in formats:
        FORMATS[name].make(place := folder / "samples" / name)
        FORMATS[name].open(place)  # unchanged files must load
    shares = sum(FORMATS[name].share for name in formats)
    counts: dict[str, Counter] = {name: Counter() for name in formats}
    failures: list[dict] = []
    workers = WORKERS if cases > FEW else 1
    jobs = [(name, max(1, round(cases * FORMATS[name].share / shares))) for name in formats]
    for name, count in jobs:
        messages, slots = spawn.Queue(), []
        for worker in range(workers):
            at = spawn.Value("q", worker)
            until = time.monotonic() + (deadline - time.monotonic()) * count / sum(
                n for other, n in jobs[jobs.index((name, count)) :]
            )
            slots.append([at, None, until])
        while True:
            for worker, slot in enumerate(slots):
                at, process, until = slot
                if process is not None and process.is_alive():
                    continue
                if process is not None and process.exitcode:
                    failures.append({"format": name, "case": at.value, "died": process.exitcode})
                    at.value += workers
                if at.value < count and time.monotonic() < until and (process is None or process.exitcode):
                    left = until - time.monotonic()
                    arguments = (name, seed, count, left, folder, worker, workers, at, messages)
                    slot[1] = spawn.Process(target=_work, args=arguments)
                    slot[1].start()
            while not messages.empty():
                seen, bad = messages.get()
                counts[name].update(seen)
                failures += bad
            if not any(process and process.is_alive() for _, process, _ in slots) and messages.empty():
                break
            time.sleep(0.05)
        print(f"{name}: {sum(counts[name].values()):,} of {count:,}: {dict(counts[name])}", flush=True)
    return {
        "cases": sum(sum(one.values()) for one in counts.values()),
        "asked": cases,
        "outcomes": {name: dict(one) for name, one in counts.items()},
        "failures": failures[:50],
        "failed": len(failures),
    }


def _work(name, seed, count, seconds, folder, worker, workers, at, messages) -> None:
    """Open the files of one worker's cases, from where its last process stopped."""
    place, sample = folder / f"{name}-{worker}", folder / "samples" / name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sample, place)
    originals = {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}
    FORMATS[name].open(place)  # imports and compiles
    virtual = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY, virtual + MEMORY))
    signal.signal(signal.SIGALRM, _too_long)
    until, seen, bad, counted = time.monotonic() + seconds, Counter(), [], time.monotonic()
    while at.value < count and time.monotonic() < until:
        rng = random.Random(f"{seed}/{name}/{at.value}")
        path = rng.choice(list(originals))
        path.write_bytes(mutate(originals[path], rng))
        outcome, why = _outcome(FORMATS[name].open, place)
        seen[outcome] += 1
        if outcome == "failed":
            bad.append({"format": name, "case": at.value, "file": path.name, "why": why})
        path.write_bytes(originals[path])
        at.value += workers
        if time.monotonic() - counted > 2:
            messages.put((seen, bad))
            seen, bad, counted = Counter(), [], time.monotonic()
    messages.put((seen, bad))
    at.value = count  # this part is done


def _too_long(number, frame) -> None:
    raise InterruptedError(f"it took longer than {SECONDS} seconds")


def _outcome(opening: Callable, place: pathlib.Path) -> tuple[str, str]:
    from looped_actor.utils.codec import ConfigError
    from looped_actor.utils.files import FileError

    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        opening(place)
    except (FileError, ConfigError) as error:
        return ("refused", "") if len(str(error)) < 2000 else ("failed", f"a long message: {error!s:.200}")
    except ValueError as error:
        raised = traceback.extract_tb(error.__traceback__)[-1].filename
        return ("refused" if "looped_actor" in raised else "failed"), repr(error)[:300]
    except BaseException as error:
        return "failed", f"{error!r:.300} at {traceback.extract_tb(error.__traceback__)[-1]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "loaded", ""


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few changes; JSON, also inside other formats, is also changed as JSON."""
    if rng.random() < 0.4:
        changed = _replace_json(data, rng)
        if changed is not None:
            return changed
    mutated = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(mutated) + 1)
        few = rng.choice([1, 2, 4, 8, 64])
        match rng.randrange(7):
            case 0 if mutated:
                mutated[min(at, len(mutated) - 1)] ^= 1 << rng.randrange(8)
            case 1:
                mutated[at:at] = rng.randbytes(few)
            case 2:
                del mutated[at : at + few]
            case 3:
                del mutated[at:]
            case 4:
                mutated[at : at + few] = rng.choice(WORDS)
            case 5:
                other = rng.randrange(len(mutated) + 1)
                mutated[at:at] = mutated[other : other + few]
            case _:
                mutated[at : at + few] = bytes(few)
    return bytes(mutated)


def _replace_json(data: bytes, rng: random.Random) -> bytes | None:
    """Return a JSON file, or a safetensors file with its JSON header, with one value replaced."""
    size = int.from_bytes(data[:8], "little")
    header = 8 < size < len(data) and data[8:9] == b"{"
    try:
        whole = json.loads(data[8 : 8 + size] if header else data)
    except (ValueError, UnicodeDecodeError):
        return None
    metadata = whole.get("__metadata__") if header and isinstance(whole, dict) else None
    if metadata and rng.random() < 0.7:
        name = rng.choice(list(metadata))
        try:
            inner = json.loads(metadata[name])
        except ValueError:
            inner = metadata[name]
        metadata[name] = json.dumps(_replace_value(inner, rng))
    else:
        whole = _replace_value(whole, rng)
    text = json.dumps(whole).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :] if header else text


def _replace_value(value, rng: random.Random):
    """Return a JSON value with an odd one somewhere in it."""
    inside = value if isinstance(value, dict | list) and value else None
    if inside is None or rng.random() < 0.1:
        return rng.choice(ODD)
    key = rng.choice(list(inside)) if isinstance(inside, dict) else rng.randrange(len(inside))
    if isinstance(inside, dict) and rng.random() < 0.1:
        inside[rng.choice(["later", "", "type", "\x00"])] = rng.choice(ODD)
    else:
        inside[key] = _replace_value(inside[key], rng)
    return inside


ROOT = pathlib.Path(__file__).parents[2]


def _policy(place: pathlib.Path) -> None:
    shutil.copytree(ROOT / "results" / "micro_rush_hour" / "policy", place)


def _load_policy(place: pathlib.Path) -> object:
    import looped_actor

    return looped_actor.load_policy(place)


def _configs(place: pathlib.Path) -> None:
    from looped_actor.runs.presets import preset
    from looped_actor.utils.codec import write_json

    write_json(preset("boxoban", "paper"), place / "a.json")
    write_json(preset("rush-hour", "micro", learner="imitation"), place / "b.json")
    write_json(preset("cube-double", "paper"), place / "c.json")


def _read_configs(place: pathlib.Path) -> object:
    from looped_actor.runs.config import read_config

    return [read_config(place / name) for name in ("a.json", "b.json", "c.json")]


def _bank(place: pathlib.Path) -> None:
    from looped_actor.puzzles.banks import make_bank, starter_bank, write_bank
    from looped_actor.puzzles.solutions import solve_bank, write_solutions

    for game in ("boxoban", "rush-hour"):
        whole = starter_bank(game)
        few = {"source": whole.info.source, "licence": whole.info.licence}
        bank = make_bank(whole.game, whole.cells(slice(0, 4)), **few)
        write_bank(bank, place / f"{game}.levels")
        write_solutions(solve_bank(bank), place.parent / "solutions" / f"{game}.solutions")


def _open_banks(place: pathlib.Path) -> object:
    from looped_actor.puzzles.banks import open_bank

    banks = [open_bank(place / f"{game}.levels") for game in ("boxoban", "rush-hour")]
    return [bank.check() for bank in banks]


def _open_solutions(place: pathlib.Path) -> object:
    from looped_actor.puzzles.solutions import open_solutions

    found = [open_solutions(place / f"{game}.solutions") for game in ("boxoban", "rush-hour")]
    return [[one.moves(i) for i in range(len(one))] for one in found]


def _solutions(place: pathlib.Path) -> None:
    if not place.exists():
        _bank(place.parent / "banks")


def _datasets(place: pathlib.Path) -> None:
    import numpy as np

    place.mkdir(parents=True)
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(size=(20, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (20, 2)).astype(np.float32),
        "terminals": np.arange(20) % 10 == 9,
    }
    np.savez(place / "a.npz", **arrays)
    np.savez_compressed(place / "b.npz", **arrays)


def _open_datasets(place: pathlib.Path) -> object:
    from looped_actor.offline import open_dataset

    try:
        return [open_dataset(place / "a.npz"), open_dataset(place / "b.npz", on_disk=True)]
    finally:
        shutil.rmtree(place / "b.unpacked", ignore_errors=True)


def _latents(place: pathlib.Path) -> None:
    import numpy as np

    from looped_actor.analysis.latents import FORMAT, HEADER

    place.mkdir(parents=True)
    about = {"source": "x", "states": 4, "tokens": 3, "width": 2, "places": [0, 1], "done": 4}
    (place / HEADER).write_text(json.dumps({"format": FORMAT, **about}))
    for name in ("input.npy", "loop_01.npy"):
        np.save(place / name, np.zeros((4, 3, 2), np.float16))


def _open_latents(place: pathlib.Path) -> object:
    from looped_actor.analysis.latents import open_latents

    latents = open_latents(place)
    return [latents.at(one).sum() for one in latents.info.places]


def _probes(place: pathlib.Path) -> None:
    import numpy as np

    from looped_actor.analysis.probes import Probe, ProbeConfig, ProbeSet, write_probes

    arrays = [np.zeros((1, 2, 3), np.float32) for _ in Probe._fields]
    probes = ProbeSet(probes=Probe(*arrays), places=(1,), pushes=(1, 2), boxes=4)
    write_probes(probes, ProbeConfig(), place / "a.probes")


def _read_probes(place: pathlib.Path) -> object:
    from looped_actor.analysis.probes import read_probes

    return read_probes(place / "a.probes")


def _checkpoints(place: pathlib.Path) -> None:
    import jax.numpy as jnp

    from looped_actor.training.checkpoints import Bookmark, Checkpoints

    checkpoints = Checkpoints(place, "mine")
    checkpoints.save({"a": jnp.zeros(3), "b": jnp.ones((2, 2))}, Bookmark(1, 10, 100, "mine"))
    checkpoints.close()


def _read_checkpoints(place: pathlib.Path) -> object:
    import logging

    from looped_actor.training.checkpoints import Checkpoints

    logging.getLogger("absl").setLevel(logging.CRITICAL)
    return Checkpoints(place, "mine", read_only=True).read()


def _run_folder(place: pathlib.Path) -> None:
    source = ROOT / "results" / "micro_rush_hour"
    place.mkdir(parents=True)
    shutil.copy(source / "policy" / "config.json", place / "config.json")
    (place / "provenance.json").write_text(json.dumps({"train": "0" * 64, "held_out": "1" * 64}))
    facts = {"success": 0.5, "interval_95": [0.2, 0.8], "loops": 3.0, "levels": 10, "solved": 5}
    for steps in (10, 20):
        path = place / "evaluations" / f"{steps:012d}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(facts))


def _read_run_folder(place: pathlib.Path) -> object:
    from looped_actor.analysis.compare import evaluation_rows
    from looped_actor.runs.folder import fingerprint_of, read_run
    from looped_actor.runs.provenance import read_provenance

    return read_run(place), read_provenance(place), fingerprint_of(place), evaluation_rows([place])


def _texts(place: pathlib.Path) -> None:
    place.mkdir(parents=True)
    level = (
        "##########\n#@ $   . #\n#   $  . #\n#   $  . #\n#   $  . #\n" + "#        #\n" * 4 + "##########\n"
    )
    (place / "boxoban.txt").write_text("; 0\n" + level + "\n; 1\n" + level)
    (place / "rush.txt").write_text("10 IBBxooIooLDDJAALooJoKEEMFFKooMGGHHHM 2332\n")


def _read_texts(place: pathlib.Path) -> object:
    from looped_actor.puzzles.sources import read_boxoban_file, read_rush_hour_database

    return read_boxoban_file(place / "boxoban.txt"), read_rush_hour_database(place / "rush.txt")


FORMATS = {
    "texts": Format(_texts, _read_texts, 2),
    "configs": Format(_configs, _read_configs, 2),
    "banks": Format(_bank, _open_banks, 2),
    "solutions": Format(_solutions, _open_solutions, 2),
    "datasets": Format(_datasets, _open_datasets, 1),
    "latents": Format(_latents, _open_latents, 2),
    "probes": Format(_probes, _read_probes, 2),
    "run_folders": Format(_run_folder, _read_run_folder, 1),
    "policies": Format(_policy, _load_policy, 0.02),
    "checkpoints": Format(_checkpoints, _read_checkpoints, 0.02),
}
"""Formats of untrusted input, by name."""
