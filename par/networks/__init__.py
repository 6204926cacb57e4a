"""Networks of the single-network methods, and the heads that every method shares."""

from __future__ import annotations

from par.config import NetworkSettings
from par.networks.resnet import LightResNet


def build_network(settings: NetworkSettings) -> LightResNet:
    """The trunk that ``settings`` describe: images [n, 3, H, W] -> features [n, ``trunk.n_features``]."""
    return LightResNet(settings.width, settings.stem_pool, settings.n_blocks)
