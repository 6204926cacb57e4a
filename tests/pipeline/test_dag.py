"""dvc.yaml against params.yaml and against what the stages import."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest
from dvc.repo import Repo

from par import settings
from par.config import PAR
from par.reporting.published import load_published
from par.reporting.report import PLOTTED
from par.schema import NAME_PATTERN, read_yaml
from par.settings import resolve
from par.steps import code_digest

REPOSITORY = Path(__file__).resolve().parents[2]
DAG = read_yaml(REPOSITORY / "dvc.yaml")["stages"]
PER_STREAM = ("stream", "extract", "prototypes", "route", "search", "train", "evaluate")
PRESETS = sorted((REPOSITORY / "presets").glob("*.yaml"))


def code_deps(stage: str) -> list[str]:
    return [dep for dep in DAG[stage]["deps"] if dep.startswith(("par/", "pipeline/")) and not dep.endswith(".yaml")]


def imported_files(stage: str) -> set[str]:
    """Files of this project that decide what the stage computes."""
    stop = set(code_digest.PLUMBING) - ({"par.streams"} if stage == "stream" else set())
    modules = code_digest.import_closure([f"pipeline.{stage}"], stop)
    files = {str(code_digest.module_file(module).relative_to(REPOSITORY)) for module in modules}
    return {file for file in files if not file.endswith("__init__.py")}


@pytest.mark.parametrize("stage", [*PER_STREAM, "tables"])
def test_a_stage_lists_exactly_the_modules_that_decide_its_content(stage):
    listed, imported = code_deps(stage), imported_files(stage)
    missing = {file for file in imported if not any(file == dep or file.startswith(f"{dep}/") for dep in listed)}
    assert not missing, f"dvc.yaml: {stage} imports {missing} without listing it"
    chosen_by_name = {"par/methods", "par/cells"} if stage == "train" else set()  # the registry loads methods by name
    unused = {dep for dep in listed if not any(file == dep or file.startswith(f"{dep}/") for file in imported)}
    assert unused <= chosen_by_name, f"dvc.yaml: {stage} lists {unused} without importing it"


@pytest.mark.parametrize("stage", [*PER_STREAM, "tables"])
def test_a_stage_lists_exactly_the_folders_that_it_reads_and_writes(stage):
    named = {value for value in vars(importlib.import_module(f"pipeline.{stage}")).values() if isinstance(value, Path)}
    files = {dep for dep in DAG[stage]["deps"] if not dep.startswith(("par/", "pipeline/"))}
    files |= {out if isinstance(out, str) else next(iter(out)) for out in DAG[stage]["outs"]}
    assert {file.split("/${")[0] for file in files} == set(map(str, named))


def test_there_are_seven_stages_a_stream_one_for_the_tables_and_one_for_the_data_sets():
    assert tuple(DAG) == (*PER_STREAM, "tables")
    assert tuple(read_yaml(REPOSITORY / "pipeline/dvc.yaml")["stages"]) == ("fingerprints",)
    for stage in PER_STREAM:
        assert DAG[stage]["matrix"] == {"stream": "${streams}"}


def test_no_shell_stays_between_dvc_and_a_stage():
    for stage in PER_STREAM:
        assert DAG[stage]["cmd"] == f"exec python -m pipeline.{stage} --stream ${{item.stream}}"
    assert DAG["tables"]["cmd"] == "exec python -m pipeline.tables"


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_expands_to_all_its_stages(path, tmp_path):
    """DVC joins the values of a matrix by '-': a name with one could silently replace another stage."""
    (tmp_path / "pipeline").mkdir()
    for name in ("dvc.yaml", "pipeline/dvc.yaml"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    shutil.copy(path, tmp_path / "params.yaml")
    with Repo.init(str(tmp_path), no_scm=True) as repo:
        assert len(repo.index.stages) == len(PER_STREAM) * len(settings.load(path).streams) + 2


def test_only_route_and_tables_depend_on_the_thresholds():
    for name in ("alpha", "beta", "freeze_below"):
        assert {stage for stage in DAG if name in DAG[stage].get("params", ())} == {"route", "tables"}


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_listed_param_is_a_root_key(path):
    """DVC refuses to run a stage whose param is missing from params.yaml."""
    params = read_yaml(path)
    assert {name for stage in DAG.values() for name in stage.get("params", ())} <= set(params)
    assert {"alpha", "beta"} <= set(params)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_preset_loads_and_names_what_exists(path):
    preset = settings.load(path)
    assert preset.preset == path.stem
    assert all(NAME_PATTERN.fullmatch(name) for name in (*preset.streams, *preset.methods, *preset.variants))
    for stream in preset.streams:
        for learner in preset.learners(stream):
            assert resolve(preset, stream, learner).recipe.epochs > 0


def test_dvc_plots_the_columns_that_every_report_has():
    (plot,) = read_yaml(REPOSITORY / "dvc.yaml")["plots"]
    assert tuple(plot["reports/${preset}/curves"]["y"]) == PLOTTED


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_table_5_and_the_sweeps_of_every_preset_are_complete(path):
    preset = settings.load(path)
    if preset.tables.ablation:
        assert set(load_published().table("ablation").methods) <= {PAR, *preset.ablation.variants}
    for sweep in ("alpha", "beta"):
        assert not preset.tables.of(sweep) or len(preset.sweeps.points(sweep)) >= 6
    for name in ("ablation", "alpha", "beta"):
        assert set(preset.tables.of(name)) <= set(preset.ablation.streams)


def test_the_shipped_params_are_the_demo():
    assert PRESETS and (REPOSITORY / "params.yaml").read_text() == (REPOSITORY / "presets" / "demo.yaml").read_text()


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_threshold_can_be_swept(path, tmp_path):
    """A variant that inherited alpha would break `dvc exp run -S alpha=0.7` by a beta below it."""
    text = path.read_text()
    assert "\nalpha: 0.5\n" in text and "\nbeta: 0.75\n" in text
    for name, old, new in (("alpha", 0.5, 0.0), ("alpha", 0.5, 0.75), ("beta", 0.75, 0.5), ("beta", 0.75, 1.0)):
        changed = tmp_path / "params.yaml"
        changed.write_text(text.replace(f"\n{name}: {old}\n", f"\n{name}: {new}\n"))
        assert getattr(settings.load(changed), name) == new
