"""The project's only training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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


class DivergedError(ArithmeticError):
    """The training loss is not finite."""


def fit(
    model: Trainable,
    train: Images,
    valid: Images,
    recipe: Recipe,
    key: str,
    *,
    keep_best: bool = True,
    progress: Callable[[int], None] | None = None,
) -> list[dict[str, float]]:
    """Train ``model`` on one task and leave it with its best weights, frozen and in eval mode.

    A fresh optimiser per call. After each epoch the validation accuracy is measured; only a strictly better one
    replaces the kept weights, and 0 never does (sources.md#par-recipe). Test data never comes here.

    Args:
        key: name of the random streams (batch order, augmentation).
        keep_best: restore the weights of the best epoch; otherwise the last ones stay.
        progress: called with the number of images of each batch.

    Returns:
        One row per epoch: epoch, loss, valid_accuracy, learning_rate, seconds.

    Raises:
        DivergedError: the loss became infinite or NaN.
    """
    model.requires_grad_(False)
    modules = nn.ModuleList(model.modules_to_train()).requires_grad_(True)
    parameters = list(modules.parameters())
    optimizer, scheduler = _optimizer(parameters, recipe)
    order, augmentation = seeding.torch_generator(key, "order"), seeding.torch_generator(key, "augmentation")
    device = train.pixels.device
    best_accuracy, best_state = 0.0, _copy(modules) if keep_best else None
    stale, rows_log = 0, []
    for epoch in range(recipe.epochs):
        started, total = time.perf_counter(), torch.zeros((), device=device)
        model.eval()
        modules.train()
        model.start_epoch(epoch)
        for rows in batches(len(train), recipe.batch_size, order):
            batch = Batch(train.batch(rows, augmentation), train.labels[rows.to(device)], rows)
            with autocast(device):
                loss = model.loss(batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            model.after_backward()
            if recipe.clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, recipe.clip_norm)
            optimizer.step()
            total += loss.detach() * len(rows)
            if progress is not None:
                progress(len(rows))
        mean_loss, rate = float(total) / len(train), optimizer.param_groups[0]["lr"]
        if not math.isfinite(mean_loss):
            raise DivergedError(f"the training loss is {mean_loss} in epoch {epoch}; lower learning_rate = {rate:g}.")
        model.eval()
        valid_accuracy = accuracy(model.predict, valid)
        seconds = time.perf_counter() - started
        rows_log.append(
            dict(epoch=epoch, loss=mean_loss, valid_accuracy=valid_accuracy, learning_rate=rate, seconds=seconds)
        )
        model.end_epoch(epoch, valid_accuracy)
        scheduler.step(*[valid_accuracy] if recipe.schedule == "plateau" else [])
        if valid_accuracy > best_accuracy:
            best_accuracy, stale = valid_accuracy, 0
            best_state = _copy(modules) if keep_best else None
        else:
            stale += 1
            if recipe.patience is not None and stale >= recipe.patience:
                break
    if best_state is not None:
        modules.load_state_dict(best_state)
    model.requires_grad_(False)
    return rows_log


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
