"""One linear head per task; the only place where heads are made, chosen and counted."""

from __future__ import annotations

from torch import Tensor, nn


class Heads(nn.Module):
    """Linear heads by task id. Task ids are the tasks' positions in the stream."""

    def __init__(self, n_features: int):
        super().__init__()
        self.n_features = n_features
        self.by_task = nn.ModuleDict()

    def add(self, task_id: int, n_classes: int) -> nn.Linear:
        """A new head for ``task_id``, freshly initialised from torch's global generator."""
        self.by_task[str(task_id)] = nn.Linear(self.n_features, n_classes)
        return self[task_id]

    def __getitem__(self, task_id: int) -> nn.Linear:
        return self.by_task[str(task_id)]

    def forward(self, features: Tensor, task_id: int) -> Tensor:
        """Features [n, d] -> logits [n, K] of ``task_id``."""
        return self[task_id](features)
