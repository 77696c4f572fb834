"""Do what the README says, in a virtual environment made for the occasion, and time it.

Usage: python benchmarks/readme.py --out results/readme.json

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

from record import write_record

ROOT = pathlib.Path(__file__).parents[1]


def commands(text: str) -> list[str]:
    """The lines of all bash blocks."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.S)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]


def main() -> None:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as place:
        project = pathlib.Path(place, "looped_actor")
        subprocess.run(["git", "clone", "--quiet", ROOT, project], check=True)
        subprocess.run([sys.executable, "-m", "venv", pathlib.Path(place, "venv")], check=True)
        path = f"{place}/venv/bin:{os.environ['PATH']}"
        steps, begun = [], time.monotonic()
        for line in commands((project / "README.md").read_text()):
            start = time.monotonic()
            print(f"$ {line}", flush=True)
            done = subprocess.run(["bash", "-c", line], cwd=project, env={**os.environ, "PATH": path})
            if done.returncode:
                raise SystemExit(f"this failed: {line}")
            steps.append({"command": line, "minutes": round((time.monotonic() - start) / 60, 2)})
        minutes = (time.monotonic() - begun) / 60
        pages = sorted(project.glob("reproduction/**/report.html"))
        reports = [str(page.relative_to(project)) for page in pages]
        figures = sum(page.read_text().count("data:image/png") for page in pages)
        facts = {"minutes": round(minutes, 1), "reports": reports, "figures": figures, "steps": steps}
    write_record(out, facts)


if __name__ == "__main__":
    main()
