"""Finetune: go on training one network on each new task (the paper's lower bound)."""

from __future__ import annotations

from par.methods.bases.method import SharedTrunk


class Finetune(SharedTrunk):
    """theta_t = argmin CE(D_t), started at theta_{t-1}; a new head a task (facts 4.1).

    Batch-normalisation statistics are shared, as in the published rows: part of the forgetting is theirs.
    """
