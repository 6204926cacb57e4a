"""How much faster experts and the search network are than the same modules run plainly: `python -m benchmarks.cells`.

Plain means what the reference runs: NCHW tensors, one ReLU per operation, "none" computed as a product with 0. Both
variants have the same weights, their outputs are compared first, and their steps alternate. Printed are ratios of
processor seconds, which other load on the machine moves less than it moves elapsed ones; run it with OMP_NUM_THREADS=1,
because threads that wait for each other count too. The goals are 1.5 (expert) and 1.7 (search epoch).
"""

from __future__ import annotations

import argparse
import copy
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from par.cells.expert import Cell, Expert
from par.cells.genotype import EDGES, KINDS, OPERATIONS, random_genotype
from par.cells.operations import FactorisedReduction, OnActivated
from par.cells.stack import CellStack
from par.cells.supernet import SearchCell, Supernet


class PlainStack(nn.Module):
    """An expert, or the chosen path of a supernet, with copies of its weights and nothing shared or left out.

    Args:
        stack: the network to copy.
        bit_equal: keep the layout and the factorised reductions of ``stack``, whose other arithmetic rounds otherwise.
    """

    def __init__(self, stack: CellStack, bit_equal: bool = False):
        super().__init__()
        self.memory_format = torch.channels_last if bit_equal else torch.contiguous_format
        stack = copy.deepcopy(stack)
        self.stem = stack.stem
        self.cells = nn.ModuleList(PlainCell(cell, bit_equal) for cell in stack.cells)
        for parameter in self.parameters():
            if parameter.dim() == 4:  # `Module.to` leaves 1x1 and depthwise weights in their layout, which would spread
                parameter.data = parameter.detach().clone(memory_format=self.memory_format)

    def forward(self, images: Tensor) -> Tensor:
        older = newer = self.stem(images.contiguous(memory_format=self.memory_format))
        for cell in self.cells:
            older, newer = newer, cell(older, newer)
        return newer.mean(dim=(2, 3))


class PlainCell(nn.Module):
    """A cell of either kind of network as a list of edges."""

    def __init__(self, cell: Cell | SearchCell, bit_equal: bool):
        super().__init__()
        self.older, self.newer = _plain(cell.inputs.older, bit_equal), _plain(cell.inputs.newer, bit_equal)
        if isinstance(cell, Cell):
            self.edges = [(node, p) for node, pair in enumerate(cell.predecessors) for p in pair]
            operations = [operation for pair in cell.operations for operation in pair]
        else:
            self.edges = list(EDGES)
            operations = [
                Zero(cell.stride if predecessor < 2 else 1) if name == "none" else edge[name]
                for (_, predecessor), edge, name in zip(EDGES, cell.edges, cell.chosen)
            ]
        self.operations = nn.ModuleList(_plain(operation, bit_equal) for operation in operations)

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        states = [self.older(older), self.newer(newer)]
        for node in range(4):
            total = 0
            for (target, predecessor), operation in zip(self.edges, self.operations):
                if target == node:
                    total = total + operation(states[predecessor])
            states.append(total)
        return torch.cat(states[2:], dim=1)


class Zero(nn.Module):
    """The operation "none"."""

    def __init__(self, stride: int):
        super().__init__()
        self.stride = stride

    def forward(self, state: Tensor) -> Tensor:
        return state[:, :, :: self.stride, :: self.stride].mul(0.0)


class PlainReduction(nn.Module):
    """A factorised reduction as two convolutions of stride 2; odd sizes get one more row or column of zeros."""

    def __init__(self, reduction: FactorisedReduction):
        super().__init__()
        self.even, self.odd = reduction.even, reduction.odd
        self.even.stride = self.odd.stride = (2, 2)

    def forward(self, activated: Tensor) -> Tensor:
        height, width = activated.shape[2:]
        shifted = activated[:, :, 1:, 1:]
        if height % 2 or width % 2:
            shifted = functional.pad(shifted, (0, width % 2, 0, height % 2))
        return torch.cat((self.even(activated), self.odd(shifted)), dim=1)


def _plain(operation: nn.Module, bit_equal: bool) -> nn.Module:
    """The operation with a ReLU of its own."""
    if not isinstance(operation, OnActivated):
        return operation
    if isinstance(operation, FactorisedReduction) and not bit_equal:
        operation = PlainReduction(operation)
    return nn.Sequential(nn.ReLU(), operation)


class Runner:
    """A network with a head, its optimiser, and the processor seconds it has used."""

    def __init__(self, body: nn.Module, n_features: int):
        self.network = nn.Sequential(body, nn.Linear(n_features, 10))
        self.optimizer = torch.optim.SGD(self.network.parameters(), 0.01, momentum=0.9, weight_decay=0.003)
        self.seconds = 0.0

    def train_step(self, images: Tensor, labels: Tensor) -> None:
        self.network.train()
        self.optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(self.network(images), labels).backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self, images: Tensor) -> None:
        self.network.eval()
        self.network(images)


def compare(
    stack: CellStack, images: Tensor, labels: Tensor, steps: int, with_evaluation: bool
) -> tuple[float, float, float]:
    """Processor seconds of ``stack`` and of its plain copy, and their largest relative difference in a forward pass."""
    plain = PlainStack(stack)
    ours, theirs = Runner(stack, stack.n_features), Runner(plain, stack.n_features)
    batches = {ours: images.contiguous(memory_format=torch.channels_last), theirs: images.contiguous()}
    with torch.no_grad():
        expected = plain(batches[theirs])
        difference = float((stack(batches[ours]) - expected).abs().max() / expected.abs().max().clamp_min(1e-12))
    for step in range(-1, steps):  # the first step warms up
        for runner in (ours, theirs) if step % 2 else (theirs, ours):
            started = time.process_time()
            runner.train_step(batches[runner], labels)
            if with_evaluation:
                runner.evaluate(batches[runner])
            if step >= 0:
                runner.seconds += time.process_time() - started
    return ours.seconds, theirs.seconds, difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--size", type=int, default=32, help="pixels")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--architectures", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2, help="per architecture and variant")
    options = parser.parse_args()
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    images = torch.randn(options.batch, 3, options.size, options.size)
    labels = torch.randint(10, (options.batch,))
    print(f"{torch.get_num_threads()} threads, {vars(options)}")
    for name, goal, with_evaluation in (("expert training", 1.5, False), ("search epoch", 1.7, True)):
        totals = np.zeros(2)
        for _ in range(options.architectures):
            if with_evaluation:
                stack = Supernet(4, options.channels)
                stack.choose({kind: generator.integers(len(OPERATIONS), size=len(EDGES)) for kind in KINDS})
            else:
                stack = Expert(random_genotype(generator), 4, options.channels)
            *seconds, difference = compare(stack, images, labels, options.steps, with_evaluation)
            totals += seconds
            print(f"  {seconds[1] / seconds[0]:.2f} times as fast, largest relative difference {difference:.0e}")
        per_second = options.architectures * options.steps * options.batch / totals
        print(
            f"{name}: {totals[1] / totals[0]:.2f} times as fast as plain NCHW (goal {goal}); "
            f"{per_second[0]:.0f} against {per_second[1]:.0f} images per processor second"
        )


if __name__ == "__main__":
    main()
