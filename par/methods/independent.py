"""Independent: a fresh network for every task (no transfer, no forgetting)."""

from __future__ import annotations

from par.methods.bases.method import SharedTrunk


class Independent(SharedTrunk):
    """Every task is a chain of its own (facts 4.2); M grows by a whole network a task, AF is 0 by construction."""

    chains = "task"
