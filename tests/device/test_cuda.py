"""On a real GPU: every method learns as on a CPU, and the same bits twice."""

from __future__ import annotations

import pytest
import torch

from par.training.precision import policy, resolve_precision
from tests.device.cases import CASES, through

pytestmark = pytest.mark.gpu
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("name", CASES)
def test_in_float32_it_learns_as_on_a_cpu(name):
    with policy(CUDA, "float32"):
        losses, _ = through(CASES[name], CUDA)
    assert losses[0] == pytest.approx(through(CASES[name], CPU)[0][0], abs=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_two_runs_give_the_same_bits(name):
    with policy(CUDA, resolve_precision("auto", CUDA)):
        (losses, predictions), (others, other_predictions) = (through(CASES[name], CUDA) for _ in range(2))
    assert losses == others and all(map(torch.equal, predictions, other_predictions))
