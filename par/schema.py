"""Typed settings from YAML: frozen dataclasses, filled and checked value by value.

An unknown key, a wrong type or a value out of range raises :class:`ConfigError`, whose message names the key, the value
and what is allowed. Files are read with ruamel's YAML 1.2 loader, the one DVC uses: PyYAML reads ``3e-05`` (what
``dvc exp run -S lr=0.00003`` writes) as a string.
"""

from __future__ import annotations

import dataclasses
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from ruamel.yaml import YAML, YAMLError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Schema = TypeVar("Schema", bound="DataclassInstance")

NAME_PATTERN = re.compile(r"[a-z0-9_]+")


MAX_VALUES = 100_000  # in a YAML file, aliases counted as often as they are used
MAX_MESSAGE = 1000  # characters


class ConfigError(ValueError):
    """A value of params.yaml (or of a definition) that cannot be used; the message says which, where and why.

    The message is one line, of a long one the beginning: it may quote any file.
    """

    def __init__(self, message: str):
        super().__init__(bounded(message))


def bounded(message: str) -> str:
    """A message on one line, cut after MAX_MESSAGE characters."""
    line = " ".join(message.split())
    return line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]} ..."


@dataclass(frozen=True)
class Range:
    """Closed interval of allowed numbers; ``None`` leaves a side open, ``above`` excludes the lower end."""

    low: float | None = None
    high: float | None = None
    above: bool = False

    def __contains__(self, value: float) -> bool:
        if self.low is not None and (value < self.low or (self.above and value == self.low)):
            return False
        return self.high is None or value <= self.high

    def __str__(self) -> str:
        if self.high is None:
            return f"{'above' if self.above else 'at least'} {self.low:g}"
        if self.low is None:
            return f"of at most {self.high:g}"
        return f"between {self.low:g} and {self.high:g}" + (f", {self.low:g} excluded" if self.above else "")


Count = Annotated[int, Range(1)]
Index = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML 1.2 file.

    Raises:
        ConfigError: no such file, no valid YAML, no mapping at its top, or no end to its values.
    """
    try:
        content = YAML(typ="safe").load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; copy one of presets/*.yaml there.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); make it a readable file.") from None
    except (YAMLError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, a date in month 13, ...
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds {type(content).__name__}, allowed is a mapping of keys to values.")
    _check_size(content, path)
    return content


def _check_size(content: Any, path: str | Path) -> None:
    """An end to what is in the file: by aliases a short one can hold itself, or more than memory does."""
    pending, n_values = [content], 0
    while pending:
        value = pending.pop()
        n_values += 1
        if n_values > MAX_VALUES:
            raise ConfigError(f"{path} holds more than {MAX_VALUES:,} values; write out its aliases (*name).")
        if isinstance(value, (dict, list)):
            pending += value.values() if isinstance(value, dict) else value


def check_plain(value: Any, where: str) -> None:
    """Nothing but what JSON has too: YAML makes dates, binary data and names that are no texts of what is not quoted.

    Raises:
        ConfigError: something else.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(f"{where}: the name {shown(key)} is no text to YAML; put it in quotes.")
            check_plain(item, f"{where}.{key}")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            check_plain(item, f"{where}[{position}]")
    elif not isinstance(value, (str, int, float, types.NoneType)):
        raise ConfigError(f"{where} = {shown(value)} is no text to YAML; put it in quotes.")


def parse(schema: type[Schema], raw: Any, where: str = "") -> Schema:
    """Fill the frozen dataclass ``schema`` from a plain mapping; ``where`` is the key's path in messages.

    Raises:
        ConfigError: see the module's docstring.
    """
    raw = {} if raw is None else raw
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where} is {shown(raw)}, allowed is a block with the keys {_keys(schema)}.")
    hints = typing.get_type_hints(schema, include_extras=True)
    for key in raw:
        if key not in hints:
            allowed = _keys(schema)
            raise ConfigError(f"{_join(where, key)} = {shown(raw[key])} is not a known key; allowed here: {allowed}.")
    for item in dataclasses.fields(schema):
        optional = item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING
        if item.name not in raw and not optional:
            raise ConfigError(f"{_join(where, item.name)} is missing; it has no default.")
    return schema(**{key: convert(hints[key], value, _join(where, key)) for key, value in raw.items()})


def override(instance: Schema, changes: Mapping[str, Any], where: str) -> Schema:
    """A copy of a schema instance with (nested) ``changes`` applied and checked like the original.

    Raises:
        ConfigError: a key or value that the schema does not allow.
    """
    if not isinstance(changes, Mapping):
        raise ConfigError(f"{where} is {shown(changes)}, allowed is a block with the keys {_keys(type(instance))}.")
    hints = typing.get_type_hints(type(instance), include_extras=True)
    values = {}
    for key, value in changes.items():
        if key not in hints:
            allowed = _keys(type(instance))
            raise ConfigError(f"{_join(where, key)} = {shown(value)} is not a known key; allowed here: {allowed}.")
        current = getattr(instance, key)
        if dataclasses.is_dataclass(current) and not isinstance(current, type):
            values[key] = override(current, value, _join(where, key))
        else:
            values[key] = convert(hints[key], value, _join(where, key))
    return dataclasses.replace(instance, **values)


def shown(value: Any) -> str:
    """``repr`` of a value from a file, cut where it is long or deep."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxtuple = 3, 8, 20, 20
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 200


def to_plain(value: Any) -> Any:
    """A schema instance as nested dicts and lists, ready for JSON."""
    if dataclasses.is_dataclass(value):
        return {item.name: to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def convert(hint: Any, value: Any, where: str) -> Any:
    """``value`` as the type ``hint``, or a ConfigError that names ``where``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        converted = convert(arguments[0], value, where)
        if converted not in arguments[1]:
            raise ConfigError(f"{where} = {shown(value)} is out of range; allowed is a number {arguments[1]}.")
        return converted
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in arguments:
            return None
        kinds = [kind for kind in arguments if kind is not types.NoneType]
        if len(kinds) == 1:
            return convert(kinds[0], value, where)
        words = [word for kind in kinds if typing.get_origin(kind) is Literal for word in typing.get_args(kind)]
        if value in words and isinstance(value, str):
            return value
        (kind,) = (kind for kind in kinds if typing.get_origin(kind) is not Literal)
        if isinstance(value, str):
            allowed = " or ".join([*words, _describe(kind)])
            raise ConfigError(f"{where} = {shown(value)} is not allowed; allowed is {allowed}.")
        return convert(kind, value, where)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool) != isinstance(arguments[0], bool):
            raise ConfigError(
                f"{where} = {shown(value)} is not allowed; choose one of {', '.join(map(str, arguments))}."
            )
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(
                f"{where} = {shown(value)} is not a list; allowed is a list of {_describe(arguments[0])}."
            )
        return tuple(convert(arguments[0], item, f"{where}[{position}]") for position, item in enumerate(value))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return parse(hint, value, where)
    if origin is Mapping:
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{where} = {shown(value)} is not a block; allowed is a mapping of names to blocks.")
        return dict(value or {})
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and is_number and value == value:
        return float(value)
    if hint in (int, bool, str) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    if hint is str and not isinstance(value, (Mapping, list, types.NoneType)):
        raise ConfigError(f"{where} = {value} is no text to YAML; put it in quotes.")
    raise ConfigError(f"{where} = {shown(value)} has the wrong type; allowed is {_describe(hint)}.")


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is Annotated:
        base, interval = typing.get_args(hint)
        return f"{_describe(base)} {interval}"
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(hint, str(hint))


def check_names(key: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Every name is known, well formed and given once (DVC joins axis values by '-', so '-' can lose a stage)."""
    known, seen = list(known), set()
    for name in names:
        if name not in known:
            raise ConfigError(f"{key}: {name!r} is unknown; known are {', '.join(known) or 'none'}.")
        if not NAME_PATTERN.fullmatch(name):
            raise ConfigError(f"{key}: {name!r} is no usable name; allowed are a-z, 0-9 and _.")
        if name in seen:
            raise ConfigError(f"{key}: {name!r} is listed twice; list it once.")
        seen.add(name)


def _keys(schema: type) -> str:
    return ", ".join(item.name for item in dataclasses.fields(schema))


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where and not where.endswith(".yaml") else str(key)
