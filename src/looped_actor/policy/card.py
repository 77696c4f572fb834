"""Cards: what a policy is, in a README.md with front matter, as model hubs expect it."""

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
"""Of the front matter: the facts, to be read again."""


@dataclass(frozen=True)
class Card:
    """What is known of a policy."""

    task: str
    arm: str
    learner: str
    parameters: int
    steps: int
    """Of training: of the environment, or gradient steps where it learned from data."""
    max_loops: int
    threshold: float | None = None
    start: str = "fixed"
    """Where a thought starts."""
    trained: str = ""
    """What trained it: a command."""
    success: float | None = None
    """Share of held-out levels or episodes that it solved; None where no one has looked."""
    interval_95: tuple[float, float] | None = None
    count: int | None = None
    """Levels or episodes that were played."""
    loops: float | None = None
    """Mean of a decision."""


def write_card(card: Card, name: str, folder: pathlib.Path) -> None:
    """Write a card beside a policy."""
    front = {
        "library_name": "looped-actor",
        "license": LICENCE,
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "looped-transformer", "jax", card.task],
        "model-index": [{"name": name, "results": _results(card)}],
        KEY: {**asdict(card), "interval_95": card.interval_95 and list(card.interval_95)},
    }
    text = f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n{_words(card, name)}"
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
    """As `model-index` of a hub wants it."""
    if card.success is None:
        return []
    metrics = [{"type": "success", "name": "solved", "value": round(card.success, 4)}]
    return [
        {
            "task": {"type": "reinforcement-learning", "name": card.task},
            "dataset": {"type": card.task, "name": f"{card.task}, held out"},
            "metrics": metrics,
        }
    ]


def _words(card: Card, name: str) -> str:
    carried = ", each from where the last one of its episode ended" if card.start == "carried" else ""
    measured = "No one has measured it yet: `looped-actor eval` does."
    if card.success is not None and card.interval_95 is not None:
        (low, high), played = card.interval_95, "episodes" if card.learner == "GCIQL" else "levels"
        measured = (
            f"It solved {card.success:.1%} of {card.count:,} {played} that were held out in training (95% "
            f"interval {100 * low:.1f} - {high:.1%}), with {card.loops:.1f} loops to a decision."
        )
    trained = f"\n\n```bash\n{card.trained}\n```" if card.trained else ""
    return f"""# {name}

A policy for {card.task} that thinks in loops: one small transformer block is applied to a latent until
the action distribution stops changing, at most {card.max_loops} times{carried}.
It has {card.parameters:,} parameters.

## Use

```python
import looped_actor

policy = looped_actor.load_policy("{name}")  # or the folder that holds this file
acted = policy.act(observation)
print(acted.action, "after", acted.loops, "loops")
```

The file holds numbers and names only; loading executes nothing.

## Training

Arm {card.arm}, learner {card.learner}, {card.steps:,} steps.{trained}

## Measured

{measured} It knows its task and nothing else: other boards, rules or robots than those of its training
were not tried.
"""
