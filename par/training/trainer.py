"""The project's only training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from par import seeding
from par.config import Recipe
from par.training.images import Images
from par.training.losses import cross_entropy
from par.training.memory import evaluation_batch
from par.training.precision import autocast
from par.training.step import (
    Inputs,
    Steps,
    adam,
    in_place,
    match_layouts,
    rate_on_device,
    recorder,
    sgd,
    to_device,
    undone,
)

OWN = "own "  # before the names of what a model draws, beside those of the images


@dataclass(frozen=True)
class Batch:
    """Augmented, normalised images [b, 3, H, W], their labels [b], and their rows [b] in the training split.

    ``drawn``: what :meth:`Trainable.draw` returned for the batch.
    """

    images: Tensor
    labels: Tensor
    rows: Tensor
    drawn: Mapping[str, Tensor] = field(default_factory=dict)


class Trainable(nn.Module):
    """What :func:`fit` trains: all of it is put in eval mode and frozen but for ``modules_to_train``.

    A step (``loss``, ``after_backward``) does not wait for the device: it asks no tensor for its value, copies nothing
    from the host, and has its random numbers from :meth:`draw`.
    """

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph of one step may stand for all of a fit; asked for once an epoch.

        For a subclass to say (``capturable = True``) where what the host does in ``loss`` and ``after_backward``
        (branches, numbers, which modules run) is the same in each of them.
        """
        return False

    def modules_to_train(self) -> list[nn.Module]:
        """Modules whose parameters are optimised and whose buffers may move; everything else stays frozen."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> Tensor:
        """Scalar to minimise."""
        raise NotImplementedError

    def predict(self, images: Tensor) -> Tensor:
        """Logits [b, K] on the task in training."""
        raise NotImplementedError

    def validation_loss(self, batch: Batch) -> Tensor:
        """Mean over validation images of what ``select_by: loss`` of a recipe wants low, float32 []."""
        return cross_entropy(self.predict(batch.images), batch.labels)

    def start_epoch(self, epoch: int) -> None:
        """Called before the first batch of an epoch."""

    def draw(self, sizes: Sequence[int]) -> Sequence[Mapping[str, Tensor]]:
        """For each batch of the epoch, of so many images, what its step needs of chance or of a schedule.

        Called after :meth:`start_epoch`. Tensors on the CPU, of the same names and, for batches of one size, of the
        same shapes; a step finds them on the device as ``batch.drawn``.
        """
        return [{}] * len(sizes)

    def after_backward(self) -> None:
        """The one gradient hook: gradients are there, clipping and the step are still to come."""

    def at_rest(self) -> tuple[Sequence[nn.Parameter], Tensor] | None:
        """Parameters that this step leaves as they are where the flag (bool [], on the device) says so."""
        return None

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
    replaces the kept weights, and 0 never does (sources.md#par-recipe). With ``select_by: loss`` it is a strictly lower
    validation loss, and so for plateau and patience. Test data never comes here.

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
        run = _Fit(model, train, recipe, key, keep_best)
        saved = checkpoint.load() if checkpoint is not None else None
        if saved is not None:
            run.load_state(saved)
        while not run.is_over():
            run.epoch(valid, progress)
            if checkpoint is not None and checkpoint.is_due():
                checkpoint.save(run.state())
    run.finish()
    return run.log


class _Fit:
    """A fit between two epochs: all that the epochs to come depend on, besides its arguments."""

    def __init__(self, model: Trainable, train: Images, recipe: Recipe, key: str, keep_best: bool):
        model.requires_grad_(False)
        self.model, self.train, self.recipe, self.device = model, train, recipe, train.pixels.device
        self.modules = nn.ModuleList(model.modules_to_train()).requires_grad_(True)
        self.parameters = list(self.modules.parameters())
        self.optimizer, self.scheduler = _optimizer(self.parameters, recipe, self.device)
        self.in_place, self.rate = in_place(self.device), torch.zeros((), device=self.device)
        self.total_loss = torch.zeros((), device=self.device)  # of the epoch's images so far
        self.steps = Steps(recorder(self.device), self.modules)
        self.order, self.augmentation = (seeding.torch_generator(key, name) for name in ("order", "augmentation"))
        self.keep_best, self.best_score = keep_best, 0.0 if recipe.select_by == "accuracy" else -math.inf
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
            "best_score": self.best_score,
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
        self.best_weights, self.best_score = state["best_weights"], state["best_score"]
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
        """Whether no epoch is left, or the recipe's patience, or a learning rate above its floor."""
        recipe = self.recipe
        impatient = recipe.patience is not None and self.stale >= recipe.patience
        at_floor = recipe.stop_at_floor and self.optimizer.param_groups[0]["lr"] < recipe.min_learning_rate
        return impatient or at_floor or len(self.log) >= recipe.epochs

    def epoch(self, valid: Images, progress: Callable[[int], None] | None) -> None:
        """Train one epoch, validate, and keep the weights if they are the best so far."""
        epoch, started = len(self.log), time.perf_counter()
        loss, rate = self._train(epoch, progress), self.optimizer.param_groups[0]["lr"]
        if not math.isfinite(loss):
            raise DivergedError(f"the training loss is {loss} in epoch {epoch}; lower learning_rate = {rate:g}.")
        self.model.eval()
        valid_accuracy = accuracy(self.model.predict, valid)
        score = valid_accuracy if self.recipe.select_by == "accuracy" else -_validation_loss(self.model, valid)
        seconds = time.perf_counter() - started
        self.log.append(
            dict(epoch=epoch, loss=loss, valid_accuracy=valid_accuracy, learning_rate=rate, seconds=seconds)
        )
        self.model.end_epoch(epoch, valid_accuracy)
        self.scheduler.step(*[score] if self.recipe.schedule == "plateau" else [])
        if score > self.best_score:
            self.best_score, self.stale = score, 0
            self.best_weights = _copy(self.modules) if self.keep_best else None
        else:
            self.stale += 1

    def _train(self, epoch: int, progress: Callable[[int], None] | None) -> float:
        """Go once through the training images; returns the mean loss."""
        model = self.model
        model.eval()
        self.modules.train()
        model.start_epoch(epoch)
        self.total_loss.zero_()
        capturable = model.capturable
        with ExitStack() as stack:
            stack.enter_context(self.steps.epoch())
            if self.in_place:
                stack.enter_context(rate_on_device(self.optimizer, self.rate))
            for inputs in self._draw():
                self.steps(self._step, inputs, capturable)
                if progress is not None:
                    progress(len(inputs["rows"]))
        return float(self.total_loss) / len(self.train)

    def _draw(self) -> list[dict[str, Tensor]]:
        """All that is random in an epoch's batches, drawn on the CPU, on the device."""
        chunks = list(batches(len(self.train), self.recipe.batch_size, self.order))
        ours = [{"rows": rows} | self.train.draw(len(rows), self.augmentation) for rows in chunks]
        own = self.model.draw([len(rows) for rows in chunks])
        named = [{OWN + name: numbers for name, numbers in drawn.items()} for drawn in own]
        return to_device([one | other for one, other in zip(ours, named, strict=True)], self.device)

    def _step(self, inputs: Inputs) -> None:
        """One step on a batch that :meth:`_draw` drew."""
        rows = inputs["rows"]
        drawn = {name.removeprefix(OWN): numbers for name, numbers in inputs.items() if name.startswith(OWN)}
        batch = Batch(self.train.augmented(rows, inputs), self.train.labels[rows], rows, drawn)
        with autocast(self.device):
            loss = self.model.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.model.after_backward()
        if self.recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_norm)
        if self.in_place:
            match_layouts(self.parameters)
        resting = self.model.at_rest()
        with undone(self.optimizer, *resting) if resting is not None else nullcontext():
            self.optimizer.step()
        self.total_loss += loss.detach() * len(rows)

    def finish(self) -> None:
        """Leave the model with its best weights, frozen, in eval mode and without gradients, which hold memory."""
        self.optimizer.zero_grad(set_to_none=True)
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
        for rows in torch.arange(len(images), device=device).split(evaluation_batch(device, images.size)):
            parts.append(predict(images.batch(rows)).argmax(dim=1).cpu())
    return torch.cat(parts)


def accuracy(predict: Callable[[Tensor], Tensor], images: Images) -> float:
    """Share of images whose predicted class is right; ``predict`` maps images [b, 3, H, W] to logits [b, K]."""
    return float((predict_classes(predict, images) == images.labels.cpu()).double().mean())


@torch.no_grad()
def _validation_loss(model: Trainable, images: Images) -> float:
    total, device = 0.0, images.pixels.device
    with autocast(device):
        for rows in torch.arange(len(images), device=device).split(evaluation_batch(device, images.size)):
            batch = Batch(images.batch(rows), images.labels[rows], rows)
            total += float(model.validation_loss(batch)) * len(rows)
    return total / len(images)


def _optimizer(
    parameters: list[nn.Parameter], recipe: Recipe, device: torch.device
) -> tuple[torch.optim.Optimizer, Any]:
    """The optimiser and the per-epoch learning-rate schedule of a recipe; only plateau's ``step`` takes a score."""
    optimizer: torch.optim.Optimizer
    options = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "sgd":
        optimizer = sgd(parameters, device, momentum=recipe.momentum, **options)
    else:
        optimizer = adam(parameters, device, **options)
    schedules = torch.optim.lr_scheduler
    if recipe.schedule == "cosine":
        return optimizer, schedules.CosineAnnealingLR(optimizer, recipe.epochs, eta_min=recipe.min_learning_rate)
    if recipe.schedule == "plateau":
        return optimizer, schedules.ReduceLROnPlateau(
            optimizer,
            mode="max",
            factor=recipe.plateau_factor,
            patience=recipe.plateau_patience,
            min_lr=0.0 if recipe.stop_at_floor else recipe.min_learning_rate,
            threshold=0.0,  # strictly better counts, as for the weights that are kept
        )
    return optimizer, schedules.ConstantLR(optimizer, factor=1.0, total_iters=0)


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
