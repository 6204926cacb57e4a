"""The project's only training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from par import seeding
from par.config import Recipe
from par.training.images import Images
from par.training.memory import evaluation_batch
from par.training.precision import autocast


@dataclass(frozen=True)
class Batch:
    """Augmented, normalised images [b, 3, H, W], their labels [b], and their rows [b] in the training split."""

    images: Tensor
    labels: Tensor
    rows: Tensor


class Trainable(nn.Module):
    """What :func:`fit` trains: all of it is put in eval mode and frozen but for ``modules_to_train``."""

    def modules_to_train(self) -> list[nn.Module]:
        """Modules whose parameters are optimised and whose buffers may move; everything else stays frozen."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> Tensor:
        """Scalar to minimise."""
        raise NotImplementedError

    def predict(self, images: Tensor) -> Tensor:
        """Logits [b, K] on the task in training."""
        raise NotImplementedError

    def start_epoch(self, epoch: int) -> None:
        """Called before the first batch of an epoch."""

    def after_backward(self) -> None:
        """The one gradient hook: gradients are there, clipping and the step are still to come."""

    def end_epoch(self, epoch: int, valid_accuracy: float) -> None:
        """Called after validation."""

    def step_state(self) -> dict[str, Any]:
        """What a fit changes besides ``modules_to_train`` and the epochs to come depend on.

        To be overridden, with :meth:`load_step_state`, where a hook above changes something that a later epoch reads:
        an optimiser or a generator of its own, a counter or flag, a buffer outside of those modules. Not for what
        :meth:`start_epoch` sets anew, nor for what was there when the fit began and stays as it is. Asked for at the
        end of an epoch; plain data and tensors, readable with ``weights_only=True``.
        """
        return {}

    def load_step_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`step_state`, with tensors on the CPU; called at the start of a fit that was killed."""


class DivergedError(ArithmeticError):
    """The training loss is not finite."""


class Checkpoint(Protocol):
    """Where a fit in progress is kept, so that a killed one goes on from the last epoch that was saved."""

    def load(self) -> dict[str, Any] | None:
        """What was saved last, tensors on the CPU; None: nothing, begin anew."""

    def is_due(self) -> bool:
        """Whether it is time to save; asked after every epoch."""

    def save(self, state: dict[str, Any]) -> None:
        """Keep ``state`` (plain data and tensors) in the place of what was saved before."""


def fit(
    model: Trainable,
    train: Images,
    valid: Images,
    recipe: Recipe,
    key: str,
    *,
    keep_best: bool = True,
    progress: Callable[[int], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> list[dict[str, float]]:
    """Train ``model`` on one task and leave it with its best weights, frozen and in eval mode.

    A fresh optimiser per call. After each epoch the validation accuracy is measured; only a strictly better one
    replaces the kept weights, and 0 never does (sources.md#par-recipe). Test data never comes here.

    Args:
        key: name of the random streams (batch order, augmentation, dropout).
        keep_best: restore the weights of the best epoch; otherwise the last ones stay.
        progress: called with the number of images of each batch.
        checkpoint: where the fit saves itself at the ends of epochs, and from where a killed one goes on: bit for bit
            as if it had not been killed, given a ``model`` that is what it was when the killed one began.

    Returns:
        One row per epoch: epoch, loss, valid_accuracy, learning_rate, seconds.

    Raises:
        DivergedError: the loss became infinite or NaN.
    """
    with seeding.seeded_layers(key, "dropout"):
        run = _Fit(model, recipe, key, keep_best, train.pixels.device)
        saved = checkpoint.load() if checkpoint is not None else None
        if saved is not None:
            run.load_state(saved)
        while not run.is_over():
            run.epoch(train, valid, progress)
            if checkpoint is not None and checkpoint.is_due():
                checkpoint.save(run.state())
    run.finish()
    return run.log


class _Fit:
    """A fit between two epochs: all that the epochs to come depend on, besides its arguments."""

    def __init__(self, model: Trainable, recipe: Recipe, key: str, keep_best: bool, device: torch.device):
        model.requires_grad_(False)
        self.model, self.recipe, self.device = model, recipe, device
        self.modules = nn.ModuleList(model.modules_to_train()).requires_grad_(True)
        self.parameters = list(self.modules.parameters())
        self.optimizer, self.scheduler = _optimizer(self.parameters, recipe)
        self.order, self.augmentation = (seeding.torch_generator(key, name) for name in ("order", "augmentation"))
        self.keep_best, self.best_accuracy = keep_best, 0.0
        self.best_weights = _copy(self.modules) if keep_best else None
        self.stale = 0  # epochs since the best one
        self.log: list[dict[str, float]] = []

    def state(self) -> dict[str, Any]:
        """For a :class:`Checkpoint`. Tensors are not copied."""
        generators = {"order": self.order.get_state(), "augmentation": self.augmentation.get_state()}
        generators["global"] = torch.get_rng_state()
        if self.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(self.device)
        return {
            "weights": dict(self.modules.state_dict()),
            "best_weights": self.best_weights,
            "best_accuracy": self.best_accuracy,
            "stale": self.stale,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "generators": generators,
            "log": self.log,
            "model": self.model.step_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become the fit whose state it is; this one has trained no epoch yet."""
        self.modules.load_state_dict(state["weights"])
        self.best_weights, self.best_accuracy = state["best_weights"], state["best_accuracy"]
        self.stale, self.log = state["stale"], state["log"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        generators = state["generators"]
        self.order.set_state(generators["order"])
        self.augmentation.set_state(generators["augmentation"])
        torch.set_rng_state(generators["global"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(generators["cuda"], self.device)
        self.model.load_step_state(state["model"])

    def is_over(self) -> bool:
        """Whether no epoch is left, or the recipe's patience."""
        impatient = self.recipe.patience is not None and self.stale >= self.recipe.patience
        return impatient or len(self.log) >= self.recipe.epochs

    def epoch(self, train: Images, valid: Images, progress: Callable[[int], None] | None) -> None:
        """Train one epoch, validate, and keep the weights if they are the best so far."""
        epoch, started = len(self.log), time.perf_counter()
        loss, rate = self._train(train, epoch, progress), self.optimizer.param_groups[0]["lr"]
        if not math.isfinite(loss):
            raise DivergedError(f"the training loss is {loss} in epoch {epoch}; lower learning_rate = {rate:g}.")
        self.model.eval()
        valid_accuracy = accuracy(self.model.predict, valid)
        seconds = time.perf_counter() - started
        self.log.append(
            dict(epoch=epoch, loss=loss, valid_accuracy=valid_accuracy, learning_rate=rate, seconds=seconds)
        )
        self.model.end_epoch(epoch, valid_accuracy)
        self.scheduler.step(*[valid_accuracy] if self.recipe.schedule == "plateau" else [])
        if valid_accuracy > self.best_accuracy:
            self.best_accuracy, self.stale = valid_accuracy, 0
            self.best_weights = _copy(self.modules) if self.keep_best else None
        else:
            self.stale += 1

    def _train(self, train: Images, epoch: int, progress: Callable[[int], None] | None) -> float:
        """Go once through the training images; returns the mean loss."""
        model, total = self.model, torch.zeros((), device=self.device)
        model.eval()
        self.modules.train()
        model.start_epoch(epoch)
        for rows in batches(len(train), self.recipe.batch_size, self.order):
            batch = Batch(train.batch(rows, self.augmentation), train.labels[rows.to(self.device)], rows)
            with autocast(self.device):
                loss = model.loss(batch)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            model.after_backward()
            if self.recipe.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_norm)
            self.optimizer.step()
            total += loss.detach() * len(rows)
            if progress is not None:
                progress(len(rows))
        return float(total) / len(train)

    def finish(self) -> None:
        """Leave the model with its best weights, frozen and in eval mode."""
        if self.best_weights is not None:
            self.modules.load_state_dict(self.best_weights)
        self.model.requires_grad_(False)
        self.model.eval()


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Rows 0..count-1 in random order, ``size`` at a time.

    A last batch of a single row joins the one before it: batch normalisation cannot train on one image whose feature
    map has shrunk to 1x1.
    """
    chunks = list(torch.randperm(count, generator=generator).split(size))
    if len(chunks) > 1 and len(chunks[-1]) == 1:
        chunks[-2:] = [torch.cat(chunks[-2:])]
    return iter(chunks)


@torch.no_grad()
def predict_classes(predict: Callable[[Tensor], Tensor], images: Images) -> Tensor:
    """Predicted class (int64 [n], on the CPU) of every image, in order."""
    parts, device = [], images.pixels.device
    with autocast(device):
        for rows in torch.arange(len(images)).split(evaluation_batch(device, images.size)):
            parts.append(predict(images.batch(rows)).argmax(dim=1).cpu())
    return torch.cat(parts)


def accuracy(predict: Callable[[Tensor], Tensor], images: Images) -> float:
    """Share of images whose predicted class is right; ``predict`` maps images [b, 3, H, W] to logits [b, K]."""
    return float((predict_classes(predict, images) == images.labels.cpu()).double().mean())


def _optimizer(parameters: list[nn.Parameter], recipe: Recipe) -> tuple[torch.optim.Optimizer, Any]:
    """The optimiser and the per-epoch learning-rate schedule of a recipe; only plateau's ``step`` takes an accuracy."""
    optimizer: torch.optim.Optimizer
    if recipe.optimizer == "sgd":
        optimizer = torch.optim.SGD(
            parameters, recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )
    else:
        optimizer = torch.optim.Adam(parameters, recipe.learning_rate, weight_decay=recipe.weight_decay)
    schedules = torch.optim.lr_scheduler
    if recipe.schedule == "cosine":
        return optimizer, schedules.CosineAnnealingLR(optimizer, recipe.epochs, eta_min=recipe.min_learning_rate)
    if recipe.schedule == "plateau":
        return optimizer, schedules.ReduceLROnPlateau(
            optimizer,
            mode="max",
            factor=recipe.plateau_factor,
            patience=recipe.plateau_patience,
            min_lr=recipe.min_learning_rate,
        )
    return optimizer, schedules.ConstantLR(optimizer, factor=1.0, total_iters=0)


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
