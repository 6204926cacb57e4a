"""Independent: a fresh network for every task (as in Wang et al. 2023, sources.md#independent)."""

from __future__ import annotations

from par.methods.bases.method import SharedTrunk


class Independent(SharedTrunk):
    """Every task is a chain of its own; M grows by a whole network a task, AF is 0 by construction."""

    chains = "task"
    capturable = True
