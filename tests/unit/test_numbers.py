"""Numbers in the README and the handbook are those of the records: each is computed again and looked for.

A row of `NUMBERS` holds a page, the text with the number, as a template, and the record with what to put in.
White space does not count, nor does a line's break.
"""

# ruff: noqa: E501

import csv
import json
import pathlib
import re
from functools import cache

import numpy as np
import pytest

from looped_actor.policy.card import read_card
from looped_actor.policy.pretrained import PRETRAINED
from looped_actor.reproduction import paper_numbers
from looped_actor.runs.presets import STUDY_STEPS, preset

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "results"


@cache
def record(name):
    return json.loads((RESULTS / name).read_text())


@cache
def rows_of(name):
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def page(name):
    return " ".join((ROOT / name).read_text().split())


def percents(*values):
    return [100 * value for value in values]


def card(name):
    found = read_card(PRETRAINED / name)
    assert found is not None
    assert found.interval_95 is not None
    return percents(found.success, *found.interval_95)


def depth(setting):
    return 100 * record("depth_study/table.json")["settings"][setting]["success"]


def depth_run(name):
    return (
        100 * next(row for row in record("depth_study/table.json")["runs"] if row["run"] == name)["success"]
    )


def answer(title):
    found = record("depth_study/table.json")["answers"][title]
    return percents(found["behind"], found["low"], found["high"])


def ahead(title):
    behind, low, high = answer(title)
    return [-behind, -high, -low]


BEST = "each arm at the better of two rates"


def saving(policy, work, of=None):
    found = record("savings.json")["timings"][policy][work]
    return found if of is None else found[of]


def iteration(policy):
    return saving(policy, "train")["over_frozen"]


def carried(game, of):
    """The least and the most over the policies of a game, of their loops carried over fixed or of repeats."""
    policies = record(f"carried_study/repeats-{game}.json")["policies"].values()
    if of == "repeats":
        found = [
            100 * played["repeated_share"] for one in policies for played in (one["fixed"], one["carried"])
        ]
    else:
        found = [one["carried"][of] / one["fixed"][of] for one in policies]
    return min(found), max(found)


def robots(name):
    found = record(f"robots/{name}.json")
    return percents(found["success"], *found["interval_95"])


def one_press(arm):
    return record(f"robots/arms/{arm}.json")["by_task"]["1 press"]["solved"]


def paper(*key):
    found = paper_numbers.PUZZLES.get(key) or paper_numbers.ROBOTS[key]
    return percents(found.mean, found.deviation)


def executed(column):
    """The least and the most of the means over the looped runs of the depth study."""
    means = [
        np.mean([float(row[column]) for row in rows_of(path.relative_to(RESULTS)) if row[column]])
        for path in sorted((RESULTS / "depth_study/runs").glob("*-looped-*/metrics.csv"))
    ]
    return len(means), min(means), max(means)


def study(task, learner):
    """The steps of runs of the small study, and mean and deviation of four arms."""
    ends = rows_of(f"micro_study/artifacts/{task}-curves-{learner}/ends.csv")
    arms = {row["arm"]: percents(float(row["success"]), float(row["deviation"])) for row in ends}
    order = ("looped", "iso-params", "iso-flops", "drc")
    return [STUDY_STEPS[task, learner], *(number for arm in order for number in arms[arm])]


def quick(seed):
    """Success of a seed of the quick comparison, at its end and near three quarters, and core-minutes."""
    told = {}
    for arm in ("looped", "iso-flops", "iso-params", "drc"):
        run = f"rush-hour-imitation-{arm}-seed{seed}"
        rows = [
            row
            for row in rows_of("micro_study/artifacts/rush-hour-curves-imitation/curves.csv")
            if row["run"] == run
        ]
        told[arm] = [
            100 * float(rows[-1]["success"]),
            100 * float(rows[-2]["success"]),
            record("micro_study/record.json")["minutes"][run],
        ]
    return [list(numbers) for numbers in zip(*told.values(), strict=True)]


def first_commands():
    """Minutes of the README's commands on a first run."""
    words = (
        "looped-actor train rush-hour --steps",
        "looped-actor eval runs/first",
        "looped-actor analyse difficulty",  # its name when the record was made
        "looped-actor analyze difficulty",
        "looped-actor export",
    )
    return sum(
        step["minutes"] for step in record("readme.json")["steps"] if step["command"].startswith(words)
    )


def plan(name):
    found = record(f"plans/{name}.json")
    return [found["memory"] / 2**30, found["seconds"], found["hours"]]


def served(load):
    """Milliseconds of three quantiles with slots and with batches, and their ratios."""
    slots, batches = (
        [record("serving.json")[f"at_{load}%"][kind][f"p{p}"] for p in (50, 95, 99)]
        for kind in ("slots", "batches")
    )
    return [1e3 * s for s in (*slots, *batches)]


def median(load):
    """Return the median latency with slots, relative to batches."""
    found = record("serving.json")[f"at_{load}%"]
    return found["slots"]["p50"] / found["batches"]["p50"]


def faults(name):
    found = record(f"{name}.json")["outcomes"].values()
    refused, loaded = (sum(part.get(what, 0) for part in found) for what in ("refused", "loaded"))
    return [refused + loaded, refused + loaded, refused, loaded]


def curve(name):
    found = record(f"{name}/record.json")
    final = found["final"]
    return [*percents(final["success"], *final["interval_95"]), found["minutes_to_80_percent"]]


def called(observations, of):
    return record("policy_call.json")["calls"][observations]["milliseconds"][of]


STUDY_ROW = "{:,} steps | {:.1f} +- {:.1f}% | {:.1f} +- {:.1f}% | {:.1f} +- {:.1f}% | {:.1f} +- {:.1f}% |"
README, TRAINING, QUESTIONS = "README.md", "docs/training.md", "docs/questions.md"
OFFLINE, HALTING, REPRODUCE = "docs/offline.md", "docs/halting.md", "docs/reproduce.md"
DEPTH = "results/depth_study/report.md"
RELIABILITY, SERVING, PLANS = "docs/reliability.md", "docs/serving.md", "docs/accelerators.md"
NUMBERS = [
    (README, "level 1`: {:,} parameters, at most {} loops", lambda: [read_card(PRETRAINED / "boxoban-two-boxes").parameters, read_card(PRETRAINED / "boxoban-two-boxes").max_loops]),
    (README, "| {:.2f} to {:.2f} (Boxoban), {:.2f} to {:.2f} (Rush Hour), with as many levels solved", lambda: [*carried("boxoban", "loops_new_states"), *carried("rush-hour", "loops_new_states")]),
    ("docs/carried.md", "On Boxoban {:.0f} to {:.0f}% of all decisions repeat a state", lambda: carried("boxoban", "repeats")),
    (README, "| {:.1f}% of 1,000 ({:.1f} - {:.1f}) on 5x5, one seed |", lambda: card("rush-hour-micro")),
    (README, "| {:.1f}% of 1,000 ({:.1f} - {:.1f}), two boxes, imitation, one seed |", lambda: card("boxoban-two-boxes")),
    (README, "| {:.1f} +- {:.1f}% on 6x6 |", lambda: paper("rush-hour", "looped")),
    (README, "| {:.1f} +- {:.1f}%, four boxes, PPO |", lambda: paper("boxoban", "looped")),
    (README, "| {:.1f} and {:.1f}%, three seeds (", lambda: [depth("b-looped-all"), depth("b-iso-params-all")]),
    (README, "| {:.1f} and {:.1f}% (two seeds), {:.1f}% (one seed) |", lambda: [depth_run(f"a-{run}") for run in ("looped-ours-0", "looped-ours-1", "iso-params-ours-0")]),
    (README, "at a learning rate of 0.0015 **{:.1f} and {:.1f}%**: {:.1f} points behind ({:.1f} to {:.1f})", lambda: [depth("b-looped-all"), depth("b-iso-flops-all"), *answer("b-looped-all")]),
    (README, "At 0.003 **{:.1f} and {:.1f}%**: {:.1f} points ahead, undecided ({:.1f} to {:.1f} contains zero)", lambda: [depth("g-looped-0.003"), depth("g-iso-flops-0.003"), *ahead("g-looped-0.003")]),
    (README, "Each at its better rate: {:.1f} points behind ({:.1f} to {:.1f})", lambda: answer(BEST)),
    (QUESTIONS, "| both at 0.0015 | {:.1f} ({:.1f} to {:.1f}) | behind |", lambda: answer("b-looped-all")),
    (QUESTIONS, "| both at 0.003 | {:.1f} ({:.1f} to {:.1f}) | contains zero: undecided |", lambda: answer("g-looped-0.003")),
    (QUESTIONS, "| each at its better rate | {:.1f} ({:.1f} to {:.1f}) |", lambda: answer(BEST)),
    *((DEPTH, f" | {{:.1f}} ({{:.1f}} to {{:.1f}}) | {over} | **{said}** |", lambda title=title: answer(title)) for title, over, said in (("a-looped-ours", "seeds", "undecided"), ("a-looped-authors", "seeds", "undecided"), ("b-looped-all", "seeds", "no"), ("g-looped-0.003", "seeds", "undecided"), (BEST, "seeds", "yes"), ("c-looped-100", "seeds", "undecided"), ("c-looped-1000", "seeds", "undecided"), ("d-looped", "seeds", "undecided"), ("d-looped-random-caps", "seeds", "undecided"))),
    (README, "trained `micro` policies of Boxoban and Rush Hour | {:.2f} and {:.2f} |", lambda: [iteration("micro Boxoban"), iteration("micro Rush Hour")]),
    (README, "they use {:.1f} and {:.1f} of 8 loops. Rollouts alone: {:.2f} and {:.2f}", lambda: [*(saving(p, "train")["mean_loops"] for p in ("micro Boxoban", "micro Rush Hour")), *(saving(p, "train", "rollout")["over_frozen"] for p in ("micro Boxoban", "micro Rush Hour"))]),
    (README, "| {:.2f} | random weights, depths drawn like those of the paper's Boxoban policy, {:.1f} of 16 loops |", lambda: [iteration("random weights, loops like Boxoban"), saving("random weights, loops like Boxoban", "train")["mean_loops"]]),
    (README, "relative to batches that are packed by depth | {:.2f} |", lambda: [median(80)]),
    (README, "**{:.0f}%** of 100 episodes ({:.0f} - {:.0f}), with an MLP actor", lambda: robots("long/far-1.0-tasks-mean")),
    (README, "in {} of 20 episodes, an MLP with as few examples in {}", lambda: [one_press("looped"), one_press("mlp")]),
    (README, "Looped {:.1f} +- {:.1f}% |", lambda: paper("puzzle-3x3", 0, "looped")),
    (README, "The first four commands take {:.1f} minutes on two quiet cores.", lambda: [first_commands()]),
    (README, "in about {:.0f} core-minutes", lambda: [sum(quick(0)[2])]),
    (README, "Looped {:.1f}%, Iso-FLOPs {:.1f}%, Iso-Params {:.1f}%, DRC(3,3) {:.1f}%", lambda: quick(0)[0]),
    (REPRODUCE, "| solved | {:.1f}% | {:.1f}% | {:.1f}% | {:.1f}% |", lambda: quick(0)[0]),
    (REPRODUCE, "| at three quarters of the run | {:.1f}% | {:.1f}% | {:.1f}% | {:.1f}% |", lambda: quick(0)[1]),
    (REPRODUCE, "| core-minutes | {:.1f} | {:.1f} | {:.1f} | {:.1f} |", lambda: quick(0)[2]),
    (TRAINING, "one run of {} iterations that was killed {} times, {} of them while it saved: at its end all {} arrays", lambda: [record("resume.json")[name] for name in ("iterations", "kills", "in_mid_save", "arrays")]),
    (QUESTIONS, "| 0.0015, the preset | {:.1f}% | **{:.1f}%** | {:.1f}% |", lambda: [depth(f"b-{arm}-all") for arm in ("looped", "iso-flops", "iso-params")]),
    (QUESTIONS, "| 0.003 | {:.1f}% | {:.1f}% ({:.1f}, {:.1f}, {:.1f}) |", lambda: [depth("g-looped-0.003"), depth("g-iso-flops-0.003"), *(depth_run(f"g-iso-flops-0.003-{seed}") for seed in range(3))]),
    (QUESTIONS, "({:.1f} against {:.1f}%, two seeds). Nor", lambda: [depth("a-iso-flops-authors"), depth("a-iso-flops-ours")]),
    (QUESTIONS, "a stack solves {:.1f}% of others, Looped {:.1f}%", lambda: [depth("c-iso-flops-100"), depth("c-looped-100")]),
    (QUESTIONS, "means of the {} looped runs of `results/depth_study` | {:.2f} to {:.2f} |", lambda: executed("learning_executed")),
    (HALTING, "{1:.2f} to {2:.2f} loops computed for each one asked for when learning", lambda: executed("learning_executed")),
    (HALTING, "{1:.2f} to {2:.2f} when acting (means of the {0} looped runs", lambda: executed("acting_executed")),
    (OFFLINE, "**{:.0f}% of puzzle-3x3** ({:.0f} - {:.0f}%) by OGBench's protocol", lambda: robots("long/far-1.0-tasks-mean")),
    (OFFLINE, "solves {:.0f}% ({:.0f} - {:.0f}%). From half", lambda: robots("long/far-1.0-tasks")),
    (OFFLINE, "| **{}, {}, {}, {}, {}** |", lambda: [task["solved"] for task in record("robots/long/far-1.0-tasks.json")["by_task"].values()]),
    *((OFFLINE, f"| {title} |{' {} |' * 7}", lambda name=name: [task["solved"] for task in record(f"robots/long/{name}.json")["by_task"].values()]) for title, name in (("`play-1.0`: neither, 3e-4, 50,000 steps", "play-1.0"), ("`play-0.3`: the same, BC weight 0.3", "play-0.3"), ("`play-0.1`: the same, BC weight 0.1", "play-0.1"))),
    (OFFLINE, "cube-double {:.0f}, cube-triple {:.0f}, puzzle-3x3 {:.0f}, scene {:.0f} |", lambda: [world["transitions_per_second_and_core"]["2"] for world in record("collection.json")["worlds"].values()]),
    (OFFLINE, "| {:.1f} (the fastest iteration: {:.1f}) |", lambda: [record("offline_speed.json")["runs"][0][name] for name in ("steps_per_second", "fastest_iteration_steps_per_second")]),
    (OFFLINE, "included | {:.1f}% |", lambda: percents(record("offline_speed.json")["runs"][0]["outside_the_compiled_update"])),
    (OFFLINE, "killed {} times and resumed", lambda: [record("resume_offline.json")["kills"]]),
    (OFFLINE, "the nearest is {:.0f} to {:.0f} cm", lambda: sorted(100 * part["median_nearest"] for part in record("robots/cube.json")["episodes"].values())[::2]),
    (OFFLINE, "Q's best move in {:.0f}% of states, the actor's in {:.0f}, any in {:.0f}", lambda: percents(*(record("robots/cube.json")["goes"]["to a cube"][who] for who in ("q", "actor", "any_direction")))),
    (OFFLINE, "Q's best move in **{:.0f}%**, the actor's in {:.0f}, any in {:.0f}", lambda: percents(*(record("robots/cube.json")["goes"]["with a cube to its place"][who] for who in ("q", "actor", "any_direction")))),
    *((REPRODUCE, f"{title}, {STUDY_ROW}", lambda task=task, learner=learner: study(task, learner)) for title, task, learner in (("PPO, Rush Hour", "rush-hour", "ppo"), ("imitation, Rush Hour", "rush-hour", "imitation"), ("imitation, Boxoban", "boxoban", "imitation"))),
    (REPRODUCE, "In all {} runs took {} core-minutes", lambda: [len(record("micro_study/record.json")["minutes"]), record("micro_study/record.json")["core_minutes_of_training"]]),
    ("docs/first_policy.md", "{:.2f} ms for one board where the bare jitted function takes {:.2f} ms", lambda: [called(0, "act"), called(0, "bare")]),
    ("docs/first_policy.md", "| {:.1f}% | {:.1f} - {:.1f}% | {:.0f} | | Rush", lambda: curve("micro_boxoban")),
    ("docs/first_policy.md", "| {:.1f}% | {:.1f} - {:.1f}% | {:.0f} | `looped-actor train boxoban`", lambda: curve("micro_rush_hour")),
    *((PLANS, f"| {task} | `{chips}` | {{:.2f}} of {has} GiB | {{:.2f}} s | {{:.1f}} h |", lambda name=name: plan(name)) for task, chips, has, name in (
        ("boxoban", "v5e:1", 16, "boxoban_v5e_1"), ("boxoban", "v5e:2x4", 16, "boxoban_v5e_2x4"), ("boxoban", "v5e:16x16", 16, "boxoban_v5e_16x16"), ("boxoban", "v6e:1", 32, "boxoban_v6e_1"), ("boxoban", "h100:1", 75, "boxoban_h100_1"),
        ("cube-double", "v5e:1", 16, "cube-double_v5e_1"), ("cube-double", "v5e:2x4", 16, "cube-double_v5e_2x4"), ("cube-double", "v5e:16x16", 16, "cube-double_v5e_16x16"), ("cube-double", "v6e:1", 32, "cube-double_v6e_1"), ("cube-double", "h100:1", 75, "cube-double_h100_1"))),
    (PLANS, "Iso-FLOPs on one v5e chip takes {1:.1f} s an iteration and {2:.1f} h", lambda: plan("boxoban_iso-flops_v5e_1")),
    (PLANS, "Iso-Params, one pass, takes {1:.1f} s and {2:.1f} h", lambda: plan("boxoban_iso-params_v5e_1")),
    (PLANS, "measured: {:.2f} on Boxoban and {:.2f} on Rush Hour", lambda: [record("plans/truth.json")[task]["estimated_over_measured"] for task in ("boxoban", "rush-hour")]),
    (PLANS, "an iteration of PPO at `micro` on Rush Hour {:.2f}, one of the paper's net on boards of 6 x 7 {:.2f}", lambda: [record("against.json")[f"iteration, {net}"]["time_ratio"] for net in ("micro, Rush Hour", "the paper's net, boards of 6 x 7")]),
    (SERVING, "| pretrained Rush Hour policy | {:,.0f} | {:,.0f} | {:,.0f} |", lambda: list(record("serving_rush_hour.json")["saturation"].values())),
    (SERVING, "Boxoban | {:.1f} | {:.1f} | not measured |", lambda: list(record("serving.json")["saturation"].values())),
    (SERVING, "the same, 64 boards per request | {:.1f} | {:.1f} | not measured |", lambda: list(record("serving_rows.json")["saturation"].values())),
    *((SERVING, f"per second ({share}) | {{:.0f}}, {{:.0f}}, {{:.0f}} | {{:.0f}}, {{:.0f}}, {{:.0f}} |", lambda load=load: served(load)) for load, share in ((50, "half of saturation"), (80, "80%"))),
    (SERVING, "the median is {:.2f} and {:.2f} of that of batches", lambda: [median(50), median(80)]),
    (SERVING, "an engine's share of that | {:.2f} |", lambda: [record("serving.json")["engine"]["share_of_streaming"]]),
    (SERVING, "{:,} answered, half of them within {:.1f} s and 99% within {:.1f} s; {:,} refused", lambda: [record("serving_faults.json")["overload"][name] for name in ("answered", "p50", "p99", "refused")]),
    (SERVING, "({0[400]:,} of 400, {0[404]:,} of 404, {0[405]:,} of 405)", lambda: [{int(code): n for code, n in record("serving_faults.json")["malformed"]["statuses"].items()}]),
    (RELIABILITY, "run folders | {:,} | {:,}: {:,} refused with a sentence, {:,} loaded |", lambda: faults("faults_files")),
    (RELIABILITY, "checkpoints | {:,} | {:,}: {:,} refused with a sentence, {:,} loaded |", lambda: faults("faults_checkpoints")),
    *((RELIABILITY, f"{title} | {{}} | {{}} resumed to the same bytes | 2026-11-16, {{:.0f}} minutes", lambda name=name: [record(f"faults_kills_{name}.json")[what] for what in ("kills", "equal", "minutes")]) for title, name in (("GCIQL", "gciql"), ("the same, PPO", "ppo"), ("the same, imitation", "imitation"))),
    ("docs/scaling.md", "| 16 | {:.2f} | {:.3f} |", lambda: list(record("plans/imbalance.json")["reported, boxoban"]["16"].values())),
    ("docs/paper.md", "is {:,.0f} instead of {:.0f} for the shared block and {:,.0f} instead of {:.0f} for blocks of their own ({:.0f} and {:.0f} with all of their weights)", lambda: [record("initial_gradients.json")["norms"][f"{who}, {what}"]["median"] for who, what in (("shared block", "authors' token and convolution"), ("shared block", "ours"), ("blocks of their own", "authors' token and convolution"), ("blocks of their own", "ours"), ("shared block", "authors'"), ("blocks of their own", "authors'"))]),
    ("docs/puzzles.md", "against Jumanji's Sokoban, taking turns | {:.1f} times", lambda: [record("worlds.json")["relative_to_jumanji"]["boxoban"]]),
    ("docs/puzzles.md", "| {:.0f} per second and core; {:.1f} core-hours", lambda: [record("rush_hour_set.json")[name] for name in ("levels_per_second_per_core", "core_hours_for_2020000")]),
    ("docs/puzzles.md", "{:,} boards, {:,} clusters and {:,} puzzles of 4x4", lambda: [record("rush_hour_enumeration.json")["4x4"][name] for name in ("boards", "clusters", "puzzles")]),
    ("docs/analysis.md", "record {:.0f} levels a second, at {:,} bytes a level", lambda: [record("latents.json")[name] for name in ("levels_per_second", "bytes_per_level")]),
    ("docs/analysis.md", "solutions); {:.0f} minutes in all", lambda: [record("micro_imitation/record.json")["minutes_in_all"]]),
    ("docs/many_devices.md", "took {:.2f} (float64) and {:.2f} (float32) of the time of one device, in two processes {:.1f} and {:.1f}", lambda: [record("devices.json")[kind][how]["time_per_update_over_one_device"] for how in ("8 devices", "2 processes of 1 device") for kind in ("float64", "float32")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "template", "values"), NUMBERS, ids=[f"{where}: {text[:40]}" for where, text, _ in NUMBERS]
)
def test_a_number_in_a_page_is_that_of_its_record(where, template, values):
    expected = " ".join(template.format(*values()).split())
    assert expected in page(where), f"{where}: the record says: {expected}"


def test_the_steps_of_the_runs_that_are_compared_with_the_papers():
    """1/250 of the paper's steps, wherever a page says which part of them the comparison of arms has."""
    ours, theirs = preset("rush-hour", "micro").total_steps, preset("rush-hour", "paper").total_steps
    part = f"1/{round(theirs / ours)} of the paper's steps"
    assert part in page(README)
    assert part in page(QUESTIONS)
    assert not [
        path.name for path in ROOT.glob("docs/*.md") if "thousandth of the paper's" in path.read_text()
    ]


def test_differences_are_said_to_contain_zero_where_they_do():
    """And the answers of the study are those of its intervals."""
    told = record("depth_study/table.json")["answers"]
    assert told["g-looped-0.003"]["low"] < 0 < told["g-looped-0.003"]["high"]
    for title in ("b-looped-all", BEST):
        assert told[title]["low"] > 0
        assert told[title]["by_level"]
    outcomes = record("depth_study/outcomes.json")["outcomes"]
    runs = {row["run"]: row["solved"] for row in record("depth_study/table.json")["runs"]}
    assert {name: marks.count("+") for name, marks in outcomes.items()} == {
        name: runs[name] for name in outcomes
    }


def test_the_table_of_what_halting_saves():
    """Every row of the page's table is a timing of the record."""
    works = {
        "rollout": ("train", "rollout"),
        "update": ("train", "update"),
        "iteration": ("train", None),
        "evaluation": ("eval", None),
    }
    rows = re.findall(
        r"^\| ([\w ,]+) \| (\w+) \| ([\d.]+) of (\d+) \| ([\d.]+) \| \*\*([\d.]+)\*\* \|(.*)\|$",
        (ROOT / HALTING).read_text(),
        re.M,
    )
    assert len(rows) == 15
    for policy, work, loops, cap, ideal, time, others in rows:
        found = saving(policy, *works[work])
        assert f"{found['mean_loops']:.1f} of {found['max_loops']}" == f"{loops} of {cap}"
        assert f"{found['mean_loops'] / found['max_loops']:.2f}" == ideal
        assert f"{found['over_frozen']:.2f}" == time, (policy, work)
        rest = f"{found['iso_flops_over_frozen']:.2f} | {found['executed_over_asked']:.3f} | {found['over_bare']:.2f}"
        assert others.strip() == rest, (policy, work)
