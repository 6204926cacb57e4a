"""What all stage scripts share: the command line, the configuration, tracking, one sentence for a user's mistake."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from par.config import Config, resolve_path
from par.files import in_words
from par.numerics import resolve_numerics
from par.operating_system import SIGINT_EXIT, SIGTERM_EXIT
from par.schema import ConfigError
from par.settings import load
from par.streams import SourceError
from pipeline import tracking

if TYPE_CHECKING:  # a stage that trains nothing need not import torch
    import torch

    from par.steps.jobs import Failure, Job, Outcome
    from par.steps.store import Store
    from par.training.precision import Precision

# Where the stages' files lie, relative to the checkout (or to the temporary one of ``dvc exp run --temp``).
FINGERPRINTS = Path("data/fingerprints")
STREAMS = Path("data/streams")
FEATURES = Path("data/features")
PROTOTYPES = Path("data/prototypes")
TEST_FEATURES = Path("data/test_features")
PLANS = Path("plans")
DISTANCES = Path("distances")
CELLS = Path("cells")
RUNS = Path("runs")
RESULTS = Path("results")
# Wall-clock times stand apart from what is computed: equal runs are equal files beside them.
SEARCH_SECONDS = Path("seconds/search")
TRAIN_SECONDS = Path("seconds/train")
REPORTS = Path("reports")


class StageError(RuntimeError):
    """A stage that cannot finish, in words for the user."""


def untimed(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[dict[str, Any]]]:
    """The seconds of every row of a log, and the rows without them."""
    return [row["seconds"] for row in rows], [
        {name: value for name, value in row.items() if name != "seconds"} for row in rows
    ]


def run_stage(name: str, body: Callable[[Config, str, tracking.Run], None]) -> None:
    """Run a stage of one stream: ``python -m pipeline.<name> --stream <stream>``. Exits with 1 on a user's mistake."""
    parser = argparse.ArgumentParser(prog=f"python -m pipeline.{name}")
    parser.add_argument("--stream", required=True, help="name of a stream in params.yaml")
    stream = parser.parse_args().stream
    with mistakes_in_one_sentence(f"{name} {stream}"):
        config = load()
        resolve_numerics(config.numerics)
        if stream not in config.streams:
            raise ConfigError(
                f"--stream {stream} is not among the streams of params.yaml: {', '.join(config.streams)}."
            )
        with tracking.stage(config, name, stream) as run:
            body(config, stream, run)


def run_tables(body: Callable[[Config, tracking.Run], None]) -> None:
    """Run the last stage, ``python -m pipeline.tables``, which has no stream and publishes all journals."""
    argparse.ArgumentParser(prog="python -m pipeline.tables").parse_args()
    with mistakes_in_one_sentence("tables"):
        config = load()
        resolve_numerics(config.numerics)
        with tracking.stage(config, "tables", publish=True) as run:
            body(config, run)


@contextmanager
def mistakes_in_one_sentence(place: str) -> Iterator[None]:
    """Turn Ctrl-C and the exceptions that a user can cause into one line and an exit code; a bug keeps its traceback.

    The code is 130 for Ctrl-C, as in a shell, else 1.
    """
    try:
        yield
    except (ConfigError, SourceError, StageError) as error:
        print(f"{place}: {error}{_how_to_undo(error)}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        print(f"{place}: {in_words(error)}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print(f"{place}: interrupted; finished steps are kept, run it again to go on.", file=sys.stderr)
        _leave(SIGINT_EXIT)
    except SystemExit as leaving:
        if leaving.code == SIGTERM_EXIT:
            _leave(SIGTERM_EXIT)
        raise


def _leave(code: int) -> NoReturn:
    """End at once: Python takes a second to clear torch away, too long for whoever waits, or is dead and succeeded."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _how_to_undo(error: Exception) -> str:
    """How to take back a value of params.yaml that is refused: ``dvc exp run -S`` leaves it in the file.

    Nothing where the file is as committed, or in the temporary checkout of ``dvc exp run --temp``.
    """
    place = re.split(r"\W", str(error), maxsplit=1)[0]
    of_params = place in {"params", *(field.name for field in dataclasses.fields(Config))}
    if not of_params or not shutil.which("git") or resolve_path(".").resolve() != Path.cwd():
        return ""
    command = ["git", "diff", "--quiet", "HEAD", "--", "params.yaml"]
    if subprocess.run(command, capture_output=True).returncode != 1:
        return ""
    return " params.yaml keeps what an experiment's -S or an edit wrote; to take it back: git checkout params.yaml"


def device_and_precision(config: Config) -> tuple[torch.device, Precision]:
    """What the steps of params.yaml are computed on, here or on the nodes of the cluster in use.

    Raises:
        ConfigError: it is not there, or cannot be known from here.
    """
    import torch

    from par.device import resolve_device
    from par.steps.cluster import CLUSTER_FILE, cluster_in_use
    from par.training.precision import resolve_precision

    cluster = cluster_in_use()
    if cluster is None:
        device = resolve_device(config.device)
        return device, resolve_precision(config.precision, device)
    if config.device == "cuda" and not cluster.gpus:
        raise ConfigError(f"device = 'cuda', but {CLUSTER_FILE} asks for no GPU (gpus: 0); change one of them.")
    if config.device == "cpu" or not cluster.gpus:
        return torch.device("cpu"), resolve_precision(config.precision, torch.device("cpu"))
    if config.precision == "auto":
        raise ConfigError("precision = 'auto' cannot be known before a job is on its GPU; choose bf16 or float32.")
    return torch.device("cuda"), config.precision


def compute(jobs: Mapping[str, Job], config: Config, title: str, run: tracking.Run) -> Store:
    """Let the store have what the ``jobs`` leave there, by the key of their last step; returns the store.

    Raises:
        StageError: see :func:`check_outcome`.
    """
    from par.steps.cluster import cluster_in_use
    from par.steps.jobs import Planned
    from par.steps.memory import shortage_of
    from par.steps.slots import workers_of
    from par.steps.store import DEFAULT_FOLDER, Store
    from par.steps.workers import run_jobs

    store, planned = Store(resolve_path(DEFAULT_FOLDER)), [Planned(key, job) for key, job in jobs.items()]
    device, cluster = device_and_precision(config)[0], cluster_in_use()
    workers = workers_of(config.workers, config.workers_per_device, device)
    if (sentence := shortage_of(jobs.values(), store, workers, device, cluster)) is not None:
        print(f"{title}: {sentence}", file=sys.stderr)
    outcome = run_jobs(planned, store, workers, title, cluster)
    run.metrics({"steps_computed": outcome.steps_computed, "steps_reused": outcome.steps_reused})
    check_outcome(outcome)
    return store


def check_outcome(outcome: Outcome) -> None:
    """Print what was computed and what came from the store.

    Raises:
        StageError: a job failed; what the others computed is in the store.
    """
    print(f"steps computed: {outcome.steps_computed}, from the store: {outcome.steps_reused}")
    labels_of: dict[Failure, list[str]] = {}  # a full disk fails all jobs alike
    for label, failure in outcome.failures:
        labels_of.setdefault(failure, []).append(label)
    lines = []
    for failure, labels in labels_of.items():
        jobs = labels[0] if len(labels) == 1 else f"{len(labels)} jobs ({'; '.join(labels)})"
        if failure.is_bug:
            print(f"--- {jobs}\n{failure.text}", file=sys.stderr)
            lines.append(f"{jobs} failed; the traceback is above, please report it.")
        else:
            lines.append(f"{jobs} failed: {failure.text}")
    if lines:
        raise StageError("\n".join([*lines, "What the other jobs computed is kept."]))
