"""What a name means: a folder, a policy that comes with the package, or one on a hub.

This imports no JAX, so that a misspelt name is reported at once.
"""

import os
import pathlib
import re

from looped_actor.names import CONFIG_FILE, WEIGHTS_FILE
from looped_actor.policy.card import CARD_FILE
from looped_actor.utils.checks import brief
from looped_actor.utils.errors import PolicyError

SHELF = pathlib.Path(__file__).parent / "trained"
"""The folders of the policies that come with the package."""
HUB = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
"""`hf://OWNER/NAME`, or at a revision; paths have lost one of the two slashes."""
FILES = (WEIGHTS_FILE, CONFIG_FILE, CARD_FILE, "levels/*.levels")
"""What is fetched of a policy: numbers and words."""


def bundled() -> list[str]:
    """The names of the policies that come with the package."""
    return sorted(folder.name for folder in SHELF.iterdir() if (folder / WEIGHTS_FILE).is_file())


def located(name: str | os.PathLike) -> pathlib.Path:
    """The folder that is meant: one that is there, one of the package, or one fetched from a hub.

    A folder comes first, so that a run of yours may have the name of a policy of the package.
    """
    folder = pathlib.Path(name)
    if folder.is_dir():
        return folder
    asked = HUB.fullmatch(str(name))
    if asked:
        return _fetched(*asked.groups())
    check_name(name)
    return SHELF / str(name)


def check_name(name: str | os.PathLike) -> None:
    """Raise an error if this names no folder, no policy of the package and none on a hub."""
    if pathlib.Path(name).is_dir() or HUB.fullmatch(str(name)) or str(name) in bundled():
        return
    raise PolicyError(
        f"{name} is not a folder; give that of a run, that of a policy that a run has written, "
        f"hf://OWNER/NAME, or a policy that comes with the package: {', '.join(bundled())}"
    )


def _fetched(repository: str, revision: str | None) -> pathlib.Path:
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
