"""Finetune: go on training one network, a lower bound (as in Wang et al. 2023, sources.md#finetune)."""

from __future__ import annotations

from par.methods.bases.method import SharedTrunk


class Finetune(SharedTrunk):
    """theta_t = argmin CE(D_t), started at theta_{t-1}; a new head a task (sources.md#finetune).

    Batch-normalisation statistics are shared, as in the published rows: part of the forgetting is theirs.
    """

    capturable = True
