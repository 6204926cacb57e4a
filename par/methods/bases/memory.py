"""What ER and A-GEM share: a memory of past images, and drawing batches from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from par import seeding
from par.methods.bases.method import LearningTask, SharedTrunk, Step
from par.training.images import Images


class Memory(nn.Module):
    """Slots for images of past tasks.

    pixels: uint8 [slots, 3, H, W], the originals. labels: int64 [slots]. positions: int64 [slots], the place of the
    image's task in the chain, -1 in an empty slot. Room is made once a task, never during training.
    """

    pixels: Tensor
    labels: Tensor
    positions: Tensor

    def __init__(self, image_size: Sequence[int]):
        super().__init__()
        self.register_buffer("pixels", torch.zeros(0, 3, *image_size, dtype=torch.uint8))
        self.register_buffer("labels", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("positions", torch.zeros(0, dtype=torch.int64))

    def __len__(self) -> int:
        """Images in the memory."""
        return int((self.positions >= 0).sum())

    def extend(self, n_slots: int) -> None:
        """Add empty slots."""
        for name, empty in (("pixels", 0), ("labels", 0), ("positions", -1)):
            old = getattr(self, name)
            setattr(self, name, torch.cat([old, old.new_full((n_slots, *old.shape[1:]), empty)]))

    def filled(self) -> Tensor:
        """Slots that hold an image, int64 [m]."""
        return (self.positions >= 0).nonzero()[:, 0]

    def store(self, images: Images, rows: Tensor, position: int) -> None:
        """Put the images ``rows`` (int64 [m]) of a training split into the first empty slots, as they are.

        Raises:
            ValueError: there are fewer than m empty slots.
        """
        free = (self.positions < 0).nonzero()[:, 0]
        if len(free) < len(rows):
            raise ValueError(f"The memory has {len(free)} empty slots for {len(rows)} images; extend it first.")
        slots, rows = free[: len(rows)], rows.to(images.pixels.device)
        (height, width), edge = images.size, images.padding
        self.pixels[slots] = images.pixels[rows, edge : edge + height, edge : edge + width].permute(0, 3, 1, 2)
        self.labels[slots], self.positions[slots] = images.labels[rows], position

    def keep(self, chosen: Tensor) -> None:
        """Empty all slots but the ``chosen`` ones of :meth:`filled` (int64 [k], indices into it)."""
        slots = self.filled()[chosen.to(self.positions.device)]
        positions = torch.full_like(self.positions, -1)
        positions[slots] = self.positions[slots]
        self.positions.copy_(positions)


class Recall:
    """Draws batches from what ``memory`` holds now, uniformly with replacement (sources.md#er).

    Every image is normalised by the statistics of its own task and augmented like the current data.

    Args:
        records: of the chain's tasks, with ``mean`` and ``std``.
        augment: of the current task (a stream has one augmentation for all its tasks).
        generator: on the CPU; of the current step.
    """

    def __init__(
        self,
        memory: Memory,
        records: Sequence[Mapping[str, Any]],
        augment: Sequence[str],
        generator: torch.Generator,
    ):
        slots, device = memory.filled(), memory.pixels.device
        # Pixels in [0, 1]: the statistics differ from image to image.
        labels = memory.labels[slots].cpu().numpy()
        self.images = Images(memory.pixels[slots], labels, (0.0,) * 3, (1.0,) * 3, augment, device)
        self.positions = memory.positions[slots]
        self.mean, self.std = (
            torch.tensor([record[name] for record in records], device=device)[:, :, None, None]
            for name in ("mean", "std")
        )
        self.generator = generator

    def draw(self, count: int) -> dict[str, Tensor]:
        """What chance says of a batch of b = min(count, images in the memory), for :meth:`batch`; on the CPU."""
        rows = torch.randint(len(self.images), (min(count, len(self.images)),), generator=self.generator)
        return {"rows": rows} | self.images.draw(len(rows), self.generator)

    def batch(self, drawn: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Images [b, 3, H, W], labels [b] and positions [b] of their tasks; ``drawn`` is on the memory's device."""
        rows = drawn["rows"]
        images, positions = self.images.augmented(rows, drawn), self.positions[rows]
        return (images - self.mean[positions]) / self.std[positions], self.images.labels[rows], positions


class Rehearsal(SharedTrunk):
    """A shared network with a memory of ``hyper.per_class`` images of every class learned so far.

    The images of a task enter at its end, ``per_class`` of each class at random: what a ring buffer of that many slots
    a class holds after a last epoch in random order. All heads are trained.
    """

    memory: Memory
    #: The memory as batches, during a task that is not the first.
    recall: Recall | None = None

    def record(self, task: LearningTask) -> dict[str, Any]:
        statistics = {name: getattr(task.train, name).tolist() for name in ("mean", "std")}
        return super().record(task) | statistics | {"n_train": len(task.train)}

    def grow(self, record: dict[str, Any]) -> None:
        super().grow(record)
        if len(self.tasks) == 1:
            self.memory = Memory(record["image_size"]).to(self.device)
        self.memory.extend(self.hyper.per_class * record["n_classes"])

    def start_task(self, task: LearningTask, step: Step) -> None:
        if self.tasks:
            generator = seeding.torch_generator(step.key, "memory/batches")
            self.recall = Recall(self.memory, self.tasks, task.train.augment, generator)
        super().start_task(task, step)

    def modules_to_train(self) -> list[nn.Module]:
        return [self.trunk, self.heads]

    def step_state(self) -> dict[str, Any]:
        return {} if self.recall is None else {"recall": self.recall.generator.get_state()}

    def load_step_state(self, state: Mapping[str, Any]) -> None:
        if self.recall is not None:
            self.recall.generator.set_state(state["recall"])

    def end_task(self, task: LearningTask, step: Step) -> None:
        self.recall = None
        self.fill_memory(task, seeding.torch_generator(step.key, "memory/kept"))

    def fill_memory(self, task: LearningTask, generator: torch.Generator) -> None:
        """Choose what the memory keeps of the task just learned."""
        rows = rows_per_class(task.train.labels.cpu(), self.hyper.per_class, generator)
        self.memory.store(task.train, rows, len(self.tasks) - 1)

    def n_state(self) -> int:
        n_numbers = self.memory.pixels[:1].numel() if len(self.memory) else 0
        return len(self.memory) * (n_numbers + 2)  # MNTDP's count: pixels, label and task (sources.md#er)

    @property
    def task_ids(self) -> list[int]:
        """Ids of the chain's tasks, in order."""
        return [record["task"] for record in self.tasks]


def rows_per_class(labels: Tensor, per_class: int, generator: torch.Generator) -> Tensor:
    """Rows (int64 [m]) of up to ``per_class`` random images of every class in ``labels`` (int64 [n], on the CPU)."""
    order = torch.randperm(len(labels), generator=generator)
    return torch.cat([order[labels[order] == label][:per_class] for label in labels.unique()])


def reservoir(size: int, seen: int, new: int, capacity: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which images a reservoir keeps when ``new`` ones follow ``seen`` ones, of which it holds a uniform sample.

    The result is a uniform sample of all images without replacement, as after Vitter's algorithm R, drawn at once: the
    number of old ones is hypergeometric. Where ``capacity`` has grown and that number exceeds ``size``, all old ones
    stay and new ones fill the rest.

    Returns:
        Indices of the held images that stay (int64 [k], k <= ``size``), rows of the new ones that enter (int64 [m]).
    """
    n_old = min(size, int((torch.randperm(seen + new, generator=generator)[:capacity] < seen).sum()))
    staying = torch.randperm(size, generator=generator)[:n_old]
    return staying, torch.randperm(new, generator=generator)[: capacity - n_old]
