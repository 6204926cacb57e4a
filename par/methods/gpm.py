"""GPM: gradient steps orthogonal to what earlier tasks feed into each layer (Saha et al. 2021, sources.md#gpm)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from par import seeding
from par.methods.bases.method import LearningTask, Step
from par.methods.bases.protected import ProtectedTrunk
from par.networks.gates import Layer
from par.schema import Count, NonNegative, Positive, Range
from par.training import trainer
from par.training.losses import cross_entropy

ALEXNET_IMAGES = (24, 100, 100, 125, 125)  # images whose inputs to each layer span its basis (sources.md#gpm)
STATISTICS_IMAGES = 1000
HIGHEST_THRESHOLD = 0.999  # of GPM's own runs (twentieth superclass task); at 1 a basis would be filled with noise


class ProjectedLinear(nn.Linear):
    """A linear layer without bias whose weight's gradient G = D^T X has no part in the span of ``basis``.

    With output gradients D [n, out] and inputs X [n, in], G - G M M^T = D^T (X - X M M^T): to project the n rows of a
    batch takes n / out of what it takes to project G.
    """

    basis: Tensor | None = None  # M, float32 [in, rank]; none: G as it is

    def forward(self, input: Tensor) -> Tensor:
        if self.basis is None:
            return super().forward(input)
        return _LinearWithProjectedGradient.apply(input, self.weight, self.basis)


class _LinearWithProjectedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, basis: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight, basis)
        return functional.linear(inputs, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs, weight, basis = ctx.saved_tensors
        gradient, rows = (tensor.to(weight.dtype) for tensor in (*gradients, inputs))  # autocast may have halved them
        return (gradient @ weight).to(inputs.dtype), gradient.T @ (rows - rows @ basis @ basis.T), None


class Gpm(ProtectedTrunk):
    """Each layer l keeps an orthonormal basis M_l of the inputs that earlier tasks need (sources.md#gpm).

    From the second task on the gradient G_l [out, in * k * k] of every layer of the trunk becomes

        G_l - G_l M_l M_l^T

    so that W_l x stays as it is for every x in the span. After task t the inputs of training images (patches for a
    convolution) are the columns of R; R' = R - M M^T R is what the basis lacks, and as many leading left singular
    vectors of R' join as are needed for

        ||R||^2 - ||R'||^2 + sum_i sigma_i^2 >= eps_t ||R||^2,    eps_t = threshold + threshold_growth * t.

    Heads are free. Scale and shift of batch normalisation are frozen after the first task; each task keeps its own
    statistics, where the released code normalises by the batch at hand, which makes accuracy depend on how test images
    are batched (sources.md#gpm). Basis images are drawn at random and not augmented.

    Behind dropout, which the AlexNet has, running statistics would be those of a network that is never evaluated: units
    that drop out raise the variance of what the next layer computes. A task of CIFAR-100 that was learned to .88 on
    its training images had .42 on test images by running statistics and .76 by statistics without dropout. So before
    every validation they are taken from training images, whole and not augmented: at most STATISTICS_IMAGES (all 4,750
    give the same accuracy to within .003), in batches of the recipe's size, of which means and variances are averaged.

    Between tasks: the bases, float32 [in * k * k, rank].
    """

    capturable = True
    alexnet_norm = True
    shared_affine = True
    linear = ProjectedLinear

    @dataclass(frozen=True)
    class Hyper:
        """Defaults: the released CIFAR100-10 run (sources.md#gpm): SGD at 0.01 without momentum or decay."""

        network: Literal["alexnet", "resnet"] = "alexnet"  # resnet: that of the network block
        width: Positive = 1.0  # factor of the AlexNet's layer sizes
        threshold: Annotated[float, Range(0, HIGHEST_THRESHOLD)] = 0.97  # superclass: 0.98, 5-datasets: 0.965
        threshold_growth: NonNegative = 0.003  # a task; capped at 0.999. Superclass: 0.001, 5-datasets: 0
        first_task: Literal["reach", "below"] = "reach"  # reach: the paper's rule; below (code): one vector fewer
        images: Count = 125  # that span the bases; AlexNet's layers see at most those of ALEXNET_IMAGES
        max_patches: Count = 24 * 29 * 29  # per convolution (its first images only): the most that the release uses

    _statistics_rows: Sequence[Tensor]  # batches of training images of the task; none where nothing drops out
    _statistics_are_old = False

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.bases: dict[str, Tensor] = {}

    def layers(self) -> dict[str, Layer]:
        """The protected layers by name."""
        return {name: module for name, module in self.trunk.named_modules() if isinstance(module, Layer)}

    def modules_with_decay(self) -> list[nn.Module]:
        is_first = len(self.tasks) == 1
        return [self.trunk, self.heads[self.current.id]] if is_first else super().modules_with_decay()

    def start_task(self, task: LearningTask, step: Step) -> None:
        super().start_task(task, step)
        self._project_inputs(self.bases)
        size, drops_out = step.recipe.batch_size, any(isinstance(part, nn.Dropout) for part in self.trunk.modules())
        drawn = trainer.batches(len(task.train), size, seeding.torch_generator(step.key, "statistics"))
        self._statistics_rows = list(islice(drawn, -(-STATISTICS_IMAGES // size) if drops_out else 0))

    def start_epoch(self, epoch: int) -> None:
        self._statistics_are_old = True

    def loss(self, batch: trainer.Batch) -> Tensor:
        """Cross-entropy under statistics of the batch."""
        return cross_entropy(self.logits(batch.images, self.current.id), batch.labels)

    def predict(self, images: Tensor) -> Tensor:
        """Logits on the current task, normalised by statistics of the weights at hand."""
        if self._statistics_are_old:
            self._take_statistics()
            self._statistics_are_old = False
        return super().predict(images)

    @torch.no_grad()
    def _take_statistics(self) -> None:
        """Normalise the current task by its training images without dropout (in eval mode)."""
        of_task = [norm.by_task[str(self.current.id)] for norm in self._norms]
        norms = [norm for norm in of_task if isinstance(norm, nn.BatchNorm2d)]  # all of them
        usual = [norm.momentum for norm in norms]
        for number, rows in enumerate(self._statistics_rows, start=1):
            for norm in norms:
                norm.train().momentum = 1 / number
            self.features(self.current.train.batch(rows), self.current.id)
        for norm, momentum in zip(norms, usual, strict=True):
            norm.eval().momentum = momentum

    def _project_inputs(self, bases: Mapping[str, Tensor]) -> None:
        """Let the layers that can leave their bases out of their gradients do so."""
        for name, layer in self.layers().items():
            if isinstance(layer, ProjectedLinear):
                layer.basis = bases.get(name)

    def after_backward(self) -> None:
        super().after_backward()
        for name, basis in self.bases.items():
            layer = self.trunk.get_submodule(name)
            assert isinstance(layer, Layer)
            if isinstance(layer, ProjectedLinear) and layer.basis is not None and not self._weight_decay:
                continue
            gradient = layer.weight.grad
            assert gradient is not None
            flat = gradient.flatten(1)
            gradient.copy_((flat - flat @ basis @ basis.T).view_as(gradient))

    def end_task(self, task: LearningTask, step: Step) -> None:
        position = len(self.tasks) - 1
        threshold = min(HIGHEST_THRESHOLD, self.hyper.threshold + self.hyper.threshold_growth * position)
        one_fewer = position == 0 and self.hyper.first_task == "below"
        for name, inputs in self._inputs(task, step).items():
            representation = columns(inputs, self.layers()[name])
            basis = extend_basis(self.bases.get(name), representation, threshold, one_fewer)
            self.bases[name] = basis.to(self.device)
        self._project_inputs({})

    @torch.no_grad()
    def _inputs(self, task: LearningTask, step: Step) -> dict[str, Tensor]:
        """What the training images feed into each layer, for as many images as its basis is made of."""
        found: dict[str, Tensor] = {}
        layers = self.layers()
        listed = ALEXNET_IMAGES if self.hyper.network == "alexnet" else (self.hyper.images,) * len(layers)

        def recorder(name: str, most: int) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
            def record(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
                patches = output[0, 0].numel() if output.dim() == 4 else 1
                found[name] = inputs[0][: min(most, max(1, self.hyper.max_patches // patches))].clone()

            return record

        order = torch.randperm(len(task.train), generator=seeding.torch_generator(step.key, "gpm"))
        hooks = [
            layer.register_forward_hook(recorder(name, most))
            for (name, layer), most in zip(layers.items(), listed, strict=True)
        ]
        self.features(task.train.batch(order[: self.hyper.images]), task.id)
        for hook in hooks:
            hook.remove()
        return found

    def n_state(self) -> int:
        return super().n_state() + sum(basis.numel() for basis in self.bases.values())

    def save(self) -> dict[str, Any]:
        return super().save() | {"bases": {name: basis.cpu().clone() for name, basis in self.bases.items()}}

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        self.bases = {name: basis.to(self.device) for name, basis in saved["bases"].items()}


def columns(inputs: Tensor, layer: Layer) -> Tensor:
    """Inputs of a layer [n, ...] as float64 columns [in * k * k, n * positions] on the CPU, as its weights see them."""
    inputs = inputs.cpu()
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)
        patches = functional.unfold(inputs, layer.kernel_size, padding=layer.padding, stride=layer.stride)
        return patches.transpose(0, 1).flatten(1).double()
    return inputs.T.double()


def extend_basis(basis: Tensor | None, representation: Tensor, threshold: float, one_fewer: bool = False) -> Tensor:
    """The basis with the directions it lacks, for a share ``threshold`` of the representation's energy.

    Args:
        basis: orthonormal columns float32 [d, rank], or None.
        representation: float64 [d, columns].
        one_fewer: leave out the vector that reaches the threshold.

    Returns:
        Orthonormal columns float32 [d, new rank]; never more than d.
    """
    basis = representation.new_zeros(len(representation), 0) if basis is None else basis.cpu().double()
    missing = representation - basis @ (basis.T @ representation)
    if missing.shape[1] > missing.shape[0]:
        missing = torch.linalg.qr(missing.T, mode="r").R.T  # square, with the same left singular vectors and values
    directions, singular_values, _ = torch.linalg.svd(missing, full_matrices=False)
    energies = singular_values.square()
    total = representation.square().sum()
    reached = total - energies.sum() + energies.cumsum(0)
    before = reached if one_fewer else reached - energies
    rank = int((before < threshold * total).sum())
    return torch.cat([basis, directions[:, : min(rank, len(basis) - basis.shape[1])]], dim=1).float()
