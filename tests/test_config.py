"""params.yaml: what loads, and the one sentence for what does not."""

from __future__ import annotations

import ast
import datetime
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from par import config as configuration
from par.config import Recipe, Routing
from par.schema import ConfigError, convert, override, parse
from par.settings import load, resolve

REPOSITORY = Path(__file__).resolve().parent.parent
MINIMAL = """
preset: test
streams:
  - demo_minus
seeds:
  - 0
methods:
  par:
  finetune:
    recipe:
      epochs: 7
"""


@pytest.fixture
def write(tmp_path):
    def writer(extra: str = "", base: str = MINIMAL) -> Path:
        path = tmp_path / "params.yaml"
        path.write_text(base + extra)
        return path

    return writer


def test_a_minimal_file_loads_with_the_papers_thresholds(write):
    config = load(write())
    assert (config.alpha, config.beta) == (0.5, 0.75)
    assert config.streams == ("demo_minus",) and list(config.methods) == ["par", "finetune"]


def test_capture_is_off_in_a_word_and_not_false(write):
    assert load(write("capture: off\n")).capture == "off" and load(write()).capture == "auto"


@pytest.mark.parametrize(
    ("text", "value"), [("3e-05", 3e-5), ("1e-3", 1e-3), ("1", 1.0), ("1.0e-3", 1e-3), (".5", 0.5), ("2E2", 200.0)]
)
def test_every_way_to_write_a_number_loads_as_a_float(write, text, value):
    rate = load(write(f"recipe:\n  learning_rate: {text}\n")).recipe.learning_rate
    assert rate == value and isinstance(rate, float)


@pytest.mark.parametrize(
    ("extra", "parts"),
    [
        ("alpha: high\n", ["alpha", "'high'", "a number"]),
        ("alpha: 1.1\n", ["alpha", "1.1", "at most 1"]),
        ("alpha: true\n", ["alpha", "True", "a number"]),
        ("alpha: .nan\n", ["alpha", "nan", "a number"]),
        ("alpha: 0.8\n", ["beta", "0.75", "alpha", "0.8"]),
        ("alhpa: 0.5\n", ["alhpa", "0.5", "not a known key", "alpha"]),
        ("capture: true\n", ["capture", "True", "auto", "off"]),
        ("workers: 0\n", ["workers", "0", "at least 1"]),
        ("workers: 1.5\n", ["workers", "1.5", "a whole number"]),
        ("workers: all\n", ["workers", "'all'", "auto or a whole number at least 1"]),
        ("workers: null\n", ["workers", "None", "a whole number"]),
        ("workers_per_device: 0\n", ["workers_per_device", "0", "at least 1"]),
        ("workers: true\n", ["workers", "True", "a whole number"]),
        ("device: tpu\n", ["device", "'tpu'", "auto, cpu, cuda"]),
        ("predict: true\n", ["predict", "True", "auto, full, ends"]),
        ("freeze_below: 1.5\n", ["freeze_below", "1.5", "between 0 and 1"]),
        ("recipe:\n  epochs: many\n", ["recipe.epochs", "'many'", "a whole number"]),
        ("recipe: 5\n", ["recipe", "5", "block", "epochs"]),
        ("recipe:\n  lr: 0.1\n", ["recipe.lr", "not a known key", "learning_rate"]),
        ("recipes:\n  demo_mius: {}\n", ["recipes", "demo_mius", "unknown", "demo_minus"]),
        ("recipes:\n  demo_minus:\n    epochs: 0\n", ["recipes.demo_minus.epochs", "0", "at least 1"]),
        ("recipes:\n  demo_minus: 4\n", ["recipes.demo_minus", "4", "block"]),
        ("expert:\n  channels: 7\n", ["expert.channels", "7", "even"]),
        ("extractor:\n  splits: valid\n", ["extractor.splits", "'valid'", "a list of"]),
        ("extractor:\n  splits:\n    - test\n", ["extractor.splits[0]", "'test'", "valid, train"]),
        ("distance:\n  split: train\n", ["distance.split", "train", "extractor.splits"]),
        ("variants:\n  fixed:\n    streams: []\n", ["variants.fixed.streams", "cannot vary", "alpha"]),
        ("variants:\n  fixed:\n    search:\n      update: darts\n", ["variants.fixed.search.update", "darts", "mdl"]),
        ("variants:\n  par:\n    alpha: 0.1\n", ["variants.par", "name of a method"]),
        ("variants:\n  a-b:\n    alpha: 0.1\n", ["variants.a-b", "no usable name"]),
        ("ablation:\n  variants:\n    - fixd\n", ["ablation.variants", "'fixd'", "unknown", "fixed"]),
        ("sweeps:\n  alpha:\n    - 0.125\n", ["sweeps.alpha", "0.125", "multiples of 0.01"]),
        ("sweeps:\n  beta:\n    - 0.5\n    - 0.5\n", ["sweeps.beta", "0.5", "different"]),
        ("sweeps:\n  alpha:\n    - -.inf\n", ["sweeps.alpha[0]", "-inf", "between 0 and 1"]),
        ("sweeps:\n  alpha:\n    - 0.2\nvariants:\n  alpha_020: {}\n", ["variants.alpha_020", "no usable name"]),
        ("ablation:\n  streams:\n    - demo_plus\n", ["ablation.streams", "demo_plus", "not run", "add it there"]),
        ("tables:\n  ctrl:\n    - demo_mius\n", ["tables.ctrl", "'demo_mius'", "unknown", "demo_minus"]),
        ("tables:\n  ctrl:\n    - mixed\n    - mixed\n", ["tables.ctrl", "'mixed'", "twice"]),
        ("tables:\n  groups: demo_mius\n", ["tables.groups", "'demo_mius'", "unknown", "demo_minus"]),
        ("tables:\n  table1: []\n", ["tables.table1", "not a known key", "ctrl, mixed"]),
        ("variants:\n  near:\n    alpha: 0.8\n", ["variants.near", "beta = 0.75", "alpha = 0.8"]),
        ("data_dir: 2024-01-01\n", ["data_dir = 2024-01-01", "put it in quotes"]),
        ("preset: again\n", ["not valid YAML", "preset"]),
    ],
)
def test_a_bad_value_is_one_sentence_with_key_value_and_what_is_allowed(write, extra, parts):
    with pytest.raises(ConfigError) as caught:
        load(write(extra))
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("base", "parts"),
    [
        (MINIMAL.replace("demo_minus", "demo_mius"), ["streams", "'demo_mius'", "unknown", "demo_minus"]),
        (MINIMAL.replace("finetune", "finetun"), ["methods", "'finetun'", "unknown", "finetune"]),
        (MINIMAL.replace("- demo_minus", "- demo_minus\n  - demo_minus"), ["streams", "twice"]),
        (MINIMAL.replace("- 0", "- 0\n  - 0"), ["seeds", "[0, 0]", "different"]),
        (MINIMAL.replace("preset: test\n", ""), ["preset", "missing"]),
        (MINIMAL.replace("par:", "par: 3"), ["methods.par", "3", "block"]),
        (MINIMAL.replace("    recipe", "    skip: demo_minus\n    recipe"), ["methods.finetune.skip", "list"]),
        (MINIMAL.replace("    recipe", "    skip: [x]\n    recipe"), ["methods.finetune.skip", "'x'", "unknown"]),
        (MINIMAL.replace("    recipe", "    streams: [x]\n    recipe"), ["methods.finetune.streams", "block"]),
        (MINIMAL.replace("    recipe", "    streams: {x: {}}\n    recipe"), ["methods.finetune.streams", "'x'"]),
        (
            MINIMAL.replace("    recipe", "    streams: {demo_plus: {skip: []}}\n    recipe"),
            ["methods.finetune.streams.demo_plus", "not allowed"],
        ),
        ("- 1\n", ["list", "mapping"]),
    ],
)
def test_bad_files(write, base, parts):
    with pytest.raises(ConfigError) as caught:
        load(write(base=base))
    for part in parts:
        assert part in str(caught.value)


def test_a_missing_file_names_the_remedy(tmp_path):
    with pytest.raises(ConfigError, match="presets"):
        load(tmp_path / "params.yaml")


def test_recipes_are_overridden_by_stream_then_by_method(write):
    config = load(write("recipe:\n  epochs: 5\nrecipes:\n  demo_minus:\n    epochs: 6\n    batch_size: 32\n"))
    assert config.effective_recipe("demo_minus", "par") == Recipe(epochs=6, batch_size=32)
    assert config.effective_recipe("demo_minus", "finetune") == Recipe(epochs=7, batch_size=32)
    assert config.effective_recipe("demo_plus", "par") == Recipe(epochs=5)


def test_a_method_can_differ_on_a_stream(write):
    block = "    streams:\n      demo_plus:\n        memory: 3\n        recipe:\n          batch_size: 8\n    recipe"
    config = load(write(base=MINIMAL.replace("    recipe", block)))
    block = {"memory": 3, "recipe": {"epochs": 7, "batch_size": 8}}
    assert config.method_block("demo_plus", "finetune") == block
    assert config.method_block("demo_minus", "finetune") == {"recipe": {"epochs": 7}}
    assert config.effective_recipe("demo_plus", "finetune") == Recipe(epochs=7, batch_size=8)
    assert config.effective_recipe("demo_minus", "finetune") == Recipe(epochs=7)


def test_a_method_can_skip_a_stream(write):
    config = load(write(base=MINIMAL.replace("    recipe", "    skip: [demo_minus]\n    recipe")))
    assert config.methods_on("demo_minus") == ("par",)
    assert config.methods_on("demo_plus") == ("par", "finetune")


def test_a_variant_is_the_configuration_with_its_overrides(write):
    config = load(
        write(
            "variants:\n  fixed:\n    alpha: 0\n    search:\n      update: fixed\n"
            "ablation:\n  streams:\n    - demo_minus\n  variants:\n    - fixed\n    - fine\n"
        )
    )
    routing, search = config.routing("fixed"), config.effective("search", "fixed")
    assert (routing.alpha, search.update, search.epochs) == (0.0, "fixed", config.search.epochs)
    assert config.routing("fine").alpha == float("-inf")  # a standard variant needs no definition
    assert config.routing("par") == Routing(config.alpha, config.beta, config.freeze_below, config.distance)
    assert config.variants_on("demo_minus") == ("fixed", "fine") and config.variants_on("demo_plus") == ()


def test_variants_can_be_run_for_the_first_seeds_only(write):
    config = replace(load(write("ablation:\n  seeds: 2\n")), seeds=(4, 2, 7))
    assert config.seeds_of("par") == config.seeds_of("finetune") == (4, 2, 7) and config.seeds_of("fixed") == (4, 2)
    assert load(write()).seeds_of("fixed") == (0,)


def test_a_sweep_is_a_variant_a_value_and_does_not_follow_the_files_thresholds(write):
    config = load(
        write(
            "alpha: 0.7\nablation:\n  streams:\n    - demo_minus\n"
            "sweeps:\n  alpha:\n    - 0.2\n    - 0.8\n  beta:\n    - 0.3\n    - 0.9\n"
        )
    )
    assert config.variants_on("demo_minus") == ("alpha_020", "alpha_080", "beta_030", "beta_090")
    thresholds = {name: (r.alpha, r.beta) for name in config.known_variants if (r := config.routing(name))}
    assert thresholds["alpha_020"] == (0.2, 0.75) and thresholds["alpha_080"] == (0.8, 0.8)
    assert thresholds["beta_030"] == (0.3, 0.3) and thresholds["beta_090"] == (0.5, 0.9)


LAYERS = {  # of a recipe, each overriding the ones before it
    "base": "recipe:\n  epochs: 2\n",
    "stream": "recipes:\n  demo_minus:\n    epochs: 3\n",
    "method": "    recipe:\n      epochs: 5\n",
    "method on the stream": "    streams:\n      demo_minus:\n        recipe:\n          epochs: 7\n",
    "variant": "variants:\n  fixed:\n    recipe:\n      epochs: 11\n",
}
EPOCHS = {"base": 2, "stream": 3, "method": 5, "method on the stream": 7, "variant": 11}


@pytest.mark.parametrize("under, over", list(itertools.combinations(LAYERS, 2)))
def test_each_layer_of_a_recipe_overrides_the_ones_before_it(write, under, over):
    """A variant's recipe once gave way to the stream's and the method's, while the report printed the variant's."""
    of_method = [LAYERS[name] for name in ("method", "method on the stream") if name in (under, over)]
    others = [LAYERS[name] for name in ("base", "stream", "variant") if name in (under, over)]
    base = "preset: test\nstreams:\n  - demo_minus\nseeds:\n  - 0\nmethods:\n  par:\n"
    config = load(write("".join(of_method + others), base))
    assert resolve(config, "demo_minus", "fixed").recipe.epochs == EPOCHS[over]
    without_variant = EPOCHS[under] if over == "variant" else EPOCHS[over]
    assert resolve(config, "demo_minus", "par").recipe.epochs == without_variant


def test_hyper_parameters_of_a_stream_override_those_of_the_method(write):
    text = MINIMAL.replace(
        "  finetune:", "  ewc:\n    weight: 2\n    streams:\n      demo_minus:\n        weight: 3\n  finetune:"
    )
    config = load(write(base=text))
    assert resolve(config, "demo_minus", "ewc").hyper.weight == 3
    assert resolve(config, "demo_plus", "ewc").hyper.weight == 2
    with pytest.raises(ConfigError, match=r"methods.ewc.wieght"):
        resolve(load(write(base=text.replace("weight: 2", "wieght: 2"))), "demo_minus", "ewc")


def test_override_keeps_what_it_does_not_name():
    assert override(Recipe(epochs=3), {"batch_size": 8}, "x") == Recipe(epochs=3, batch_size=8)


def test_minus_infinity_switches_a_threshold_off(write):
    assert load(write("alpha: -.inf\n")).alpha == float("-inf")


def test_a_table_may_name_a_stream_that_is_not_run(write):
    tables = load(write("tables:\n  ctrl:\n    - demo_minus\n    - demo_long\n")).tables
    assert tables.of("ctrl") == ("demo_minus", "demo_long") and tables.of("classic") == tables.of("ablation") == ()
    assert load(write("tables:\n  ablation: demo_minus\n")).tables.of("ablation") == ("demo_minus",)


def test_none_is_allowed_only_where_the_schema_says_so():
    assert parse(Recipe, {"clip_norm": None}).clip_norm is None
    with pytest.raises(ConfigError, match="recipe.epochs"):
        parse(Recipe, {"epochs": None}, "recipe")


def test_paths_are_relative_to_the_main_checkout(monkeypatch):
    monkeypatch.setenv("DVC_ROOT", "/somewhere")
    assert configuration.resolve_path("data") == Path("/somewhere/data")
    assert configuration.resolve_path("/data") == Path("/data")


def test_nothing_reads_yaml_by_another_loader():
    """PyYAML would read the ``3e-05`` that ``dvc exp run -S`` writes as a text."""
    for folder in ("par", "pipeline"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            imported = {
                name.name.split(".")[0]
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Import)
                for name in node.names
            } | {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
            assert "yaml" not in imported, f"{path} imports yaml"


@pytest.mark.parametrize("value", ["x", 3, datetime.date(2024, 2, 29), ["first"]])
def test_a_word_that_may_be_left_out_is_refused_by_name_of_those_allowed(value):
    hint = Literal["first", "second"] | None
    with pytest.raises(ConfigError, match=r"block\.word = .* choose one of first, second\."):
        convert(hint, value, "block.word")
    assert convert(hint, "second", "block.word") == "second" and convert(hint, None, "block.word") is None
