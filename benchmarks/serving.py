"""Slots against batches: what two servers of one policy do under the same load, and a picture of it.

python benchmarks/serving.py --out results/serving.json [--policy FOLDER] [--seconds 8]
"""

import argparse
import pathlib
import sys
from typing import Any

from record import write_record

from looped_actor.analysis.drawing import new_axes, save_figure
from looped_actor.planning.bench_serving import WAYS, ServeBench, bench_serving

SHARES = (0.3, 0.5, 0.8, 0.95)


def picture(facts: dict[str, Any], path: pathlib.Path) -> None:
    """Latency against load."""
    figure, ((axes,),) = new_axes(1, width=7, height=4)
    loads = [told for name, told in facts.items() if name.startswith("at_")]
    for way, colour in zip(WAYS, ("#0b7285", "#e8590c"), strict=True):
        for quantile, style in (("p50", "-"), ("p99", "--")):
            rates, seconds = zip(
                *((told["per_second"], 1000 * told[way][quantile]) for told in loads), strict=True
            )
            axes.plot(rates, seconds, style, marker="o", color=colour, label=f"{way}, {quantile}")
        axes.axvline(facts["saturation"][way], color=colour, alpha=0.3)
    axes.set_xlabel("requests per second (lines: the most that each can do)")
    axes.set_ylabel("latency, milliseconds")
    axes.set_yscale("log")
    axes.legend()
    save_figure(figure, path)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--out", type=pathlib.Path, required=True)
    options.add_argument("--policy", type=pathlib.Path)
    options.add_argument("--seconds", type=float, default=8)
    options.add_argument("--rounds", type=int, default=2)
    given = options.parse_args()
    bench = ServeBench(given.seconds, given.rounds, shares=SHARES)
    facts = bench_serving(
        given.policy, bench, lambda part, what: print(f"{part:4.0%} {what}", file=sys.stderr)
    )
    write_record(given.out, facts)
    picture(facts, given.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
