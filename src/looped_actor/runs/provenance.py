"""Provenance: checksums of the levels or data that a run began with, in a file next to its configuration."""

import pathlib
from dataclasses import dataclass

from looped_actor.runs.config import CONFIG_FILE
from looped_actor.utils.codec import from_json
from looped_actor.utils.files import read_json

PROVENANCE_FILE = "provenance.json"
"""Checksums of the levels or the data that a run began with."""
SPLITS = ("train", "held_out")
VALID = "valid"
"""Levels that are played during training."""


def read_provenance(folder: pathlib.Path) -> dict[str, str]:
    """Return the checksums of a run by split; empty before it is begun."""
    if (folder / PROVENANCE_FILE).is_file():
        data = read_json(folder / PROVENANCE_FILE)
        sums = from_json(_Provenance, data, str(folder / PROVENANCE_FILE)).__dict__
        return {split: checksum for split, checksum in sums.items() if checksum}
    if not (folder / CONFIG_FILE).is_file():
        return {}
    data = read_json(folder / CONFIG_FILE)  # earlier versions wrote the checksums there
    part = data.get("levels", data.get("data", {})) if isinstance(data, dict) else {}
    found = {split: part.get(f"{split}_checksum") if isinstance(part, dict) else None for split in SPLITS}
    return {split: value for split, value in found.items() if isinstance(value, str) and value}


@dataclass(frozen=True)
class _Provenance:
    train: str
    held_out: str
    valid: str = ""
    """Empty for runs of earlier versions, which had no validation levels."""
    critics: str = ""
    """Checksum of given value and critics, if any."""
