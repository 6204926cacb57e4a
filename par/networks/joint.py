"""Several heads at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from par.networks.heads import Heads

ABSENT = -1e4  # logit of a class that a head has not: its probability is exactly 0, and 0 times its logarithm is 0


def joint_logits(heads: Heads, features: Tensor, task_ids: Sequence[int]) -> Tensor:
    """Features [n, d] -> logits [n, T, K] of the T tasks ``task_ids``; K is the largest number of classes among them.

    One product for all heads: a step of a method that reads many heads costs the same after one task and after 100.
    Heads with fewer classes are filled up with :data:`ABSENT`.
    """
    chosen = [heads[task_id] for task_id in task_ids]
    weight = pad_sequence([head.weight for head in chosen], batch_first=True)
    bias = pad_sequence([head.bias for head in chosen], batch_first=True, padding_value=ABSENT)
    return functional.linear(features, weight.flatten(0, 1), bias.flatten()).unflatten(1, bias.shape)
