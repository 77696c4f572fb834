"""Frozen dataclasses to JSON and back. What is read back is checked field by field; nothing is executed."""

import dataclasses
import hashlib
import json
import pathlib
import types
import typing
from collections.abc import Mapping
from typing import Any

from looped_actor.utils.checks import shown
from looped_actor.utils.errors import UserError
from looped_actor.utils.files import write_whole

_TYPE = "type"


class ConfigError(UserError):
    """Invalid configuration, with the path of the field."""


def write_json(config: Any, path: pathlib.Path) -> None:
    """Write a configuration for people and programs."""
    write_whole(path, (json.dumps(to_json(config), indent=2) + "\n").encode())


def to_json(config: Any) -> Any:
    """Return a dataclass as JSON. Nested ones hold their type, so that unions can be read back."""
    if dataclasses.is_dataclass(config):
        fields = {field.name: to_json(getattr(config, field.name)) for field in dataclasses.fields(config)}
        return {_TYPE: type(config).__name__, **fields}
    if isinstance(config, tuple):
        return [to_json(value) for value in config]
    return config


def from_json(kind: Any, data: Any, where: str = "config") -> Any:
    """Return the dataclass that JSON describes. Missing fields have their defaults."""
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, data, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if data not in arguments:
            raise ConfigError(
                f"{where} is {shown(data)}; it must be one of {', '.join(map(repr, arguments))}"
            )
        return data
    if origin in (types.UnionType, typing.Union):
        return _choice(arguments, data, where)
    if origin is tuple:
        if not isinstance(data, list | tuple) or (Ellipsis not in arguments and len(data) != len(arguments)):
            raise ConfigError(f"{where} is {shown(data)}; it must be a list of {len(arguments)}")
        kinds = [arguments[0]] * len(data) if Ellipsis in arguments else arguments
        return tuple(
            from_json(k, d, f"{where}[{i}]") for i, (k, d) in enumerate(zip(kinds, data, strict=True))
        )
    if isinstance(data, int | float) and not abs(data) < 2**63:
        raise ConfigError(f"{where} is {shown(data)}; no number here is that large")
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if kind is int and isinstance(data, float) and data.is_integer():
        return int(data)  # 1e8 is how people write a hundred million
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise ConfigError(f"{where} is {shown(data)}; it must be of type {kind.__name__}")
    if isinstance(data, str) and not data.isprintable():
        raise ConfigError(f"{where} is {shown(data)}: it holds control characters, or half characters")
    return data


def _choice(kinds: tuple, data: Any, where: str) -> Any:
    if data is None and types.NoneType in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not types.NoneType)
    if len(kinds) == 1:
        return from_json(kinds[0], data, where)
    named = {kind.__name__: kind for kind in kinds}
    chosen = data.get(_TYPE) if isinstance(data, dict) else None
    if not isinstance(chosen, str) or chosen not in named:
        raise ConfigError(f"{where} has type {shown(chosen)}; it must be one of {', '.join(named)}")
    return from_json(named[chosen], data, where)


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ConfigError(
            f"{where} is {shown(data)}; it must be an object with the fields of {kind.__name__}"
        )
    hints = typing.get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind) if field.init}
    given = {name: value for name, value in data.items() if name != _TYPE}
    for name in given:
        if name not in fields:
            raise ConfigError(
                f"{where} has no field {shown(name)}; its fields are {', '.join(sorted(fields))}"
            )
    if data.get(_TYPE, kind.__name__) != kind.__name__:
        raise ConfigError(f"{where} has type {shown(data[_TYPE])}; it must be {kind.__name__}")
    values = {name: from_json(hints[name], value, f"{where}.{name}") for name, value in given.items()}
    try:
        return kind(**values)
    except ConfigError:
        raise
    except (ValueError, TypeError) as problem:
        raise ConfigError(f"{where}: {problem}") from None


def replace_fields(config: Any, changes: Mapping[str, Any]) -> Any:
    """Return a configuration with changed fields, given as `{"algorithm.learning_rate": 3e-4}`."""
    data = to_json(config)
    for path, value in changes.items():
        *outer, last = path.split(".")
        inner = data
        for name in outer:
            inner = inner.get(name) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or last not in inner or last == _TYPE:
            raise ConfigError(f"there is no field {shown(path)}; fields are {', '.join(field_paths(config))}")
        inner[last] = value
    return from_json(type(config), data)


def field_paths(config: Any, prefix: str = "") -> list[str]:
    """Return the paths of all fields of a configuration."""
    paths = []
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), prefix + field.name
        paths += field_paths(value, path + ".") if dataclasses.is_dataclass(value) else [path]
    return paths


def field_value(config: Any, path: str) -> Any:
    """Return the value of a field by its path; None if there is no such field."""
    for name in path.split("."):
        config = getattr(config, name, None)
    return config


def key_of(about: dict) -> str:
    """Return a short hash of JSON."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]
