"""The light ResNet18 of MNTDP and PAR, the same width in all four stages (sources.md#resnet), and a shallower one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from par.networks.convolution import StridedConv


def draw_by_fan_out(network: nn.Module) -> None:
    """Draw the weights of all convolutions from N(0, 2 / (k k out)), as PAR's code does (sources.md#resnet).

    torch's default is 2.45 times narrower where as many channels leave as enter; in the stem 1.9 times wider.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation and a shortcut (He et al. 2016)."""

    def __init__(self, width: int, stride: int):
        super().__init__()
        self.conv1 = StridedConv(width, width, 3, stride, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module
        if stride == 1:
            self.shortcut = nn.Identity()
        else:
            self.shortcut = nn.Sequential(StridedConv(width, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = functional.relu(self.norm1(self.conv1(inputs)), inplace=True)
        outputs = self.norm2(self.conv2(outputs)) + self.shortcut(inputs)
        return functional.relu(outputs, inplace=True)


class LightResNet(nn.Module):
    """As ResNet18, of 606,400 parameters at width 64; with one 10-way head the paper's 0.607M.

    Args:
        width: channels of the stem and of every stage.
        stem_pool: 3x3/2 max-pool after the stem, as in PAR's code; MNTDP's network has none and 4 times the work.
        n_blocks: residual blocks a stage: 2 make it ResNet18, 1 ResNet10.
        fan_out: weights of convolutions by :func:`draw_by_fan_out`, otherwise by torch's default.
    """

    def __init__(self, width: int = 64, stem_pool: bool = True, n_blocks: int = 2, fan_out: bool = True):
        super().__init__()
        self.n_features = width
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        self.pool = nn.MaxPool2d(3, 2, padding=1) if stem_pool else nn.Identity()
        self.stages = nn.Sequential(
            *(
                nn.Sequential(BasicBlock(width, stride), *(BasicBlock(width, 1) for _ in range(n_blocks - 1)))
                for stride in (1, 2, 2, 2)
            )
        )
        if fan_out:
            draw_by_fan_out(self)
        self.to(memory_format=torch.channels_last)

    def blocks(self) -> list[nn.Module]:
        """The parts that MNTDP chooses from, in order: stem, stages 1-3, the blocks of stage 4 (sources.md#mntdp)."""
        last = self.stages[3]
        assert isinstance(last, nn.Sequential)
        return [nn.Sequential(self.stem, self.pool), *self.stages[:3], *last]

    def forward(self, images: Tensor) -> Tensor:
        """Images [n, 3, H, W] of any size -> features [n, width]."""
        return self.stages(self.pool(self.stem(images))).mean(dim=(2, 3))
