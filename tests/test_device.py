"""Which device computes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from par.device import card_of, in_turn, resolve_device


@dataclass(frozen=True)
class Job:
    device: torch.device


@pytest.mark.parametrize(
    "name, number, n_cards, expected",
    [
        ("cuda", 0, 2, "cuda:0"),
        ("cuda", 3, 2, "cuda:1"),
        ("cuda", 5, 1, "cuda:0"),
        ("cuda:1", 4, 3, "cuda:1"),
        ("cpu", 3, 2, "cpu"),
        ("cpu", 3, 0, "cpu"),
    ],
)
def test_which_card_a_job_takes(name, number, n_cards, expected):
    assert card_of(torch.device(name), number, n_cards) == torch.device(expected)


def test_jobs_take_the_cards_in_turn():
    jobs = in_turn([Job(torch.device("cuda"))] * 5, 3)
    assert [job.device.index for job in jobs] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("there, expected", [(True, "cuda"), (False, "cpu")])
def test_auto_is_a_gpu_where_there_is_one(there, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert resolve_device("auto") == torch.device(expected) and resolve_device("cpu") == torch.device("cpu")
