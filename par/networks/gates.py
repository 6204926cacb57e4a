"""Gates behind the hidden units of a network: where task masks apply, and which weights lie between them (HAT, CAT)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from par.networks.alexnet import AlexNet
from par.networks.mlp import Mlp
from par.networks.resnet import BasicBlock, LightResNet

Layer = nn.Conv2d | nn.Linear


@dataclass(frozen=True)
class Connection:
    """A layer with weights from the units of gate ``source`` (None: from the image) to those of gate ``target``."""

    layer: Layer
    source: int | None
    target: int


@dataclass(frozen=True)
class Gates:
    """The gates of one network.

    ``modules``: their outputs [n, size, ...] are multiplied by the masks. A mask is never negative, so that ReLU,
    pooling and dropout behind it may as well stand before it. ``sizes``: units of each gate.
    """

    modules: list[nn.Module]
    sizes: list[int]
    connections: list[Connection]

    def features(self, trunk: nn.Module, images: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """Features [n, d] of the trunk with the masks (one of [size] per gate) applied."""
        with ExitStack() as stack:
            for module, mask in zip(self.modules, masks, strict=True):
                stack.enter_context(module.register_forward_hook(_multiplier(mask)))
            return trunk(images)

    def between(self, connection: Connection, masks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """min(mask of output unit, mask of input unit) for each weight, and the masks [n_out] of the biases.

        The first can be broadcast to the weights' shape.
        """
        layer, target = connection.layer, masks[connection.target]
        rest = (1,) * (layer.weight.dim() - 2)
        view = target.view(-1, 1, *rest)
        if connection.source is not None:
            source = masks[connection.source]
            # Flattened maps: a unit of the source is as many inputs as it had pixels.
            source = source.repeat_interleave(layer.weight.shape[1] // len(source))
            view = torch.minimum(view, source.view(1, -1, *rest))
        return view, target


def gates_of(trunk: nn.Module) -> Gates:
    """The gates of a trunk: behind every layer; in the residual network behind the stem and, in each block, behind the
    first normalisation and behind the sum."""
    if isinstance(trunk, AlexNet | Mlp):
        layers = [_layer(module) for module in trunk.layers]
        sizes = [layer.weight.shape[0] for layer in layers]
        return Gates([*layers], sizes, [Connection(layer, i - 1 if i else None, i) for i, layer in enumerate(layers)])
    assert isinstance(trunk, LightResNet)
    modules, connections = [trunk.stem[1]], [Connection(_layer(trunk.stem[0]), None, 0)]
    for block in (module for module in trunk.stages.modules() if isinstance(module, BasicBlock)):
        outer = len(modules) - 1
        connections += [Connection(block.conv1, outer, outer + 1), Connection(block.conv2, outer + 1, outer + 2)]
        if isinstance(block.shortcut, nn.Sequential):
            connections.append(Connection(_layer(block.shortcut[0]), outer, outer + 2))
        modules += [block.norm1, block]
    return Gates(modules, [trunk.n_features] * len(modules), connections)


def _layer(module: nn.Module) -> Layer:
    assert isinstance(module, Layer)
    return module


def _multiplier(mask: Tensor) -> Callable[[nn.Module, tuple[Tensor], Tensor], Tensor]:
    def multiply(module: nn.Module, inputs: tuple[Tensor], outputs: Tensor) -> Tensor:
        return outputs * mask.view(-1, *(1,) * (outputs.dim() - 2))

    return multiply
