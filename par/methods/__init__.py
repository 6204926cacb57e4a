"""The methods of the paper's tables, by name.

Plain text, so that reading params.yaml costs no import of torch; :func:`load_method` imports the one that is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

METHODS = {
    "finetune": "par.methods.finetune:Finetune",
    "independent": "par.methods.independent:Independent",
    "ewc": "par.methods.ewc:Ewc",
    "mas": "par.methods.mas:Mas",
    "lwf": "par.methods.lwf:LwF",
    "er": "par.methods.er:Er",
    "agem": "par.methods.agem:AGem",
    "par": "par.methods.par:Par",
    "learn_to_grow": "par.methods.learn_to_grow:LearnToGrow",
    "lmc": "par.methods.lmc:Lmc",
    "mntdp_d": "par.methods.mntdp_d:MntdpD",
    "mntdp_s": "par.methods.mntdp_s:MntdpS",
    "pnn": "par.methods.pnn:Pnn",
    "soft_gating": "par.methods.soft_gating:SoftGating",
    "gpm": "par.methods.gpm:Gpm",
    "hat": "par.methods.hat:Hat",
    "cat": "par.methods.cat:Cat",
}


def load_method(name: str) -> type[Any]:
    """The class of method ``name``, a :class:`par.methods.bases.method.Method` (whose module imports torch).

    Raises:
        KeyError: the name is not in :data:`METHODS`.
    """
    module, attribute = METHODS[name].split(":")
    return getattr(importlib.import_module(module), attribute)
