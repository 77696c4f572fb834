"""What every record in results/ says of itself."""

import json
import pathlib
import platform
import subprocess
import sys
from datetime import date


def write_record(path: str | None, facts: dict) -> None:
    """Print the facts with command, commit, date and machine, and write them if a path is given."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    command = " ".join(
        ["python", *(pathlib.Path(a).name if "/" in a and i else a for i, a in enumerate(sys.argv))]
    )
    record = {
        "command": command,
        "commit": commit.stdout.strip(),
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        **facts,
    }
    text = json.dumps(record, indent=2)
    print(text)
    if path:
        pathlib.Path(path).write_text(text + "\n")
