"""CAT: HAT's masks, opened for similar tasks, and attention over their features (Ke et al. 2020, sources.md#cat)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from par import seeding
from par.methods.bases.method import LearningTask, Step
from par.methods.hat import Hat
from par.networks.attention import TransferAttention
from par.networks.gates import Connection, gates_of
from par.networks.heads import Heads
from par.networks.mlp import Mlp
from par.schema import ConfigError, Count, NonNegative, Positive
from par.training import trainer
from par.training.losses import cross_entropy

MIN_TOKENS = 2  # similar tasks without which there is no attention path (sources.md#cat)


class Cat(Hat):
    """A multilayer perceptron with HAT's masks a and A (:class:`par.methods.hat.Hat`; sources.md#cat). For task t:

    1. Earlier task j is similar iff a linear read-out on the logits of j's frozen masked network classifies t's
       validation images better than one on a network of the same size that is trained with it from scratch on t, under
       random masks sigmoid(e), e ~ N(0, 1).
    2. S is 0 for units newly claimed (rounded growth of A) by dissimilar tasks, 1 for all others. Gradient factors:
       max(1 - min(A_i, A_k), min(S_i, S_k)) for weights, max(1 - A_i, S_i) for biases: what only similar tasks use
       may change.
    3. With two or more similar tasks, an encoder layer with a learned query attends to their masked features
       (current weights, their own masks) and feeds a second head.
    4. L = CE(mask head) + sparsity * HAT's regulariser + CE(attention head).
    5. On t's validation images, at the end of t, the better head is chosen for good (the mask head in a tie); an
       attention that loses is dropped.

    The released code differs in four points that are not offered: in training it attends to the tasks found
    *dissimilar*; units of j's network drop out while its read-out is trained; it chooses the head at test time, with
    validation images of old tasks; and one encoder, unprotected, serves all tasks, which that choice makes good. Here
    each task that keeps the attention keeps its encoder (24M parameters at width 2000). With fewer than two similar
    tasks the released code trains the second head on features under S, whose units the next task overwrites; here there
    is no second head then. And it keeps the epoch, and lowers the rate, by the validation loss; the trainer here goes
    by the validation accuracy, for all methods.

    Between tasks: embeddings, and in the task records the similar tasks and the head chosen.
    """

    blocks = ()

    @dataclass(frozen=True)
    class Hyper:
        """Defaults: CAT's own run (sources.md#cat), which trains by SGD at 0.025 without momentum or decay."""

        width: Count = 2000  # units of both layers
        n_heads: Count = 5  # of the attention; must divide width
        s_max: Positive = 400.0
        sparsity: NonNegative = 0.75
        annealing: Literal["paper", "code"] = "paper"  # as HAT's
        clip_norm: Positive | None = 10000.0  # in place of the recipe's; as HAT's
        readout: Literal["logits", "features"] = "logits"  # of j's network, that similarity is read from; code: logits
        readout_masks: Literal["own", "code"] = "own"  # of j there: at s_max; code: at s = 1, which blurs them
        similarity_epochs: Count | None = None  # of each read-out and of the reference; null: the recipe's

    @classmethod
    def backbone(cls, hyper: Any) -> str:
        return "MLP"

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        if self.hyper.width % self.hyper.n_heads:
            raise ConfigError(
                f"methods.cat.n_heads = {self.hyper.n_heads} does not divide width = {self.hyper.width}; "
                "choose another of the two."
            )
        self.attentions = nn.ModuleDict()
        self.attention_heads = Heads(self.hyper.width)
        self._similar: list[int] = []
        self._open: list[Tensor] = []  # S_l

    def learn(self, task: LearningTask, step: Step) -> list[dict[str, float]]:
        self._similar = self.similar_tasks(task, step)
        return super().learn(task, step)

    def similar_tasks(self, task: LearningTask, step: Step) -> list[int]:
        """Ids of the earlier tasks that help the task, by read-outs and a reference that are trained on it."""

        def accuracy(purpose: str, build: Callable[[], Probe]) -> float:
            def compute() -> float:
                epochs = self.hyper.similarity_epochs or step.recipe.epochs
                with seeding.seeded_layers(step.key, purpose):
                    probe = build().to(self.device)
                log = step.fit(
                    probe, task, purpose, replace(step.recipe, epochs=epochs, clip_norm=self.hyper.clip_norm)
                )
                return max(row["valid_accuracy"] for row in log)

            return step.remember(purpose, compute)

        if not self.tasks:
            return []
        reference = accuracy("similarity/reference", lambda: self._reference(task))
        earlier = [record["task"] for record in self.tasks]
        return [j for j in earlier if accuracy(f"similarity/{j}", partial(self._readout, task, j)) > reference]

    def _readout(self, task: LearningTask, earlier: int) -> Probe:
        scale = self.hyper.s_max if self.hyper.readout_masks == "own" else 1.0

        def features(images: Tensor) -> Tensor:
            return self.masked_features(images, earlier, self.masks(earlier, scale))

        if self.hyper.readout == "features":
            return Probe(features, self.hyper.width, task.n_classes)
        head = self.heads[earlier]
        return Probe(lambda images: head(features(images)), head.out_features, task.n_classes)

    def _reference(self, task: LearningTask) -> Probe:
        trunk, head = Mlp(task.train.size, self.hyper.width), nn.Linear(self.hyper.width, task.n_classes)
        gates = gates_of(trunk)
        masks = [torch.sigmoid(torch.randn(size)).to(self.device) for size in gates.sizes]
        return Probe(
            lambda images: head(gates.features(trunk, images, masks)), task.n_classes, task.n_classes, trunk, head
        )

    def build_trunk(self, record: Mapping[str, Any]) -> nn.Module:
        return Mlp(tuple(record["image_size"]), self.hyper.width)

    def record(self, task: LearningTask) -> dict[str, Any]:
        path = "both" if len(self._similar) >= MIN_TOKENS else "mask"
        return super().record(task) | {"similar": self._similar, "path": path}

    def start_task(self, task: LearningTask, step: Step) -> None:
        self._open = self.open_units(self._similar) if self.tasks else []
        super().start_task(task, step)

    def grow(self, record: dict[str, Any]) -> None:
        super().grow(record)
        if record["path"] != "mask":
            attention = TransferAttention(self.hyper.width, self.hyper.n_heads)
            self.attentions[str(record["task"])] = attention.to(self.device)
            self.attention_heads.add(record["task"], record["n_classes"]).to(self.device)

    def open_units(self, similar: Sequence[int]) -> list[Tensor]:
        """S for each gate: 0.0 for units that a learned task outside ``similar`` claimed first, 1.0 for all others."""
        units = [torch.ones(size, device=self.device) for size in self.gates.sizes]
        before = self.cumulative_masks([])
        for position, record in enumerate(self.tasks):
            after = self.cumulative_masks([earlier["task"] for earlier in self.tasks[: position + 1]])
            if record["task"] not in similar:
                units = [unit * (1 - (new - old).round()) for unit, new, old in zip(units, after, before, strict=True)]
            before = after
        return units

    def gradient_factors(self, connection: Connection) -> tuple[Tensor, Tensor]:
        weight, bias = super().gradient_factors(connection)
        open_weight, open_bias = self.gates.between(connection, self._open)
        return torch.maximum(weight, open_weight), torch.maximum(bias, open_bias)

    def modules_with_decay(self) -> list[nn.Module]:
        key = str(self.current.id)
        attention = [self.attentions[key], self.attention_heads[self.current.id]] if key in self.attentions else []
        return super().modules_with_decay() + attention

    def task_loss(self, batch: trainer.Batch, masks: list[Tensor]) -> Tensor:
        loss = super().task_loss(batch, masks)
        if str(self.current.id) in self.attentions:
            loss = loss + cross_entropy(self.attention_logits(batch.images, self.current.id), batch.labels)
        return loss

    def logits(self, images: Tensor, task_id: int) -> Tensor:
        """Those of the head chosen; while the task is in training the mean of both heads' log-probabilities."""
        path = next(record["path"] for record in self.tasks if record["task"] == task_id)
        if path == "attention":
            return self.attention_logits(images, task_id)
        by_mask = super().logits(images, task_id)
        if path == "mask":
            return by_mask
        by_attention = self.attention_logits(images, task_id)
        return (by_mask.log_softmax(dim=1) + by_attention.log_softmax(dim=1)) / 2

    def attention_logits(self, images: Tensor, task_id: int) -> Tensor:
        """Logits [n, K] of the attention head, from the features of the tasks that are similar to ``task_id``."""
        similar = next(record["similar"] for record in self.tasks if record["task"] == task_id)
        tokens = torch.stack([self.features(images, earlier) for earlier in similar], dim=1)
        return self.attention_heads(self.attentions[str(task_id)](tokens), task_id)

    def end_task(self, task: LearningTask, step: Step) -> None:
        super().end_task(task, step)
        self._open = []
        record = self.tasks[-1]
        if record["path"] == "both":
            by_mask = trainer.accuracy(lambda images: super(Cat, self).logits(images, task.id), task.valid)
            by_attention = trainer.accuracy(lambda images: self.attention_logits(images, task.id), task.valid)
            record["path"] = "attention" if by_attention > by_mask else "mask"
            if record["path"] == "mask":
                del self.attentions[str(task.id)], self.attention_heads.by_task[str(task.id)]


class Probe(trainer.Trainable):
    """A linear head on given features.

    Args:
        features: images [n, 3, H, W] -> [n, n_features].
        trained: modules behind ``features`` that are trained with the head.
    """

    capturable = True

    def __init__(self, features: Callable[[Tensor], Tensor], n_features: int, n_classes: int, *trained: nn.Module):
        super().__init__()
        self.features = features
        self.trained = nn.ModuleList(trained)
        self.heads = Heads(n_features)
        self.heads.add(0, n_classes)

    def modules_to_train(self) -> list[nn.Module]:
        return [self.trained, self.heads]

    def loss(self, batch: trainer.Batch) -> Tensor:
        return cross_entropy(self.predict(batch.images), batch.labels)

    def predict(self, images: Tensor) -> Tensor:
        return self.heads(self.features(images), 0)
