"""What the stages that fill the store share."""

from __future__ import annotations

import sys

from par.learning.workers import Outcome
from pipeline.command import StageError
from pipeline.tracking import Run


def check_outcome(outcome: Outcome, run: Run) -> None:
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
