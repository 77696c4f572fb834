"""The reference pages of the handbook, from the code: python docs/tools/reference.py writes them anew."""

import ast
import dataclasses
import inspect
import pathlib
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any

import docstring_parser
import tyro

from looped_actor.cli.main import made
from looped_actor.utils.codec import to_json
from looped_actor.runs.presets import preset

DOCS = pathlib.Path(__file__).parents[1]
FROM_CODE = "<!-- Made from the code by docs/tools/reference.py: change it there. -->\n\n"


def commands_page() -> str:
    """Every command with its options."""
    text = (
        "# Commands\n\nEach has `--help`, which says the same. Options that take several values take them "
        "with spaces between; an option is given once.\n"
    )
    for name, function in commands(made()):
        text += f"\n## looped-actor {name}\n\n{_described(function)}"
    return FROM_CODE + text


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """The commands of a group and of the groups in it, by what is typed."""
    for name, spec in group._subcommands.items():
        if isinstance(spec.target, tyro.extras.SubcommandApp):
            yield from commands(spec.target, f"{before}{name} ")
        else:
            yield before + name, spec.target


def _described(function: Any) -> str:
    words = inspect.getdoc(function) or ""
    paragraphs = [" ".join(paragraph.split()) for paragraph in words.partition("\nArgs:")[0].split("\n\n")]
    examples = [one.removeprefix("Example: ") for one in paragraphs if one.startswith("Example: ")]
    summary = [one for one in paragraphs if one and not one.startswith("Example: ")]
    text = "\n\n".join(textwrap.fill(paragraph, 118) for paragraph in summary)
    text += "\n\n" + "".join(f"- `{example}`\n" for example in examples)
    about = _arguments(words)
    rows = "".join(_options(function, about))
    return text + (f"\n| option | value | |\n|---|---|---|\n{rows}" if rows else "")


def _options(function: Any, about: dict[str, str]) -> Iterator[str]:
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if typing.get_origin(kind) is typing.Annotated and dataclasses.is_dataclass(typing.get_args(kind)[0]):
            kind = typing.get_args(kind)[0]
        if dataclasses.is_dataclass(kind):  # options that several commands share
            yield from _options(kind, field_docs(kind))
        else:
            yield _option(parameter, about)


def _arguments(words: str) -> dict[str, str]:
    parsed = docstring_parser.parse(words, docstring_parser.DocstringStyle.GOOGLE)
    return {
        parameter.arg_name: " ".join((parameter.description or "").split()) for parameter in parsed.params
    }


def _option(parameter: inspect.Parameter, about: dict[str, str]) -> str:
    kind, extras = parameter.annotation, ()
    if typing.get_origin(kind) is typing.Annotated:
        kind, *extras = typing.get_args(kind)
    name = next((extra.name for extra in extras if getattr(extra, "name", None)), parameter.name)
    positional = tyro.conf.Positional in extras or parameter.kind is inspect.Parameter.POSITIONAL_ONLY
    shown = name.upper() if positional else "--" + name.replace("_", "-")
    default = parameter.default
    told = "" if default in (None, inspect.Parameter.empty, (), False) else f"`{_plain(default)}`"
    said = f"{_type(kind)}{', default ' + told if told else ''}"
    return _row(f"`{shown}`", said, about.get(parameter.name, ""))


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_plain, value))
    return str(value)


def _type(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_type(one) for one in arguments if one is not types.NoneType)
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if origin is tuple:
        if Ellipsis in arguments:
            return f"{_type(arguments[0])}, several"
        return " and ".join(_type(one) for one in arguments)
    names = {int: "number", float: "number", str: "text", bool: "switch", pathlib.Path: "path"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


PARTS = (
    ("boxoban", "Puzzles, online", ""),
    ("rush-hour", "Levels of Rush Hour", "levels.recipe"),
    ("cube-double", "Robots, offline", ""),
)
"""A task whose fields are shown, what to call them, and the only section of them, if not all."""


def configuration_page() -> str:
    """Every field of a run's configuration, with its values in the presets."""
    text = (
        "# Configuration\n\nWhat `config.json` of a run holds, and what `--set FIELD=VALUE` of `looped-actor "
        "train` and `reproduce run` changes. `looped-actor train TASK --dry-run` lists the values of a run. "
        "In Python, these are frozen dataclasses that check themselves: `preset(task, scale, arm)` of "
        "`looped_actor.runs.presets` makes one, and `replaced(config, {'ppo.epochs': 2})` of "
        "`looped_actor.utils.codec` changes it.\n"
    )
    for task, title, only in PARTS:
        scales = {scale: _flat(preset(task, scale)) for scale in ("micro", "small", "paper")}
        text += f"\n## {title}\n\nValues are those of the presets of `{task}`, arm `looped`.\n"
        for section, config in _sections(preset(task, "micro")):
            if only not in ("", section):
                continue
            text += f"\n### {section or 'the run'}\n\n{_first_line(config)}\n\n"
            text += "| field | micro | small | paper | |\n|---|---|---|---|---|\n"
            about = field_docs(type(config))
            for name, path, _ in _values(section, config):
                values = [flat.get(path, "") for flat in scales.values()]
                text += _row(f"`{path}`", *values, about.get(name, ""))
    return FROM_CODE + text


def _sections(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    yield prefix, config
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            yield from _sections(value, f"{prefix}.{entry.name}" if prefix else entry.name)


def _flat(config: Any) -> dict[str, str]:
    return {
        path: "" if value in ("", None) else f"`{_plain(to_json(value))}`"
        for section, part in _sections(config)
        for _, path, value in _values(section, part)
    }


def _values(section: str, config: Any) -> Iterator[tuple[str, str, Any]]:
    """Name, path and value of the fields of a section that are no sections themselves."""
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if not dataclasses.is_dataclass(value):
            yield entry.name, f"{section}.{entry.name}" if section else entry.name, value


def field_docs(kind: type) -> dict[str, str]:
    """What is written under the fields of a dataclass, those of its ancestors included."""
    found: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__[:-1]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(ancestor))).body
        except (OSError, TypeError):
            continue
        assert isinstance(tree, ast.ClassDef)
        found |= _arguments(inspect.getdoc(ancestor) or "")
        for field, after in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match after:
                    case ast.Expr(ast.Constant(str(words))):
                        found[field.target.id] = " ".join(words.split())
    return found


def _first_line(config: Any) -> str:
    return " ".join((inspect.getdoc(config) or "").split("\n\n")[0].split())


def _row(*cells: str) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |\n"


EXAMPLE = re.compile(r"<!-- (examples/\w+\.py) -->\n\n```python\n(.*?)```", re.DOTALL)
"""A page shows an example whole, after this comment."""


def with_examples(page: str) -> str:
    """A page with the examples that it shows as they are now."""

    def shown(found: re.Match) -> str:
        return f"<!-- {found[1]} -->\n\n```python\n{(DOCS.parent / found[1]).read_text()}```"

    return EXAMPLE.sub(shown, page)


def pages() -> dict[str, str]:
    """Every page as it should be, by its name."""
    made = {"commands.md": commands_page(), "configuration.md": configuration_page()}
    return {path.name: with_examples(path.read_text()) for path in sorted(DOCS.glob("*.md"))} | made


if __name__ == "__main__":
    for name, page in pages().items():
        (DOCS / name).write_text(page)
