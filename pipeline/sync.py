"""Publish journals (`pipeline.journal`) to MLflow: ``python -m pipeline.sync [--rebuild] [--limit SECONDS]``.

Stages call :func:`publish` themselves when it is due; the command is for what they could not deliver. ``--rebuild``
publishes the journals that were delivered before as well: runs that the store still has are left alone, so it fills a
new, lost or damaged store. It also tags each pipeline run of a DVC experiment with the experiment's own commit, which
exists only after the experiment has ended.

The store is ``mlflow.db`` of the checkout with artifacts in ``mlartifacts``; MLFLOW_TRACKING_URI wins. All contact with
it is made in a process of its own (`pipeline.publisher`), which is killed when the time is over: whatever a server
does, slow, silent or endless, a stage waits for it no longer than :data:`SERVER_SECONDS`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tqdm import tqdm

from par.schema import ConfigError
from par.settings import load
from pipeline.address import is_local, scrubbed, shown, store_address
from pipeline.journal import home, wait_again, waiting

SERVER_SECONDS = 4.5  # a stage's limit with a server; with a process to start and to end it waits no more than 5
FILE_SECONDS = 60.0  # a stage's limit with the checkout's own database, which is as fast as the disk
COMMAND_SECONDS = 600.0  # the command's limit
LOADING = 2.0  # seconds of a limit for loading MLflow; a slow disk takes more, which is not the server's fault
LONGEST_LOADING = 120.0  # seconds; with the making of the database, 4 to 10 s once
LONGEST_REASON = 200  # characters of an exception's text
MOST_REASONS = 3
CODE = Path(__file__).resolve().parent.parent


@dataclass
class Outcome:
    """What a publication has done; ``n_left`` journals wait for another one."""

    n_runs: int = 0
    n_models: int = 0
    n_tagged: int = 0
    n_left: int = 0
    kept: dict[str, list[str]] = field(default_factory=dict)  # reason: journals that could not be published
    notes: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    problem: str = ""  # why it ended before its end
    is_late: bool = False  # because the time was over

    def lines(self) -> list[str]:
        """The outcome in words, without any password."""
        lines = [*self.notes]
        if self.n_runs or not self.problem:
            lines.append(f"MLflow: {self.n_runs} runs published.")
        if self.n_models:
            lines.append(f"MLflow: {self.n_models} model versions registered.")
        for reason, journals in list(self.kept.items())[:MOST_REASONS]:
            others = f" and {len(journals) - 1} more" if len(journals) > 1 else ""
            lines.append(f"MLflow: not published, kept: {journals[0]}{others}: {reason}")
        if rest := sum(map(len, list(self.kept.values())[MOST_REASONS:])):
            lines.append(f"MLflow: not published, kept: {rest} more, for other reasons.")
        if self.problem:
            state = "too slow" if self.is_late else "out of reach"
            lines.append(
                f"MLflow is {state} ({shown(store_address())}: {self.problem}); {self.n_left} journals are kept "
                f"in {home() / 'journal'}, python -m pipeline.sync publishes them."
            )
        if self.n_tagged:
            lines.append(f"MLflow: {self.n_tagged} pipeline runs tagged with the commit of their DVC experiment.")
        return [scrubbed(line) for line in (*lines, *self.links)]


class Ahead:
    """A publishing process that a stage may begin before its end, with what waits by then, to go on with at its end.

    What it does meanwhile, loading MLflow first of all, costs the stage no time of its own. Leaving the block ends it.
    """

    def __init__(self, experiment: str) -> None:
        self.experiment = experiment
        self.connection: Connection | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Ahead:
        return self

    def begin(self) -> None:
        """Begin, unless it has been begun; where no process can be had, the end of the stage says so."""
        if self.connection is None:
            with suppress(OSError):
                task = _task(self.experiment, _stage_limit()) | {"ahead": True}
                self.connection = self._stack.enter_context(_publisher(task))

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def publish(
    experiment: str,
    seconds: float | None = None,
    *,
    links: bool = False,
    tag: bool = False,
    progress: bool = False,
    begun: Connection | None = None,
) -> Outcome:
    """Publish every journal whose stage has ended, oldest first; what cannot be published waits.

    Args:
        experiment: the one that ``links`` and ``tag`` are about.
        seconds: limit in all; by default a stage's. Loading MLflow counts for no more than :data:`LOADING` of it.
        links: ask for addresses in the MLflow UI.
        tag: tag the runs of DVC experiments with their commits.
        progress: show a bar of the journals on a terminal.
        begun: the connection to a publishing process that works already (:class:`Ahead`).
    """
    limit = _stage_limit() if seconds is None else seconds
    outcome, task = Outcome(), _task(experiment, limit, links=links, tag=tag)
    with tqdm(total=len(waiting()), desc="MLflow", unit="journal", disable=None if progress else True) as bar:
        for kind, *values in _events(task, limit, begun):
            bar.update(kind in ("published", "kept"))
            match kind, values:
                case "published", [n_runs]:
                    outcome.n_runs += n_runs
                case "registered", [n_models]:
                    outcome.n_models += n_models
                case "kept", [journal, reason]:
                    outcome.kept.setdefault(_short(reason), []).append(journal)
                case "note", [sentence]:
                    outcome.notes.append(sentence)
                case "tagged", [n_tagged]:
                    outcome.n_tagged = n_tagged
                case "links", [lines]:
                    outcome.links = lines
                case "failed", [reason] if _short(reason) not in outcome.kept:
                    outcome.problem = _short(reason)
                case "late", []:
                    outcome.problem, outcome.is_late = f"not done within {limit:g} s", True
    outcome.n_left = len(waiting())
    if outcome.problem:
        with suppress(OSError):
            failure_mark().touch()
    return outcome


def _stage_limit() -> float:
    return FILE_SECONDS if is_local(store_address()) else SERVER_SECONDS


def _task(experiment: str, seconds: float, *, links: bool = False, tag: bool = False) -> dict[str, Any]:
    """The fields of a `pipeline.publisher.Task`."""
    return {"parent": os.getpid(), "experiment": experiment, "seconds": seconds, "links": links, "tag": tag}


def failure_mark() -> Path:
    """A file whose time is that of the last publication that failed."""
    return home() / "out_of_reach"


def _events(task: dict[str, Any], limit: float, begun: Connection | None) -> Iterator[tuple[Any, ...]]:
    """What the publishing process tells until it is done or its time is over; the last event may be failed or late."""
    started = time.monotonic()
    deadline = started + LONGEST_LOADING
    with _publisher(task) if begun is None else nullcontext(begun) as connection:
        if begun is not None:
            with suppress(OSError):  # it has ended: there is nothing to receive either
                begun.send(task)
        while True:
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                yield ("late",)
                return
            try:
                event = connection.recv()
            except (EOFError, ConnectionError):
                yield ("failed", "the publishing process was ended")
                return
            if event == ("done",):
                return
            if event[0] == "loaded":
                loading = min(event[1], time.monotonic() - started)  # what it took of our time
                deadline = started + limit + max(0.0, loading - LOADING)
            yield event
            if event[0] == "failed":
                return


@contextmanager
def _publisher(task: dict[str, Any]) -> Iterator[Connection]:
    """The publishing process and the connection to it; it is killed when the block is left, however that happens."""
    ours, theirs = multiprocessing.Pipe()
    path = os.pathsep.join([str(CODE), *filter(None, [os.environ.get("PYTHONPATH")])])
    # it is no stage of DVC's: its parent is this process, which it is told
    environment = {name: value for name, value in os.environ.items() if name != "DVC_STAGE"} | {"PYTHONPATH": path}
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.publisher", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # MLflow's warnings; with them addresses and what they hold
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process, which then kills that one
            )
        try:
            ours.send(task)
            yield ours
        finally:
            process.kill()
            process.wait()


def _short(reason: str) -> str:
    """A reason without secrets, of one line; scrubbed before it is cut, as half a password would not be recognised."""
    text = scrubbed(reason)
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."


def main() -> None:
    """Entry point of ``python -m pipeline.sync``; exits with 1 if anything that could be published was not."""
    parser = argparse.ArgumentParser(description="Publish the journals of finished stages to MLflow.")
    parser.add_argument("--rebuild", action="store_true", help="also those published before: fills a new store")
    parser.add_argument(
        "--limit", type=float, default=COMMAND_SECONDS, metavar="SECONDS", help="in all (default: %(default)g)"
    )
    arguments = parser.parse_args()
    try:
        experiment = load().tracking.experiment
        if arguments.rebuild:
            wait_again()
        outcome = publish(experiment, arguments.limit, links=True, tag=True, progress=True)
    except (ConfigError, OSError) as error:
        sys.exit(f"sync: {scrubbed(str(error))}")
    except KeyboardInterrupt:
        sys.exit(f"sync: interrupted; {len(waiting())} journals wait.")
    print("\n".join(outcome.lines()))
    sys.exit(1 if outcome.problem or outcome.kept else 0)


if __name__ == "__main__":
    main()
