"""The stages: ``python -m pipeline.<stage>``. This is the first code of ours that runs in such a process.

So it ties a stage to its dvc before the stage imports torch, which takes seconds: a dvc that is killed would otherwise
leave its stage running as an orphan, which writes into the outputs of the next dvc (sources.md#dvc). Only under DVC: a
stage started by hand may outlive its shell (``nohup``). And it sets what torch and numpy read when they are imported
(:mod:`par.numerics`).
"""

import os
import sys

from par.numerics import prepare
from par.operating_system import die_with_parent, say_interrupted

if "DVC_STAGE" in os.environ:
    die_with_parent()
if sys.argv[:1] == ["-m"]:  # Python has just begun to look for the module that is to run
    sys.excepthook = say_interrupted
    prepare("params.yaml")
