"""One linear head per task; the only place where heads are made, chosen and counted."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

ABSENT = -1e4  # logit of a class that a head has not: its probability is exactly 0, and 0 times its logarithm is 0


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
        head = self.by_task[str(task_id)]
        assert isinstance(head, nn.Linear)
        return head

    def forward(self, features: Tensor, task_id: int) -> Tensor:
        """Features [n, d] -> logits [n, K] of ``task_id``."""
        return self[task_id](features)


def joint_logits(heads: Heads, features: Tensor, task_ids: Sequence[int]) -> Tensor:
    """Features [n, d] -> logits [n, T, K] of the T tasks ``task_ids``; K is the largest number of classes among them.

    One product for all heads: a step of a method that reads many heads costs the same after one task and after 100.
    Heads with fewer classes are filled up with :data:`ABSENT`.
    """
    chosen = [heads[task_id] for task_id in task_ids]
    weight = pad_sequence([head.weight for head in chosen], batch_first=True)
    bias = pad_sequence([head.bias for head in chosen], batch_first=True, padding_value=ABSENT)
    return functional.linear(features, weight.flatten(0, 1), bias.flatten()).unflatten(1, bias.shape)
