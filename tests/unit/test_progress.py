"""Bars where there is no terminal."""

import io
import itertools

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from looped_actor.utils.progress import Bar


def test_a_log_has_a_line_a_minute_and_the_end():
    seconds, log = itertools.count(step=10), io.StringIO()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
    )
    console = Console(file=log, force_terminal=False)
    with Bar(*columns, console=console, get_time=lambda: next(seconds)) as bar:
        task = bar.add_task("playing [all]", total=10)
        for done in range(1, 11):
            bar.update(task, completed=done)
    lines = log.getvalue().splitlines()
    assert 2 <= len(lines) - 1 < 10
    assert all(line.startswith("playing [all]  ") and line.endswith("0%") for line in lines[:-1])
    assert lines[-1].startswith("playing [all] ━")


def test_a_terminal_has_a_bar_and_what_is_disabled_nothing():
    for options, expected in (({"force_terminal": True}, "━"), ({}, "")):
        seconds, log = itertools.count(step=100), io.StringIO()
        bar = Bar(
            BarColumn(),
            TimeRemainingColumn(),
            console=Console(file=log, **options),
            disable=not options,
            get_time=lambda seconds=seconds: next(seconds),
        )
        with bar:
            task = bar.add_task("", total=2)
            bar.update(task, completed=1)
        assert (expected in log.getvalue()) if expected else log.getvalue() == ""
        assert "  0:" not in log.getvalue()  # no line of a log
