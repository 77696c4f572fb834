"""Model cards: a README.md with front matter, as model hubs expect it."""

import pathlib
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

import yaml

from looped_actor.utils.checks import shown
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import write_whole

CARD_FILE = "README.md"
LICENCE = "apache-2.0"
KEY = "looped_actor"
"""Key of the front matter under which the fields of `Card` are."""


@dataclass(frozen=True)
class Card:
    """Facts about a policy."""

    task: str
    arm: str
    learner: str
    parameters: int
    steps: int
    """Environment steps of training; gradient steps if it learned from data."""
    max_loops: int
    threshold: float | None = None
    start: str = "fixed"
    """`fixed`: decisions start from z_0; `carried`: from the last latent of the episode."""
    trained: str = ""
    """Command that trained it."""
    success: float | None = None
    """Share of test levels or episodes that it solved; None if it was not measured."""
    interval_95: tuple[float, float] | None = None
    count: int | None = None
    """Number of these levels or episodes."""
    loops: float | None = None
    """Mean loops of a decision."""


def write_card(card: Card, name: str, folder: pathlib.Path) -> None:
    """Write a card into the folder of a policy."""
    front = {
        "library_name": "looped-actor",
        "license": LICENCE,
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "looped-transformer", "jax", card.task],
        "model-index": [{"name": name, "results": _results(card)}],
        KEY: {**asdict(card), "interval_95": card.interval_95 and list(card.interval_95)},
    }
    text = f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n{_text(card, name)}"
    write_whole(folder / CARD_FILE, text.encode())


def read_card(folder: pathlib.Path) -> Card | None:
    """Return the card of a policy, or None if there is none.

    Fields with a default that an older version did not write have that default; unknown fields are ignored.
    """
    file = folder / CARD_FILE
    found = re.match(r"---\n(.*?\n)---\n", file.read_text(), re.S) if file.is_file() else None
    if found is None:
        return None
    try:
        facts = yaml.safe_load(found[1])[KEY]
        known = {field.name: facts[field.name] for field in fields(Card) if field.name in facts}
        interval = known.get("interval_95")
        return Card(**{**known, "interval_95": interval and tuple(interval)})
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{file}: its front matter is damaged ({shown(str(error))})") from None


def _results(card: Card) -> list[dict[str, Any]]:
    """Return the results in the form of a hub's `model-index`."""
    if card.success is None:
        return []
    metrics = [{"type": "success", "name": "solved", "value": round(card.success, 4)}]
    return [
        {
            "task": {"type": "reinforcement-learning", "name": card.task},
            "dataset": {"type": card.task, "name": f"{card.task}, test"},
            "metrics": metrics,
        }
    ]


def _text(card: Card, name: str) -> str:
    carried = ", each decision from the latent of the last one" if card.start == "carried" else ""
    measured = "Not measured yet: `looped-actor eval` does."
    if card.success is not None and card.interval_95 is not None:
        (low, high), played = card.interval_95, "episodes" if card.learner == "GCIQL" else "levels"
        measured = (
            f"It solved {card.success:.1%} of {card.count:,} test {played} (95% interval {100 * low:.1f} - "
            f"{high:.1%}), with {card.loops:.1f} loops per decision."
        )
    trained = f"\n\n```bash\n{card.trained}\n```" if card.trained else ""
    return f"""# {name}

A policy for {card.task} with adaptive depth: one small transformer block is applied to a latent until the
action distribution stops changing, at most {card.max_loops} times{carried}.
It has {card.parameters:,} parameters.

## Use

```python
import looped_actor

policy = looped_actor.load_policy("{name}")  # or the folder that holds this file
action = policy.act(observation)
print(action.action, "after", action.loops, "loops")
```

The file holds numbers and names only; loading executes nothing.

## Training

Arm {card.arm}, learner {card.learner}, {card.steps:,} steps.{trained}

## Measured

{measured} Other boards, rules or robots than those of its training were not tried.
"""
