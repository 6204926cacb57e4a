"""The process that talks to MLflow: ``python -m pipeline.publisher FD``, started by `pipeline.sync`, which can end it.

MLflow blocks wherever its server or database does, so nothing inside this process keeps a deadline. It receives a
:class:`Task` over the socket FD and answers with events, tuples whose first item is the kind. After a task that is
``ahead`` it waits for the stage to end and to send the real one: the stage has computed beside it meanwhile.

- ``("note", sentence)``: something the user should read;
- ``("loaded", seconds)``: MLflow is loaded, from now on its server is waited for;
- ``("published", n)`` or ``("kept", journal, reason)``: a journal became n runs, or could not;
- ``("registered", n)``: its models are n new versions of registered models;
- ``("tagged", n)``, ``("links", [line, ...])``: what the task asked for besides;
- ``("failed", reason)`` or ``("done",)``: the last one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from par.config import resolve_path
from par.operating_system import die_with_parent
from pipeline import database
from pipeline.address import DATABASE, store_address
from pipeline.journal import home, read_closed, waiting
from pipeline.mlflow_store import Store


@dataclass(frozen=True)
class Task:
    """What a publication is to do; ``parent`` is the process that waits for it."""

    parent: int
    experiment: str
    seconds: float  # the waiting process's limit
    links: bool
    tag: bool
    ahead: bool = False  # publish what waits now; another task follows


def serve(connection: Connection) -> None:
    """Do the task that ``connection`` brings, or the two if the first is ``ahead``, and answer with events."""
    task = Task(**connection.recv())
    die_with_parent(task.parent)
    root = resolve_path(".").resolve()
    os.environ["DVC_ROOT"] = str(root)
    os.chdir(root)
    try:
        tried: set[Path] = set()
        if task.ahead:
            try:
                publish(task, connection.send, tried)
            except Exception:  # the task that follows tries again, and tells
                tried.clear()
            task = Task(**connection.recv())
        publish(task, connection.send, tried)
        connection.send(("done",))
    except Timeout:
        connection.send(("failed", "another process is publishing"))
    except Exception as error:  # whatever MLflow, its server or its database does
        connection.send(("failed", _words(error)))


def publish(task: Task, send: Callable[[tuple[Any, ...]], None], tried: set[Path]) -> None:
    """Publish every journal whose stage has ended, oldest first; the current directory is the checkout.

    Journals that have been ``tried`` are left out, and those tried now are added.

    One process at a time: MLflow's sqlite migrations fail when two processes make first contact together
    (sources.md#mlflow), and two might create the same parent.

    Raises:
        Timeout: another process was publishing all the time.
        Exception: of any kind, from MLflow, where the store cannot be reached; all journals not delivered are kept.
    """
    home().mkdir(exist_ok=True)
    with FileLock(home() / "publish.lock", timeout=task.seconds):
        started = time.monotonic()
        _be_brief(task.seconds)
        address = store_address()
        if address == DATABASE and (sentence := database.prepare()):
            send(("note", sentence))
        from mlflow import MlflowClient

        send(("loaded", time.monotonic() - started))
        store = Store(MlflowClient(address), address, Path.cwd() / "mlartifacts")
        with_models: list[Path] = []
        while todo := [path for path in waiting() if path not in tried]:  # stages go on ending meanwhile
            for path in todo:
                told = _attempt(store, path, _publish_journal)
                send(told)
                if told[0] == "published" and path.exists():
                    with_models.append(path)
            tried |= set(todo)
        if task.tag:
            send(("tagged", store.tag_experiments(task.experiment)))
        if task.links:
            send(("links", store.links(task.experiment)))
        for path in with_models:  # models are large: nothing else waits for one
            send(_attempt(store, path, _register_models))


def _attempt(store: Store, path: Path, act: Callable[[Store, Path], tuple[Any, ...]]) -> tuple[Any, ...]:
    """What to tell of an act on one journal. Raises where the store has gone: no use to try the next."""
    try:
        return act(store, path)
    except Exception as error:
        store.check()
        return ("kept", str(path), _words(error))


def _publish_journal(store: Store, path: Path) -> tuple[Any, ...]:
    """Publish the runs of one journal, and finish with it unless it has models."""
    events = read_closed(path)
    n_runs = store.publish(path.stem, events) if events is not None else 0
    if events is not None and not any(event["kind"] == "model" for event in events):
        path.rename(path.with_suffix(".done"))
    return ("published", n_runs)


def _register_models(store: Store, path: Path) -> tuple[Any, ...]:
    """Register the models of a journal whose runs are published, and finish with it."""
    events = read_closed(path)
    n_models = store.register(path.stem, events) if events is not None else 0
    if events is not None:
        path.rename(path.with_suffix(".done"))
    return ("registered", n_models)


def _be_brief(seconds: float) -> None:
    """Let a server that is away or unwilling cost seconds: by default MLflow asks for minutes (sources.md#mlflow)."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1" if seconds > 60 else "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER", "false")  # a server may ask for an hour
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")


def _words(error: Exception) -> str:
    """An exception's text on one line, of a database's without the statement, which names a run and not the cause."""
    return " ".join(str(error).partition("[SQL:")[0].split()) or type(error).__name__


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
