"""PNN: a column per task that reads all earlier columns (Rusu et al. 2016, sources.md#pnn)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from par.methods.bases.modular import Modular
from par.networks import build_network
from par.networks.resnet import LightResNet, draw_by_fan_out


class Scaled(nn.Module):
    """Outputs of earlier columns, each times a learned scalar, concatenated along the channels."""

    def __init__(self, n_columns: int):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(n_columns))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        return torch.cat([scale * state for scale, state in zip(self.scale, states, strict=True)], dim=1)


class Column(nn.Module):
    """A light ResNet18 with lateral adapters from ``n_previous`` columns, its head's lateral included."""

    def __init__(self, trunk: LightResNet, lateral_stages: nn.Sequential, n_previous: int, n_classes: int):
        super().__init__()
        width = trunk.n_features
        self.trunk = trunk
        self.laterals = nn.ModuleList()
        if n_previous:
            for stage in lateral_stages:
                mix = nn.Conv2d(width * n_previous, width, 1)
                draw_by_fan_out(mix)
                self.laterals.append(nn.Sequential(Scaled(n_previous), mix, nn.ReLU(), stage))
            layers = nn.Linear(width * n_previous, width), nn.ReLU(), nn.Linear(width, n_classes)
            self.laterals.append(nn.Sequential(Scaled(n_previous), *layers))
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor, previous: Sequence[Sequence[Tensor]] = ()) -> list[Tensor]:
        """What this column offers later ones: the inputs of its four stages and its features [n, width].

        ``previous`` holds the same of each earlier column; without it the laterals are left out.
        """
        state = self.trunk.pool(self.trunk.stem(images))
        states = [state]
        for depth, stage in enumerate(self.trunk.stages):
            state = stage(state)
            if previous:
                state = state + self.laterals[depth]([column[depth] for column in previous])
            states.append(state)
        states[-1] = state.mean(dim=(2, 3))
        return states


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of PNN."""

    # whether earlier columns are evaluated with their own laterals, as Rusu et al. define it; PAR's code leaves them
    # out (sources.md#pnn), and the paper's table is made with that
    old_laterals: bool = False


class Pnn(Modular):
    """The column network of PAR's repository on the light ResNet18 (sources.md#pnn).

    With x_s^j the input of stage s in column j, column t computes

        x_{s+1}^t = stage_s(x_s^t) + stage'_s(ReLU(conv1x1([a_1 x_s^1, ..., a_{t-1} x_s^{t-1}])))

    and adds ``Linear(ReLU(Linear([a_j f^j])))`` of the earlier columns' features to its head's logits; the scalars a
    start from N(0, 1). Earlier columns are frozen, with their buffers. M is .607, 1.840, ... 12.442 million for ten
    10-way tasks, and a step's time grows with the number of columns.

    The released code leaves the affine part of a new stem's BatchNorm untrained; here it is trained.
    """

    Hyper = Hyper
    capturable = True

    def build(self, record: dict[str, Any]) -> nn.Module:
        trunk, laterals = build_network(self.settings.network), build_network(self.settings.network).stages
        return Column(trunk, laterals, len(self.tasks), record["n_classes"])

    def logits(self, images: Tensor, task_id: int) -> Tensor:
        previous: list[list[Tensor]] = []
        with torch.no_grad():
            for record in self.tasks[: self.position(task_id)]:
                column = self.part(record["task"], Column)
                previous.append(column(images, tuple(previous) if self.hyper.old_laterals else ()))
        column = self.part(task_id, Column)
        features = column(images, previous)[-1]
        logits = self.heads(features, task_id)
        return logits + column.laterals[-1]([states[-1] for states in previous]) if previous else logits
