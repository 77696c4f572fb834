"""Copies the small files of a study: configurations, evaluations, tables, figures, report.

python tools/keep_study.py reproduction/micro --out results/micro_study --note "how it was run"

Policies are copied of the looped arm only; checkpoints, levels and metrics are left out. From the copy
`looped-actor reproduce report --out results/micro_study` makes tables of evaluations and all figures again.
"""

import argparse
import csv
import pathlib
import shutil

from looped_actor.reproduction.record import write_record


def main() -> None:
    """Copy the files, and write a record with the minutes of training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("study", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--note", default="")
    options = parser.parse_args()
    out, runs = options.out, {}
    for run in sorted((options.study / "runs").iterdir()):
        kept = out / "runs" / run.name
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(run / "evaluations", kept / "evaluations")
        shutil.copy(run / "config.json", kept / "config.json")
        if "-looped-" in run.name:
            shutil.copytree(run / "policy", kept / "policy")
        runs[run.name] = count_minutes(run)
    shutil.rmtree(out / "artifacts", ignore_errors=True)
    shutil.copytree(
        options.study / "artifacts",
        out / "artifacts",
        ignore=shutil.ignore_patterns("*.parts", "*.safetensors"),
    )
    for name in ("report.md", "report.html"):
        shutil.copy(options.study / name, out / name)
    results = {"note": options.note, "core_minutes_of_training": round(sum(runs.values())), "minutes": runs}
    write_record(str(out / "record.json"), results)


def count_minutes(run: pathlib.Path) -> float:
    """Return the minutes from the start of a run's processes to their last row."""
    with (run / "timings.csv").open() as file:
        ends = {row["process_start"]: float(row["unix_time"]) for row in csv.DictReader(file)}
    return round(sum(end - float(start) for start, end in ends.items()) / 60, 2)


if __name__ == "__main__":
    main()
