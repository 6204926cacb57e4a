"""From params.yaml to what one learner on one stream is made of: read once, resolved once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from par.config import Config, LearnerSettings, Tables, check
from par.methods import METHODS, load_method
from par.schema import ConfigError, check_names, parse, read_yaml
from par.streams.definition import known_streams


def load(path: str | Path = "params.yaml") -> Config:
    """Read and check a params file.

    Raises:
        ConfigError: the file is missing, is no YAML mapping, or holds a value that is not allowed.
    """
    config = parse(Config, read_yaml(path), str(Path(path).name))
    check_names("methods", config.methods, METHODS)
    for name in config.variants:
        if name in METHODS:
            raise ConfigError(f"variants.{name} is the name of a method; choose another.")
    check(config)
    known = known_streams()
    for key, names in _streams_named(config):
        check_names(key, names, known)
    return config


def _streams_named(config: Config) -> Iterator[tuple[str, Any]]:
    """Every place of params.yaml that names streams, with the names there."""
    yield "streams", config.streams
    yield "recipes", config.recipes
    for table in fields(Tables):
        yield f"tables.{table.name}", config.tables.of(table.name)
    for name, block in config.methods.items():
        yield f"methods.{name}.skip", (block or {}).get("skip") or ()
        yield f"methods.{name}.streams", (block or {}).get("streams") or ()


def resolve(config: Config, stream: str, learner: str) -> LearnerSettings:
    """The settings of ``learner`` on ``stream`` by the precedence of :mod:`par.config`.

    Raises:
        ConfigError: a hyper-parameter that the method does not have or allow.
    """
    method = config.method_of(learner)
    block = config.method_block(stream, method)
    hyper = {key: value for key, value in block.items() if key not in ("recipe", "skip")}
    blocks = {name: config.effective(name, learner) for name in ("network", "expert", "search", "distillation")}
    return LearnerSettings(
        learner=learner,
        method=method,
        hyper=parse(load_method(method).Hyper, hyper, f"methods.{method}"),
        recipe=config.effective_recipe(stream, learner),
        **blocks,
    )


def from_plain(raw: Mapping[str, Any], where: str) -> LearnerSettings:
    """The settings that :func:`par.schema.to_plain` made plain; ``where`` is their file in messages.

    Raises:
        ConfigError: a method, key or value that this version of the code does not have.
    """
    settings = parse(LearnerSettings, raw, where)
    check_names(f"{where}.method", [settings.method], METHODS)
    return replace(settings, hyper=parse(load_method(settings.method).Hyper, settings.hyper, f"{where}.hyper"))
