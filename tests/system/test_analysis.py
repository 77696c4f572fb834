"""Every analysis of a small run, from start to finish, and figures drawn again from tables."""

import base64
import csv
import hashlib
import html.parser
import json
import re
import shutil

import numpy as np
import pytest

import looped_actor
from looped_actor.analysis import probes, study
from looped_actor.analysis.caps import analyze_caps, analyze_frontier
from looped_actor.analysis.compare import compare_runs
from looped_actor.analysis.difficulty import analyze_difficulty
from looped_actor.analysis.histogram import analyze_histogram
from looped_actor.analysis.options import (
    CapsOptions,
    DifficultyOptions,
    FrontierOptions,
    HistogramOptions,
    ProbeOptions,
)
from looped_actor.analysis.probes import analyze_probes
from looped_actor.analysis.replay import record_episode, write_html, write_replay_gif
from looped_actor.analysis.study import name_folders
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
    """A finished run of imitation that carries its latent."""
    folder = tmp_path_factory.mktemp("runs") / "imitated"
    config = begin_run(tiny(by="imitation", time_limit=6, arm__carry_latent=True), folder)
    assert train_run(config, folder, all_devices(1)) is Ending.FINISHED
    return folder


@pytest.fixture(scope="module")
def parked(tmp_path_factory):
    """An untrained policy of Rush Hour, next to its levels."""
    folder = tmp_path_factory.mktemp("runs") / "parked"
    config = begin_run(tiny("rush-hour", time_limit=5), folder)
    save_policy(config, run_of(config).spec.init_weights(), folder / "policy")
    return folder


def read(folder, name):
    return read_table(folder / f"{name}.csv", FIGURES[name].columns)


def test_imitation_is_trained_evaluated_and_labelled(imitated):
    with (imitated / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert all(0 < float(row["advised"]) <= 1 and 0 <= float(row["accuracy"]) <= 1 for row in rows)
    results = json.loads((imitated / "evaluations" / "000000000768.json").read_text())
    assert 0 < results["optimal_actions"] < 1
    assert results["optimal_actions_states"] > 20
    assert load_policy(imitated).config.learner == "imitation"
    assert looped_actor.evaluate(load_policy(imitated), count=2)["learner"] == "imitation"


def test_imitation_gives_the_same_policy_from_an_earlier_checkpoint(imitated, tmp_path):
    """Checkpoints after the second iteration are removed, as if the run had been killed there."""
    copy = tmp_path / "copy"
    shutil.copytree(imitated, copy)
    for newer in (4, 6):
        shutil.rmtree(copy / "checkpoints" / str(newer))
    shutil.rmtree(copy / "policy")
    train_run(load_policy(imitated).config, copy, all_devices(1))
    for name in ("metrics.csv", "policy/policy.safetensors"):
        assert (copy / name).read_bytes() == (imitated / name).read_bytes(), name


def test_every_analysis_and_its_figure_again_from_its_table(imitated, parked, tmp_path):
    mesh, out = all_devices(1), tmp_path / "analysis"
    played, (one, other) = {"out": out, "count": 8}, map(policy_at, (imitated, parked))
    few = {"seeds": 2, "epochs": 2, "batch": 8}
    probe_options = ProbeOptions(out=out, pushes=(1, 3), loops=(1, 2, 9), **few)
    caps_options = CapsOptions(caps=(1,), thresholds=(1e-3,), fixed=(2,), **played)
    captions = {
        "probes": analyze_probes([one], probe_options, mesh),
        "difficulty": analyze_difficulty([other], DifficultyOptions(workers=1, **played), mesh),
        "histogram": analyze_histogram([one, other], HistogramOptions(**played), mesh),
        "caps": analyze_caps([one], caps_options, mesh),
        "frontier": analyze_frontier(
            [one], FrontierOptions(min_loops=(1,), thresholds=(0.0, 9.0), **played), mesh
        ),
        "compare": compare_runs([imitated], out),
    }
    assert all("imitation" in captions[name] for name in captions if name != "difficulty"), captions

    probed = read(out, "probes")
    assert {(row["place"], row["push"]) for row in probed if row["place"] != "guess"} == {
        (place, push) for place in ("input", 1, 2) for push in (1, 3)
    }
    assert [row["place"] for row in probed].count("guess") == 1
    states = read(out, "difficulty")
    assert {row["measure"] for row in states} == {"moves"}
    counted = [row for row in read(out, "histogram") if row["run"] == "parked"]
    assert sum(row["states"] for row in states) == sum(row["decisions"] for row in counted)
    caps = read(out, "caps")
    settings = [(row["rule"], row["max_loops"], row["loops"]) for row in caps]
    assert settings == [("adaptive", 1, 1), ("fixed", 2, 2)]
    assert caps[0]["flops"] < caps[1]["flops"]
    frontier = read(out, "frontier")
    assert {(row["trained_start"], row["start"]) for row in frontier} == {
        ("carried", "fixed"),
        ("carried", "carried"),
    }
    assert [row["loops"] for row in frontier if row["threshold"]] == [
        1,
        1,
    ]  # all changes are below this threshold
    assert all(row["loops"] > 1 for row in frontier if not row["threshold"])
    compared = [(row["steps"], row["split"]) for row in read(out, "compare")]
    assert compared == [(512, "valid"), (768, "valid"), (768, "test")]

    assert not list(out.glob("*.parts"))
    pictures = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in (".png", ".svg")}
    assert len(pictures) == 2 * len(captions)
    assert {*captions} < {*FIGURES}
    for name in pictures:
        (out / name).unlink()
    assert draw_folder(out) == captions
    for name, before in pictures.items():
        assert (out / name).read_bytes() == before, name
    assert {name: (out / f"{name}.txt").read_text().strip() for name in captions} == captions


def test_an_analysis_continues_after_an_interruption(imitated, tmp_path, monkeypatch):
    played = []
    results = json.loads((imitated / "evaluations" / "000000000768.json").read_text())

    def evaluate_once(policy, options, *rest):
        if len(played) == 1:
            raise KeyboardInterrupt
        played.append(options.max_loops)
        return results

    options = CapsOptions(out=tmp_path, caps=(1, 2), fixed=(), count=2)
    with monkeypatch.context() as patch:
        patch.setattr(study, "evaluate_policy", evaluate_once)
        with pytest.raises(KeyboardInterrupt):
            analyze_caps([policy_at(imitated)], options, all_devices(1))
    assert played == [1]
    played.clear()
    with monkeypatch.context() as patch:
        patch.setattr(study, "evaluate_policy", evaluate_once)
        analyze_caps([policy_at(imitated)], options, all_devices(1))
    assert played == [2]


@pytest.mark.parametrize("game", ["boxoban", "rush-hour"])
def test_a_replay_has_the_whole_episode_in_one_file(game, imitated, parked, tmp_path):
    folder = {"boxoban": imitated, "rush-hour": parked}[game]
    policy = policy_at(folder)
    replay = record_episode(policy, 2)
    assert len(replay.steps) <= looped_actor.evaluate(policy, count=3)["mean_steps"] * 3
    for decision in replay.steps:
        assert decision.probabilities.shape[0] == decision.loops <= replay.max_loops
        np.testing.assert_allclose(decision.probabilities.sum(axis=1), 1, rtol=1e-5)
        assert decision.probabilities[-1].argmax() == decision.action
    assert (replay.steps[0].value is None) == (game == "boxoban")  # imitation learns no value
    write_html(replay, tmp_path / "replay.html")
    write_replay_gif(replay, tmp_path / "replay.gif")
    page = (tmp_path / "replay.html").read_text()
    assert not re.search(r"(src|href)\s*=|@import|url\(", page)
    assert "default-src 'none'" in page
    assert "unsafe" not in page
    assert "style=" not in page  # which the content security policy forbids
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*)</script>', page)[1])
    assert len(data["boards"]) == len(data["steps"]) + 1
    for step, decision in zip(data["steps"], replay.steps, strict=True):
        assert len(step["names"]) == len(step["chances"]) <= 6
        assert all(len(column) == decision.loops for column in step["chances"])
        top = np.argmax([column[-1] for column in step["chances"]])
        assert game == "rush-hour" or step["names"][top] == step["action"]
    assert (tmp_path / "replay.gif").stat().st_size > 1000


def test_a_replay_of_a_net_without_loops(imitated, tmp_path):
    config = tiny(arm="iso-flops", time_limit=3)
    save_policy(config, run_of(config).spec.init_weights(), tmp_path / "stacked")
    replay = record_episode(
        policy_at(tmp_path / "stacked"), 0, levels=imitated / "levels" / "held_out.levels"
    )
    assert [decision.loops for decision in replay.steps] == [replay.max_loops] * 3 == [1] * 3
    write_html(replay, tmp_path / "replay.html")
    write_replay_gif(replay, tmp_path / "replay.gif")


class Scripts(html.parser.HTMLParser):
    """Scripts of a page, and attributes with code."""

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


def test_scripts_in_names_are_not_executed_by_replays(imitated, tmp_path):
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


def test_errors_of_analyses(imitated, parked, tmp_path, monkeypatch):
    mesh = all_devices(1)
    with pytest.raises(ValueError, match="is of rush-hour: plans are pushes of Boxoban"):
        analyze_probes([policy_at(parked)], ProbeOptions(out=tmp_path), mesh)
    with pytest.raises(ValueError, match="seeds is 0; it must be at least 1"):
        ProbeOptions(seeds=0)
    with pytest.raises(ValueError, match="pushes are \\[0\\]; give each once, counted from 1"):
        ProbeOptions(pushes=(0,))
    with pytest.raises(ValueError, match="no level 99; there are 20"):
        record_episode(policy_at(imitated), 99)
    with pytest.raises(ValueError, match="this is not a file of probes"):
        record_episode(policy_at(imitated), 0, probes=imitated / "metrics.csv")
    with pytest.raises(ValueError, match="nothing was evaluated yet"):
        compare_runs([parked], tmp_path)
    with pytest.raises(ValueError, match="at least one run"):
        compare_runs([], tmp_path)
    with pytest.raises(ValueError, match="count is 0; it must be at least 1"):
        DifficultyOptions(count=0)
    with monkeypatch.context() as patch:
        patch.setattr(probes, "NODE_LIMIT", 1)
        with pytest.raises(ValueError, match="no level was solved within 1 states"):
            analyze_probes([policy_at(imitated)], ProbeOptions(out=tmp_path / "none", workers=1), mesh)
    with pytest.raises(ValueError, match="the same policy is given twice"):
        analyze_caps([policy_at(imitated)] * 2, CapsOptions(out=tmp_path), mesh)
    with pytest.raises(ValueError, match="the same folder is given twice"):
        name_folders([imitated, imitated])
    assert name_folders([tmp_path / "a" / "x", tmp_path / "b" / "x"]) == ["a/x", "b/x"]
    with pytest.raises(ValueError, match="holds none of the tables that are drawn"):
        draw_folder(tmp_path / "nothing")
    (tmp_path / "caps.csv").write_text("run,task\nx,boxoban\n")
    with pytest.raises(TableError, match="there is no column 'arm' in this table"):
        draw_folder(tmp_path)
    with pytest.raises(TableError, match="there are no rows to write"):
        write_table(tmp_path / "x.csv", [])
    config, stacked = tiny(arm="iso-params"), tmp_path / "stacked"
    save_policy(config, run_of(config).spec.init_weights(), stacked)
    with pytest.raises(ValueError, match="iso-params does not loop: there are no loops to analyze"):
        analyze_caps([policy_at(stacked)], CapsOptions(out=tmp_path), mesh)
