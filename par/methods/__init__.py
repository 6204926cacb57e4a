"""The methods of the paper's tables, by name.

Plain text, so that reading params.yaml costs no import of torch; :func:`load_method` imports the one that is asked for.
"""

from __future__ import annotations

import importlib

METHODS = {
    "finetune": "par.methods.finetune:Finetune",
    "independent": "par.methods.independent:Independent",
    "par": "par.methods.par:Par",
}


def load_method(name: str) -> type:

    Raises:
        KeyError: the name is not in :data:`METHODS`.
    module, attribute = METHODS[name].split(":")
    return getattr(importlib.import_module(module), attribute)
