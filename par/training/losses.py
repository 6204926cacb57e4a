"""Loss functions that more than one method uses."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the softened student against the softened teacher (paper eq. 10, sources.md#distillation).

    Mean over the batch of ``-sum_k q_k ln p_k`` with p and q the softmax of logits / temperature. No factor T^2, and
    the teacher's entropy is not subtracted: the gradient is that of the KL divergence.

    Args:
        student, teacher: logits [n, K]; no gradient flows into the teacher.
    """
    targets = functional.softmax(teacher.detach() / temperature, dim=1)
    return -(targets * functional.log_softmax(student / temperature, dim=1)).sum(dim=1).mean()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits [n, K] in float32, whatever autocast made of them."""
    return functional.cross_entropy(logits.to(torch.float32), labels)
