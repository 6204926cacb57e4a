"""Batch normalisation whose statistics (and, where asked for, scale and shift) belong to one task each."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn import functional


class TaskNorm(nn.Module):
    """Takes the place of a batch normalisation in a network that learns task after task without forgetting.

    A new task starts from a copy of the task before it. ``active`` names the task whose images come.

    Args:
        norm: the layer to replace.
        shared_affine: one scale and shift for all tasks (parameters of this module) instead of one per task.
    """

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d, shared_affine: bool):
        super().__init__()
        self.weight = nn.Parameter(norm.weight.detach().clone()) if shared_affine else None
        self.bias = nn.Parameter(norm.bias.detach().clone()) if shared_affine else None
        self.shape = (norm.num_features, not shared_affine)
        self.by_task = nn.ModuleDict()
        self.active = ""

    def add(self, task_id: int) -> None:
        """Make room for a task."""
        n_channels, affine = self.shape
        earlier = list(self.by_task.values())
        self.by_task[str(task_id)] = (
            copy.deepcopy(earlier[-1]) if earlier else nn.BatchNorm2d(n_channels, affine=affine)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        own = self.by_task[self.active]
        assert isinstance(own, nn.BatchNorm1d | nn.BatchNorm2d) and own.momentum is not None
        weight, bias = (own.weight, own.bias) if self.weight is None else (self.weight, self.bias)
        mean, variance = own.running_mean, own.running_var
        return functional.batch_norm(inputs, mean, variance, weight, bias, own.training, own.momentum, own.eps)


def replace_norms(network: nn.Module, shared_affine: bool) -> None:
    """Put a :class:`TaskNorm` in the place of every batch normalisation of ``network``."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                setattr(parent, name, TaskNorm(child, shared_affine))


def task_norms(network: nn.Module) -> list[TaskNorm]:
    """The task norms of ``network``, in its order."""
    return [module for module in network.modules() if isinstance(module, TaskNorm)]


def parts_of_task(network: nn.Module, task_id: int) -> list[nn.Module]:
    """The innermost modules of ``network`` that serve the task, without shared affine parameters and others' norms."""
    parts = []
    for child in network.children():
        if isinstance(child, TaskNorm):
            parts.append(child.by_task[str(task_id)])
        elif next(child.children(), None) is None:
            parts.append(child)
        else:
            parts += parts_of_task(child, task_id)
    return parts
