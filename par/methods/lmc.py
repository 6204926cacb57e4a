"""LMC: local module composition (Ostapenko et al. 2021, sources.md#lmc)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from par import seeding
from par.methods.bases.method import LearningTask, Step
from par.methods.bases.modular import Modular
from par.networks.modules import DEPTH, ConvModule, flatten, n_features
from par.schema import Count, Index, NonNegative, Positive
from par.training import trainer
from par.training.losses import cross_entropy
from par.training.precision import autocast

MOMENTUM = 0.1  # of the running structural losses, as of BatchNorm's statistics (sources.md#lmc)
CAUGHT = 1e-10  # the structural loss that a fresh module is taken to have on a batch that it alone is to serve


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of LMC; defaults are the authors' for S-, other streams in sources.md#lmc."""

    channels: Count = 64
    threshold: NonNegative = 4.0  # z-score above which a batch is foreign to a module; S+ and S_pl: 1.5
    projection_epochs: Index = 20  # S+: 5, S_pl: 10
    structural_weight: NonNegative = 10.0  # reg factor; S_long: 1
    temperature: Positive = 0.1  # S+, S_pl, S_long: 1
    prior_temperature: Positive = 0.1  # S_long: .01
    initialise_from: Literal["mean", "most_likely"] = "mean"  # S+, S_in, S_pl, S_long: most_likely
    target: Literal["sigmoid", "input"] = "sigmoid"  # of the decoders, which end in a sigmoid; the authors' runs: input
    catch_outliers: bool = True  # in training, batches foreign to all old modules of a layer go to its fresh one


class LocalModule(nn.Module):
    """A functional part and a structural part that decodes its output back to its input."""

    def __init__(self, channels_in: int, channels: int, target: Literal["sigmoid", "input"] = "sigmoid"):
        super().__init__()
        self.target = target
        self.functional = ConvModule(channels_in, channels)
        self.structural = nn.Sequential(
            nn.ConvTranspose2d(channels, channels, 2, stride=2),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, channels_in, 3, padding=1),
            nn.Sigmoid(),
        )
        self.to(memory_format=torch.channels_last)

    def forward(self, inputs: Tensor, through: bool) -> tuple[Tensor, Tensor]:
        """Inputs [n, C', H, W] -> outputs [n, C, ceil(H / 2), ceil(W / 2)] and structural losses [n].

        The loss is the squared error of the decoded output against the ``target``, the inputs or their sigmoid, mean
        over positions and channels; the row or column that decoding adds to an odd size does not count. ``through``
        lets its gradient reach the functional part and, by that, the layers below; the target gets none.
        """
        outputs = self.functional(inputs)
        decoded = self.structural(outputs if through else outputs.detach())
        target = inputs.detach()
        if self.target == "sigmoid":
            target = torch.sigmoid(target)
        decoded = decoded[:, :, : target.shape[2], : target.shape[3]]
        return outputs, (decoded - target).float().square().mean(dim=(1, 2, 3))


class TaskParts(nn.Module):
    """What one task owns besides its head: fresh modules, and per layer a running mean of every module's structural
    loss on the task's images.

    Args:
        earlier: modules of earlier tasks in each layer.
    """

    def __init__(self, hyper: Hyper, earlier: Sequence[int]):
        super().__init__()
        self.hyper = hyper
        self.blocks = nn.ModuleDict()
        for layer, size in enumerate(earlier):
            self.register_buffer(f"losses{layer}", torch.zeros(size))

    def add(self, layer: int) -> LocalModule:
        """A fresh module for ``layer``."""
        module = LocalModule(3 if layer == 0 else self.hyper.channels, self.hyper.channels, self.hyper.target)
        running = self.running_losses()[layer]
        self.blocks[str(layer)] = module.to(running.device)
        self.register_buffer(f"losses{layer}", running.new_zeros(len(running) + 1))
        return module

    def running_losses(self) -> list[Tensor]:
        """Per layer, the running mean [M] of every module; 0 before the first batch."""
        return [getattr(self, f"losses{layer}") for layer in range(DEPTH)]


def relevance(losses: Tensor, mean_losses: Tensor, temperature: float, prior_temperature: float) -> Tensor:
    """Weights [n, M] of M modules from structural losses [n, M] of images and means [M] over the batch or the task.

    softmax(-ln losses / temperature) * softmax(-ln mean_losses / prior_temperature), normalised over the modules
    (sources.md#lmc).
    """
    tiny = torch.finfo(losses.dtype).tiny
    likelihood = -losses.clamp_min(tiny).log() / temperature
    prior = -mean_losses.clamp_min(tiny).log() / prior_temperature
    return torch.softmax(likelihood + prior, dim=1)


def _z_scores(losses: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """How far the means of a batch's structural losses [b, M] are from those of the modules' own tasks [M], in standard
    deviations of the mean of a batch of that size."""
    return (losses.mean(dim=0) - mean).abs() / (deviation / math.sqrt(len(losses)))


class Lmc(Modular):
    """Four layers of modules; each judges by its structural loss s_m whether an input is its own (sources.md#lmc).

        gamma_m(x) ~ softmax_m(-ln s_m(x) / temperature) softmax_m(-ln mean(s_m) / prior_temperature)
        x_{l+1} = sum_m gamma_m(x_l) f_m(x_l),   L = CE + structural_weight * sum_l mean(s)

    Before a task is learned, layer by layer from below: where the structural losses of one of its batches, against
    those of each module on its own task, have a z-score beyond ``threshold`` for every module, a fresh module is added.
    In its projection phase the structural losses of all modules count, weighted by gamma, and those of frozen modules
    in layers above send their gradient into the fresh ones, so that these learn to feed them with what they know. Then
    all fresh modules and the head are trained further, and frozen.

    With ``catch_outliers`` a batch of the training that is foreign to all old modules of a layer with a fresh one is
    left to that one (gamma of the others is 0).

    Where this differs from the authors' code: it decides from the batches of the task before training instead of
    during it, and knows a module by the losses that it has at the end of its own task instead of those of its last
    training batches. The mean in the prior is the batch's in training only; in evaluation it is the running mean over
    the task's training batches, like BatchNorm's, so that a prediction depends on its image alone. That mean exists for
    the modules that were there when the task was learned: as the task is known, later ones do not compete and nothing
    is forgotten (evaluated without task ids, as in the paper's table, LMC forgets up to .035). Each phase has an
    optimiser of its own, and the projection keeps its best epoch too. Heads are linear, without a structural part. A
    convolution pads by 1 instead of 2 (:mod:`par.networks.modules`), and a decoder inside its second layer instead of
    its first, which leaves nothing of a 1x1 map.
    """

    Hyper = Hyper
    capturable = True
    blocks = ()

    _projecting = False  # whether this is a projection phase
    _statistics: dict[int, Tensor]  # of the older modules in layers whose fresh module catches what is foreign to them

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._statistics = {}

    def n_features(self) -> int:
        return n_features(self.hyper.channels)

    def owners(self, layer: int, task_id: int) -> list[int]:
        """Tasks that own the modules of ``layer`` that were there when the task was learned."""
        records = self.tasks[: self.position(task_id) + 1]
        return [record["task"] for record in records if layer in record["fresh"]]

    def build(self, record: dict[str, Any]) -> nn.Module:
        earlier = [sum(layer in other["fresh"] for other in self.tasks) for layer in range(DEPTH)]
        parts = TaskParts(self.hyper, earlier)
        for layer in record["fresh"]:
            parts.add(layer)
        return parts

    def start_task(self, task: LearningTask, step: Step) -> None:
        first = not self.tasks
        self.grow(self.record(task) | {"fresh": list(range(DEPTH)) if first else []})
        for layer in range(0 if first else DEPTH):
            mean_losses, deviation = self._deviation(task, step, layer)
            if deviation > self.hyper.threshold:
                self._expand(layer, mean_losses)
                self._project(task, step, layer)

    def end_task(self, task: LearningTask, step: Step) -> None:
        self.tasks[-1]["statistics"] = self._own_statistics(task, step)
        self._statistics = {}

    def _deviation(self, task: LearningTask, step: Step, layer: int) -> tuple[Tensor, float]:
        """Mean structural loss [M] of each module of ``layer`` on the task; and how foreign the task's most foreign
        batch is to the module that knows it best, as an absolute z-score.

        The z-score of a batch is its mean loss's distance from the module's own mean, in standard deviations of the
        mean of a batch of that size; as in the authors' code, a task that decodes much better than the module's own
        is foreign too.
        """
        batches = [batch[layer] for batch in self._structural_losses(task, step, layer)]
        known = [self.tasks[self.position(owner)]["statistics"][str(layer)] for owner in self.owners(layer, task.id)]
        mean, deviation = torch.tensor(known, device=self.device).T
        foreign = [_z_scores(batch, mean, deviation).min() for batch in batches]
        return torch.cat(batches).mean(dim=0), float(torch.stack(foreign).max())

    @torch.no_grad()
    def _structural_losses(self, task: LearningTask, step: Step, last_layer: int) -> Iterator[list[Tensor]]:
        """Structural losses [b, M] of the modules of every layer on the training images, by batch, in eval mode."""
        self.eval()
        order = seeding.torch_generator(step.key, "statistics")
        for rows in trainer.batches(len(task.train), step.recipe.batch_size, order):
            with autocast(self.device):
                _, losses, _ = self._forward(task.train.batch(rows), task.id, by_batch=True, last_layer=last_layer)
            yield losses

    def _own_statistics(self, task: LearningTask, step: Step) -> dict[str, list[float]]:
        """Mean and standard deviation of the structural loss of each of the task's own modules on its images."""
        batches = list(self._structural_losses(task, step, DEPTH - 1))
        statistics = {}
        for layer in self.tasks[-1]["fresh"]:
            losses = torch.cat([batch[layer][:, -1] for batch in batches])
            statistics[str(layer)] = [float(losses.mean()), float(losses.std())]
        return statistics

    def _expand(self, layer: int, mean_losses: Tensor) -> None:
        """Give the current task a module in ``layer``, made of what the layer has."""
        owners = self.owners(layer, self.current.id)
        present = [self.part(owner, TaskParts).blocks[str(layer)].state_dict() for owner in owners]
        if self.hyper.initialise_from == "most_likely":
            present = [present[int(mean_losses.argmin())]]
        mean = {name: torch.stack([state[name].float() for state in present]).mean(dim=0) for name in present[0]}
        self.part(self.current.id, TaskParts).add(layer).load_state_dict(mean)
        self.tasks[-1]["fresh"].append(layer)
        if self.hyper.catch_outliers:
            known = [self.tasks[self.position(owner)]["statistics"][str(layer)] for owner in owners]
            self._statistics[layer] = torch.tensor(known, device=self.device).T

    def _project(self, task: LearningTask, step: Step, layer: int) -> None:
        if self.hyper.projection_epochs == 0:
            return
        purpose, own = f"projection of layer {layer}", self.own(task.id)

        def compute() -> dict[str, Tensor]:
            self._projecting = True
            recipe = dataclasses.replace(step.recipe, epochs=self.hyper.projection_epochs, patience=None)
            step.fit(self, task, purpose, recipe)
            self._projecting = False
            return {name: value.detach().cpu().clone() for name, value in own.state_dict().items()}

        own.load_state_dict(step.remember(purpose, compute))

    def loss(self, batch: trainer.Batch) -> Tensor:
        logits, losses, weights = self._forward(batch.images, self.current.id, by_batch=True)
        all_running = self.part(self.current.id, TaskParts).running_losses()
        for layer_losses, running in zip(losses, all_running, strict=True):
            mean = layer_losses.detach().mean(dim=0)
            running.copy_(torch.where(running == 0, mean, running.lerp(mean, MOMENTUM)))
        if self._projecting:
            losses = [layer_losses * weight for layer_losses, weight in zip(losses, weights, strict=True)]
        else:  # those of frozen modules have no gradient
            losses = [losses[layer][:, -1] for layer in self.tasks[-1]["fresh"]]
        structural = sum(layer_losses.mean() for layer_losses in losses)
        return cross_entropy(logits, batch.labels) + self.hyper.structural_weight * structural

    def n_state(self) -> int:
        """Mean and standard deviation of every module's structural loss, and every task's running means."""
        statistics = sum(2 * len(record["fresh"]) for record in self.tasks)
        all_parts = (self.part(record["task"], TaskParts) for record in self.tasks)
        running = sum(losses.numel() for parts in all_parts for losses in parts.running_losses())
        return statistics + running

    def logits(self, images: Tensor, task_id: int) -> Tensor:
        return self._forward(images, task_id, by_batch=False)[0]

    def _forward(
        self, images: Tensor, task_id: int, by_batch: bool, last_layer: int = DEPTH - 1
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Logits [n, K] and, per layer up to ``last_layer``, structural losses and weights [n, M] of its modules.

        ``by_batch`` takes the prior over modules from this batch instead of from the task's running means.
        """
        state, all_losses, all_weights = images, [], []
        running = self.part(task_id, TaskParts).running_losses()
        for layer in range(last_layer + 1):
            above = self._projecting and layer > min(self.tasks[-1]["fresh"])
            owners = self.owners(layer, task_id)
            modules = [self.part(owner, TaskParts).blocks[str(layer)] for owner in owners]
            pairs = (module(state, above and owner != task_id) for module, owner in zip(modules, owners, strict=True))
            outputs, by_module = zip(*pairs, strict=True)
            all_losses.append(torch.stack(by_module, dim=1))
            known = all_losses[-1].detach()
            if by_batch and layer in self._statistics:
                known = self._caught(known, self._statistics[layer])
            mean = known.mean(dim=0) if by_batch else running[layer]
            weights = relevance(known, mean, self.hyper.temperature, self.hyper.prior_temperature)
            terms = (weight[:, None, None, None] * output for weight, output in zip(weights.T, outputs, strict=True))
            state = sum(terms, start=torch.zeros((), device=self.device))
            all_weights.append(weights)
        return self.heads(flatten(state), task_id), all_losses, all_weights

    def _caught(self, losses: Tensor, statistics: Tensor) -> Tensor:
        """The losses [n, M] with :data:`CAUGHT` for the last module, if the batch is foreign to all others.

        Args:
            statistics: mean and standard deviation of the others' losses on their own tasks, [2, M - 1].
        """
        foreign = (_z_scores(losses[:, :-1], *statistics) > self.hyper.threshold).all()
        caught = torch.where(foreign, CAUGHT, losses[:, -1:])
        return torch.cat([losses[:, :-1], caught], dim=1)
