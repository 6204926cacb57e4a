"""SG-F: soft gating over fixed modules, as LMC's authors run it (Mendez and Eaton 2021, sources.md#soft-gating)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from par.methods.bases.method import LearningTask, Step
from par.methods.bases.modular import Candidate, Modular
from par.networks.modules import DEPTH, ConvModule, flatten, n_features
from par.schema import Range


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of SG-F."""

    channels: Annotated[int, Range(3)] = 64  # of every module; sources.md#soft-gating


class Gate(nn.Module):
    """The gates of one task: per layer, the weights of the modules in its pool for every image.

    The gate of layer l (0..3) sends the layer's input through the first 4 - l of four blocks (3x3 convolution,
    max-pool, ReLU; shared between the layers, as in the original code) and a linear layer. A pool of one module needs
    no gate and gets none.

    Args:
        sizes: modules in each layer's pool.
    """

    def __init__(self, channels: int, sizes: Sequence[int]):
        super().__init__()
        gated = [layer for layer, size in enumerate(sizes) if size > 1]
        n_blocks = max((DEPTH - layer for layer in gated), default=0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU())
            for _ in range(n_blocks)
        )
        self.outputs = nn.ModuleDict({str(layer): nn.Linear(n_features(channels), sizes[layer]) for layer in gated})
        self.to(memory_format=torch.channels_last)

    def forward(self, inputs: Tensor, layer: int) -> Tensor:
        """Layer inputs [n, C, H, W] -> weights [n, modules] that sum to one."""
        for block in self.blocks[: DEPTH - layer]:
            inputs = block(inputs)
        return functional.softmax(self.outputs[str(layer)](flatten(inputs)), dim=1)


class TaskParts(nn.Module):
    """What one task owns besides its head."""

    def __init__(self, channels: int, fresh: Sequence[int], sizes: Sequence[int]):
        super().__init__()
        self.blocks = nn.ModuleDict({str(layer): ConvModule(channels, channels) for layer in fresh})
        self.gate = Gate(channels, sizes)


class SoftGating(Modular):
    """Four layers, each a pool of modules mixed by the task's gates; modules are frozen after their first task.

        x_{l+1} = sum_m g_m^l(x_l) module_m^l(x_l),   g^l = softmax(gate^l(x_l))

    with x_0 the image, zero-padded to the modules' channels.

    A new task tries 5 networks (sources.md#soft-gating): all modules reused, or one fresh in layer 4, 3-4, 2-4 or 1-4;
    gates, head and fresh modules are trained, the best on validation data stays, on a tie the one with fewer fresh
    modules. Later modules do not enter the gates of earlier tasks: no forgetting, bit for bit. The last map is brought
    to 2x2 before the head (:mod:`par.networks.modules`); the original flattens it, which is the same at 32 px.
    """

    Hyper = Hyper
    capturable = True
    blocks = ()

    def n_features(self) -> int:
        return n_features(self.hyper.channels)

    def build(self, record: dict[str, Any]) -> nn.Module:
        sizes = [len(self.owners(layer, self.tasks)) + (layer in record["fresh"]) for layer in range(DEPTH)]
        return TaskParts(self.hyper.channels, record["fresh"], sizes)

    def owners(self, layer: int, records: Sequence[dict[str, Any]]) -> list[int]:
        """Tasks among ``records`` that added a module to the pool of ``layer``."""
        return [record["task"] for record in records if layer in record["fresh"]]

    def logits(self, images: Tensor, task_id: int) -> Tensor:
        records = self.tasks[: self.position(task_id) + 1]
        gate = self.part(task_id, TaskParts).gate
        state = functional.pad(images, (0, 0, 0, 0, 0, self.hyper.channels - images.shape[1]))
        for layer in range(DEPTH):
            pool = [self.part(owner, TaskParts).blocks[str(layer)] for owner in self.owners(layer, records)]
            if len(pool) == 1:
                state = pool[0](state)
            else:
                weights = gate(state, layer).T[:, :, None, None, None]
                terms = (weight * module(state) for weight, module in zip(weights, pool, strict=True))
                state = sum(terms, start=torch.zeros((), device=self.device))
        return self.heads(flatten(state), task_id)

    def learn(self, task: LearningTask, step: Step) -> list[dict[str, float]]:
        return self.learn_best(task, step, self.candidates())

    def candidates(self) -> list[Candidate]:
        """The expansions to try, fewest fresh modules first; the first task fills all layers."""
        counts = range(DEPTH + 1) if self.tasks else [DEPTH]
        return [Candidate(f"fresh {count}", {"fresh": list(range(DEPTH - count, DEPTH))}) for count in counts]
