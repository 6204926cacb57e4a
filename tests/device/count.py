"""What one training step costs on a GPU, counted on the emulated device: ``python -m tests.device.count``.

Prints the two tables of docs/gpu.md: copies between host and device and waits of the host, for every method; and
kernel launches and bytes moved, for the networks at the paper's size. Launches are those of torch 2.14's kernels, as
far as their number can be read from the operations; bytes are those of every operation's arguments and results, as if
no cache held any. Nothing is measured.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from par.cells.expert import Expert
from par.cells.genotype import DARTS_V1, KINDS
from par.cells.supernet import Supernet
from par.config import Recipe
from par.methods import METHODS
from par.methods.bases.method import Step
from par.networks.resnet import LightResNet
from par.training import trainer
from par.training.images import Images
from par.training.losses import cross_entropy, distillation
from par.training.precision import policy
from par.training.step import capturing, rate_on_device
from tests.device.cases import CASES, RECIPE, Calls, learner, task
from tests.device.emulated import GPU, emulated_gpu

# Operations that only make another view of what is there.
VIEWS = set(
    "view _unsafe_view t transpose permute expand slice select detach alias unsqueeze squeeze as_strided split "
    "split_with_sizes unbind narrow reshape lift_fresh empty empty_like empty_strided new_empty new_empty_strided "
    "result_type is_same_size".split()
)
TENSORS_A_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36}  # of a foreach kernel, by the number of its lists
MICROSECONDS_A_KERNEL, BYTES_A_MICROSECOND = 2.5, 2.5e6  # estimates for a large card: captured kernels, memory


def launches(name: str, args: tuple) -> int:
    """Kernels that an operation starts on CUDA."""
    if name in VIEWS:
        return 0
    if name.startswith(("_foreach", "_fused")):
        lists = [value for value in args if isinstance(value, (list, tuple)) and value and torch.is_tensor(value[0])]
        depth = min(4, len(lists) + (not name.endswith("_")))  # lists that it reads or writes
        return -(-len(lists[0]) // TENSORS_A_LAUNCH[depth]) * (2 if "norm" in name else 1)
    if name in ("native_batch_norm", "_native_batch_norm_legit"):
        return 4 if args[5] else 1  # statistics and their semaphores, running statistics, normalisation
    if name == "native_batch_norm_backward":
        return 3
    if name == "convolution_backward":
        return sum(map(bool, args[-1]))
    return 12 if "index_put" in name else 1  # it sorts


class Launches(TorchDispatchMode):
    """Counts launches and bytes of what runs on the device."""

    def __init__(self):
        super().__init__()
        self.launches = self.bytes = 0
        self.by_name: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        on_device = [leaf for leaf in tree_leaves((args, kwargs, result)) if torch.is_tensor(leaf) and not leaf.is_cpu]
        if on_device and (count := launches(name, args)):
            self.launches += count
            self.by_name[name] += count
            self.bytes += sum(map(_size, on_device))
            if name == "convolution_backward":  # the gradients of input and weight both read the output's
                self.bytes += sum(map(_size, args[:2]))
            if name.startswith("native_batch_norm"):  # statistics first, then a second pass
                self.bytes += (2 if "backward" in name else 1) * _size(args[0])
        return result


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def on_device(module: nn.Module) -> nn.Module:
    """The module with parameters and buffers of the same layout on the device."""

    def there(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=GPU)

    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                part._parameters[name] = nn.Parameter(there(parameter))
        for name, buffer in list(part._buffers.items()):
            part._buffers[name] = there(buffer)
    return module.train()


class Counted(trainer.Trainable):
    """A network with a head, and for a joining task a frozen teacher."""

    def __init__(self, make: Callable[[], nn.Module], teacher: bool):
        super().__init__()
        self.network = on_device(make())
        self.head = on_device(nn.Linear(self.network.n_features, 10))
        self.teacher = on_device(make()) if teacher else None

    def modules_to_train(self) -> list[nn.Module]:
        return [self.network, self.head]

    def loss(self, batch: trainer.Batch) -> torch.Tensor:
        features = self.network(batch.images)
        loss = cross_entropy(self.head(features), batch.labels)
        if self.teacher is not None:
            with torch.no_grad():
                old = self.head(self.teacher(batch.images))
            loss = loss + distillation(self.head(features), old, 2.0)
        return loss


def count_step(make: Callable[[], nn.Module], batch: int, teacher: bool = False, pixels: int = 32) -> Launches:
    """The second step of a fit, with the optimiser and the clipping that CUDA has; from images with crops and flips."""
    clip = partial(nn.utils.clip_grad_norm_, foreach=True)
    with emulated_gpu("meta"), capturing(Calls), mock.patch.object(nn.utils, "clip_grad_norm_", clip):
        model = Counted(make, teacher)
        shape = (2 * batch, 3, pixels, pixels)
        images = Images(np.zeros(shape, np.uint8), np.zeros(2 * batch), (0.5,) * 3, (0.25,) * 3, ("crop", "flip"), GPU)
        fit = trainer._Fit(model, images, Recipe(batch_size=batch), "count", keep_best=False)
        model.eval()
        fit.modules.train()
        with fit.steps.epoch(), rate_on_device(fit.optimizer, fit.rate):
            for inputs in fit._draw():
                with Launches() as counted:
                    fit._step(inputs)
    return counted


def path(seed: int) -> Supernet:
    """The search network with a random path."""
    drawn, network = np.random.default_rng(seed), Supernet(4, 64)
    network.choose({kind: drawn.integers(0, 6, 14).tolist() for kind in KINDS})
    return network


def networks(batch: int, details: bool) -> None:
    """The table of launches."""
    expert, resnet = lambda: Expert(DARTS_V1, 4, 64), lambda: LightResNet(64)  # noqa: E731
    rows: list[tuple[str, str, Callable[[], nn.Module], bool]] = [
        ("expert DARTS_V1, C = 64", "bf16", expert, False),
        ("expert DARTS_V1, C = 64", "float32", expert, False),
        ("joining task with teacher", "bf16", expert, True),
        *((f"path {seed} of the search network", "bf16", lambda seed=seed: path(seed), False) for seed in range(3)),
        ("light ResNet18", "bf16", resnet, False),
        ("light ResNet18", "float32", resnet, False),
    ]
    print("\n| network | precision | launches | GB moved | captured, ms | eager, ms |\n|---|---|---|---|---|---|")
    for title, precision, make, teacher in rows:
        with policy(GPU, precision):
            counted = count_step(make, batch, teacher)
        captured = (counted.launches * MICROSECONDS_A_KERNEL + counted.bytes / BYTES_A_MICROSECOND) / 1000
        eager = " to ".join(f"{max(captured, counted.launches * each / 1000):.1f}" for each in (8, 10))
        print(
            f"| {title} | {precision} | {counted.launches} | {counted.bytes / 1e9:.1f} | {captured:.1f} | {eager} |",
            flush=True,
        )
        if details:
            print("  " + ", ".join(f"{name} {n}" for name, n in counted.by_name.most_common(12)))


def count_method(name: str) -> tuple[int, ...]:
    """Of the steps of the last task the most copies to the device, copies to the host, waits, operations."""
    case = replace(CASES[name], tasks=1 if name == "independent" else 3)
    rows: list[tuple[int, ...]] = []
    with emulated_gpu() as mode, policy(GPU, "bf16"):

        def totals() -> np.ndarray:
            counts = mode.copies["cpu->gpu"], mode.copies["gpu->cpu"], mode.reads.total(), mode.operations.total()
            return np.array(counts)

        class Counting(trainer.Steps):
            def __call__(self, *arguments: Any) -> None:
                before = totals()
                super().__call__(*arguments)
                rows.append(tuple((totals() - before).tolist()))

        current = learner(name, case.hyper, GPU)
        with mock.patch.object(trainer, "Steps", Counting):
            for index in range(case.tasks):
                rows.clear()
                current.learn(task(index, GPU), Step(replace(RECIPE, batch_size=4), f"count/{index}"))
    return tuple(max(column) for column in zip(*rows, strict=True))


def methods(names: list[str]) -> None:
    """The table of copies."""
    print(
        "| method | copies to the device | copies to the host | waits of the host | operations |\n|---|---|---|---|---|"
    )
    for name in names:
        print(f"| {name} | " + " | ".join(map(str, count_method(name))) + " |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.device.count", description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=64, help="of the networks' table; %(default)s")
    parser.add_argument("--details", action="store_true", help="launches by operation")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    networks(options.batch, options.details)
    print()
    methods(list(METHODS))


if __name__ == "__main__":
    main()
