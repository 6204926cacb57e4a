"""An MLflow store, and how journals become runs in it."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterable
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from par.config import resolve_path
from pipeline.address import DATABASE, is_server, shown, ui_address
from pipeline.journal import OWN, PARENT, home

if TYPE_CHECKING:  # importing MLflow costs 1.4 s (sources.md#mlflow)
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Param

METRICS_PER_CALL = 500  # of the 1,000 that MLflow's server allows in one batch
PARAMS_PER_CALL = 100  # MLflow's limit
MOST_RUNS = 10_000  # of one journal
LONGEST_PARAM = 6000  # characters; MLflow refuses more
LONGEST_DIGEST = 36  # characters; MLflow refuses more


class DeletedExperimentError(RuntimeError):
    """The experiment was deleted in MLflow; the text names the way back."""


class Store:
    """An MLflow store, used through explicit clients: the fluent interface keeps hidden state per process."""

    def __init__(self, client: MlflowClient, address: str, artifacts: Path) -> None:
        self.client = client
        self.address = address
        self.artifacts = artifacts
        self.experiments: dict[str, str] = {}
        self.check()

    def check(self) -> None:
        """Raise what MLflow raises where the store cannot be reached."""
        self.client.search_experiments(max_results=1)

    def experiment(self, name: str) -> str:
        """Id of the experiment, created if need be.

        MLflow would otherwise fix the artifacts' place by the current directory of whoever comes first, which in a
        temporary experiment is deleted at its end. A server has a place of its own.

        Raises:
            DeletedExperimentError: it was deleted; MLflow keeps it, and its name, until it is restored or purged.
        """
        if name not in self.experiments:
            found: Experiment | None = self.client.get_experiment_by_name(name)
            if found and found.lifecycle_stage == "deleted":
                where = "" if is_server(self.address) else f"MLFLOW_TRACKING_URI={shown(self.address)} "
                raise DeletedExperimentError(
                    f"experiment {name} was deleted in MLflow; bring it back with "
                    f"{where}mlflow experiments restore --experiment-id {found.experiment_id}"
                )
            place = None if is_server(self.address) else (self.artifacts / name).as_uri()
            self.experiments[name] = found.experiment_id if found else self.client.create_experiment(name, place)
        return self.experiments[name]

    def parents(self, experiment: str, condition: str = "") -> list[Any]:
        """The pipeline runs of an experiment, newest first (at most 100)."""
        role = "tags.`par.role` = 'pipeline'"
        return self.client.search_runs([experiment], role + condition, max_results=100)

    def links(self, name: str) -> list[str]:
        """Addresses in the MLflow UI: of the runs, and where there are several pipeline runs, of their comparison.

        MLflow 3 opens an experiment in its GenAI view, which shows no runs; ``workflowType`` avoids that.
        """
        experiment = self.experiment(name)
        server = shown(self.address).rstrip("/") if is_server(self.address) else ui_address()
        mode = "workflowType=machine_learning"
        lines = [
            f"MLflow runs ({'make ui, then ' if self.address == DATABASE else ''}open): "
            f"{server}/#/experiments/{experiment}/runs?{mode}"
        ]
        runs = [run.info.run_id for run in self.parents(experiment)]
        if len(runs) > 1:
            query = f"runs={quote(json.dumps(runs))}&experiments={quote(json.dumps([experiment]))}&{mode}"
            lines.append(f"MLflow comparison of the pipeline's runs: {server}/#/compare-runs?{query}")
        return lines

    def publish(self, journal: str, events: list[dict[str, Any]]) -> int:
        """Bring one journal into the store; returns the number of runs created, 0 if they were there already.

        Runs that an interrupted publication has finished stay; the one in progress is removed and published anew.
        """
        runs = _by_run(events)
        if OWN not in runs:  # the stage died before it had begun
            return 0
        identity, *headline = runs.pop(PARENT)
        own = runs[OWN]
        if len(runs) > 1 and len(own) == 2 and own[-1].get("status") == "FINISHED":
            del runs[OWN]  # start and end and nothing else: it left all to its children
        experiment = self.experiment(identity["experiment"])
        present = set()
        for run in self.client.search_runs([experiment], f"tags.`par.journal` = '{journal}'", max_results=MOST_RUNS):
            if run.info.status == "RUNNING":
                self.client.delete_run(run.info.run_id)
            else:
                present.add((run.info.run_name, run.info.start_time))
        missing = [run for run in runs.values() if (run[0]["name"], run[0]["time"]) not in present]
        if not missing:
            return 0
        parent = self.parent(experiment, identity)
        self._fill(parent, headline, known=self.client.get_run(parent).data.params if headline else {})
        for run_events in missing:
            tags = identity["tags"] | {
                "mlflow.parentRunId": parent,
                "par.pipeline": identity["pipeline"],
                "par.role": "stage",
                "par.journal": journal,
                "dvc.stage": identity["stage"],
            }
            start, end = run_events[0], run_events[-1]
            if end["kind"] == "end":
                tags["env.device"] = end["device"]
            run = self.client.create_run(experiment, start["time"], tags, start["name"]).info.run_id
            self._fill(run, run_events)
            self._end(run, end)
        self._end(parent, own[-1])
        return len(missing)

    def register(self, journal: str, events: list[dict[str, Any]]) -> int:
        """Bring the models of a published journal into the store; returns how many registered versions are new."""
        from pipeline.mlflow_models import register
        from pipeline.model_folder import Writer

        runs = _by_run(events)
        experiment = self.experiment(runs[PARENT][0]["experiment"])
        found = self.client.search_runs([experiment], f"tags.`par.journal` = '{journal}'", max_results=MOST_RUNS)
        ids = {(run.info.run_name, run.info.start_time): run.info.run_id for run in found}
        with tempfile.TemporaryDirectory(dir=home()) as folder:  # where files can be linked
            writer = Writer(Path(folder))
            return sum(
                register(self.client, writer, experiment, ids[of_run[0]["name"], of_run[0]["time"]], event)
                for of_run in runs.values()
                for event in of_run
                if event["kind"] == "model"
            )

    def parent(self, experiment: str, identity: dict[str, Any]) -> str:
        """Id of the run of the journal's pipeline state, created if it is the first journal of that state."""
        key = identity["pipeline"]
        found = self.parents(experiment, f" and tags.`par.pipeline` = '{key}'")
        if found:
            return found[0].info.run_id
        tags = identity["tags"] | {"par.pipeline": key, "par.role": "pipeline"}
        run = self.client.create_run(experiment, identity["time"], tags, identity["name"]).info.run_id
        self.client.log_dict(run, identity["config"], "config.yaml")
        for params in _params(identity["params"], known={}):
            self.client.log_batch(run, params=params)
        return run

    def _end(self, run: str, last: dict[str, Any]) -> None:
        """Give a run its end; one without (its process was killed) ends KILLED at its last event.

        A pipeline's run takes the status of the stage that was published last.
        """
        self.client.set_terminated(run, last.get("status", "KILLED"), last["time"])

    def _fill(self, run: str, events: Iterable[dict[str, Any]], known: Collection[str] = ()) -> None:
        """Log everything that a run's events hold, in as few calls as there can be: each costs milliseconds.

        Args:
            known: names of the params that the run has: MLflow refuses to change one.
        """
        from mlflow.entities import Dataset, DatasetInput, Metric

        params: dict[str, Any] = {}
        metrics, inputs = [], []
        for event in events:
            if event["kind"] == "params":
                params |= event["values"]
            elif event["kind"] == "metrics":
                metrics += [Metric(_name(name), value, event["time"], step) for name, value, step in event["values"]]
            elif event["kind"] == "artifact":
                self.client.log_artifact(run, str(home() / "files" / event["file"]), event["folder"] or None)
            elif event["kind"] == "dataset":
                columns = [{"name": name, "type": kind, "required": True} for name, kind in event["columns"].items()]
                schema, profile = {"mlflow_colspec": columns}, {"num_rows": event["n_rows"]}
                source, digest = {"uri": event["source"]}, event["digest"][:LONGEST_DIGEST]
                inputs.append(
                    DatasetInput(
                        Dataset(event["name"], digest, "dvc", *(json.dumps(part) for part in (source, schema, profile)))
                    )
                )
        of_metrics = [metrics[start : start + METRICS_PER_CALL] for start in range(0, len(metrics), METRICS_PER_CALL)]
        for some_metrics, some_params in zip_longest(of_metrics, _params(params, known), fillvalue=()):
            self.client.log_batch(run, metrics=some_metrics, params=some_params)
        if inputs:
            self.client.log_inputs(run, inputs)

    def tag_experiments(self, experiment: str) -> int:
        """Tag the pipeline runs of DVC experiments with ``dvc.exp_rev``, the experiment's commit; returns how many."""
        n_tagged = 0
        for run in self.parents(self.experiment(experiment), " and tags.`dvc.exp` != ''"):
            tags = run.data.tags
            baseline = tags["dvc.baseline"]
            reference = f"refs/exps/{baseline[:2]}/{baseline[2:]}/{tags['dvc.exp']}"
            command = ["git", "-C", str(resolve_path(".")), "rev-parse", "--verify", "--quiet", reference]
            commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
            if commit and tags.get("dvc.exp_rev") != commit:
                self.client.set_tag(run.info.run_id, "dvc.exp_rev", commit)
                n_tagged += 1
        return n_tagged


def _by_run(events: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The events of each run, in order."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        runs.setdefault(event["run"], []).append(event)
    return runs


def _params(values: dict[str, Any], known: Collection[str]) -> list[list[Param]]:
    """The params that are not ``known``, in batches of as many as MLflow takes."""
    from mlflow.entities import Param

    params = [Param(_name(key), str(value)[:LONGEST_PARAM]) for key, value in values.items() if _name(key) not in known]
    return [params[start : start + PARAMS_PER_CALL] for start in range(0, len(params), PARAMS_PER_CALL)]


def _name(name: str) -> str:
    """A name that MLflow accepts for a metric or param."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", "_", name)
