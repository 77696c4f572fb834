"""Adds a trained policy to those that come with the package: its weights, test levels, and a card.

python tools/pretrained.py rush-hour-micro results/micro_rush_hour runs/first/levels/held_out.levels \\
    --trained "looped-actor train rush-hour"

The policy plays the test levels, and the card has the results.
"""

import argparse
import pathlib
import shutil

from looped_actor.policy.card import write_card
from looped_actor.policy.export import card_results, make_card
from looped_actor.policy.pretrained import PRETRAINED
from looped_actor.runs.evaluate import evaluate
from looped_actor.runs.load import load_policy


def main() -> None:
    """Copy the files, and write the card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("levels", type=pathlib.Path)
    parser.add_argument("--trained", required=True, help="the command that trained it")
    options = parser.parse_args()
    folder = PRETRAINED / options.name
    load_policy(options.run).save(folder)
    (folder / "levels").mkdir(exist_ok=True)
    shutil.copy(options.levels, folder / "levels" / "held_out.levels")
    policy = load_policy(folder)
    results = card_results(evaluate(policy))
    write_card(make_card(policy, trained=options.trained, **results), options.name, folder)
    print(options.name, results)


if __name__ == "__main__":
    main()
