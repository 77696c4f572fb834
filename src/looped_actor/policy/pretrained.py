"""Names of policies: folders, policies that come with the package, or repositories on a hub.

Imports no JAX, so that a misspelt name is reported immediately.
"""

import os
import pathlib
import re

from looped_actor.names import CONFIG_FILE, WEIGHTS_FILE
from looped_actor.policy.card import CARD_FILE
from looped_actor.utils.checks import brief
from looped_actor.utils.errors import PolicyError

PRETRAINED = pathlib.Path(__file__).parent / "trained"
"""Folders of the policies that come with the package."""
HUB = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
"""`hf://OWNER/NAME`, optionally at a revision; paths have lost one of the two slashes."""
FILES = (WEIGHTS_FILE, CONFIG_FILE, CARD_FILE, "levels/*.levels")
"""Files to download: numbers and text, no code."""


def pretrained_names() -> list[str]:
    """Return the names of the policies that come with the package."""
    return sorted(folder.name for folder in PRETRAINED.iterdir() if (folder / WEIGHTS_FILE).is_file())


def locate(name: str | os.PathLike) -> pathlib.Path:
    """Return the folder of a policy, downloading it if it is on a hub. Existing folders have precedence over
    names."""
    folder = pathlib.Path(name)
    if folder.is_dir():
        return folder
    match = HUB.fullmatch(str(name))
    if match:
        return _download(*match.groups())
    check_name(name)
    return PRETRAINED / str(name)


def check_name(name: str | os.PathLike) -> None:
    """Raise an error if this names no folder, no policy of the package and none on a hub."""
    if pathlib.Path(name).is_dir() or HUB.fullmatch(str(name)) or str(name) in pretrained_names():
        return
    raise PolicyError(
        f"{name} is not a folder; give that of a run, that of a policy that a run has written, "
        f"hf://OWNER/NAME, or a policy that comes with the package: {', '.join(pretrained_names())}"
    )


def _download(repository: str, revision: str | None) -> pathlib.Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise PolicyError(
            f"hf://{repository}: a policy from the hub needs `pip install 'looped-actor[hub]'`"
        ) from None
    try:
        return pathlib.Path(snapshot_download(repository, revision=revision, allow_patterns=list(FILES)))
    except Exception as error:  # the hub's own errors have no common class
        raise PolicyError(f"hf://{repository} could not be fetched: {brief(error)}") from None
