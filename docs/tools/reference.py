"""Write the reference pages of the documentation from the code: python docs/tools/reference.py."""

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

from looped_actor.cli.main import make_app
from looped_actor.runs.config import CustomConfig
from looped_actor.runs.presets import preset
from looped_actor.utils.codec import to_json

DOCS = pathlib.Path(__file__).parents[1]
FROM_CODE = "<!-- Made from the code by docs/tools/reference.py: change it there. -->\n\n"


def commands_page() -> str:
    """Return the page of all commands and their options."""
    text = (
        "# Commands\n\nThis page lists every command and every option, as `looped-actor COMMAND --help` "
        "shows them. Give each option once; options that take several values take them separated by spaces. "
        "`PATH` of a policy is the folder of a run, the folder of a policy, or a name that `looped-actor "
        "pretrained` lists.\n"
    )
    for name, function in commands(make_app()):
        text += f"\n## looped-actor {name}\n\n{_described(function)}"
    return FROM_CODE + text


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group and of its subgroups, as they are typed."""
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
    value = _type(kind)
    if default not in (None, inspect.Parameter.empty, (), False):
        value += f", default `{_plain(default)}`"
    return _row(f"`{shown}`", value, about.get(parameter.name, ""))


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


SCALES = ("micro", "small", "paper")


def configuration_page() -> str:
    """Return the page of all fields of a run's configuration, with their values in the presets."""
    text = (
        "# Configuration\n\nThis page lists every field of a run, its meaning and its values in the presets. "
        "`config.json` in the folder of a run holds them. Change one with `--set FIELD=VALUE` of "
        "`looped-actor train`, `plan` and `reproduce run`; `looped-actor train TASK --dry-run` prints the "
        "values of a run.\n\nIn Python, configurations are frozen dataclasses that validate themselves:\n\n"
        "```python\nfrom looped_actor import preset\nfrom looped_actor.utils.codec import replace_fields\n\n"
        'config = preset("boxoban", "micro", "looped")\n'
        'config = replace_fields(config, {"algorithm.epochs": 2, "arm.halting.max_loops": 12})\n```\n\n'
        "Empty cells are fields without a value: None, or an empty text.\n"
    )
    puzzle = {scale: preset("boxoban", scale) for scale in SCALES}
    imitation = {scale: preset("boxoban", scale, "looped", "imitation") for scale in SCALES}
    rush_hour = {scale: preset("rush-hour", scale) for scale in SCALES}
    robot = {scale: preset("cube-double", scale) for scale in SCALES}
    text += "\n## Puzzles\n\nValues are those of `boxoban`, arm `looped`, by PPO.\n" + _tables(puzzle)
    text += "\n## Other arms\n\nOf Iso-Params and Iso-FLOPs, `arm.core` is that of `looped`.\n"
    for task, arm in (("boxoban", "iso-flops"), ("boxoban", "drc"), ("cube-double", "mlp")):
        text += _tables({scale: preset(task, scale, arm) for scale in SCALES}, "arm", f"arm, {arm}")
    text += "\n## Puzzles, by imitation\n\nOnly `algorithm` differs.\n" + _tables(imitation, "algorithm")
    text += "\n## Levels of Rush Hour\n\nOnly the recipe differs in its fields.\n"
    text += _tables(rush_hour, "levels.recipe")
    text += "\n## Robots, offline\n\nValues are those of `cube-double`, arm `looped`.\n" + _tables(robot)
    text += "\n## Custom environments\n\nValues are the defaults of `CustomConfig`. The fields of "
    text += "`algorithm` are those of puzzles by PPO.\n" + _tables({"default": CustomConfig()}, "")
    return FROM_CODE + text


def _tables(configs: dict[str, Any], only: str | None = None, title: str = "") -> str:
    """Return a table for each section of configurations that differ in values, or for one section."""
    flat = [_flat(config) for config in configs.values()]
    text = ""
    for section, config in _sections(next(iter(configs.values()))):
        if only is not None and only != section:
            continue
        text += f"\n### {title or section or 'the run'}\n\n{_first_line(config)}\n\n"
        text += f"| field | {' | '.join(configs)} | |\n|---|{'---|' * len(configs)}---|\n"
        about = field_docs(type(config))
        for name, path, _ in _values(section, config):
            text += _row(f"`{path}`", *(values.get(path, "") for values in flat), about.get(name, ""))
    return text


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
    """Yield name, path and value of the fields of a section that are not sections themselves."""
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if not dataclasses.is_dataclass(value):
            yield entry.name, f"{section}.{entry.name}" if section else entry.name, value


def field_docs(kind: type) -> dict[str, str]:
    """Return the descriptions under the fields of a dataclass, including inherited ones."""
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
"""An example that a page shows in full, after this comment."""


def with_examples(page: str) -> str:
    """Return a page with the current text of the examples that it shows."""

    def shown(found: re.Match) -> str:
        return f"<!-- {found[1]} -->\n\n```python\n{(DOCS.parent / found[1]).read_text()}```"

    return EXAMPLE.sub(shown, page)


def pages() -> dict[str, str]:
    """Return the text that every page should have, by name."""
    made = {"commands.md": commands_page(), "configuration.md": configuration_page()}
    return {path.name: with_examples(path.read_text()) for path in sorted(DOCS.glob("*.md"))} | made


if __name__ == "__main__":
    for name, page in pages().items():
        (DOCS / name).write_text(page)
