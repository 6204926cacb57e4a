"""On a real GPU: every method learns as on a CPU, the same bits twice, and those bits also by captured steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from par.training import trainer
from par.training.precision import policy, resolve_precision
from par.training.step import CudaGraphs, capturing
from tests.device.cases import CASES, RECIPE, through
from tests.training.test_step import Small, images

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


@pytest.mark.parametrize("name", CASES)
def test_captured_steps_give_the_bits_of_called_ones(name, capsys):
    recipe, found = replace(RECIPE, epochs=2, batch_size=9), []
    for make in (None, CudaGraphs):
        with policy(CUDA, resolve_precision("auto", CUDA)), capturing(make):
            found.append(through(CASES[name], CUDA, recipe))
    assert "not be captured" not in capsys.readouterr().err
    (losses, predictions), (others, other_predictions) = found
    assert losses == others and all(map(torch.equal, predictions, other_predictions))


def test_after_a_capture_that_fails_training_goes_on_as_if_it_had_not_been_tried(capsys):
    """With dropout, whose generator a failed capture leaves in capture mode."""

    class Reading(Small):
        def loss(self, batch):
            loss = super().loss(batch)
            assert float(loss) > 0
            return loss

    found = []
    for make in (None, CudaGraphs):
        with policy(CUDA, "float32"), capturing(make):
            train, valid = images(14, ("crop", "flip"), CUDA), images(6, (), CUDA)
            found.append(trainer.fit(Reading().to(CUDA), train, valid, replace(RECIPE, epochs=3, batch_size=4), "k"))
    assert capsys.readouterr().err.count("not be captured") == 1
    assert [row["loss"] for row in found[0]] == [row["loss"] for row in found[1]]
