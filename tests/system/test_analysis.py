"""Every analysis from start to finish on a run, and figures again from their tables alone."""

import base64
import csv
import hashlib
import html.parser
import json
import re
import shutil

import numpy as np
import pytest

from helpers import evaluated
from looped_actor.analysis import study
from looped_actor.analysis.caps import analyse_caps, analyse_frontier
from looped_actor.analysis.compare import compare_runs
from looped_actor.analysis.difficulty import analyse_difficulty
from looped_actor.analysis.histogram import analyse_histogram
from looped_actor.analysis.plan_probes import analyse_probes
from looped_actor.analysis.replay import record_episode, write_html, write_replay_gif
from looped_actor.analysis.requests import (
    CapsRequest,
    DifficultyRequest,
    FrontierRequest,
    HistogramRequest,
    ProbeRequest,
)
from looped_actor.analysis.study import names_of
from looped_actor.analysis.tables import TableError, read_table, write_table
from looped_actor.policy.policy import save_policy
from looped_actor.reproduction.figures import FIGURES, draw_folder
from looped_actor.runs.folder import begin_run, train_run
from looped_actor.runs.load import load_policy, policy_at
from looped_actor.runs.registry import run_of
from looped_actor.training import Ending
from looped_actor.training.sharding import all_devices
from tiny import tiny


@pytest.fixture(scope="module")
def imitated(tmp_path_factory):
    """A run of imitation that ended, whose thoughts are carried on."""
    folder = tmp_path_factory.mktemp("runs") / "imitated"
    config = begin_run(tiny(by="imitation", time_limit=6, start="carried"), folder)
    assert train_run(config, folder, all_devices(1)) is Ending.FINISHED
    return folder


@pytest.fixture(scope="module")
def parked(tmp_path_factory):
    """A policy of Rush Hour that knows nothing, with its levels beside it."""
    folder = tmp_path_factory.mktemp("runs") / "parked"
    config = begin_run(tiny("rush-hour", time_limit=5), folder)
    save_policy(config, run_of(config, folder, all_devices(1)).trainer.begin(0).weights, folder / "policy")
    return folder


def table(folder, name):
    return read_table(folder / f"{name}.csv", FIGURES[name].columns)


def test_imitation_is_trained_evaluated_and_called_by_its_name(imitated):
    with (imitated / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert all(0 < float(row["advised"]) <= 1 and 0 <= float(row["accuracy"]) <= 1 for row in rows)
    facts = json.loads((imitated / "evaluations" / "000000000768.json").read_text())
    assert 0 < facts["optimal_actions"] < 1
    assert facts["optimal_actions_states"] > 20
    assert load_policy(imitated).config.learner == "imitation"
    assert evaluated(imitated, count=2)["learner"] == "imitation"


def test_imitation_comes_to_the_same_end_from_an_earlier_checkpoint(imitated, tmp_path):
    """As after a kill."""
    copy = tmp_path / "copy"
    shutil.copytree(imitated, copy)
    for newer in (4, 6):
        shutil.rmtree(copy / "checkpoints" / str(newer))
    shutil.rmtree(copy / "policy")
    train_run(load_policy(imitated).config, copy, all_devices(1))
    for name in ("metrics.csv", "policy/policy.safetensors"):
        assert (copy / name).read_bytes() == (imitated / name).read_bytes(), name


def test_every_analysis_and_its_figure_again_without_a_policy(imitated, parked, tmp_path):
    mesh, out = all_devices(1), tmp_path / "analysis"
    played, (one, other) = {"out": out, "count": 8}, map(policy_at, (imitated, parked))
    few = {"seeds": 2, "epochs": 2, "batch": 8}
    probes = ProbeRequest(out=out, pushes=(1, 3), loops=(1, 2, 9), **few)
    caps = CapsRequest(caps=(1,), thresholds=(1e-3,), fixed=(2,), **played)
    said = {
        "probes": analyse_probes([one], probes, mesh),
        "difficulty": analyse_difficulty([other], DifficultyRequest(workers=1, **played), mesh),
        "histogram": analyse_histogram([one, other], HistogramRequest(**played), mesh),
        "caps": analyse_caps([one], caps, mesh),
        "frontier": analyse_frontier(
            [one], FrontierRequest(min_loops=(1,), thresholds=(0.0, 9.0), **played), mesh
        ),
        "compare": compare_runs([imitated], out),
    }
    assert all("imitation" in said[name] for name in said if name != "difficulty"), said

    probed = table(out, "probes")
    assert {(row["place"], row["push"]) for row in probed if row["place"] != "guess"} == {
        (place, push) for place in ("input", 1, 2) for push in (1, 3)
    }
    assert [row["place"] for row in probed].count("guess") == 1
    states = table(out, "difficulty")
    assert {row["measure"] for row in states} == {"moves"}
    counted = [row for row in table(out, "histogram") if row["run"] == "parked"]
    assert sum(row["states"] for row in states) == sum(row["decisions"] for row in counted)
    caps = table(out, "caps")
    settings = [(row["rule"], row["max_loops"], row["loops"]) for row in caps]
    assert settings == [("adaptive", 1, 1), ("fixed", 2, 2)]
    assert caps[0]["flops"] < caps[1]["flops"]
    frontier = table(out, "frontier")
    assert {(row["trained_start"], row["start"]) for row in frontier} == {
        ("carried", "fixed"),
        ("carried", "carried"),
    }
    assert [row["loops"] for row in frontier if row["threshold"]] == [1, 1]  # nothing is as far as this
    assert all(row["loops"] > 1 for row in frontier if not row["threshold"])
    compared = [(row["steps"], row["split"]) for row in table(out, "compare")]
    assert compared == [(512, "valid"), (768, "valid"), (768, "test")]

    assert not list(out.glob("*.parts"))  # what was kept on the way is gone
    pictures = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in (".png", ".svg")}
    assert len(pictures) == 2 * len(said)
    assert {*said} == {*FIGURES} - {"curves", "worlds", "separation"}  # of `reproduce` and `theory`
    for name in pictures:
        (out / name).unlink()
    assert draw_folder(out) == said
    for name, before in pictures.items():
        assert (out / name).read_bytes() == before, name
    assert {name: (out / f"{name}.txt").read_text().strip() for name in said} == said


def test_an_analysis_goes_on_where_it_stopped(imitated, tmp_path, monkeypatch):
    played = []
    facts = json.loads((imitated / "evaluations" / "000000000768.json").read_text())

    def counted(policy, request, *rest):
        """An interruption at a given place, and no need to play."""
        if len(played) == 1:
            raise KeyboardInterrupt
        played.append(request.max_loops)
        return facts

    request = CapsRequest(out=tmp_path, caps=(1, 2), fixed=(), count=2)
    with monkeypatch.context() as patch:
        patch.setattr(study, "evaluate_policy", counted)
        with pytest.raises(KeyboardInterrupt):
            analyse_caps([policy_at(imitated)], request, all_devices(1))
    assert played == [1]
    played.clear()
    with monkeypatch.context() as patch:
        patch.setattr(study, "evaluate_policy", counted)
        analyse_caps([policy_at(imitated)], request, all_devices(1))
    assert played == [2]


@pytest.mark.parametrize("game", ["boxoban", "rush-hour"])
def test_a_replay_is_one_file_that_holds_the_episode(game, imitated, parked, tmp_path):
    folder = {"boxoban": imitated, "rush-hour": parked}[game]
    replay = record_episode(policy_at(folder), 2)
    facts = evaluated(folder, count=3)
    assert len(replay.steps) <= facts["mean_steps"] * 3
    for thought in replay.steps:
        assert thought.probabilities.shape[0] == thought.loops <= replay.max_loops
        np.testing.assert_allclose(thought.probabilities.sum(axis=1), 1, rtol=1e-5)
        assert thought.probabilities[-1].argmax() == thought.action
    assert (replay.steps[0].value is None) == (game == "boxoban")  # imitation learns no value
    write_html(replay, tmp_path / "replay.html")
    write_replay_gif(replay, tmp_path / "replay.gif")
    page = (tmp_path / "replay.html").read_text()
    assert not re.search(r"(src|href)\s*=|@import|url\(", page)
    assert "default-src 'none'" in page
    assert "unsafe" not in page
    assert "style=" not in page  # which the page's policy would not let through
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*)</script>', page)[1])
    assert len(data["boards"]) == len(data["steps"]) + 1
    for step, thought in zip(data["steps"], replay.steps, strict=True):
        assert len(step["names"]) == len(step["chances"]) <= 6
        assert all(len(column) == thought.loops for column in step["chances"])
        top = np.argmax([column[-1] for column in step["chances"]])
        assert game == "rush-hour" or step["names"][top] == step["action"]
    assert (tmp_path / "replay.gif").stat().st_size > 1000


class Scripts(html.parser.HTMLParser):
    """What of a page could run: scripts by their text, and attributes that hold some."""

    def __init__(self):
        super().__init__()
        self.scripts, self.handlers, self.policy = [], [], ""
        self._script = None

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.handlers += [name for name in given if name.startswith("on")]
        if tag == "script" and "type" not in given:
            self._script = ""
        if tag == "meta" and "http-equiv" in given:
            self.policy = given["content"] or ""

    def handle_data(self, data):
        if self._script is not None:
            self._script += data

    def handle_endtag(self, tag):
        if tag == "script" and self._script is not None:
            self.scripts.append(self._script)
            self._script = None


def test_a_name_runs_no_script_in_a_replay(imitated, tmp_path):
    replay = record_episode(policy_at(imitated), 0)
    evil = "{{DATA}}<svg onload=alert(1)></script><script>alert(2)</script>{{SCRIPT}}"
    write_html(replay._replace(title=evil), tmp_path / "replay.html")
    page = (tmp_path / "replay.html").read_text()
    found = Scripts()
    found.feed(page)
    assert len(found.scripts) == 1
    assert "alert" not in found.scripts[0]
    assert found.handlers == []
    digest = base64.b64encode(hashlib.sha256(found.scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in found.policy
    assert html.escape(evil) in page


def test_what_cannot_be_analysed_is_said(imitated, parked, tmp_path):
    mesh = all_devices(1)
    with pytest.raises(ValueError, match="is of rush-hour: plans are pushes of Boxoban"):
        analyse_probes([policy_at(parked)], ProbeRequest(out=tmp_path), mesh)
    with pytest.raises(ValueError, match="pushes are \\[0\\]; give each once, counted from 1"):
        ProbeRequest(pushes=(0,))
    with pytest.raises(ValueError, match="no level 99; there are 20"):
        record_episode(policy_at(imitated), 99)
    with pytest.raises(ValueError, match="this is no file of probes"):
        record_episode(policy_at(imitated), 0, probes=imitated / "metrics.csv")
    with pytest.raises(ValueError, match="nothing was evaluated yet"):
        compare_runs([parked], tmp_path)
    with pytest.raises(ValueError, match="at least one run"):
        compare_runs([], tmp_path)
    with pytest.raises(ValueError, match="count is 0; it must be at least 1"):
        DifficultyRequest(count=0)
    request = ProbeRequest(out=tmp_path / "none", node_limit=1, workers=1)
    with pytest.raises(ValueError, match="no level was solved within 1 states"):
        analyse_probes([policy_at(imitated)], request, mesh)
    with pytest.raises(ValueError, match="the same policy is given twice"):
        analyse_caps([policy_at(imitated)] * 2, CapsRequest(out=tmp_path), mesh)
    with pytest.raises(ValueError, match="the same folder is given twice"):
        names_of([imitated, imitated])
    assert names_of([tmp_path / "a" / "x", tmp_path / "b" / "x"]) == ["a/x", "b/x"]
    with pytest.raises(ValueError, match="holds none of the tables that are drawn"):
        draw_folder(tmp_path / "nothing")
    (tmp_path / "caps.csv").write_text("run,task\nx,boxoban\n")
    with pytest.raises(TableError, match="there is no column 'arm' in this table"):
        draw_folder(tmp_path)
    with pytest.raises(TableError, match="there is nothing to write down"):
        write_table(tmp_path / "x.csv", [])
    config, stacked = tiny(arm="iso-params"), tmp_path / "stacked"
    save_policy(config, run_of(config).new_weights(), stacked)
    with pytest.raises(ValueError, match="iso-params does not loop; there is nothing to look at"):
        analyse_caps([policy_at(stacked)], CapsRequest(out=tmp_path), mesh)
