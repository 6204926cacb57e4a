"""What one training step costs on a GPU, counted on the emulated device: ``python -m tests.device.count``.

Prints the two tables of docs/gpu.md: copies between host and device and waits of the host, for every method; and
kernel launches and bytes moved, for the networks at the paper's size. Launches are those of torch 2.14's kernels, as
far as their number can be read from the operations; bytes are those of every operation's arguments and results, as if
no cache held any. Nothing is measured.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from par.cells.expert import Expert
from par.cells.genotype import DARTS_V1, KINDS
from par.cells.supernet import Supernet
from par.methods import METHODS
from par.methods.bases.method import Step
from par.networks.resnet import LightResNet18
from par.training.losses import cross_entropy, distillation
from par.training.precision import autocast, policy
from tests.device.cases import CASES, RECIPE, learner, task
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
    if name.startswith("_foreach"):
        lists = [value for value in args if isinstance(value, (list, tuple)) and value and torch.is_tensor(value[0])]
        depth = min(4, len(lists) + (not name.endswith("_")))
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


def count_step(make: Callable[[], nn.Module], batch: int, teacher: bool = False, pixels: int = 32) -> Launches:
    """One step of the trainer after a first one, which makes the optimiser's buffers."""
    with emulated_gpu("meta"):
        model = on_device(make())
        head, frozen = on_device(nn.Linear(model.n_features, 10)), on_device(make()).eval().requires_grad_(False)
        parameters = [*model.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(parameters, 0.01, momentum=0.9, weight_decay=0.003, foreach=True)
        images = torch.empty(batch, pixels, pixels, 3, device=GPU).permute(0, 3, 1, 2)
        labels = torch.empty(batch, dtype=torch.int64, device=GPU)
        for _ in range(2):
            with Launches() as counted:
                with autocast(GPU):
                    features = model(images)
                    loss = cross_entropy(head(features), labels)
                    if teacher:
                        with torch.no_grad():
                            old = head(frozen(images))
                        loss = loss + distillation(head(features), old, 2.0)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], 10.0, foreach=True)
                optimizer.step()
    return counted


def path(seed: int) -> Supernet:
    """The search network with a random path."""
    drawn, network = np.random.default_rng(seed), Supernet(4, 64)
    network.choose({kind: drawn.integers(0, 6, 14).tolist() for kind in KINDS})
    return network


def networks(batch: int, details: bool) -> None:
    """The table of launches."""
    expert, resnet = lambda: Expert(DARTS_V1, 4, 64), lambda: LightResNet18(64)  # noqa: E731
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


def count_method(name: str) -> tuple[Any, ...]:
    """Medians over the steps of the last task: copies to the device, to the host, waits, operations."""
    case = replace(CASES[name], tasks=1 if name == "independent" else 3)
    marks: list[tuple[int, ...]] = []
    with emulated_gpu() as mode, policy(GPU, "bf16"):

        def mark(n_images: int) -> None:
            totals = mode.copies["cpu->gpu"], mode.copies["gpu->cpu"], mode.reads.total(), mode.operations.total()
            marks.append(totals)

        current = learner(name, case.hyper, GPU)
        for index in range(case.tasks):
            marks.clear()
            current.learn(task(index, GPU), Step(replace(RECIPE, batch_size=4), f"count/{index}", mark))
    steps = np.diff(np.array(marks), axis=0)
    return tuple(statistics.median(column) for column in steps.T.tolist())


def methods(names: list[str]) -> None:
    """The table of copies."""
    print(
        "| method | copies to the device | copies to the host | waits of the host | operations |\n|---|---|---|---|---|"
    )
    for name in names:
        print(f"| {name} | " + " | ".join(f"{value:g}" for value in count_method(name)) + " |", flush=True)


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
