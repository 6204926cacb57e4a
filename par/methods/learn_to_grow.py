"""Learn to Grow: each layer reuses, adapts or adds a kernel (Li et al. 2019, sources.md#learn-to-grow)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from par import seeding
from par.methods.bases.method import LearningTask, Step
from par.methods.bases.modular import Modular
from par.networks import build_network
from par.networks.convolution import convolve
from par.schema import Count, NonNegative, Positive
from par.training import trainer
from par.training.images import Images
from par.training.losses import cross_entropy
from par.training.step import adam

REUSE, ADAPT, NEW = "reuse", "adapt", "new"


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of Learn to Grow (sources.md#learn-to-grow)."""

    search_epochs: Count = 50  # the published script's, which the released code ignores for its internal 100
    search_learning_rate: Positive = 0.025  # SGD with cosine annealing, on kernels, adapters, BatchNorm and head
    search_weight_decay: NonNegative = 3e-4
    choice_learning_rate: Positive = 0.01  # Adam (betas .5, .999) on the layers' choices
    choice_weight_decay: NonNegative = 3e-4
    # Ours. The released code's effective value is 1, which outweighs the cross-entropy: on toy tasks it reused all 20
    # layers (validation accuracy .67); 0.1 reused 19 (.96), 0.01 reused 13 and adapted 6 (.94). The paper's M asks for
    # about 4 new kernels, or more adapted ones, per task (sources.md#learn-to-grow).
    size_weight: NonNegative = 0.01


def convolutions(trunk: nn.Module) -> dict[str, nn.Conv2d]:
    """The layers of the library: every convolution of a fresh light ResNet18, by name, in order."""
    return {name: module for name, module in trunk.named_modules() if isinstance(module, nn.Conv2d)}


def widened(correction: Tensor, like: Tensor) -> Tensor:
    """A 1x1 kernel as a kernel of the size of ``like``: the same convolution, with the padding that goes with it."""
    return functional.pad(correction, [like.shape[-1] // 2] * 4)


class SharedConv(nn.Module):
    """A convolution with an earlier task's kernel, alone (reuse) or plus a parallel 1x1 convolution (adapt).

    The sum of both outputs is computed as one convolution with the sum of both kernels. The earlier kernel is no
    parameter of this module: the task that added it owns it.
    """

    def __init__(self, conv: nn.Conv2d, kernel: Tensor, adapt: bool):
        super().__init__()
        self.stride, self.padding = conv.stride, conv.padding
        self._kernel: tuple[Tensor] = (kernel,)
        self.correction = nn.Parameter(_correction(conv)) if adapt else None

    def forward(self, inputs: Tensor) -> Tensor:
        kernel = self._kernel[0]
        if self.correction is not None:
            kernel = kernel + widened(self.correction, kernel)
        return convolve(inputs, kernel, self.stride, self.padding)


class MixedConv(nn.Module):
    """All options of one layer at once, weighted by the softmax of their ``alpha`` (a buffer, so that the best epoch's
    are kept with its weights while the recipe's optimiser leaves them alone).

    Options in order: reuse kernel 0..c-1, adapt kernel 0..c-1, new. Convolution is linear in its kernel, so that the
    mixture of the outputs is one convolution with the mixture of the kernels, at the cost of a plain network.
    """

    alpha: Tensor
    costs: Tensor

    def __init__(self, conv: nn.Conv2d, kernels: Sequence[Tensor]):
        super().__init__()
        self.conv = conv
        self._kernels = tuple(kernels)
        self.corrections = nn.ParameterList(_correction(conv) for _ in kernels)
        self.options = [(kind, base) for kind in (REUSE, ADAPT) for base in range(len(kernels))] + [(NEW, 0)]
        self.register_buffer("alpha", torch.rand(len(self.options)))
        sizes = {REUSE: 0, ADAPT: conv.in_channels * conv.out_channels, NEW: conv.weight.numel()}
        costs = [math.log10(1 + sizes[kind]) for kind, _ in self.options]
        self.register_buffer("costs", torch.tensor(costs), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        *shared, new = torch.softmax(self.alpha, dim=0)
        kernel, count = new * self.conv.weight, len(self._kernels)
        for stored, correction, reuse, adapt in zip(self._kernels, self.corrections, shared[:count], shared[count:]):
            kernel = kernel + (reuse + adapt) * stored + adapt * widened(correction, stored)
        return convolve(inputs, kernel, self.conv.stride, self.conv.padding)

    def size(self) -> Tensor:
        """Expected log10(1 + added parameters) of the layer."""
        return torch.softmax(self.alpha, dim=0) @ self.costs

    def choice(self) -> tuple[str, int]:
        """The option with the largest weight."""
        return self.options[int(self.alpha.argmax())]


def _correction(conv: nn.Conv2d) -> Tensor:
    return nn.Conv2d(conv.in_channels, conv.out_channels, 1, bias=False).weight.detach()


class Search(trainer.Trainable):
    """First-order alternating search: before every step on the weights, one of Adam on
    the choices with a random batch of the other half of the data."""

    capturable = True

    def __init__(self, trunk: nn.Module, head: nn.Module, held_out: Images, hyper: Hyper, generator: torch.Generator):
        super().__init__()
        self.trunk, self.head = trunk, head
        self.held_out, self.hyper, self.generator = held_out, hyper, generator
        self.layers = [module for module in trunk.modules() if isinstance(module, MixedConv)]
        self.alphas = [layer.alpha.requires_grad_() for layer in self.layers]
        self.optimizer = adam(
            self.alphas,
            held_out.pixels.device,
            lr=hyper.choice_learning_rate,
            betas=(0.5, 0.999),
            weight_decay=hyper.choice_weight_decay,
        )

    def modules_to_train(self) -> list[nn.Module]:
        return [self.trunk, self.head]

    def draw(self, sizes: Sequence[int]) -> Sequence[Mapping[str, Tensor]]:
        """A batch of the held-out half for each one."""

        def one(size: int) -> dict[str, Tensor]:
            rows = torch.randint(len(self.held_out), (size,), generator=self.generator)
            return {"rows": rows} | self.held_out.draw(size, self.generator)

        return [one(size) for size in sizes]

    def loss(self, batch: trainer.Batch) -> Tensor:
        rows = batch.drawn["rows"]
        images, labels = self.held_out.augmented(rows, batch.drawn), self.held_out.labels[rows]
        gradients = torch.autograd.grad(self.objective(images, labels), self.alphas)
        for alpha, gradient in zip(self.alphas, gradients, strict=True):
            alpha.grad = gradient
        self.optimizer.step()
        return self.objective(batch.images, batch.labels)

    def step_state(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "generator": self.generator.get_state()}

    def load_step_state(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])

    def objective(self, images: Tensor, labels: Tensor) -> Tensor:
        size = torch.stack([layer.size() for layer in self.layers]).sum()
        return cross_entropy(self.predict(images), labels) + self.hyper.size_weight * size

    def predict(self, images: Tensor) -> Tensor:
        return self.head(self.trunk(images))


class LearnToGrow(Modular):
    """Learn to Grow on the light ResNet18, with every convolution as a layer of the library (sources.md#learn-to-grow).

    A layer holds the c kernels that earlier tasks added. For a new task it reuses one, adapts one (adds the output of
    a new 1x1 convolution) or adds a new one. The search minimises, alternately over the choices' weights
    g = softmax(alpha) and over the new parts, each on its half of the training data,

        CE + size_weight * sum_layers sum_o g_o log10(1 + params_o)

    The option with the largest alpha stays in each layer; from the search's weights on, the chosen new and adapting
    parts, the task's own BatchNorm and its head are trained by the recipe. Kernels of earlier tasks are frozen always.

    The released code differs in what its authors hardly meant: the halves are cut by position, "adapt" drops the
    kernel that it adapts, "reuse" takes a 1x1 adapter where the kernel was adapted before, and the search leaves the
    shortcuts' new kernels as they are. As there, kernels of later tasks start from torch's default.
    """

    Hyper = Hyper
    capturable = True

    def kernels(self, name: str) -> list[Tensor]:
        """The library of layer ``name``: kernels in the order in which tasks added them."""
        networks = (self.parts[str(record["task"])] for record in self.tasks)
        layers = (network.get_submodule(name) for network in networks)
        return [layer.weight for layer in layers if isinstance(layer, nn.Conv2d)]

    def build(self, record: dict[str, Any]) -> nn.Module:
        trunk = build_network(self.settings.network)
        for (name, conv), (kind, base) in zip(convolutions(trunk).items(), record["choices"], strict=True):
            if kind != NEW:
                trunk.set_submodule(name, SharedConv(conv, self.kernels(name)[base], kind == ADAPT))
        return trunk

    def logits(self, images: Tensor, task_id: int) -> Tensor:
        return self.heads(self.parts[str(task_id)](images), task_id)

    def start_task(self, task: LearningTask, step: Step) -> None:
        if not self.tasks:
            n_layers = len(convolutions(build_network(self.settings.network)))
            self.grow(self.record(task) | {"choices": [[NEW, 0]] * n_layers})
        else:
            found = step.remember("search", lambda: self._search(task, step))
            self.grow(self.record(task) | {"choices": found["choices"]})
            self.own(task.id).load_state_dict(found["tensors"])

    def _search(self, task: LearningTask, step: Step) -> dict[str, Any]:
        """Choices per layer, and the state of the modules that the task is going to own."""
        hyper = self.hyper
        rows = torch.from_numpy(seeding.numpy_generator(step.key, "halves").permutation(len(task.train)))
        first, second = task.train.subset(rows[::2]), task.train.subset(rows[1::2])
        with seeding.seeded_layers(step.key, "search"):
            trunk = build_network(self.settings.network, fan_out=False)
            layers = {name: MixedConv(conv, self.kernels(name)) for name, conv in convolutions(trunk).items()}
            for name, layer in layers.items():
                trunk.set_submodule(name, layer)
            head = nn.Linear(trunk.n_features, task.n_classes)
        generator = seeding.torch_generator(step.key, "choices")
        search = Search(trunk.to(self.device), head.to(self.device), second, hyper, generator)
        recipe = dataclasses.replace(
            step.recipe,
            epochs=hyper.search_epochs,
            optimizer="sgd",
            learning_rate=hyper.search_learning_rate,
            weight_decay=hyper.search_weight_decay,
            schedule="cosine",
            patience=None,
        )
        step.fit(search, dataclasses.replace(task, train=first, valid=second), "search", recipe)
        choices = [layer.choice() for layer in layers.values()]
        tensors = {f"head.{name}": value for name, value in head.state_dict().items()}
        for (name, layer), (kind, base) in zip(layers.items(), choices):
            if kind == NEW:
                tensors[f"parts.{name}.weight"] = layer.conv.weight
            elif kind == ADAPT:
                tensors[f"parts.{name}.correction"] = layer.corrections[base]
        inside = tuple(f"{name}." for name in layers)
        rest = {name: value for name, value in trunk.state_dict().items() if not name.startswith(inside)}
        tensors |= {f"parts.{name}": value for name, value in rest.items()}
        tensors = {name: value.detach().cpu().clone() for name, value in tensors.items()}
        return {"choices": [list(choice) for choice in choices], "tensors": tensors}
