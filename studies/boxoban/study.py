"""The whole study as one resumable command: what is finished is skipped, what was stopped goes on.

python study.py run LEVELS DATA       labels, pilots, then the main run; SIGTERM saves and stops
python study.py show DATA             the last evaluation of every run
python study.py export DATA RUN       write state/RUN.safetensors (16 bits) and state/*.csv, to commit
python study.py import DATA RUN       begin a run folder from state/RUN.safetensors, on another machine
"""

import argparse
import csv
import json
import pathlib
import shutil
import sys
from dataclasses import replace

from labels import write_shards
from looped_actor.files import read_tensors
from train import (
    STATE,
    TRAIN,
    VALID,
    Run,
    Setting,
    StopSignal,
    halved,
    load_material,
    read_state,
    write_state,
)

HERE = pathlib.Path(__file__).parent
WIDTHS = {64: (1.5e-3, 3e-3), 96: (1.5e-3, 3e-3), 128: (1.5e-3, 3e-3)}
"""Learning rates of the pilot, by width."""
SHORT, LONG = 5.0, 15.0
"""Core minutes of the pilot: of every run, and of the better rate of each width."""
PILOT_FILES = 4
LEG_MINUTES, LEG_FILES, MOST_FILES = 60.0, 8, 100
"""The main run's legs: core minutes of each, and files of labels that each adds."""
MAIN_MINUTES = 30 * 60.0


class Study:
    """Runs, their data, and the rule by which one follows from another."""

    def __init__(self, levels: pathlib.Path, data: pathlib.Path, stop: StopSignal):
        self.levels, self.data, self.stop = levels, data, stop

    def run(self) -> None:
        """Do everything that is not done."""
        self._label(VALID, 1)
        pilots = [pilot(width, rate) for width, rates in WIDTHS.items() for rate in rates]
        self._train(pilots, PILOT_FILES)
        if self.stop.asked:
            return
        better = [best(self.data, [p for p in pilots if p.width == width], "valid_loss") for width in WIDTHS]
        winner = replace(max(better, key=lambda p: -p.width), core_minutes=LONG)
        self._train([winner], PILOT_FILES)  # 96 and 128 channels, and two layers, are left out: see plan.md
        if not self.stop.asked:
            self._main(winner)

    def _main(self, winner: Setting) -> None:
        """Go on with the winner of the pilot, in legs that each add labels."""
        folder = self.data / "runs" / "main"
        if not (folder / STATE).exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.data / "runs" / winner.name / STATE, folder / STATE)
        for leg in range(1, round(MAIN_MINUTES / LEG_MINUTES) + 1):
            minutes, files = (
                winner.core_minutes + leg * LEG_MINUTES,
                min(MOST_FILES, PILOT_FILES + leg * LEG_FILES),
            )
            self._train([replace(winner, name="main", core_minutes=minutes, evaluate_minutes=10.0)], files)

    def _label(self, split: str, files: int) -> None:
        write_shards(self.levels, split, self.data / "labels", range(files), lambda: self.stop.asked)

    def _train(self, settings: list[Setting], files: int) -> None:
        unfinished = [s for s in settings if not Run(s, self.data / "runs" / s.name).finished]
        if not unfinished or self.stop.asked:
            return
        self._label(TRAIN, files)
        if self.stop.asked:
            return
        material = load_material(self.levels, self.data / "labels", files)
        for setting in unfinished:
            if self.stop.asked:
                return
            Run(setting, self.data / "runs" / setting.name).go_on(material, self.stop)


def pilot(width: int, rate: float) -> Setting:
    """Return the setting of a pilot's run."""
    return Setting(f"pilot-decay-{width}-{rate:g}", width, rate, SHORT)


def best(data: pathlib.Path, settings: list[Setting], by: str) -> Setting:
    """Return the setting of highest success, ties by loss; or of lowest loss. At its own last core minute."""

    def score(setting: Setting) -> tuple[float, float]:
        row = next(
            row for row in rows(data, setting.name) if float(row["core_minutes"]) >= setting.core_minutes
        )
        loss = -float(row["valid_loss"])
        return (float(row["success"]), loss) if by == "success" else (loss, 0.0)

    return max(settings, key=score)


def rows(data: pathlib.Path, name: str) -> list[dict[str, str]]:
    """Return the evaluations of a run."""
    with (data / "runs" / name / "log.csv").open() as file:
        return list(csv.DictReader(file))


def show(data: pathlib.Path) -> None:
    """Print the last evaluation of every run."""
    for log in sorted((data / "runs").glob("*/log.csv")):
        for row in rows(data, log.parent.name)[-1:]:
            print(log.parent.name, *(f"{name}={value}" for name, value in row.items()))


def move_state(source: pathlib.Path, target: pathlib.Path, shorten: bool) -> None:
    """Write a state at another place, in 16 bits if `shorten`."""
    setting = stored_setting(source)
    state, progress = read_state(source, Run(setting, pathlib.Path("nowhere")).state, setting)
    write_state(target, halved(state) if shorten else state, progress, setting)


def stored_setting(file: pathlib.Path) -> Setting:
    """Return the setting of a written state."""
    return Setting(**json.loads(read_tensors(file)[0]["run"])["setting"])


def main() -> None:
    """Do what the command line asks."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = options.add_subparsers(dest="command", required=True)
    for name, arguments in (("run", ("levels", "data")), ("show", ("data",))):
        command = commands.add_parser(name)
        for argument in arguments:
            command.add_argument(argument, type=pathlib.Path)
    for name in ("export", "import"):
        command = commands.add_parser(name)
        command.add_argument("data", type=pathlib.Path)
        command.add_argument("run")
    given = options.parse_args()
    if given.command == "run":
        stop = StopSignal()
        Study(given.levels, given.data, stop).run()
        sys.exit("stopped by a signal; the same command goes on" if stop.asked else 0)
    elif given.command == "show":
        show(given.data)
    else:
        folder, kept = given.data / "runs" / given.run, HERE / "state"
        if given.command == "export":
            move_state(folder / STATE, kept / f"{given.run}.safetensors", shorten=True)
            for log in (given.data / "runs").glob("*/log.csv"):
                shutil.copy(log, kept / f"{log.parent.name}.csv")
        else:
            move_state(kept / f"{given.run}.safetensors", folder / STATE, shorten=False)


if __name__ == "__main__":
    main()
