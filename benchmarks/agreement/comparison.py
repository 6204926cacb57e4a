"""What the comparisons with other code share: precision, batches, differences, the printed table."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from par import metrics
from par.methods.bases.method import LearningTask, Method, Step
from par.streams import Stream, build_stream, load_stream
from par.training import trainer
from par.training.images import Images

# where our loss is used: it sums in float32 on purpose, a cast that a comparison in float64 sets aside
LOSSES = (
    "par.methods.bases.method",
    "par.methods.par",
    "par.methods.lwf",
    "par.methods.ewc",
    "par.methods.gpm",
    "par.methods.hat",
    "par.methods.er",
    "par.methods.agem",
    "par.methods.cat",
    "par.methods.learn_to_grow",
    "par.methods.lmc",
    "par.methods.mntdp_s",
    "par.cells.search",
)


@dataclass(frozen=True)
class Row:
    """One comparison: the largest difference, and how large it may be (``None``: shown, not judged)."""

    part: str
    what: str
    difference: float
    allowed: float | None

    def __str__(self) -> str:
        verdict = "" if self.allowed is None else "agrees" if self.difference <= self.allowed else "DIFFERS"
        return f"| {self.part} | {self.what} | {self.difference:.1e} | {verdict} |"


def largest_difference(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Largest absolute difference over pairs of arrays of one shape, each relative to the second's largest value.

    Raises:
        AssertionError: shapes differ, or nothing is compared.
    """
    worst = []
    for first, second in pairs:
        a, b = (np.asarray(torch.as_tensor(value).detach().numpy(), np.float64) for value in (first, second))
        assert a.shape == b.shape, f"shapes {a.shape} and {b.shape}"
        worst.append(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300)) if a.any() or b.any() else 0.0)
    assert worst
    return max(worst)


@contextmanager
def in_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Inside, new tensors have ``dtype`` and our losses keep it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with ExitStack() as patches:
            for module in LOSSES:
                patches.enter_context(mock.patch(f"{module}.cross_entropy", functional.cross_entropy))
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def precise_casts() -> Iterator[None]:
    """Inside, ``Tensor.float`` casts to torch's default dtype."""
    with mock.patch.object(torch.Tensor, "float", lambda tensor: tensor.to(torch.get_default_dtype())):
        yield


def batches_of(images: Images, size: int) -> list[tuple[Tensor, Tensor]]:
    """All images in order, not augmented."""
    return [
        (images.batch(rows).to(torch.get_default_dtype()), images.labels[rows])
        for rows in torch.arange(len(images)).split(size)
    ]


def all_of(images: Images) -> tuple[Tensor, Tensor]:
    """Images, not augmented and not in channels_last, and labels."""
    ((batch, labels),) = batches_of(images, len(images))
    return batch.contiguous(), labels


class ConvertedImages(Images):
    """Images whose batches have torch's default dtype."""

    def augmented(self, rows: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        return super().augmented(rows, drawn).to(torch.get_default_dtype())

    def subset(self, rows: Tensor) -> Images:
        part = object.__new__(type(self))
        part.__dict__.update(super().subset(rows).__dict__)
        return part


def without_dropout(network: nn.Module) -> nn.Module:
    """The network, in which nothing drops out any more."""
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return network


def recorded(method: type[Method]) -> type[Method]:
    """A learner of ``method`` in torch's default dtype, without dropout, that keeps what it began a task with and
    trained on."""

    def start_task(self, task: LearningTask, step: Step) -> None:
        method.start_task(self, task, step)
        without_dropout(self.to(torch.get_default_dtype()))
        self.epochs = []
        self.initial = {name: value.clone() for name, value in self.state_dict().items()}

    def start_epoch(self, epoch: int) -> None:
        method.start_epoch(self, epoch)
        self.epochs.append([])

    def loss(self, batch: trainer.Batch) -> Tensor:
        self.epochs[-1].append((batch.images, batch.labels))
        return method.loss(self, batch)

    return type(method.__name__, (method,), {"start_task": start_task, "start_epoch": start_epoch, "loss": loss})


@contextmanager
def as_it_began(ours: nn.Module) -> Iterator[None]:
    """Inside, a recorded learner or search of ours is what it was (``initial``) before it was trained last."""
    after = {name: value.clone() for name, value in ours.state_dict().items()}
    ours.load_state_dict(ours.initial)
    try:
        yield
    finally:
        ours.load_state_dict(after)


@contextmanager
def last_epoch_stays() -> Iterator[None]:
    """Inside, our training loop finds every epoch better than the one before, so that it keeps the last weights."""
    accuracies = itertools.count(1)
    with mock.patch.object(trainer, "accuracy", lambda predict, images: float(next(accuracies))):
        yield


def small_tasks(
    stream: Any, counts: Sequence[int], step: int = 1, kind: type[Images] = ConvertedImages
) -> list[LearningTask]:
    """The first tasks of a stream of ten classes, not augmented: ``counts`` training and 50 validation images, of which
    every ``step``-th pixel, as images of a ``kind``."""
    tasks = []
    for task, count in zip(stream.tasks, counts, strict=False):
        splits = [small_split(task, name, size, step, kind) for name, size in (("train", count), ("valid", 50))]
        tasks.append(LearningTask(task.index, task.n_classes, *splits))
    return tasks


def small_split(task: Any, name: str, size: int, step: int, kind: type[Images]) -> Images:
    """So many images of a task's split, as many of each class, of which every ``step``-th pixel."""
    split = task.split(name)
    rows = np.arange(len(split.labels)).reshape(task.n_classes, -1).T.ravel()[:size]
    return kind(split.images[rows][:, :, ::step, ::step], split.labels[rows], task.mean, task.std)


def means_agree(part: str, here: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> Iterator[Row]:
    """AP and AF of two sides that draw their own, from their accuracy matrices r_ij of as many seeds: how far the means
    are apart, in units of 1. Two standard errors of the difference are allowed."""
    figures = (("AP", metrics.average_accuracy), ("AF", metrics.average_forgetting))
    for name, figure in figures:
        values = [np.array([figure(matrix) for matrix in matrices]) for matrices in (here, theirs)]
        error = float(np.sqrt(sum(each.var(ddof=1) / len(each) for each in values)))
        own, other = (float(each.mean()) for each in values)
        what = f"{name} of {len(here)} seeds, {own:.3f} here and {other:.3f} (standard error {error:.3f})"
        yield Row(part, what, abs(own - other), 2 * error)


def run(data: Path, compared: Callable[[Stream], Iterable[Row]]) -> NoReturn:
    """Compare on CIFAR100-10, on one thread, and leave with an error where something differs.

    Args:
        data: folder with CIFAR-100.
        compared: the comparisons, given the stream.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        build_stream("cifar100_10", 0, data, folder)
        differing = show(compared(load_stream(folder)))
    raise SystemExit(f"{differing} comparisons differ" if differing else 0)


def show(rows: Iterable[Row]) -> int:
    """Print the rows as a Markdown table while they come; returns how many comparisons differ."""
    print("\n| part | compared | largest difference | |\n|---|---|---|---|", flush=True)
    differing = 0
    for row in rows:
        print(row, flush=True)
        differing += row.allowed is not None and row.difference > row.allowed
    return differing
