"""Report of a study: every artifact that was made, next to the claim of the paper.

It is written as Markdown that links to the figures, and as one self-contained HTML page.
"""

import base64
import html
import pathlib
from collections.abc import Iterator, Sequence
from statistics import fmean
from urllib.parse import unquote

from markdown_it import MarkdownIt

from looped_actor.analysis.drawing import ARMS, TITLES
from looped_actor.analysis.tables import Row, distinct, read_table, rows_where
from looped_actor.reproduction.artifacts import (
    ARTIFACTS,
    ARTIFACTS_FOLDER,
    DIFFERENCES_FILE,
    Artifact,
    assemble_again,
    read_record,
)
from looped_actor.reproduction.seeds import format_percent, verdict
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import write_whole

NOTES_FILE = "notes.md"
"""File in the folder of a study with remarks of its authors, which the report puts first."""
LEARNERS = {"ppo": "PPO", "imitation": "imitation of the solver", "gciql": "GCIQL"}
EXPLANATION = (
    "Success is the mean and the sample standard deviation over seeds. The 95% interval *over levels* is "
    "for these policies on other levels (Wilson's; all seeds play the same levels, which count once, or "
    "more as far as the seeds solve different ones). The interval *over seeds* is for other seeds "
    "(Student's t; none for one seed). Two arms are compared by the difference of runs with the same seed "
    "on the same levels; its interval is the wider of the two. An arm *still climbs* if its last evaluation "
    "is better than the one at three quarters of the run by more than the interval of that difference: it "
    "was stopped too early to be compared. The paper's results are at its own scale."
)


def write_report(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Make and draw the tables of a study again, and write report.md and report.html; return their paths."""
    records = {out: read_record(out) for out in sorted((folder / ARTIFACTS_FOLDER).glob("*"))}
    records = {out: record for out, record in records.items() if record}
    if not records:
        raise UserError(
            f"{folder}: nothing was made here yet; `looped-actor reproduce run ID --out {folder}` does it"
        )
    for out, record in records.items():
        assemble_again(ARTIFACTS[record["artifact"]], folder, out)
    text = "\n\n".join(_blocks(folder, records)) + "\n"
    markdown, page = folder / "report.md", folder / "report.html"
    write_whole(markdown, text.encode())
    write_whole(page, _to_html(text, folder).encode())
    return markdown, page


def _blocks(folder: pathlib.Path, records: dict[pathlib.Path, dict]) -> Iterator[str]:
    scales = ", ".join(sorted({record["scale"] for record in records.values()}))
    yield f"# Looped Actor, reproduced at scale `{scales}`"
    notes = folder / NOTES_FILE
    if notes.is_file():
        yield notes.read_text().strip()
    yield EXPLANATION
    for artifact in ARTIFACTS.values():
        own = {out: record for out, record in records.items() if record["artifact"] == artifact.id}
        if own:
            yield f"## {artifact.title}: `{artifact.id}`"
            yield f"*The paper:* {artifact.claim}"
        for out, record in own.items():
            yield from _artifact_blocks(artifact, folder, out, record)
    made = {record["artifact"] for record in records.values()}
    if missing := [artifact for name, artifact in ARTIFACTS.items() if name not in made]:
        yield "## Not made in this study"
        yield "\n".join(f"- {artifact.title}: `{artifact.id}`" for artifact in missing)
        yield "`looped-actor reproduce plan ID` shows the cost of each."


def _artifact_blocks(
    artifact: Artifact, folder: pathlib.Path, out: pathlib.Path, record: dict
) -> Iterator[str]:
    seeds = len({seed for *_, seed in record["runs"]})
    learners = dict.fromkeys(LEARNERS[learner] for _, learner, _, _ in record["runs"])
    yield f"### {' and '.join(learners)}, {seeds} seed{'s' * (seeds > 1)}"
    for table in artifact.tables:
        path = out / f"{table}.csv"
        if path.is_file():
            caption = path.with_suffix(".txt").read_text().strip()
            yield f"![{caption}]({path.with_suffix('.png').relative_to(folder)})"
            yield caption
    if "curves" in artifact.tables:
        columns = ("task", "arm", "success", "levels_low", "levels_high", "climbing")
        yield _ends_table(read_table(out / "ends.csv", columns))
        yield from verdicts(out)
    if "worlds" in artifact.tables:
        yield _robots_table(read_table(out / "worlds.csv", ("task", "arm", "number", "success")))


def verdicts(out: pathlib.Path) -> Iterator[str]:
    """Yield a sentence for each task of an artifact with curves: a comparison of the looped arm with
    others."""
    if not (out / DIFFERENCES_FILE).is_file():
        return
    ends = read_table(out / "ends.csv", ("task", "arm", "climbing"))
    differences = read_table(
        out / DIFFERENCES_FILE, ("task", "arm", "other", "ahead", "low", "high", "seeds")
    )
    for task in distinct(differences, "task"):
        own = rows_where(differences, task=task)
        sentences = [verdict(rows_where(ends, task=task), own, other) for other in distinct(own, "other")]
        yield f"{TITLES[task]}: {' '.join(filter(None, sentences))}"


def _ends_table(rows: Sequence[Row]) -> str:
    by_imitation = any(row["optimal_actions"] is not None for row in rows)
    several_seeds = any(row["seeds_low"] is not None for row in rows)
    has_train = any(row.get("train_success") is not None for row in rows)
    head = ["", "seeds", "steps", "levels", "solved", "95% over levels"]
    head += ["95% over seeds"] * several_seeds + ["loops"] + ["optimal actions"] * by_imitation
    head += ["training levels solved"] * has_train + ["the paper"]
    body = []
    for row in rows:
        cells = [
            f"{TITLES[row['task']]}, {ARMS[row['arm']]}",
            str(row["runs"]),
            f"{row['steps']:,}",
            f"{row['played']:,}",
            format_percent(row["success"], row["deviation"]),
            _format_interval(row["levels_low"], row["levels_high"]),
            *[_format_interval(row["seeds_low"], row["seeds_high"])] * several_seeds,
            f"{row['loops']:.1f}",
        ]
        if by_imitation:
            cells.append(f"{100 * row['optimal_actions']:.1f}%")
        if has_train:
            cells.append(format_percent(row["train_success"], None))
        cells.append(format_percent(row["paper"], row["paper_deviation"]))
        body.append(cells)
    return _to_table([head, *body])


def _robots_table(rows: Sequence[Row]) -> str:
    arms = distinct(rows, "arm")
    head = ["", *(title for arm in arms for title in (ARMS[arm], "95% over episodes", "the paper"))]
    body = []
    for task, number in distinct(rows, "task", "number"):
        own = rows_where(rows, task=task, number=number)
        cells = [f"**{TITLES[task]}**" if number == 0 else own[0]["name"]]
        for arm in arms:
            row = rows_where(own, arm=arm)[0]
            cells += [
                format_percent(row["success"], row["deviation"]),
                _format_interval(row["episodes_low"], row["episodes_high"]),
                format_percent(row["paper"], row["paper_deviation"]),
            ]
        body.append(cells)
    if len(rows_where(rows, number=0, arm=arms[0])) > 1:
        cells = ["**mean of all environments**"]
        for arm in arms:
            own = rows_where(rows, number=0, arm=arm)
            reported = [row["paper"] for row in own if row["paper"] is not None]
            cells += [format_percent(fmean(row["success"] for row in own), None), "-"]
            cells.append(format_percent(fmean(reported) if len(reported) == len(own) else None, None))
        body.append(cells)
    return _to_table([head, *body])


def _format_interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{100 * low:.1f} - {100 * high:.1f}%"


def _to_table(rows: Sequence[Sequence[str]]) -> str:
    """Return cells as a table of Markdown; the first row names the columns."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


def _to_html(markdown: str, folder: pathlib.Path) -> str:
    """Return the report as one page with the figures in it. Raw HTML in notes is shown as text."""
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
