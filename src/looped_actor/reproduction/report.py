"""The report of a study: every artifact that was made, with the paper's words beside it.

As Markdown with links to the figures, and as one HTML page that needs nothing else.
"""

import base64
import html
import pathlib
from collections.abc import Iterator, Sequence
from statistics import fmean
from urllib.parse import unquote

from markdown_it import MarkdownIt

from looped_actor.analysis.drawing import ARMS, TITLES
from looped_actor.analysis.tables import Row, distinct, of, read_table
from looped_actor.reproduction.artifacts import (
    ARTIFACTS,
    ARTIFACTS_FOLDER,
    DIFFERENCES_FILE,
    Artifact,
    assemble_again,
    made_of,
)
from looped_actor.reproduction.seeds import percent, verdict
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import write_whole

NOTES_FILE = "notes.md"
"""In the folder of a study: what its authors have to say, which the report puts first."""
_LEARNERS = {"ppo": "PPO", "imitation": "imitation of the solver", "gciql": "GCIQL"}


def write_report(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Put the tables of a study's folder together once more, draw them, and write the report."""
    made = {out: made_of(out) for out in sorted((folder / ARTIFACTS_FOLDER).glob("*")) if made_of(out)}
    if not made:
        raise UserError(
            f"{folder}: nothing was made here yet; `looped-actor reproduce run ID --out {folder}` does it"
        )
    for out, about in made.items():
        assemble_again(ARTIFACTS[about["artifact"]], folder, out)
    text = "\n\n".join(_blocks(folder, made)) + "\n"
    markdown, page = folder / "report.md", folder / "report.html"
    write_whole(markdown, text.encode())
    write_whole(page, _as_html(text, folder).encode())
    return markdown, page


def _blocks(folder: pathlib.Path, made: dict[pathlib.Path, dict]) -> Iterator[str]:
    scales = ", ".join(sorted({about["scale"] for about in made.values()}))
    yield f"# Looped Actor, reproduced at scale `{scales}`"
    notes = folder / NOTES_FILE
    if notes.is_file():
        yield notes.read_text().strip()
    yield (
        "Success is the mean and deviation over seeds. The 95% interval *over levels* is for these policies "
        "on other levels (Wilson's; all seeds play the same levels, which count once, or as far as the seeds "
        "solve different ones). *Over seeds* is for other seeds (Student's t, wide for few seeds; none for "
        "one seed). Two arms are compared by the difference of runs with the same seed on the same levels; "
        "its interval is the wider of the two. An arm still climbs if its last evaluation is better than "
        "the one at three quarters of the run by more than the interval of that difference: then it was "
        "stopped too early to be compared. "
        "The paper's numbers are at its own scale."
    )
    for artifact in ARTIFACTS.values():
        own = {out: about for out, about in made.items() if about["artifact"] == artifact.id}
        if own:
            yield f"## {artifact.title}: `{artifact.id}`"
            yield f"*The paper:* {artifact.claim}"
        for out, about in own.items():
            yield from _artifact(artifact, folder, out, about)
    missing = [name for name in ARTIFACTS if name not in {about["artifact"] for about in made.values()}]
    if missing:
        yield "## Not made in this study"
        yield "\n".join(f"- {ARTIFACTS[name].title}: `{name}`" for name in missing)
        yield "`looped-actor reproduce plan ID` says what each takes."


def _artifact(artifact: Artifact, folder: pathlib.Path, out: pathlib.Path, about: dict) -> Iterator[str]:
    seeds = len({seed for *_, seed in about["runs"]})
    learners = dict.fromkeys(_LEARNERS[learner] for _, learner, _, _ in about["runs"])
    yield f"### {' and '.join(learners)}, {seeds} seed{'s' * (seeds > 1)}"
    for table in artifact.tables:
        path = out / f"{table}.csv"
        if path.is_file():
            says = path.with_suffix(".txt").read_text().strip()
            yield f"![{says}]({path.with_suffix('.png').relative_to(folder)})"
            yield says
    if "curves" in artifact.tables:
        ends = read_table(
            out / "ends.csv", ("task", "arm", "success", "levels_low", "levels_high", "climbing")
        )
        yield _ends(ends)
        yield from verdicts(out)
    if "worlds" in artifact.tables:
        yield _worlds(read_table(out / "worlds.csv", ("task", "arm", "number", "success")))


def verdicts(out: pathlib.Path) -> Iterator[str]:
    """Yield a sentence for each task of an artifact with curves: how far Looped is ahead of others."""
    if not (out / DIFFERENCES_FILE).is_file():
        return
    ends = read_table(out / "ends.csv", ("task", "arm", "climbing"))
    differences = read_table(
        out / DIFFERENCES_FILE, ("task", "arm", "other", "ahead", "low", "high", "seeds")
    )
    for task in distinct(differences, "task"):
        own = of(differences, task=task)
        said = [verdict(of(ends, task=task), own, other) for other in distinct(own, "other")]
        yield f"{TITLES[task]}: {' '.join(filter(None, said))}"


def _ends(rows: Sequence[Row]) -> str:
    taught = any(row["optimal_actions"] is not None for row in rows)
    several = any(row["seeds_low"] is not None for row in rows)
    over_seeds = ["95% over seeds"] * several
    head = ["", "seeds", "steps", "levels", "solved", "95% over levels", *over_seeds, "loops"]
    seen = any(row.get("train_success") is not None for row in rows)
    body = []
    for row in rows:
        cells = [
            f"{TITLES[row['task']]}, {ARMS[row['arm']]}",
            str(row["runs"]),
            f"{row['steps']:,}",
            f"{row['played']:,}",
            percent(row["success"], row["deviation"]),
            _between(row["levels_low"], row["levels_high"]),
            *[_between(row["seeds_low"], row["seeds_high"])] * several,
            f"{row['loops']:.1f}",
        ]
        if taught:
            cells.append(f"{100 * row['optimal_actions']:.1f}%")
        if seen:
            cells.append(percent(row["train_success"], None))
        cells.append(percent(row["paper"], row["paper_deviation"]))
        body.append(cells)
    more = [*["optimal actions"] * taught, *["solved of those learned from"] * seen, "the paper"]
    return _table([[*head, *more], *body])


def _worlds(rows: Sequence[Row]) -> str:
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    head = ["", *(title for arm in arms for title in (ARMS[arm], "95% over episodes", "the paper"))]
    body = []
    for task, number in dict.fromkeys((row["task"], row["number"]) for row in rows):
        own = of(rows, task=task, number=number)
        cells = [f"**{TITLES[task]}**" if number == 0 else own[0]["name"]]
        for arm in arms:
            row = of(own, arm=arm)[0]
            cells += [
                percent(row["success"], row["deviation"]),
                _between(row["episodes_low"], row["episodes_high"]),
                percent(row["paper"], row["paper_deviation"]),
            ]
        body.append(cells)
    if len(of(rows, number=0, arm=arms[0])) > 1:
        cells = ["**mean of all worlds**"]
        for arm in arms:
            own = of(rows, number=0, arm=arm)
            told = [row["paper"] for row in own if row["paper"] is not None]
            cells += [percent(fmean(row["success"] for row in own), None), "-"]
            cells.append(percent(fmean(told) if len(told) == len(own) else None, None))
        body.append(cells)
    return _table([head, *body])


def _between(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{100 * low:.1f} - {100 * high:.1f}%"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Cells as a table of Markdown; the first row names the columns."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


def _as_html(markdown: str, folder: pathlib.Path) -> str:
    """The report as one page: figures are put into it, and nothing else is let in."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(markdown.replace("+-", "±"))
    for token in tokens:
        for image in [child for child in token.children or () if child.type == "image"]:
            data = base64.b64encode((folder / unquote(str(image.attrs["src"]))).read_bytes()).decode()
            image.attrs["src"] = f"data:image/png;base64,{data}"
    title = html.escape(next(t.content for t in tokens if t.type == "inline").replace("`", ""))
    body = reader.renderer.render(tokens, reader.options, {})
    return _PAGE.replace("TITLE", title, 1).replace("BODY", body, 1)


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>
  :root { color-scheme: light; }
  body { margin: 0 auto; padding: 2rem 1.2rem 5rem; max-width: 62rem; background: #fdfcfa; color: #2b2e35;
         font: 16px/1.55 system-ui, sans-serif; }
  h1 { font-size: 1.7rem; line-height: 1.2; }
  h2 { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid #d9d3c8; font-size: 1.25rem; }
  h3 { margin-top: 2rem; font-size: 1.05rem; color: #c4552d; }
  code { background: #f1ede6; padding: .1em .3em; border-radius: 3px; font-size: .9em; }
  table { display: block; overflow-x: auto; border-collapse: collapse; font-size: .88rem;
          font-variant-numeric: tabular-nums; }
  th, td { padding: .35rem .7rem; border-bottom: 1px solid #e6e0d6; text-align: right; white-space: nowrap; }
  th:first-child, td:first-child { text-align: left; }
  img { max-width: 100%; height: auto; background: #fff; }
  p:has(> img) + p { font-size: .9rem; color: #5d616b; }
</style>
BODY
</html>
"""
