"""The report of a study: every artifact that was made, with the paper's words beside it.

As Markdown with links to the figures, and as one HTML page that needs nothing else.
"""

import base64
import html
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from looped_actor.analysis.drawing import ARMS, TITLES
from looped_actor.analysis.seeds import percent, verdict
from looped_actor.analysis.tables import Row, of, read_table
from looped_actor.experiments.artifacts import ARTIFACTS, ARTIFACTS_FOLDER, Artifact, assemble_again, made_of
from looped_actor.files import write_whole

NOTES_FILE = "notes.md"
"""In the folder of a study: what its authors have to say, which the report puts first."""
_LEARNERS = {"ppo": "PPO", "imitation": "imitation of the solver", "gciql": "GCIQL"}


class Heading(NamedTuple):
    """A title of a level."""

    level: int
    text: str


class Paragraph(NamedTuple):
    """Some text, in Markdown without links."""

    text: str


class Table(NamedTuple):
    """Cells as text; the first row names the columns."""

    rows: Sequence[Sequence[str]]


class Figure(NamedTuple):
    """A picture, and what it shows."""

    path: pathlib.Path
    says: str


Block = Heading | Paragraph | Table | Figure


def write_report(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Put the tables of a study's folder together once more, draw them, and write the report."""
    made = {out: made_of(out) for out in sorted((folder / ARTIFACTS_FOLDER).glob("*")) if made_of(out)}
    if not made:
        raise ValueError(
            f"{folder}: nothing was made here yet; `looped-actor reproduce run ID --out {folder}` does it"
        )
    for out, about in made.items():
        assemble_again(ARTIFACTS[about["artifact"]], folder, out)
    blocks = list(_blocks(folder, made))
    markdown, page = folder / "report.md", folder / "report.html"
    write_whole(markdown, _as_markdown(blocks, folder).encode())
    write_whole(page, _as_html(blocks).encode())
    return markdown, page


def _blocks(folder: pathlib.Path, made: dict[pathlib.Path, dict]) -> Iterator[Block]:
    scales = ", ".join(sorted({about["scale"] for about in made.values()}))
    yield Heading(1, f"Looped Actor, reproduced at scale `{scales}`")
    notes = folder / NOTES_FILE
    if notes.is_file():
        yield from _read_notes(notes.read_text())
    yield Paragraph(
        "Success is mean and deviation over seeds. Two 95% intervals stand beside it: *over levels* says how "
        "sure it is what these very policies solve (Wilson's, all levels or episodes of all seeds pooled), "
        "*over seeds* how sure it is what other seeds would give (Student's t, wide for few seeds). The "
        "paper's numbers are at its own scale."
    )
    for artifact in ARTIFACTS.values():
        own = {out: about for out, about in made.items() if about["artifact"] == artifact.id}
        if own:
            yield Heading(2, f"{artifact.title}: `{artifact.id}`")
            yield Paragraph(f"*The paper:* {artifact.claim}")
        for out, about in own.items():
            yield from _artifact(artifact, out, about)
    missing = [name for name in ARTIFACTS if name not in {about["artifact"] for about in made.values()}]
    if missing:
        yield Heading(2, "Not made in this study")
        yield Paragraph("\n".join(f"- {ARTIFACTS[name].title}: `{name}`" for name in missing))
        yield Paragraph("`looped-actor reproduce plan ID` says what each takes.")


def _artifact(artifact: Artifact, out: pathlib.Path, about: dict) -> Iterator[Block]:
    seeds = len({seed for *_, seed in about["runs"]})
    learners = dict.fromkeys(_LEARNERS[learner] for _, learner, _, _ in about["runs"])
    yield Heading(3, f"{' and '.join(learners)}, {seeds} seed{'s' * (seeds > 1)}")
    for table in artifact.tables:
        path = out / f"{table}.csv"
        if path.is_file():
            yield Figure(path.with_suffix(".png"), path.with_suffix(".txt").read_text().strip())
    if "curves" in artifact.tables:
        ends = read_table(out / "ends.csv", ("task", "arm", "success", "levels_low", "levels_high"))
        yield _ends(ends)
        for task in dict.fromkeys(row["task"] for row in ends):
            others = [arm for arm in ARMS if arm != "looped" and arm in artifact.arms]
            said = [verdict(of(ends, task=task), "looped", other) for other in others]
            yield Paragraph(f"{TITLES[task]}: {' '.join(filter(None, said))}")
    if "worlds" in artifact.tables:
        yield _worlds(read_table(out / "worlds.csv", ("task", "arm", "number", "success")))


def _ends(rows: Sequence[Row]) -> Table:
    taught = any(row["optimal_actions"] is not None for row in rows)
    head = ["", "seeds", "steps", "levels", "solved", "95% over levels", "95% over seeds", "loops"]
    body = []
    for row in rows:
        cells = [
            f"{TITLES[row['task']]}, {ARMS[row['arm']]}",
            str(row["runs"]),
            f"{row['steps']:,}",
            f"{row['played']:,}",
            percent(row["success"], row["deviation"]),
            _between(row["levels_low"], row["levels_high"]),
            _between(row["seeds_low"], row["seeds_high"]),
            f"{row['loops']:.1f}",
        ]
        if taught:
            cells.append(f"{100 * row['optimal_actions']:.1f}%")
        cells.append(percent(row["paper"], row["paper_deviation"]))
        body.append(cells)
    return Table([[*head, *(["optimal actions"] if taught else []), "the paper"], *body])


def _worlds(rows: Sequence[Row]) -> Table:
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
    return Table([head, *body])


def _between(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{100 * low:.1f} - {100 * high:.1f}%"


def _read_notes(text: str) -> Iterator[Block]:
    """Headings, paragraphs, lists and tables of Markdown."""
    for part in re.split(r"\n\s*\n", text.strip()):
        lines = part.splitlines()
        if part.startswith("#"):
            marks, _, title = part.partition(" ")
            yield Heading(len(marks), title)
        elif part.startswith("|"):
            cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
            yield Table([cells[0], *cells[2:]])
        else:
            yield Paragraph(part)


def _as_markdown(blocks: Sequence[Block], folder: pathlib.Path) -> str:
    parts = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"{'#' * level} {text}")
            case Paragraph(text):
                parts.append(text)
            case Table(rows):
                lines = ["| " + " | ".join(row) + " |" for row in rows]
                lines.insert(1, "|" + "---|" * len(rows[0]))
                parts.append("\n".join(lines))
            case Figure(path, says):
                parts.append(f"![{says}]({path.relative_to(folder)})\n\n{says}")
    return "\n\n".join(parts) + "\n"


def _as_html(blocks: Sequence[Block]) -> str:
    parts = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"<h{level}>{_inline(text)}</h{level}>")
            case Paragraph(text):
                parts.append(_paragraph(text))
            case Table(rows):
                head = "".join(f"<th>{_inline(cell)}</th>" for cell in rows[0])
                body = "".join(
                    "<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>"
                    for row in rows[1:]
                )
                table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
                parts.append(f'<div class="wide">{table}</div>')
            case Figure(path, says):
                data = base64.b64encode(path.read_bytes()).decode()
                picture = f'<img alt="{html.escape(says)}" src="data:image/png;base64,{data}">'
                parts.append(f"<figure>{picture}<figcaption>{_inline(says)}</figcaption></figure>")
    title = html.escape(next(block.text for block in blocks if isinstance(block, Heading)).replace("`", ""))
    return _PAGE.replace("TITLE", title).replace("BODY", "\n".join(parts))


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if lines[0].startswith("- "):
        items = re.split(r"(?:^|\n)- ", text)[1:]
        return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
    return f"<p>{_inline(text)}</p>"


def _inline(text: str) -> str:
    text = html.escape(text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    text = re.sub(r"(?<!\w)\*([^*]+)\*(?!\w)", r"<em>\1</em>", text)
    return text.replace("+-", "&plusmn;")


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
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
  th, td { padding: .35rem .7rem; border-bottom: 1px solid #e6e0d6; text-align: right; white-space: nowrap; }
  th:first-child, td:first-child { text-align: left; }
  figure { margin: 1.2rem 0; }
  figure img { max-width: 100%; height: auto; background: #fff; }
  figcaption { font-size: .9rem; color: #5d616b; }
</style>
BODY
</html>
"""
