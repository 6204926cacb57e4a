"""What the methods share that protect weights of earlier tasks inside one trunk (GPM, HAT, CAT)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from par.config import Recipe
from par.methods.bases.method import SharedTrunk
from par.networks import build_network
from par.networks.alexnet import AlexNet
from par.networks.task_norm import TaskNorm, parts_of_task, replace_norms, task_norms
from par.schema import ConfigError


class ProtectedTrunk(SharedTrunk):
    """A shared trunk whose gradient is restricted in :meth:`after_backward`, by a rule that is constant within a task.

    The recipe's weight decay joins the gradient before the restriction: added by the optimiser it would shrink what
    is protected. Momentum stays the recipe's: the optimiser is new in every task, and a sum of restricted gradients
    is restricted. Adam is refused, because it scales every weight's update anew.

    Every batch normalisation has statistics of its own for every task (:mod:`par.networks.task_norm`).

    Hyper-parameters of subclasses: ``network`` and ``width`` (see :meth:`build_trunk`).
    """

    alexnet_norm: ClassVar[bool]  # the AlexNet has batch normalisation and no biases
    shared_affine: ClassVar[bool]  # one scale and shift for all tasks
    linear: ClassVar[type[nn.Linear]] = nn.Linear  # the AlexNet's fully connected layers

    _weight_decay = 0.0  # of the step that is being learned
    _norms: list[TaskNorm]

    @classmethod
    def backbone(cls, hyper: Any) -> str | None:
        return "AlexNet" if hyper.network == "alexnet" else None

    def own_recipe(self, recipe: Recipe) -> Recipe:
        """The recipe without its weight decay, which :meth:`after_backward` applies.

        Raises:
            ConfigError: the recipe's optimiser is not sgd.
        """
        if recipe.optimizer != "sgd":
            raise ConfigError(
                f"recipe.optimizer = {recipe.optimizer!r} breaks the protection of old tasks' weights in "
                f"{type(self).__name__}; set methods.{type(self).__name__.lower()}.recipe.optimizer to sgd."
            )
        self._weight_decay = recipe.weight_decay
        return dataclasses.replace(recipe, weight_decay=0.0)

    def build_trunk(self, record: Mapping[str, Any]) -> nn.Module:
        """The AlexNet (``hyper.width`` times its size) or the network of the ``network`` block."""
        if self.hyper.network == "alexnet":
            return AlexNet(tuple(record["image_size"]), self.hyper.width, self.alexnet_norm, self.linear)
        return build_network(self.settings.network)

    def grow(self, record: dict[str, Any]) -> None:
        first = not self.tasks
        super().grow(record)
        if first:
            replace_norms(self.trunk, self.shared_affine)
            self._norms = task_norms(self.trunk)
        for norm in self._norms:
            norm.add(record["task"])
        self.trunk.to(self.device)

    def modules_to_train(self) -> list[nn.Module]:
        return self.modules_with_decay()

    def modules_with_decay(self) -> list[nn.Module]:
        """Modules in training to which the recipe's weight decay applies."""
        return [*parts_of_task(self.trunk, self.current.id), self.heads[self.current.id]]

    def after_backward(self) -> None:
        if self._weight_decay:
            for parameter in nn.ModuleList(self.modules_with_decay()).parameters():
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach(), alpha=self._weight_decay)

    def logits(self, images: Tensor, task_id: int) -> Tensor:
        return self.heads(self.features(images, task_id), task_id)

    def features(self, images: Tensor, task_id: int) -> Tensor:
        """Features [n, d] of the images as a task sees them."""
        self.select(task_id)
        return self.trunk(images)

    def select(self, task_id: int) -> None:
        """Let the batch normalisations use the statistics of the task."""
        for norm in self._norms:
            norm.active = str(task_id)

    def n_state(self) -> int:
        """Statistics of batch normalisation beyond the one set that every network has."""
        return (len(self.tasks) - 1) * sum(2 * norm.shape[0] for norm in self._norms)
