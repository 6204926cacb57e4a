"""params.yaml: what loads, and the one sentence for what does not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from par import config as configuration
from par.config import ConfigError, Recipe, load, override, parse

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
        ("workers: 0\n", ["workers", "0", "at least 1"]),
        ("workers: 1.5\n", ["workers", "1.5", "a whole number"]),
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
        ("variants:\n  par:\n    alpha: 0.1\n", ["variants.par", "no usable name"]),
        ("variants:\n  a-b:\n    alpha: 0.1\n", ["variants.a-b", "no usable name"]),
        ("ablation:\n  variants:\n    - fixed\n", ["ablation.variants", "'fixed'", "unknown"]),
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
    assert config.recipe_for("demo_minus", "par") == Recipe(epochs=6, batch_size=32)
    assert config.recipe_for("demo_minus", "finetune") == Recipe(epochs=7, batch_size=32)
    assert config.recipe_for("demo_plus", "par") == Recipe(epochs=5)


def test_a_method_can_differ_on_a_stream(write):
    block = "    streams:\n      demo_plus:\n        memory: 3\n        recipe:\n          batch_size: 8\n    recipe"
    config = load(write(base=MINIMAL.replace("    recipe", block)))
    assert config.on_stream("demo_plus").methods["finetune"] == {"memory": 3, "recipe": {"epochs": 7, "batch_size": 8}}
    assert config.on_stream("demo_minus").methods["finetune"] == {"recipe": {"epochs": 7}}
    assert config.on_stream("demo_plus").on_stream("demo_plus") == config.on_stream("demo_plus")
    assert config.recipe_for("demo_plus", "finetune") == Recipe(epochs=7, batch_size=8)
    assert config.recipe_for("demo_minus", "finetune") == Recipe(epochs=7)


def test_a_method_can_skip_a_stream(write):
    config = load(write(base=MINIMAL.replace("    recipe", "    skip: [demo_minus]\n    recipe")))
    assert config.methods_on("demo_minus") == ("par",)
    assert config.methods_on("demo_plus") == ("par", "finetune")


def test_a_variant_is_the_configuration_with_its_overrides(write):
    config = load(
        write(
            "variants:\n  fixed:\n    alpha: 0\n    search:\n      update: fixed\n"
            "ablation:\n  streams:\n    - demo_minus\n  variants:\n    - fixed\n"
        )
    )
    varied = config.variant("fixed")
    assert (varied.alpha, varied.search.update, varied.search.epochs) == (0.0, "fixed", config.search.epochs)
    assert config.variant("par") is config
    assert config.variants_on("demo_minus") == ("fixed",) and config.variants_on("demo_plus") == ()


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
