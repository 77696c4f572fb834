"""Hooks of the site: add files outside docs/ that pages show, such as figures."""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[2]
OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)\)")


def on_files(files, config):
    """Add every file outside of docs/ that a page links to."""
    linked = {
        path
        for page in pathlib.Path(config.docs_dir).glob("*.md")
        for path in OUTSIDE.findall(page.read_text(encoding="utf-8"))
    }
    for path in sorted(linked):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, **_):
    """Rewrite links to these files, which are next to the pages on the site."""
    return OUTSIDE.sub(r"](\1)", markdown)
