"""Random streams derived by name, so that a draw added to one never moves another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(*names: object) -> int:
    """A 63-bit seed that depends on every name (numbers and texts), e.g. ``derive(step_key, "augmentation")``."""
    digest = hashlib.sha256(json.dumps([str(name) for name in names]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def numpy_generator(*names: object) -> np.random.Generator:
    """A numpy generator seeded by :func:`derive`."""
    return np.random.default_rng(derive(*names))


def torch_generator(*names: object) -> torch.Generator:
    """A torch generator on the CPU seeded by :func:`derive`; draws made on it are the same on every device."""
    import torch

    return torch.Generator().manual_seed(derive(*names))


@contextmanager
def seeded_layers(*names: object) -> Iterator[None]:
    """Within the block torch's global generator, from which layers initialise and drop out, is seeded by the names.

    Its state before the block is restored after it.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(*names))
        yield
