"""How a journal's models come into MLflow: a logged model of its run, and a version of a registered model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from par.files import link_or_copy, read_json
from pipeline.journal import home

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from pipeline.model_folder import Writer

DIGEST = "par.digest"  # the tag that says what a model holds: it comes into the store once, whatever asks for it again


def register(client: MlflowClient, writer: Writer, experiment: str, run: str, event: Mapping[str, Any]) -> bool:
    """Bring the model of a journal's event into the store and link it to its run; returns whether it has a new version.

    A model that an earlier run has brought is linked to this one too; one that an interrupted publication left without
    all its files is replaced.
    """
    model = _logged(client, experiment, event)
    if model is None:
        model = _log(client, writer, experiment, run, event)
        _link(client, run, model, event)
    elif not _is_linked(client, run, model):
        _link(client, run, model, event)
    return _version(client, model, run, event)


def _logged(client: MlflowClient, experiment: str, event: Mapping[str, Any]) -> str | None:
    """Id of the model that holds the event's files; None if there is no complete one."""
    found = client.search_logged_models([experiment], f"tags.`{DIGEST}` = '{event['digest']}'")
    complete = [model.model_id for model in found if model.status == "READY"]
    for model in found:
        if model.model_id not in complete:
            client.delete_logged_model(model.model_id)
    return complete[0] if complete else None


def _log(client: MlflowClient, writer: Writer, experiment: str, run: str, event: Mapping[str, Any]) -> str:
    """Write the model and upload it; returns its id."""
    from mlflow.models import Model

    title = f"{event['name']}-seed{event['tags']['seed']}"
    tags = {**event["tags"], DIGEST: event["digest"]}
    with tempfile.TemporaryDirectory(dir=writer.workplace) as folder:
        service, written = Path(folder) / "learner", Path(folder) / "model"
        service.mkdir()
        for name, copy in event["copies"].items():
            link_or_copy(home() / "files" / copy, service / name)
        learner = read_json(service / "card.json")["learner"]
        params = {name: str(value) for name, value in learner.items()}
        logged = client.create_logged_model(experiment, title, run, tags, params, model_type=learner["method"])
        known = Model(artifact_path=logged.artifact_location, run_id=run, model_id=logged.model_id)
        writer.save(written, service, known)
        client.log_model_artifacts(logged.model_id, str(written))
    client.finalize_logged_model(logged.model_id, "READY")
    return str(logged.model_id)


def _is_linked(client: MlflowClient, run: str, model: str) -> bool:
    outputs = client.get_run(run).outputs
    return outputs is not None and model in {output.model_id for output in outputs.model_outputs}


def _link(client: MlflowClient, run: str, model: str, event: Mapping[str, Any]) -> None:
    """Make the model an output of the run and give both the metrics."""
    from mlflow.entities import LoggedModelOutput, Metric

    values = {name: value for name, value in event["metrics"].items() if value is not None}
    metrics = [Metric(name, value, event["time"], 0, model_id=model, run_id=run) for name, value in values.items()]
    client.log_batch(run, metrics=metrics)
    client.log_outputs(run, [LoggedModelOutput(model, 0)])


def _version(client: MlflowClient, model: str, run: str, event: Mapping[str, Any]) -> bool:
    """Register the model unless it is; its seed's alias points to it. Returns whether it is new."""
    from mlflow.exceptions import MlflowException

    name = event["name"]
    try:
        client.create_registered_model(name, description=f"{event['tags']['learner']} on {event['tags']['stream']}")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        if client.search_model_versions(f"name = '{name}' and tags.`{DIGEST}` = '{event['digest']}'"):
            return False
    tags = {**event["tags"], DIGEST: event["digest"]}
    version = client.create_model_version(name, f"models:/{model}", run, tags, model_id=model).version
    client.set_registered_model_alias(name, f"seed{event['tags']['seed']}", version)
    return True
