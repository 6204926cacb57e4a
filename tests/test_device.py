"""Which device computes."""

from __future__ import annotations

import pytest
import torch

from par.device import resolve_device


@pytest.mark.parametrize("there, expected", [(True, "cuda"), (False, "cpu")])
def test_auto_is_a_gpu_where_there_is_one(there, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert resolve_device("auto") == torch.device(expected) and resolve_device("cpu") == torch.device("cpu")
