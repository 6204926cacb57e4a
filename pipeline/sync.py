"""Publish journals (`pipeline.journal`) to MLflow: ``python -m pipeline.sync [--rebuild]``.

Stages call :func:`publish` themselves when it is due; the command is for what they could not deliver. ``--rebuild``
publishes the journals that were delivered before as well: runs that the store still has are left alone, so it fills a
new, lost or damaged store. It also tags each pipeline run of a DVC experiment with the experiment's own commit, which
exists only after the experiment has ended.

The store is ``sqlite:///$DVC_ROOT/mlflow.db`` with artifacts in ``$DVC_ROOT/mlartifacts``; MLFLOW_TRACKING_URI wins.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from filelock import FileLock

from par.config import resolve_path
from par.settings import load
from pipeline.journal import OWN, PARENT, home, read_closed

if TYPE_CHECKING:  # importing MLflow costs 1.4 s (sources.md#mlflow)
    from mlflow import MlflowClient

METRICS_PER_CALL = 500  # of the 1,000 that MLflow's server allows in one batch
PARAMS_PER_CALL = 100  # MLflow's limit
LONGEST_PARAM = 6000  # characters; MLflow refuses more
LONGEST_DIGEST = 36  # characters; MLflow refuses more
LOCK_SECONDS = 120  # publishing is serial; a whole rebuild of 400 runs took less


def publish(rebuild: bool = False) -> str:
    """Publish every journal whose stage has ended, oldest first, and return the outcome in words.

    One process at a time: MLflow's sqlite migrations fail when two processes make first contact together
    (sources.md#mlflow), and two might create the same parent. A journal that was published in part before,
    because the server went away, is published anew and the part removed.

    Raises:
        Exception: of any kind, from MLflow, where the store cannot be reached; all journals not delivered are kept.
    """
    n_published, failures = 0, []
    with _open_store() as store:
        patterns = ("*.jsonl", "*.done") if rebuild else ("*.jsonl",)
        for path in sorted(path for pattern in patterns for path in (home() / "journal").glob(pattern)):
            try:
                events = read_closed(path)
                if events is not None:
                    n_published += store.publish(path.stem, events)
                    path.rename(path.with_suffix(".done"))
            except Exception as error:
                store.check()  # raises where the store has gone: no use to wait for it once per journal
                failures.append(f"{path}: {' '.join(str(error).split())[:200]}")
    lost = [f"MLflow: not published, kept: {failure}" for failure in failures]
    return "\n".join([f"MLflow: {n_published} runs published.", *lost])


def deep_links(experiment: str) -> list[str]:
    """Addresses in the MLflow UI: of the runs, and where there are several pipeline runs, of their comparison.

    MLflow 3 opens an experiment in its GenAI view, which shows no runs; ``workflowType`` avoids that.
    """
    with _open_store() as store:
        return store.links(experiment)


@contextmanager
def _open_store() -> Iterator[_Store]:
    """The store, opened and used under the publication lock."""
    # A server that is away must cost seconds: MLflow's own defaults block for four minutes (sources.md#mlflow).
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    from mlflow import MlflowClient

    root = resolve_path(".").resolve()
    home().mkdir(exist_ok=True)
    with FileLock(home() / "publish.lock", timeout=LOCK_SECONDS):
        address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"
        yield _Store(MlflowClient(address), address, root / "mlartifacts")


class _Store:
    """An MLflow store, used through explicit clients: the fluent interface keeps hidden state per process."""

    def __init__(self, client: MlflowClient, address: str, artifacts: Path) -> None:
        self.client = client
        self.address = address
        self.is_server = address.startswith("http")
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
        """
        if name not in self.experiments:
            found = self.client.get_experiment_by_name(name)
            place = None if self.is_server else (self.artifacts / name).as_uri()
            self.experiments[name] = found.experiment_id if found else self.client.create_experiment(name, place)
        return self.experiments[name]

    def parents(self, experiment: str, condition: str = "") -> list[Any]:
        """The pipeline runs of an experiment, newest first (at most 100)."""
        role = "tags.`par.role` = 'pipeline'"
        return self.client.search_runs([experiment], role + condition, max_results=100)

    def links(self, name: str) -> list[str]:
        """See :func:`deep_links`."""
        experiment = self.experiment(name)
        server = self.address.rstrip("/") if self.is_server else "http://127.0.0.1:5000"
        mode = "workflowType=machine_learning"
        lines = [
            f"MLflow runs ({'' if self.is_server else 'make ui, then '}open): "
            f"{server}/#/experiments/{experiment}/runs?{mode}"
        ]
        runs = [run.info.run_id for run in self.parents(experiment)]
        if len(runs) > 1:
            query = f"runs={quote(json.dumps(runs))}&experiments={quote(json.dumps([experiment]))}&{mode}"
            lines.append(f"MLflow comparison of the pipeline's runs: {server}/#/compare-runs?{query}")
        return lines

    def publish(self, journal: str, events: list[dict[str, Any]]) -> int:
        """Bring one journal into the store; returns the number of runs created, 0 if they were there already."""
        runs = _by_run(events)
        if OWN not in runs:  # the stage died before it had begun
            return 0
        identity, *headline = runs.pop(PARENT)
        own = runs[OWN]
        if len(runs) > 1 and len(own) == 2 and own[-1].get("status") == "FINISHED":
            del runs[OWN]  # start and end and nothing else: it left all to its children
        experiment = self.experiment(identity["experiment"])
        present = self.client.search_runs([experiment], f"tags.`par.journal` = '{journal}'")
        if len(present) == len(runs) and all(run.info.status != "RUNNING" for run in present):
            return 0
        for run in present:
            self.client.delete_run(run.info.run_id)
        parent = self.parent(experiment, identity)
        self._fill(parent, headline)
        for run_events in runs.values():
            tags = identity["tags"] | {
                "mlflow.parentRunId": parent,
                "par.pipeline": identity["pipeline"],
                "par.role": "stage",
                "par.journal": journal,
                "dvc.stage": identity["stage"],
            }
            start, end = run_events[0], run_events[-1]
            run = self.client.create_run(experiment, start["time"], tags, start["name"]).info.run_id
            self._fill(run, run_events)
            self._end(run, end)
        self._end(parent, own[-1])
        return len(runs)

    def parent(self, experiment: str, identity: dict[str, Any]) -> str:
        """Id of the run of the journal's pipeline state, created if it is the first journal of that state."""
        key = identity["pipeline"]
        found = self.parents(experiment, f" and tags.`par.pipeline` = '{key}'")
        if found:
            return found[0].info.run_id
        tags = identity["tags"] | {"par.pipeline": key, "par.role": "pipeline"}
        run = self.client.create_run(experiment, identity["time"], tags, identity["name"]).info.run_id
        self.client.log_dict(run, identity["config"], "config.yaml")
        self._params(run, identity["params"])
        return run

    def _end(self, run: str, last: dict[str, Any]) -> None:
        """Give a run its end; one without (its process was killed) ends KILLED at its last event.

        A pipeline's run takes the status of the stage that was published last.
        """
        self.client.set_terminated(run, last.get("status", "KILLED"), last["time"])

    def _fill(self, run: str, events: Iterable[dict[str, Any]]) -> None:
        """Log everything that a run's events hold."""
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
            elif event["kind"] == "end":
                self.client.set_tag(run, "env.device", event["device"])
        self._params(run, params)
        for start in range(0, len(metrics), METRICS_PER_CALL):
            self.client.log_batch(run, metrics=metrics[start : start + METRICS_PER_CALL])
        if inputs:
            self.client.log_inputs(run, inputs)

    def _params(self, run: str, values: dict[str, Any]) -> None:
        """Log the params that the run has not yet: MLflow refuses to change one."""
        from mlflow.entities import Param

        known = self.client.get_run(run).data.params if values else {}
        params = [Param(_name(key), str(value)[:LONGEST_PARAM]) for key, value in values.items()]
        params = [param for param in params if param.key not in known]
        for start in range(0, len(params), PARAMS_PER_CALL):
            self.client.log_batch(run, params=params[start : start + PARAMS_PER_CALL])


def tag_experiments(experiment: str) -> int:
    """Tag the pipeline runs of DVC experiments with ``dvc.exp_rev``, the experiment's commit; returns how many."""
    n_tagged = 0
    with _open_store() as store:
        for run in store.parents(store.experiment(experiment), " and tags.`dvc.exp` != ''"):
            tags = run.data.tags
            baseline = tags["dvc.baseline"]
            reference = f"refs/exps/{baseline[:2]}/{baseline[2:]}/{tags['dvc.exp']}"
            command = ["git", "-C", str(resolve_path(".")), "rev-parse", "--verify", "--quiet", reference]
            commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
            if commit and tags.get("dvc.exp_rev") != commit:
                store.client.set_tag(run.info.run_id, "dvc.exp_rev", commit)
                n_tagged += 1
    return n_tagged


def _by_run(events: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The events of each run, in order."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        runs.setdefault(event["run"], []).append(event)
    return runs


def _name(name: str) -> str:
    """A name that MLflow accepts for a metric or param."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", "_", name)


def main() -> None:
    """Entry point of ``python -m pipeline.sync``."""
    parser = argparse.ArgumentParser(description="Publish the journals of finished stages to MLflow.")
    parser.add_argument("--rebuild", action="store_true", help="also those published before: fills a new store")
    arguments = parser.parse_args()
    experiment = load().tracking.experiment
    print(publish(rebuild=arguments.rebuild))
    n_tagged = tag_experiments(experiment)
    if n_tagged:
        print(f"MLflow: {n_tagged} pipeline runs tagged with the commit of their DVC experiment.")
    print("\n".join(deep_links(experiment)))


if __name__ == "__main__":
    main()
