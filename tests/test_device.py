"""Which device computes."""

from __future__ import annotations

import pytest
import torch

from par.device import card_of, resolve_device


@pytest.mark.parametrize(
    "name, number, n_cards, expected",
    [
        ("cuda", 0, 2, "cuda:0"),
        ("cuda", 2, 2, "cuda:0"),
        ("cuda", 3, 2, "cuda:1"),
        ("cuda", 5, 1, "cuda:0"),
        ("cuda:1", 4, 3, "cuda:1"),
        ("cpu", 3, 2, "cpu"),
        ("cpu", 3, 0, "cpu"),
    ],
)
def test_which_card_a_job_takes(name, number, n_cards, expected):
    assert card_of(torch.device(name), number, n_cards) == torch.device(expected)


@pytest.mark.parametrize("there, expected", [(True, "cuda"), (False, "cpu")])
def test_auto_is_a_gpu_where_there_is_one(there, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert resolve_device("auto") == torch.device(expected) and resolve_device("cpu") == torch.device("cpu")
