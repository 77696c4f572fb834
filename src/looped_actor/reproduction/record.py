"""Records of benchmarks and studies: results with the command, commit and date that produced them."""

import json
import pathlib
import platform
import subprocess
import sys
from datetime import date
from typing import Any


def write_record(path: str | pathlib.Path | None, results: dict[str, Any]) -> None:
    """Print results with their command, commit, date and machine; write them as JSON if a path is given."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    words = [pathlib.Path(word).name if "/" in word and i else word for i, word in enumerate(sys.argv)]
    record = {
        "command": " ".join(["python", *words]),
        "commit": commit.stdout.strip(),
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        **results,
    }
    text = json.dumps(record, indent=2)
    print(text)
    if path:
        pathlib.Path(path).write_text(text + "\n")
