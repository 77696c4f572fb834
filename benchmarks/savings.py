"""Time that halting saves in training and evaluation: all figures of docs/halting.md.

python benchmarks/savings.py --out results/savings.json
python benchmarks/savings.py --policy runs/first --work iteration

With random weights the paper's net plays boards of 10x10, with depths like those of the paper's policies;
trained policies play their own task. See work.py for the versions that take turns.
"""

import argparse
import pathlib
import time
from typing import Any

from work import (
    Saving,
    Turns,
    Work,
    policy_work,
    prescribed_work,
    time_evaluation,
    time_iteration,
    time_rollout,
)

from looped_actor import load_policy
from looped_actor.puzzles.banks import open_bank
from looped_actor.reproduction.record import write_record
from looped_actor.training.sharding import start_devices

QUICK_SECONDS = 50
KINDS = ("rollout", "iteration", "evaluation")


def time_work(work: Work, kind: str, mesh: Any, rounds: int, quick: bool) -> dict[str, Any]:
    """Return the saving in one kind of work, with its parts."""
    turns = Turns(rounds, time.perf_counter() + QUICK_SECONDS) if quick else Turns(rounds)
    savings: dict[str, Saving]
    if kind == "iteration":
        savings = time_iteration(work, mesh, turns, whole=not quick)
    else:
        savings = {"rollout": time_rollout, "evaluation": time_evaluation}[kind](work, mesh, turns)
    parts = {name: saving._asdict() for name, saving in savings.items() if name != kind}
    return {"work": kind, "devices": mesh.size, **savings[kind]._asdict(), **parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--policy", type=pathlib.Path, help="a trained policy alone. Default: all")
    parser.add_argument("--levels", type=pathlib.Path, help="bank for the policy. Default: new levels")
    parser.add_argument("--work", nargs="+", choices=KINDS, default=["iteration", "evaluation"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--devices", type=int)
    parser.add_argument("--quick", action="store_true", help="a minute for each: a check that it works")
    options = parser.parse_args()
    mesh, quick = start_devices(options.devices), options.quick
    if options.policy is not None:
        bank = None if options.levels is None else open_bank(options.levels)
        works = {str(options.policy): policy_work(load_policy(options.policy), bank, quick)}
    else:
        works = {
            "random weights, loops like Boxoban": prescribed_work("boxoban", quick),
            "random weights, easy": prescribed_work("easy", quick),
            "micro Boxoban": policy_work(load_policy("results/micro_boxoban"), None, quick),
            "micro Rush Hour": policy_work(load_policy("results/micro_rush_hour"), None, quick),
        }
    timings = {
        name: {kind: time_work(work, kind, mesh, options.rounds, quick) for kind in options.work}
        for name, work in works.items()
    }
    write_record(options.out, {"timings": timings})


if __name__ == "__main__":
    main()
