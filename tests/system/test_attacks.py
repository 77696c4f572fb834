"""Findings of attacks on the package: untrusted input, interruptions, full disks, lost processes."""

import errno
import io
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from dataclasses import replace
from shutil import which

import numpy as np
import pytest
import safetensors.numpy

import looped_actor
from helpers import thorough
from looped_actor.cli.main import main
from looped_actor.models import CoreConfig
from looped_actor.offline import open_dataset
from looped_actor.offline.dataset import DatasetError
from looped_actor.puzzles.banks import make_bank, open_bank, starter_bank
from looped_actor.puzzles.boxoban.rules import Cell
from looped_actor.puzzles.boxoban.solver import possible_pushes, solve_cells
from looped_actor.puzzles.catalogue import game_named
from looped_actor.puzzles.grid import LevelError
from looped_actor.puzzles.search import SolveStatus
from looped_actor.puzzles.solutions import open_solutions, solve_bank, write_solutions
from looped_actor.runs.folder import begin_run, complete_start, is_begun, read_run, train_run
from looped_actor.training.checkpoints import Bookmark, CheckpointError, Checkpoints
from looped_actor.training.loggers import TableFile
from looped_actor.training.sharding import all_devices, start_devices
from looped_actor.utils.codec import replace_fields
from looped_actor.utils.errors import FileError, PolicyError
from looped_actor.utils.files import write_whole
from tiny import CHANGES, LOOPED_CHANGES, tiny

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": 2**31, "width": "scene"}, "header.width is 'scene'; it must be of type int"),
        ({"height": 2**31, "width": 2**31}, "sides of 1 to 64 are read"),
        ({"height": 0}, "sides of 1 to 64 are read"),
        ({"count": [1] * 3}, "header.count is"),
        ({"later": 1}, "has no field 'later'"),
    ],
)
def test_the_header_of_a_bank_is_checked_before_it_is_used(change, message, tmp_path):
    header = {"format": "looped-actor levels 1", "game": "boxoban", "count": 1, "height": 5, "width": 5}
    header |= {"source": "", "licence": "", "checksum": "0"} | change
    data = safetensors.numpy.save({"cells": np.zeros((1, 13), np.uint8)}, {"bank": json.dumps(header)})
    (tmp_path / "evil.levels").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LevelError, match=message):
        open_bank(tmp_path / "evil.levels")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_boards_that_are_too_large_are_refused_instead_of_called_unsolvable():
    cells = np.zeros((3, 200), np.uint8)
    cells[1, 1], cells[1, 2], cells[1, 190] = Cell.PLAYER, Cell.BOX, Cell.TARGET
    for search in (solve_cells, possible_pushes):
        with pytest.raises(ValueError, match="a board of 3x200; sides of 1 to 64"):
            search(cells)


def test_the_search_on_a_large_board_ends_in_time():
    """A room of 60x60 with as many boxes as fit: the limit on nodes ends the search, and the status tells."""
    cells = np.zeros((62, 62), np.uint8)
    cells[[0, -1]] = cells[:, [0, -1]] = Cell.WALL
    cells[2:40:3, 2:40:3] = Cell.BOX
    cells[1:14, 46:59] = Cell.TARGET
    cells[60, 60] = Cell.PLAYER
    bank = make_bank(game_named("boxoban"), cells[None], source="", licence="")
    started = time.monotonic()
    solutions = solve_bank(bank)
    assert solutions.job.node_limit == 3_000_000 * 100 // 62**2
    assert solutions.status.tolist() == [SolveStatus.NOT_WITHIN_LIMIT.value]
    assert time.monotonic() - started < 300


def test_a_number_that_becomes_infinite_is_refused(tmp_path):
    source = ROOT / "results" / "micro_rush_hour" / "policy"
    tensors = safetensors.numpy.load_file(source / "policy.safetensors")
    name = next(iter(tensors))
    tensors[name] = np.full(tensors[name].shape, 1e300)
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    data = safetensors.numpy.save(tensors, {"format": "looped-actor policy 1"})
    (tmp_path / "policy.safetensors").write_bytes(data)
    with pytest.raises(PolicyError, match=f"{name} holds values that are not finite"):
        looped_actor.load_policy(tmp_path)


def test_only_regular_files_are_overwritten(tmp_path):
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    write_whole(real, b"1")
    write_whole(real, b"2")
    assert real.read_bytes() == b"2"
    link.symlink_to(real)
    os.mkfifo(pipe)
    for target in (link, pipe, pathlib.Path(os.devnull), tmp_path):
        with pytest.raises(ValueError, match="is not a regular file"):
            write_whole(target, b"3")
    assert real.read_bytes() == b"2"
    assert pathlib.Path(os.devnull).is_char_device()


def begin(folder, seed, barrier, outcomes):
    """Begin a run at the same moment as another process; report its seed, or the error."""
    barrier.wait()
    try:
        outcomes.put(begin_run(tiny(seed=seed), folder).seed)
    except ValueError as error:
        outcomes.put(str(error))


def test_of_two_runs_begun_at_once_in_one_folder_one_is_refused(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    barrier, outcomes = spawn.Barrier(2), spawn.Queue()
    both = [spawn.Process(target=begin, args=(tmp_path / "run", s, barrier, outcomes)) for s in (1, 2)]
    for process in both:
        process.start()
    found = [outcomes.get(timeout=120) for _ in both]
    for process in both:
        process.join()
    (seed,) = [one for one in found if isinstance(one, int)]
    (refused,) = [one for one in found if isinstance(one, str)]
    assert "another process is" in refused or "is the folder of a run already" in refused
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == seed


def _listens_everywhere(port):
    """Return whether a socket listens on this port of every interface."""
    tables = "".join(pathlib.Path("/proc/net", name).read_text() for name in ("tcp", "tcp6"))
    sockets = (line.split() for line in tables.splitlines())
    hosts = [socket[1].rpartition(":")[0] for socket in sockets if socket[1].endswith(f":{port:04X}")]
    return any(int(host, 16) == 0 for host in hosts)


OPEN_CLUSTER = """
import os, sys, ray
from looped_actor.utils.processes import RayTasks
with RayTasks("local", workers=1) as pool:
    print(ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"], flush=True)
    sys.stdin.read()
"""
CLIENT = "import ray, sys; ray.init(sys.argv[1]); print(ray.get(ray.remote(lambda: 'mine').remote()))"


def test_a_local_ray_cluster_refuses_clients_without_its_token(tmp_path):
    """Ray listens on every interface: a client without the token, or with another one, runs nothing."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    clean |= {"HOME": str(tmp_path)}  # where Ray would look for a token
    opened = subprocess.Popen(
        [sys.executable, "-c", OPEN_CLUSTER],
        env=clean,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        address, token = opened.stdout.readline().split()
        assert _listens_everywhere(int(address.rpartition(":")[2])), "Ray can bind to loopback now: do so"
        clients = {
            "without": clean,
            "disabled": clean | {"RAY_AUTH_MODE": "disabled"},
            "another": clean | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
            "the same": clean | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token},
        }
        processes = {
            name: subprocess.Popen(
                [sys.executable, "-c", CLIENT, address],
                env=env,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for name, env in clients.items()
        }
        answers = {name: process.communicate(timeout=200)[0] for name, process in processes.items()}
    finally:
        opened.communicate(timeout=60)
    assert {name for name, answer in answers.items() if "mine" in answer} == {"the same"}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two megabytes if the rights allow one; else a fault is injected."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    mounted = (
        subprocess.run(mount, capture_output=True, check=False).returncode == 0 if which("mount") else False
    )
    yield folder, mounted
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class FullDisk:
    """Fill the disk after an iteration, as a progress callback."""

    def __init__(self, folder, mounted, iteration, monkeypatch):
        self.ballast, self.mounted, self.left = folder / "ballast", mounted, iteration
        self.monkeypatch = monkeypatch

    def __call__(self, report):
        self.left -= 1
        if self.left == 0 and not self.mounted:
            self.monkeypatch.setattr(TableFile, "append", self._refuse)
        if self.left == 0 and self.mounted:
            with suppress(OSError), self.ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(512))

    def _refuse(self, *row):
        raise OSError(errno.ENOSPC, "No space left on device")

    def empty(self):
        self.ballast.unlink(missing_ok=True)
        self.monkeypatch.undo()


@pytest.mark.parametrize("iteration", [pytest.param(1, marks=thorough), 3])
def test_a_full_disk_ends_training_and_loses_nothing(iteration, small_disk, tmp_path, monkeypatch):
    folder, mounted = small_disk
    config, mesh = tiny(), all_devices(1)
    for run in (folder / "run", tmp_path / "whole"):
        begin_run(config, run)
    train_run(config, tmp_path / "whole", mesh)
    full = FullDisk(folder, mounted, iteration, monkeypatch)
    with pytest.raises(OSError, match=r"could not be written \((.|\n)*resume .* continues"):
        train_run(config, folder / "run", mesh, full)
    full.empty()
    (folder / "run" / "evaluations" / "1.json.99.unfinished").touch()  # as a killed process leaves it
    assert train_run(config, folder / "run", mesh).value == "finished"
    assert not list(folder.rglob("*.unfinished"))
    for name in ("metrics.csv", "policy/policy.safetensors"):
        assert (folder / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def write_npz(path, **changes):
    """Write a small dataset in OGBench's format."""
    arrays = {
        "observations": np.zeros((4, 2), np.float32),
        "actions": np.zeros((4, 1), np.float32),
        "terminals": np.arange(4) % 2 == 1,
    }
    np.savez(path, **(arrays | changes))


def test_data_unpacked_from_another_file_of_the_same_name_are_not_used(tmp_path):
    path = tmp_path / "play.npz"
    for value in (1.0, 2.0):  # files of the same size
        write_npz(path, observations=np.full((4, 2), value, np.float32))
        assert (open_dataset(path, on_disk=True).states == value).all()


def test_an_array_with_a_false_size_takes_no_memory(tmp_path):
    header = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 100)}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(tmp_path / "evil.npz", "w") as archive:
        for name in ("observations", "actions", "terminals"):
            archive.writestr(f"{name}.npy", header.getvalue())
    with pytest.raises(DatasetError, match="announces 400,000,000,"):
        open_dataset(tmp_path / "evil.npz")


def test_levels_that_a_killed_start_left_are_made_again_for_another_recipe(tmp_path, monkeypatch):
    config, folder = tiny("rush-hour", levels__train_count=8, levels__held_out_count=4), tmp_path / "run"

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr("looped_actor.runs.puzzle.PuzzleRun.bank", killed)  # all levels are written
        with pytest.raises(KeyboardInterrupt):
            begin_run(config, folder)
    begun = read_run(folder)
    assert begun == replace(config, microbatch=begun.microbatch, slots=begun.slots)
    assert not is_begun(folder)
    train = folder / "levels" / "train.levels"
    before, made = train.read_bytes(), train.stat().st_mtime_ns
    other = replace_fields(config, {"levels.train_count": 9})
    begin_run(other, folder)
    assert len(open_bank(train)) == 9
    (folder / "config.json").unlink()
    begin_run(config, folder)
    assert train.read_bytes() == before
    assert train.stat().st_mtime_ns != made
    (folder / "config.json").unlink()
    (folder / "levels" / "recipe.json").unlink()
    with pytest.raises(ValueError, match="is there, and not from a run that was begun"):
        begin_run(config, folder)


@pytest.mark.parametrize(
    "killed_at", ["looped_actor.runs.run.write_whole", "looped_actor.runs.puzzle.write_bank"]
)
def test_a_start_that_was_killed_is_completed(killed_at, tmp_path, monkeypatch):
    """Killed before its recipe or its levels are written; `resume` makes what is missing."""
    config, folder = tiny("rush-hour", levels__train_count=8, levels__held_out_count=4), tmp_path / "run"

    def killed(*_):
        (folder / "levels").mkdir(exist_ok=True)
        (folder / "levels" / "recipe.json.99.unfinished").touch()  # as SIGKILL leaves it
        raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr(killed_at, killed)
        with pytest.raises(KeyboardInterrupt):
            begin_run(config, folder)
    assert not is_begun(folder)
    complete_start(read_run(folder), folder)
    assert is_begun(folder)
    whole = begin_run(config, tmp_path / "whole")
    assert read_run(folder) == whole
    for name in ("provenance.json", "levels/train.levels", "levels/held_out.levels", "levels/valid.levels"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    before = (folder / "provenance.json").stat().st_mtime_ns
    complete_start(whole, folder)  # there is nothing to do
    assert (folder / "provenance.json").stat().st_mtime_ns == before


class TrainProcess:
    """`looped-actor train` in a new process group, which gets signals as from a terminal."""

    WORDS = ("boxoban", "--devices", "1", "--steps", "256", "--set")

    def __init__(self, folder):
        settings = [
            f"{name}={value}" for name, value in (CHANGES | LOOPED_CHANGES).items() if name != "total_steps"
        ]
        many = "levels.train_count=250"  # more than one process generates
        self.words = ["train", *self.WORDS, *settings, many, "--out", str(folder)]
        # Processes in the background ignore SIGINT, and their children inherit that.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "looped_actor", *self.words],
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        signal.signal(signal.SIGINT, before)

    def wait_for(self, condition):
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline
            assert self.process.poll() is None, self.process.stdout.read()
            time.sleep(0.01)

    def end(self, number):
        """Return its exit code and the lines that it printed, without those of the progress bar."""
        os.killpg(self.process.pid, number)
        output, _ = self.process.communicate(timeout=300)
        return self.process.returncode, [
            line for line in output.splitlines() if line and "preparing" not in line
        ]

    def has_loaded_numpy(self):
        return "_multiarray_umath" in pathlib.Path(f"/proc/{self.process.pid}/maps").read_text()

    def has_workers(self):
        try:
            tasks = pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()
            children = " ".join((task / "children").read_text() for task in tasks).split()
            lines = [pathlib.Path("/proc", child, "cmdline").read_text() for child in children]
        except (FileNotFoundError, ProcessLookupError):  # one has just ended
            return False
        return any("spawn_main" in line for line in lines)


def test_ctrl_c_while_modules_are_imported_prints_one_sentence(tmp_path):
    run = TrainProcess(tmp_path / "run")
    run.wait_for(run.has_loaded_numpy)
    code, lines = run.end(signal.SIGINT)
    assert code == 130
    assert lines in (
        ["looped-actor: interrupted before anything was written"],
        ["looped-actor: interrupted"],  # a moment later
    )
    assert not (tmp_path / "run").exists()


def test_runs_ended_while_levels_are_generated_end_as_one_that_was_not(tmp_path, monkeypatch):
    """SIGINT is followed by resume, SIGKILL by train. tests/faults/faults.py tries 20 moments of each."""
    for number in (signal.SIGINT, signal.SIGKILL):
        run = TrainProcess(tmp_path / number.name)
        run.wait_for(run.has_workers)
        code, lines = run.end(number)
        assert code == (130 if number == signal.SIGINT else -number)
        if number == signal.SIGINT:
            advice = f"continue with: looped-actor resume {tmp_path / 'SIGINT'}"
            assert lines == [f"looped-actor: interrupted; {advice}"]
        assert (tmp_path / number.name / "config.json").exists()
    start = "looped_actor.training.sharding.start_devices"
    monkeypatch.setattr(start, lambda *_: all_devices(1))  # devices are there already
    # Generate levels in this process, which has compiled the generator.
    monkeypatch.setattr("looped_actor.runs.puzzle.FEW_LEVELS", 1000)
    for words in (
        ["resume", str(tmp_path / "SIGINT")],
        run.words,
        [*run.words[:-1], str(tmp_path / "whole")],
    ):
        monkeypatch.setattr(sys, "argv", ["looped-actor", *words])
        main()
    for name in ("provenance.json", "metrics.csv", "test.json", "policy/policy.safetensors"):
        outcomes = {(tmp_path / run / name).read_bytes() for run in ("SIGINT", "SIGKILL", "whole")}
        assert len(outcomes) == 1, name


def test_a_checkpoint_of_a_newer_version_is_not_called_damaged(tmp_path):
    checkpoints = Checkpoints(tmp_path, "mine")
    checkpoints.save({"a": np.zeros(3)}, Bookmark(1, 10, 100, "mine"))
    checkpoints.close()
    (path,) = tmp_path.glob("1/bookmark/metadata")
    about = json.loads(path.read_text())
    for change in ({"later": 1}, {"format": "looped-actor checkpoint 3"}):
        path.write_text(json.dumps(about | change))
        with pytest.raises(CheckpointError, match="written by a newer version") as error:
            Checkpoints(tmp_path, "mine", read_only=True).read()
        assert "delete" not in str(error.value)


def test_policies_and_solutions_that_were_changed_are_refused(tmp_path):
    policy = looped_actor.load_policy(ROOT / "results" / "micro_rush_hour" / "policy")
    policy.save(tmp_path / "policy")
    looped_actor.load_policy(tmp_path / "policy")
    bank = starter_bank("rush-hour")
    write_solutions(solve_bank(bank, count=2), solutions := tmp_path / "a.solutions")
    open_solutions(solutions)
    for path, opening in (
        (tmp_path / "policy" / "policy.safetensors", lambda path: looped_actor.load_policy(path.parent)),
        (solutions, open_solutions),
    ):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(FileError, match="checksum does not match"):
            opening(path)


def test_a_file_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(os, "fsync", lambda _: order.append("synced"))
    rename = os.replace
    monkeypatch.setattr(os, "replace", lambda *names: (order.append("named"), rename(*names)))
    write_whole(tmp_path / "a", b"1")
    assert order == ["synced", "named", "synced"]


def test_bad_input_ends_in_one_sentence(tmp_path, monkeypatch, capsys):
    """Many mistakes in one process: each ends with code 2 and one short line."""
    pipe, deep, odd = tmp_path / "pipe", tmp_path / "deep.json", tmp_path / "odd.json"
    os.mkfifo(pipe)
    deep.write_text("[" * 100_000)
    odd.write_text(json.dumps({"type": "PuzzleConfig", "task": {"a": 1}, "seed": "\x1b[31m"}))
    (tmp_path / "file").touch()
    plan = ["train", "boxoban", "--dry-run"]
    start = "looped_actor.training.sharding.start_devices"
    monkeypatch.setattr(start, lambda *_: all_devices(1))  # devices are there already
    for words, message in (
        (["levels", "info", str(pipe)], "this is not a regular file"),
        (["train", "--config", str(pipe), "--dry-run"], "this is not a regular file"),
        (["train", "--config", str(deep), "--dry-run"], "RecursionError"),
        (["train", "--config", str(odd), "--dry-run"], "must be one of 'boxoban'"),
        ([*plan, "--steps", "1e30"], "no number here is that large"),
        ([*plan, "--set", "arm.core.width=" + "9" * 5000], "config.arm.core.width is '999"),
        (
            [*plan, "--set", "algorithm.learning_rate=" + "[" * 100_000],
            "config.algorithm.learning_rate is '[[[",
        ),
        ([*plan, "--set", "levels.train=\x1b[31m"], r"levels.train is '\x1b[31m': it holds control"),
        (["train", "boxoban", "--out", str(tmp_path / "file" / "run")], "is a file, not a folder"),
        (["levels", "show", "rush-hour", "--out", os.devnull], "is not a regular file"),
        (["levels", "show", "\x1b[2Jnothing"], r"\x1b[2Jnothing: there is no such file"),
    ):
        monkeypatch.setattr(sys, "argv", ["looped-actor", *words])
        with pytest.raises(SystemExit) as ending:
            main()
        error = capsys.readouterr().err
        assert ending.value.code == 2, words[:2]
        assert message in error
        assert error.startswith("looped-actor: ")
        assert len(error) < 1000
        assert error.count("\n") == 1


@pytest.mark.parametrize("coordinator", ["nonsense", "host:", ":1234", "host:99999", "host:port"])
def test_invalid_coordinators_are_refused(coordinator):
    with pytest.raises(ValueError, match="give host:port of process 0, or auto"):
        start_devices(None, coordinator, 2, 0)


def test_an_unexpected_error_says_how_to_report_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["looped-actor", "levels", "info", "boxoban"])
    monkeypatch.setattr("looped_actor.puzzles.banks.starter_bank", lambda name: {}["nothing"])
    with pytest.raises(SystemExit) as ending:
        main()
    error = capsys.readouterr().err
    assert ending.value.code == 2
    assert "KeyError: 'nothing'" in error
    assert "Please report" in error.splitlines()[-1]


@pytest.mark.parametrize(
    "metadata", ['{"init_timestamp_nsecs": []}', '{"commit_timestamp_nsecs": 1' + "0" * 29 + "}"]
)
def test_metadata_of_a_checkpoint_may_be_anything(metadata, tmp_path):
    checkpoints = Checkpoints(tmp_path, "mine")
    checkpoints.save({"a": np.zeros(3)}, Bookmark(1, 10, 100, "mine"))
    checkpoints.close()
    (tmp_path / "1" / "_CHECKPOINT_METADATA").write_text(metadata)
    with pytest.raises(CheckpointError, match=r"a checkpoint in it is damaged .* remove the newest"):
        Checkpoints(tmp_path, "mine", read_only=True).read()


def test_billions_of_layers_are_refused_at_once():
    with pytest.raises(ValueError, match="layers is 2147483648; it must be from 1 to 1024"):
        CoreConfig(layers=2**31)


def faults(kind, cases, tmp_path, *words):
    """Run `tests/faults/faults.py` with a small budget, and return its record."""
    out = tmp_path / f"{kind}.json"
    script = [
        sys.executable,
        str(ROOT / "tests" / "faults" / "faults.py"),
        kind,
        "--cases",
        str(cases),
        *words,
    ]
    done = subprocess.run([*script, "--out", str(out)], capture_output=True, text=True, check=False)
    assert out.exists(), done.stderr[-2000:]
    record = json.loads(out.read_text())
    assert record["failures"] == []
    assert done.returncode == 0
    return record


def test_mutated_files_are_loaded_correctly_or_refused(size, tmp_path):
    """Under a limit of memory and of time."""
    record = faults("files", size(400, 50_000), tmp_path)
    assert record["cases"] >= size(400, 50_000)  # as many of each format
    assert len(record["outcomes"]) == 10


def test_when_one_of_two_processes_is_killed_the_other_ends(size, tmp_path):
    """THOROUGH=1 also resumes them, and tries the first, SIGTERM, a missing one and a doubled one."""
    cases = faults("processes", size(1, 6), tmp_path)["cases"]
    assert len(cases) == size(1, 6)


@thorough
def test_a_process_waits_for_one_that_prepares_for_longer_than_gloo_would():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    code = f"""
import sys, time
from jax.experimental import multihost_utils
from looped_actor.training.sharding import start_devices
start_devices(1, "{address}", 2, int(sys.argv[1]))
time.sleep(35 if sys.argv[1] == "0" else 0)
multihost_utils.sync_global_devices("prepared")
"""
    both = [subprocess.Popen([sys.executable, "-c", code, number]) for number in "01"]
    assert [process.wait(120) for process in both] == [0, 0]


@thorough
def test_runs_ended_in_their_first_minute_end_in_the_same_bytes(tmp_path):
    assert faults("starts", 3, tmp_path)["starts"] == 6


@pytest.mark.parametrize("learner", ["ppo", "imitation", "gciql"])
@thorough
def test_runs_killed_at_any_moment_end_in_the_same_bytes(learner, tmp_path):
    """The default run has such kills in test_training.py and test_robots.py."""
    assert faults("kills", 4, tmp_path, "--learner", learner)["equal"] == 4
