"""The stages: ``python -m pipeline.<stage>``. This is the first code of ours that runs in such a process.

So it ties a stage to its dvc before the stage imports torch, which takes seconds: a dvc that is killed would otherwise
leave its stage running as an orphan, which writes into the outputs of the next dvc (sources.md#dvc). Only under DVC: a
stage started by hand may outlive its shell (``nohup``). And it sets what torch and numpy read when they are imported
(:mod:`par.numerics`).
"""

from __future__ import annotations

import os
import sys
from types import TracebackType


def say_interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A ``sys.excepthook`` that reports Ctrl-C without a traceback; Python then ends as SIGINT ends a process."""
    if issubclass(kind, KeyboardInterrupt):
        print("Interrupted.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


# Before all other imports: only Python's own start, the tenth of a second before this file, still has a traceback.
_begins = sys.argv[:1] == ["-m"]  # Python has just begun to look for the module that is to run
if _begins:
    sys.excepthook = say_interrupted
if "DVC_STAGE" in os.environ:
    from par.operating_system import die_with_parent

    die_with_parent()
if _begins:
    from par.numerics import prepare

    prepare("params.yaml")
