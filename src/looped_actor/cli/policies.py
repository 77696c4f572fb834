"""`looped-actor policies`: what comes trained with the package."""

from looped_actor.cli.shared import Json


def policies(*, as_json: Json = False) -> None:
    """List the trained policies that come with the package: what they solve, and how they were trained.

    Their names may stand wherever a command takes the folder of a policy, and in `load_policy`.

    Example: looped-actor policies --json

    Args:
      as_json: Print JSON instead of a table.
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from looped_actor.cli.tables import policies_table
    from looped_actor.names import WEIGHTS_FILE
    from looped_actor.policy.card import LICENCE, read_card
    from looped_actor.policy.pretrained import SHELF, bundled

    cards = {name: card for name in bundled() if (card := read_card(SHELF / name))}
    sizes = {name: (SHELF / name / WEIGHTS_FILE).stat().st_size for name in cards}
    if as_json:
        more = {name: {"bytes": sizes[name], "licence": LICENCE} for name in cards}
        print(json.dumps({name: asdict(card) | more[name] for name, card in cards.items()}, indent=1))
        return
    Console().print(policies_table(cards, sizes))
    print("looped-actor replay NAME, or looped_actor.load_policy(NAME). Weights: Apache-2.0.")
