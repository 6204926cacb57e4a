"""Journals become MLflow runs exactly once, and become them again in an empty store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline import mlflow_store, sync
from pipeline.tracking import stage
from tests.pipeline.helpers import CONFIG, git, journals, make_checkout, migrated_database, publish, runs


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    return make_checkout(tmp_path, monkeypatch)


def write_pipeline() -> None:
    """Two stages of one pipeline, unpublished."""
    with stage(CONFIG, "train", item="a") as run:
        for seed in (0, 1):
            with run.child(f"par seed {seed}") as child:
                child.params({"method": "par"})
                child.curves({"task 0": [{"epoch": i, "loss": 1 / (i + seed + 1)} for i in range(700)]})
                child.text("log.csv", f"seed {seed}")
                child.dataset("a", "f" * 64, "dvc:data/streams/a", [{"task": "t"}])
    with stage(CONFIG, "tables") as run:
        run.parent_metrics({"AP/a.par": 0.5})
        run.parent_params({"commit": "x"})


def contents(checkout: Path) -> list[tuple]:
    """All that the store tells about its runs, apart from ids that it makes up."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{checkout / 'mlflow.db'}")
    told = []
    for run in [*runs(checkout, "pipeline"), *runs(checkout, "stage")]:
        history = [
            [(point.step, point.value, point.timestamp) for point in client.get_metric_history(run.info.run_id, name)]
            for name in sorted(run.data.metrics)
        ]
        artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
        files = {path.name: path.read_text() for path in sorted(artifacts.rglob("*")) if path.is_file()}
        tags = {name: value for name, value in run.data.tags.items() if name != "mlflow.parentRunId"}
        datasets = [(given.dataset.name, given.dataset.schema) for given in run.inputs.dataset_inputs]
        info = (run.info.run_name, run.info.status, run.info.start_time, run.info.end_time)
        told.append((info, run.data.params, run.data.metrics, history, files, tags, datasets))
    return told


def test_rebuilt_store_equals_the_original(checkout):
    write_pipeline()
    assert publish() == "MLflow: 3 runs published."
    original = contents(checkout)
    assert len(original) == 4 and len(original[1][3][0]) == 700  # one parent, three runs, all points of a curve
    shutil.rmtree(checkout / "mlartifacts")
    shutil.copy(migrated_database(), checkout / "mlflow.db")
    assert contents(checkout) == [] and publish() == "MLflow: 0 runs published."
    assert publish(rebuild=True) == "MLflow: 3 runs published."
    assert contents(checkout) == original


def test_rebuild_leaves_runs_alone_that_are_there(checkout):
    write_pipeline()
    publish()
    original = [run.info.run_id for run in runs(checkout, "stage")]
    assert publish(rebuild=True) == "MLflow: 0 runs published."
    assert [run.info.run_id for run in runs(checkout, "stage")] == original


def test_journal_published_in_part_keeps_the_whole_runs_and_replaces_the_others(checkout, monkeypatch):
    write_pipeline()
    end, n_ended = mlflow_store.Store._end, []

    def fail_at_the_second(*arguments):
        n_ended.append(1)
        if len(n_ended) == 2:
            raise ConnectionError("server went away")
        end(*arguments)

    monkeypatch.setattr(mlflow_store.Store, "_end", fail_at_the_second)
    report = publish()
    assert "server went away" in report and "kept" in report
    assert len(journals(checkout, ".jsonl")) == 1 and len(journals(checkout, ".done")) == 1
    whole, _ = runs(checkout, "stage")[:2]
    monkeypatch.setattr(mlflow_store.Store, "_end", end)
    assert publish() == "MLflow: 1 runs published."
    assert runs(checkout, "stage")[0].info.run_id == whole.info.run_id
    assert [run.info.run_name for run in runs(checkout, "stage")] == [
        "train@a par seed 0",
        "train@a par seed 1",
        "tables",
    ]
    assert {run.info.status for run in runs(checkout, "stage") + runs(checkout, "pipeline")} == {"FINISHED"}


def test_damaged_journal_is_named_and_stops_no_other(checkout):
    write_pipeline()
    damaged, _ = journals(checkout, ".jsonl")
    damaged.write_text("{ no JSON\n")
    assert str(damaged) in publish()
    assert [run.info.run_name for run in runs(checkout, "stage")] == ["tables"]


def test_line_cut_off_by_a_power_failure_is_left_out(checkout):
    with stage(CONFIG, "train", item="a") as run:
        run.metrics({"AP": 0.5})
        run.metrics({"AF": 0.5})
    (journal,) = journals(checkout, ".jsonl")
    text = journal.read_text()
    journal.write_text(text[: text.index('"AF"')])
    publish()
    (child,) = runs(checkout, "stage")
    assert child.data.metrics == {"AP": 0.5} and child.info.status == "KILLED"


def test_names_that_mlflow_refuses_are_made_acceptable(checkout):
    with stage(CONFIG, "train", item="a", publish=True) as run:
        run.metrics({"accuracy (é)": 1.0})
        run.params({"note": "x" * 7000})
    (child,) = runs(checkout, "stage")
    assert child.data.metrics == {"accuracy ___": 1.0} and len(child.data.params["note"]) == 6000


def test_pipeline_of_a_dvc_experiment_is_tagged_with_its_commit(checkout, monkeypatch):
    git(checkout, "init", "--quiet")
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "baseline")
    baseline = git(checkout, "rev-parse", "HEAD")
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "experiment")
    experiment = git(checkout, "rev-parse", "HEAD")
    git(checkout, "update-ref", f"refs/exps/{baseline[:2]}/{baseline[2:]}/alpha-1", experiment)
    with stage(CONFIG, "tables", publish=True):
        pass
    monkeypatch.setenv("DVC_EXP_NAME", "alpha-1")
    monkeypatch.setenv("DVC_EXP_BASELINE_REV", baseline)
    with stage(CONFIG, "tables", publish=True):
        pass
    assert sync.publish("par", tag=True).n_tagged == 1 and sync.publish("par", tag=True).n_tagged == 0
    assert [run.data.tags.get("dvc.exp_rev") for run in runs(checkout, "pipeline")] == [None, experiment]


@pytest.mark.slow
def test_a_stage_that_dvc_runs_publishes_through_a_process_of_its_own(tmp_path, monkeypatch):
    """That process begins a session of its own, which is no sign of a dvc that has died."""
    checkout = make_checkout(tmp_path, monkeypatch, fork=False)
    monkeypatch.setenv("DVC_STAGE", "tables")
    with stage(CONFIG, "tables", publish=True) as run:
        run.metrics({"AP": 0.5})
    assert len(runs(checkout, "stage")) == 1
