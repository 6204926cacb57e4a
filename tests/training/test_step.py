"""How steps run: with a recorder that replays by calling, on the CPU.

tests/device/exercise.py captures the steps of every method on the emulated device, where a replay runs no Python.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from par.config import Recipe
from par.training import step, trainer
from par.training.images import Images
from tests.device.cases import Calls

RECIPE = Recipe(epochs=3, batch_size=4, learning_rate=0.1)


class Small(trainer.Trainable):
    """A convolution with batch normalisation and a linear layer; counts what runs on the host."""

    capturable = True

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()]
        self.network = nn.Sequential(*layers, nn.Linear(4 * 64, 3)).to(memory_format=torch.channels_last)
        self.buffers_seen: list[int] = []

    def modules_to_train(self) -> list[nn.Module]:
        return [self.network]

    def draw(self, sizes):
        return [{"factor": torch.tensor(1.0 + number)} for number in range(len(sizes))]

    def loss(self, batch: trainer.Batch) -> Tensor:
        self.buffers_seen.append(batch.rows.data_ptr())
        factor = batch.drawn["factor"]
        return factor * nn.functional.cross_entropy(self.predict(batch.images), batch.labels)

    def predict(self, images: Tensor) -> Tensor:
        return self.network(images)


class Broken(Calls):
    """Refuses, as CUDA does, with an error that follows another."""

    def record(self, step):
        try:
            raise RuntimeError("the step reads a value")
        except RuntimeError:
            raise RuntimeError("the capture was lost") from None


def images(count: int, augment=(), device="cpu") -> Images:
    generator = np.random.default_rng(count)
    pixels = generator.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8)
    return Images(pixels, generator.integers(3, size=count), (0.5,) * 3, (0.25,) * 3, augment, device)


def fit(make, recipe: Recipe = RECIPE, n_images: int = 14, **options):
    """The losses, the state and the model after a fit on 4 + 4 + 4 + 2 images an epoch."""
    model = Small()
    with step.capturing(make):
        log = trainer.fit(model, images(n_images, ("crop", "flip")), images(6), recipe, "k", keep_best=False, **options)
    return [row["loss"] for row in log], model.state_dict(), model


def same(one, other) -> bool:
    return one[0] == other[0] and all(torch.equal(one[1][name], value) for name, value in other[1].items())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_replayed_steps_read_their_batch_where_it_was_recorded_and_give_the_same_bits(optimizer):
    recipe = replace(RECIPE, optimizer=optimizer, learning_rate=0.1 if optimizer == "sgd" else 0.01)
    recorders: list[Calls] = []
    replayed = fit(lambda device: recorders.append(Calls(device)) or recorders[-1], recipe)
    called = fit(Broken, recipe)
    assert same(replayed, called)
    assert [recorder.n_recorded for recorder in recorders] == [1]
    seen = replayed[2].buffers_seen  # warm-up, 2 of one graph, a shorter batch, then 3 and a shorter one an epoch
    assert len(seen) == 12 and len({seen[i] for i in (1, 2, 4, 5, 6, 8, 9, 10)}) == 1
    assert not {seen[i] for i in (0, 3, 7, 11)} & {seen[1]}
    # The optimiser that can be captured takes the same steps as the usual one, but for the last bits.
    usual = fit(None, recipe)
    assert replayed[0] == pytest.approx(usual[0], rel=1e-4)
    for name, value in usual[1].items():
        torch.testing.assert_close(replayed[1][name], value, rtol=1e-3, atol=1e-4)


def test_batch_normalisation_counts_its_batches_at_the_end_of_an_epoch():
    for make in (None, Calls, Broken):
        model = fit(make)[2]
        assert int(model.network[1].num_batches_tracked) == 12
        assert "network.1.num_batches_tracked" in model.state_dict()


def test_a_recording_that_runs_on_the_host_alone_counts_batches_by_its_replays():
    """As on CUDA: recording calls the step once, a replay calls nothing."""

    class Graph(Calls):
        def record(self, step):
            step()
            return lambda: None

    assert int(fit(Graph)[2].network[1].num_batches_tracked) == 12


def test_a_step_that_cannot_be_captured_is_called_and_that_is_said_once(capsys):
    fit(Broken)
    printed = capsys.readouterr().err
    assert printed == ("Steps are launched one by one, because they could not be captured: the step reads a value\n")


def test_a_method_that_cannot_be_captured_is_not():
    class Never(Calls):
        def record(self, step):
            raise AssertionError("recorded")

    class Unfit(Small):
        capturable = False

    model = Unfit()
    with step.capturing(Never):
        trainer.fit(model, images(14), images(6), RECIPE, "k")
    assert len(model.buffers_seen) == 12
    assert not trainer.Trainable().capturable  # a method has to say that it is


def test_a_fit_that_was_killed_goes_on_with_the_same_bits():
    class Killed(Exception):
        pass

    class Memory:
        def __init__(self, state=None, after=9):
            self.state, self.after = state, after

        def load(self):
            return self.state

        def is_due(self):
            return True

        def save(self, state):
            self.state, self.after = copy.deepcopy(state), self.after - 1
            if self.after == 0:
                raise Killed

    whole = fit(Calls, checkpoint=Memory())
    with pytest.raises(Killed):
        fit(Calls, checkpoint=(memory := Memory(after=2)))
    assert isinstance(memory.state["optimizer"]["param_groups"][0]["lr"], float)
    assert same(fit(Calls, checkpoint=Memory(memory.state)), whole)


def test_captured_only_on_cuda_and_only_if_asked():
    assert step.cuda_graphs(torch.device("cuda"), True) is step.CudaGraphs
    assert step.cuda_graphs(torch.device("cuda"), False) is None and step.cuda_graphs(torch.device("cpu"), True) is None
    assert step.in_place(torch.device("cuda")) and not step.in_place(torch.device("cpu"))


def test_gradients_get_the_strides_of_their_parameters():
    kernel = nn.Parameter(torch.randn(6, 5, 1, 1))  # (5, 1, 1, 1)
    kernel.grad = torch.randn(6, 5, 1, 1).as_strided((6, 5, 1, 1), (5, 1, 5, 5))
    wide = nn.Parameter(torch.randn(6, 5, 3, 3).to(memory_format=torch.channels_last))
    wide.grad = torch.randn(6, 5, 3, 3)
    before = [kernel.grad.clone(), wide.grad.clone()]
    memory = kernel.grad.data_ptr()
    step.match_layouts([kernel, wide, nn.Parameter(torch.zeros(2))])
    for parameter, gradient in zip((kernel, wide), before, strict=True):
        assert parameter.grad.stride() == parameter.stride() and torch.equal(parameter.grad, gradient)
    assert kernel.grad.data_ptr() == memory  # no copy


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_step_that_is_undone_leaves_weights_and_state_as_if_there_were_no_gradient(optimizer):
    def train(undo: bool) -> list[list[float]]:
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(3)) for _ in range(2)]
        options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {"fused": True}
        made = optimizer(parameters, lr=0.1, weight_decay=0.1, **options)
        for rest in (True, False, True, True, False):
            for parameter in parameters:
                parameter.grad = torch.ones(3)
            if undo:
                with step.undone(made, parameters[1:], torch.tensor(rest)):
                    made.step()
            else:
                parameters[1].grad = None if rest else parameters[1].grad
                made.step()
        return [parameter.tolist() for parameter in parameters]

    assert train(undo=True) == train(undo=False)
