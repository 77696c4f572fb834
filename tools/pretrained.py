"""Put a trained policy on the shelf that comes with the package: its numbers, held-out levels, and a card.

python benchmarks/shelf.py rush-hour-micro results/micro_rush_hour runs/first/levels/held_out.levels \\
    --trained "looped-actor train rush-hour"

It plays the levels, and the card says what came of it.
"""

import argparse
import pathlib
import shutil

from looped_actor.policy.card import write_card
from looped_actor.policy.export import card_of, measured
from looped_actor.policy.pretrained import SHELF
from looped_actor.runs.evaluate import evaluate
from looped_actor.runs.load import load_policy


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("name")
    options.add_argument("run", type=pathlib.Path)
    options.add_argument("levels", type=pathlib.Path)
    options.add_argument("--trained", required=True, help="the command that trained it")
    given = options.parse_args()
    folder = SHELF / given.name
    load_policy(given.run).save(folder)
    (folder / "levels").mkdir(exist_ok=True)
    shutil.copy(given.levels, folder / "levels" / "held_out.levels")
    policy = load_policy(folder)
    facts = measured(evaluate(policy))
    write_card(card_of(policy, **{**facts, "trained": given.trained}), given.name, folder)
    print(given.name, facts)


if __name__ == "__main__":
    main()
