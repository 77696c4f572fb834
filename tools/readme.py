"""Runs the commands of the README in a new virtual environment, and times them.

python tools/readme.py --out results/readme.json

Runs every bash block of the README, line by line and in order, in a copy of the committed project. It must
end in a report with a figure, within fifteen minutes on two CPU cores.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from looped_actor.reproduction.record import write_record

ROOT = pathlib.Path(__file__).parents[1]


def commands(text: str) -> list[str]:
    """Return the lines of all bash blocks."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.S)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]


def main() -> None:
    """Run all commands, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as place:
        project = pathlib.Path(place, "looped_actor")
        subprocess.run(["git", "clone", "--quiet", ROOT, project], check=True)
        subprocess.run([sys.executable, "-m", "venv", pathlib.Path(place, "venv")], check=True)
        path = f"{place}/venv/bin:{os.environ['PATH']}"
        steps, begin = [], time.monotonic()
        for line in commands((project / "README.md").read_text()):
            start = time.monotonic()
            print(f"$ {line}", flush=True)
            done = subprocess.run(["bash", "-c", line], cwd=project, env={**os.environ, "PATH": path})
            if done.returncode:
                raise SystemExit(f"a command failed: {line}")
            steps.append({"command": line, "minutes": round((time.monotonic() - start) / 60, 2)})
        minutes = (time.monotonic() - begin) / 60
        pages = sorted(project.glob("reproduction/**/report.html"))
        reports = [str(page.relative_to(project)) for page in pages]
        figures = sum(page.read_text().count("data:image/png") for page in pages)
        results = {"minutes": round(minutes, 1), "reports": reports, "figures": figures, "steps": steps}
    write_record(out, results)


if __name__ == "__main__":
    main()
