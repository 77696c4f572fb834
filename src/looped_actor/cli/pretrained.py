"""`looped-actor pretrained`: the policies that come with the package."""

from looped_actor.cli.shared import Json


def pretrained(*, as_json: Json = False) -> None:
    """List the trained policies that come with the package.

    Every command that takes the folder of a policy takes their names, too, and so does `load_policy`.

    Example: looped-actor pretrained --json

    Args:
      as_json: Print JSON instead of a table.
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from looped_actor.cli.tables import pretrained_table
    from looped_actor.names import WEIGHTS_FILE
    from looped_actor.policy.card import LICENCE, read_card
    from looped_actor.policy.pretrained import PRETRAINED, pretrained_names

    cards = {name: card for name in pretrained_names() if (card := read_card(PRETRAINED / name))}
    sizes = {name: (PRETRAINED / name / WEIGHTS_FILE).stat().st_size for name in cards}
    if as_json:
        more = {name: {"bytes": sizes[name], "licence": LICENCE} for name in cards}
        print(json.dumps({name: asdict(card) | more[name] for name, card in cards.items()}, indent=1))
        return
    Console().print(pretrained_table(cards, sizes))
    print("looped-actor replay NAME, or looped_actor.load_policy(NAME). Weights: Apache-2.0.")
