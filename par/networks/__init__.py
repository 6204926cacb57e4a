"""Networks of the single-network methods, and the heads that every method shares."""

from __future__ import annotations

from par.config import NetworkSettings
from par.networks.resnet import LightResNet


def build_network(settings: NetworkSettings, fan_out: bool = True) -> LightResNet:
    """The trunk that ``settings`` describe: images [n, 3, H, W] -> features [n, ``trunk.n_features``].

    ``fan_out`` is whether its initial weights are those of PAR's code or torch's default (sources.md#resnet).
    """
    return LightResNet(settings.width, settings.stem_pool, settings.n_blocks, fan_out)
