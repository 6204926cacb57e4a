"""A check that the tests of several networks share."""

from __future__ import annotations

import torch
from torch import nn


def assert_channels_last_inside(network: nn.Module, images: torch.Tensor, at_least: int) -> None:
    """Every module's output is channels_last, and so is the gradient that every BatchNorm gets.

    The layout of the input says nothing. ``at_least`` outputs must have been seen.
    """
    outputs, gradients = {}, {}

    def watch(name: str, module: nn.Module) -> None:
        def check(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
            outputs[name] = _is_channels_last(output)
            if isinstance(module, nn.BatchNorm2d):
                output.register_hook(lambda gradient: gradients.update({name: _is_channels_last(gradient)}))

        module.register_forward_hook(check)

    for name, module in network.named_modules():
        if not list(module.children()):
            watch(name, module)
    network(images).square().sum().backward()
    assert len(outputs) >= at_least and len(gradients) >= at_least // 3
    assert [name for name, right in (outputs | gradients).items() if not right] == []


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
