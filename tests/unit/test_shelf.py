"""Policies by name: those of the package, and one from a hub that is a server of our own."""

import argparse
import dataclasses
import hashlib
import http.server
import json
import os
import pathlib
import shlex
import subprocess
import sys
import threading

import pytest
import yaml

import looped_actor
from helpers import with_hidden_width
from looped_actor.cli.shared import changes_of
from looped_actor.policy.card import CARD_FILE, KEY, read_card, write_card
from looped_actor.policy.export import make_card
from looped_actor.policy.pretrained import FILES, PRETRAINED, locate, pretrained_names
from looped_actor.runs.presets import preset
from looped_actor.utils.codec import replace_fields
from looped_actor.utils.tensors import PolicyError

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("name", pretrained_names())
def test_what_comes_with_the_package_does_what_its_card_says(name):
    policy, card = looped_actor.load_policy(name), read_card(PRETRAINED / name)
    assert card is not None
    told = ("success", "interval_95", "count", "loops", "trained")
    assert card == make_card(policy, **{name: getattr(card, name) for name in told})
    facts = looped_actor.evaluate(policy, count=60)
    assert facts["levels"] == 60
    assert abs(facts["success"] - card.success) < 0.2  # three deviations of sixty at the least sure


@pytest.mark.parametrize("name", pretrained_names())
def test_a_card_s_command_trains_that_policy(name):
    """The command of each card makes the configuration that stands beside it."""
    card, config = read_card(PRETRAINED / name), looped_actor.load_policy(name).config
    program, command, *words = shlex.split(card.trained)
    assert (program, command) == ("looped-actor", "train")
    options = argparse.ArgumentParser()
    options.add_argument("task")
    options.add_argument("--learner", default="ppo")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--set", nargs="+", default=[])
    given = options.parse_args(words)
    made = preset(given.task, "micro", "looped", given.learner)
    changes = {**changes_of(tuple(given.set)), "seed": given.seed}
    assert with_hidden_width(replace_fields(made, changes)) == with_hidden_width(config)


def test_an_evaluation_says_by_which_options_it_was_made():
    policy = looped_actor.load_policy("rush-hour-micro")
    plain, other = (
        looped_actor.evaluate(policy, count=4, **asked)
        for asked in ({}, {"min_loops": 3, "threshold": 0.01, "carry_latent": True})
    )
    assert (plain["min_loops"], plain["options"]) == (2, {"count": 4})
    changed = {"count": 4, "min_loops": 3, "threshold": 0.01, "carry_latent": True}
    assert (other["min_loops"], other["options"]) == (3, changed)
    assert (plain["start"], other["start"]) == ("fixed", "carried")
    assert len(plain["outcomes"]) == 4
    assert plain["outcomes"].count("+") == plain["solved"]


def test_a_card_is_front_matter_that_a_hub_reads_and_words(tmp_path):
    card = read_card(PRETRAINED / "rush-hour-micro")
    write_card(card, "mine", tmp_path)
    text = (tmp_path / CARD_FILE).read_text()
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["license"] == "apache-2.0"
    (entry,) = front["model-index"]
    assert entry["results"][0]["metrics"][0]["value"] == pytest.approx(card.success, abs=1e-4)
    assert read_card(tmp_path) == card
    write_card(dataclasses.replace(card, success=None, interval_95=None), "mine", tmp_path)
    assert "Not measured yet" in (tmp_path / CARD_FILE).read_text()
    (tmp_path / CARD_FILE).write_text(text.replace(f"{KEY}:", "other:"))
    with pytest.raises(ValueError, match="front matter is damaged"):
        read_card(tmp_path)


def test_a_folder_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert locate("rush-hour-micro") == PRETRAINED / "rush-hour-micro"
    (tmp_path / "rush-hour-micro").mkdir()
    assert locate("rush-hour-micro") == pathlib.Path("rush-hour-micro")


@pytest.mark.parametrize("name", ["nothing", "../policies", "hf://", "hf://one", "hf://a/b/c", ""])
def test_a_name_that_means_nothing_says_what_does(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError, match=r"not a folder.*rush-hour-micro|no policy"):
        looped_actor.load_policy(name)


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def tag_of(name):
    return hashlib.sha1(name.encode()).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as fetching a snapshot asks for: one repository, with a file that no one wants."""

    asked: list = []  # noqa: RUF012
    served = PRETRAINED / "rush-hour-micro"
    more = {"run_me.py": b"raise SystemExit"}  # noqa: RUF012

    def do_GET(self):
        self.asked.append(self.path)
        files = {name: (self.served / name).read_bytes() for name in files_of(self.served)} | self.more
        head = {"X-Repo-Commit": REVISION}
        if self.path.startswith("/api/models/someone/mine/revision/"):
            siblings = [{"rfilename": name} for name in files]
            body = json.dumps({"id": "someone/mine", "sha": REVISION, "siblings": siblings}).encode()
        elif self.path.startswith("/api/models/someone/mine/tree/"):
            rows = [{"type": "file", "path": n, "size": len(f), "oid": tag_of(n)} for n, f in files.items()]
            body = json.dumps(rows).encode()
        else:
            name = self.path.partition(f"/resolve/{REVISION}/")[2]
            body = files.get(name)
            head |= {"ETag": f'"{tag_of(name)}"'}
        self.send_response(404 if body is None else 200)
        for key, value in {**head, "Content-Length": len(body or b"")}.items():
            self.send_header(key, str(value))
        self.end_headers()
        if body is not None and self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format, *args):
        pass


def test_a_policy_from_a_hub_is_fetched_without_what_is_not_a_policy(tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = (
        "import looped_actor\n"
        "policy = looped_actor.load_policy('hf://someone/mine')\n"
        "print(policy.folder)\n"
        "looped_actor.load_policy('hf://someone/nothing')"
    )
    env = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    server.shutdown()
    assert ended.stdout, ended.stderr
    folder = pathlib.Path(ended.stdout.strip())
    assert files_of(folder) == files_of(Hub.served)
    assert len(files_of(folder)) == len(FILES)
    assert (folder / CARD_FILE).read_bytes() == (Hub.served / CARD_FILE).read_bytes()
    assert "hf://someone/nothing could not be fetched" in ended.stderr
