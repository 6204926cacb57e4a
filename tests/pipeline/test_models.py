"""Learners that stages record become models in MLflow: once, linked to their runs, and at nobody's cost."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from par.config import Tracking
from par.files import write_json
from par.streams import Stream
from pipeline.models import record_models
from pipeline.tracking import stage
from tests.pipeline.helpers import CONFIG, journals, make_checkout, migrated_database, publish, runs

NAME = "par-a-finetune"
CARD = {
    "stream": {"name": "a"},
    "learner": {"learner": "finetune", "method": "finetune", "recipe": {"epochs": 2}},
    "tasks": [{"index": 0, "image_size": [8, 8]}],
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    return make_checkout(tmp_path, monkeypatch)


def learner(folder: Path, content: str = "tensors") -> Path:
    """A folder like those of :func:`par.use.card.write_service`; MLflow looks into none of its files but the card."""
    folder.mkdir(exist_ok=True)
    write_json(folder / "card.json", CARD)
    (folder / "model.pt").write_text(content)
    return folder


def evaluate(folder: Path, seed: int = 0, **publishing: bool) -> None:
    """A stage that records one learner."""
    with stage(CONFIG, "evaluate", item="a", **publishing) as run:
        run.metrics({"AP/finetune": 0.5})
        with run.child(f"finetune seed {seed}") as child:
            tags = {"stream": "a", "learner": "finetune", "seed": str(seed)}
            child.model(NAME, folder, {"AP": 0.5, "AF": None}, tags)


def client(checkout: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{checkout / 'mlflow.db'}")


def versions(checkout: Path) -> list[Any]:
    """The registered versions, oldest first."""
    return sorted(client(checkout).search_model_versions(f"name = '{NAME}'"), key=lambda version: int(version.version))


def models_of(checkout: Path) -> list[Any]:
    """The logged models."""
    experiment = client(checkout).get_experiment_by_name("par").experiment_id
    return client(checkout).search_logged_models([experiment])


def test_a_learner_becomes_a_version_linked_to_its_run_with_its_metrics(checkout):
    evaluate(learner(checkout / "learner"))
    assert publish().splitlines() == ["MLflow: 2 runs published.", "MLflow: 1 model versions registered."]
    (version,), (model,) = versions(checkout), models_of(checkout)
    of_stage, of_learner = runs(checkout, "stage")
    assert of_learner.info.run_name == "evaluate@a finetune seed 0" and of_learner.data.metrics == {"AP": 0.5}
    assert [output.model_id for output in of_learner.outputs.model_outputs] == [model.model_id]
    assert of_stage.outputs is None or not of_stage.outputs.model_outputs
    assert model.status == "READY" and model.source_run_id == of_learner.info.run_id == version.run_id
    assert {metric.key: metric.value for metric in model.metrics} == {"AP": 0.5}
    assert model.params["learner"] == "finetune" and model.tags["seed"] == "0" and version.tags["stream"] == "a"
    assert client(checkout).get_model_version_by_alias(NAME, "seed0").version == version.version
    place = Path(model.artifact_location.removeprefix("file://"))
    assert (place / "data/learner/model.pt").read_text() == "tensors"
    assert (place / "requirements.txt").read_text().startswith("par-pipeline==")
    assert (place / "input_example.json").is_file() and "model_size_bytes" in (place / "MLmodel").read_text()


def test_the_journal_links_to_the_tensors_and_does_not_copy_them(checkout):
    folder = learner(checkout / "learner")
    evaluate(folder)
    (kept,) = (checkout / ".mlflow/files").glob("*/model.pt")
    assert os.path.samefile(kept, folder / "model.pt")
    (folder / "model.pt").unlink()
    publish()
    assert len(versions(checkout)) == 1


def test_replaying_journals_registers_nothing_twice(checkout):
    evaluate(learner(checkout / "learner"))
    publish()
    before = versions(checkout), models_of(checkout)
    assert publish(rebuild=True) == "MLflow: 0 runs published."
    assert [version.creation_timestamp for version in versions(checkout)] == [before[0][0].creation_timestamp]
    assert [model.model_id for model in models_of(checkout)] == [before[1][0].model_id]
    shutil.copy(migrated_database(), checkout / "mlflow.db")
    assert "1 model versions registered" in publish(rebuild=True)
    assert len(versions(checkout)) == len(models_of(checkout)) == 1


def test_an_equal_learner_is_no_new_version_and_another_one_is(checkout):
    for content in ("tensors", "tensors", "others"):
        evaluate(learner(checkout / "learner", content))
        publish()
    assert len(versions(checkout)) == len(models_of(checkout)) == 2
    linked = [
        output.model_id
        for run in runs(checkout, "stage")
        for output in (run.outputs.model_outputs if run.outputs else [])
    ]
    assert len(linked) == 3 and len(set(linked)) == 2
    assert client(checkout).get_model_version_by_alias(NAME, "seed0").version == versions(checkout)[1].version


@pytest.mark.parametrize("broken", ["save_model", "log_model_artifacts", "log_outputs", "create_model_version"])
def test_an_interrupted_registration_is_taken_up_again(broken, checkout, monkeypatch):
    evaluate(learner(checkout / "learner"))
    with stage(CONFIG, "tables"):
        pass

    def fail(*arguments, **named):
        raise ConnectionError("server went away")

    with monkeypatch.context() as patch:
        if broken == "save_model":
            patch.setattr("pipeline.model_folder.Writer.save", fail)
        else:
            patch.setattr(MlflowClient, broken, fail)
        said = publish()
    assert "3 runs published" in said and "server went away" in said and "registered" not in said
    assert len(journals(checkout, ".jsonl")) == 1, "the other stage does not wait for the model"
    assert publish().splitlines() == ["MLflow: 0 runs published.", "MLflow: 1 model versions registered."]
    (model,), (version,) = models_of(checkout), versions(checkout)
    assert version.source == f"models:/{model.model_id}" and model.status == "READY"
    of_learner = runs(checkout, "stage")[1]
    assert model.source_run_id == of_learner.info.run_id and of_learner.info.lifecycle_stage == "active"
    history = client(checkout).get_metric_history(of_learner.info.run_id, "AP")
    assert [point.value for point in history] == [0.5]
    assert journals(checkout, ".jsonl") == []


def test_a_model_waits_for_a_server_that_is_away(checkout, monkeypatch, capfd):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    evaluate(learner(checkout / "learner"), publish=True)
    assert "MLflow is out of reach" in capfd.readouterr().out
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert "1 model versions registered" in publish()


def test_a_learner_whose_files_cannot_be_kept_costs_events_not_the_stage(checkout, capfd):
    folder = learner(checkout / "learner")
    (checkout / ".mlflow").mkdir()
    (checkout / ".mlflow/files").write_text("no folder")
    evaluate(folder)
    assert "1 of 7 events of evaluate@a are not recorded" in capfd.readouterr().out


def test_what_prevents_models_is_printed_and_the_stage_goes_on(checkout, capfd):
    built = {0: Stream("a", 0, (), "")}
    for models in ("first_seed", "none"):
        config = dataclasses.replace(CONFIG, tracking=Tracking(models=models))
        with stage(config, "evaluate", item="a") as run:
            record_models(config, built, {"finetune": {"0": {}}}, checkout / "none.npz", checkout / "none.npz", run)
        said = capfd.readouterr().out
        assert ("MLflow: not all models are recorded (" in said) == (models == "first_seed")
        assert ("none.npz does not exist; run the pipeline" in said) == (models == "first_seed")
    publish()
    assert {run.info.status for run in runs(checkout, "stage")} == {"FINISHED"} and models_of(checkout) == []
