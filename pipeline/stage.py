"""What all stage scripts share: the command line, the configuration, tracking, one sentence for a user's mistake."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from par.config import Config
from par.schema import ConfigError
from par.settings import load
from par.streams import SourceError
from pipeline import tracking

if TYPE_CHECKING:  # a stage that trains nothing need not import torch
    from par.steps.workers import Outcome

# Where the stages' files lie, relative to the checkout (or to the temporary one of ``dvc exp run --temp``).
STREAMS = Path("data/streams")
FEATURES = Path("data/features")
PROTOTYPES = Path("data/prototypes")
TEST_FEATURES = Path("data/test_features")
PLANS = Path("plans")
DISTANCES = Path("distances")
CELLS = Path("cells")
RUNS = Path("runs")
RESULTS = Path("results")
REPORTS = Path("reports")


class StageError(RuntimeError):
    """A stage that cannot finish, in words for the user."""


def run_stage(name: str, body: Callable[[Config, str, tracking.Run], None]) -> None:
    """Run a stage of one stream: ``python -m pipeline.<name> --stream <stream>``. Exits with 1 on a user's mistake."""
    parser = argparse.ArgumentParser(prog=f"python -m pipeline.{name}")
    parser.add_argument("--stream", required=True, help="name of a stream in params.yaml")
    stream = parser.parse_args().stream
    with mistakes_in_one_sentence(f"{name} {stream}"):
        config = load()
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
        with tracking.stage(config, "tables", publish=True) as run:
            body(config, run)


@contextmanager
def mistakes_in_one_sentence(place: str) -> Iterator[None]:
    """Turn the exceptions that a user can cause into one line and exit code 1; a bug keeps its traceback."""
    try:
        yield
    except (ConfigError, SourceError, StageError) as error:
        print(f"{place}: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def check_outcome(outcome: Outcome, run: tracking.Run) -> None:
    """Print and record what was computed and what came from the store.

    Raises:
        StageError: a job failed; what the others computed is in the store.
    """
    print(f"steps computed: {outcome.steps_computed}, from the store: {outcome.steps_reused}")
    run.metrics({"steps_computed": outcome.steps_computed, "steps_reused": outcome.steps_reused})
    if outcome.failures:
        for label, error in outcome.failures.items():
            print(f"--- {label}\n{error}", file=sys.stderr)
        raise StageError(
            f"{len(outcome.failures)} jobs failed ({'; '.join(outcome.failures)}); their tracebacks are above, "
            "what the others computed is kept. Mend the cause and run the pipeline again."
        )
