"""A checkout with an MLflow store of its own, for the tests of `pipeline.tracking` and `pipeline.sync`."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from par.config import Config
from pipeline import publisher, sync
from pipeline.journal import wait_again

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = Config(preset="test", streams=(), seeds=(0,), methods={})
# a stage as a program: it runs the code of its first argument with the handle `run`
PROGRAM = """
import os, signal, sys, time
from par.config import Config
from pipeline.tracking import stage
with stage(Config(preset="test", streams=(), seeds=(0,), methods={}), "train", item="a", publish=True) as run:
    exec(sys.argv[1])
"""


@functools.cache
def migrated_database() -> Path:
    """An MLflow database with tables and no experiment of ours; making one takes 4 to 10 s (sources.md#mlflow)."""
    from mlflow import MlflowClient

    path = Path(tempfile.mkdtemp(prefix="par-test-")) / "mlflow.db"
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@contextmanager
def forked_publisher(task: dict[str, Any]) -> Iterator[Connection]:
    """The publishing process as a fork of this one, which has loaded MLflow: a new one takes 2 to 6 s for that."""
    import mlflow  # noqa: F401

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve_quietly, args=(theirs,))
    process.start()
    theirs.close()
    try:
        ours.send(task)
        yield ours
    finally:
        process.kill()
        process.join()
        ours.close()


def _serve_quietly(connection: Connection) -> None:
    """Answer without a word on the terminal, as the new process would."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    sys.stdout = sys.stderr = open(os.devnull, "w")
    publisher.serve(connection)


def make_checkout(folder: Path, monkeypatch: pytest.MonkeyPatch, *, database: bool = True, fork: bool = True) -> Path:
    """Make ``folder`` the main checkout and the current directory, with no trace of an outer DVC, MLflow or git.

    With ``fork``, what this process publishes is published by a fork, otherwise by a new process as in real use.
    """
    if fork:
        monkeypatch.setattr(sync, "_publisher", forked_publisher)
    for name in [name for name in os.environ if name.startswith(("DVC_", "MLFLOW_", "GIT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DVC_ROOT", str(folder))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    monkeypatch.chdir(folder)
    if database:
        shutil.copy(migrated_database(), folder / "mlflow.db")
    return folder


def publish(*, rebuild: bool = False) -> str:
    """Publish the journals of the checkout as `pipeline.sync` does; returns the outcome in words."""
    if rebuild:
        wait_again()
    return "\n".join(sync.publish("par").lines())


def start_stage(code: str, **environment: str) -> subprocess.Popen:
    """Start a process that runs ``code`` inside a stage ``train@a``."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, code],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def runs(checkout: Path, role: str) -> list:
    """The runs of a role (``pipeline`` or ``stage``) in a checkout's store, oldest first."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{checkout / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("par")
    if experiment is None:
        return []
    found = client.search_runs([experiment.experiment_id], f"tags.`par.role` = '{role}'")
    return sorted(found, key=lambda run: (run.info.start_time, run.info.run_name))


def journals(checkout: Path, suffix: str) -> list[Path]:
    """The journals in a checkout: ``.jsonl`` are waiting, ``.done`` are published."""
    return sorted((checkout / ".mlflow" / "journal").glob(f"*{suffix}"))


def git(folder: Path, *arguments: str) -> str:
    """Run git as a test author."""
    author = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", *author, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
