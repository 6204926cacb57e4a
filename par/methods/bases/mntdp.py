"""What MNTDP-S and MNTDP-D share: library of blocks, source task, paths (Veniat et al. 2021, sources.md#mntdp)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from par import seeding
from par.config import LearnerSettings
from par.methods.bases.method import LearningTask
from par.methods.bases.modular import Modular
from par.networks import build_network
from par.training.images import Images
from par.training.precision import autocast

SOURCE, FRESH = 0, 1
MAX_KNN_IMAGES = 1000  # of each split (sources.md#mntdp)
KNN_BATCH = 256  # images; 1000 at 64 px would take 1 GB a feature map

Connections = Literal["fw", "bw", "fw_bw"]


class Mntdp(Modular):
    """A library of blocks and, for every task, the path of blocks that it takes.

    A record's ``path`` names for each depth the task whose block is used. A task owns the blocks that it added; they
    are frozen, with their BatchNorm statistics, when it is learned. With ResNet18 there are seven depths: stem, stages
    1-3, the two blocks of stage 4, head (sources.md#mntdp).
    """

    def __init__(self, settings: LearnerSettings, device: torch.device | str = "cpu"):
        super().__init__(settings, device)
        self.depth = 5 + settings.network.n_blocks

    def build(self, record: dict[str, Any]) -> nn.Module:
        blocks = build_network(self.settings.network, fan_out=False).blocks()
        mine = [depth for depth, owner in enumerate(record["path"][:-1]) if owner == record["task"]]
        return nn.ModuleDict({str(depth): blocks[depth] for depth in mine})

    def grow(self, record: dict[str, Any]) -> None:
        super().grow(record)
        if record["path"][-1] != record["task"]:
            del self.heads.by_task[str(record["task"])]

    def path(self, task_id: int) -> Sequence[int]:
        """The owner of the block at each depth."""
        return self.tasks[self.position(task_id)]["path"]

    def block(self, depth: int, owner: int) -> nn.Module:
        """The block that task ``owner`` added at ``depth``: maps to maps, the last one features to logits."""
        return self.heads[owner] if depth == self.depth - 1 else self.part(owner, nn.ModuleDict)[str(depth)]

    def features(self, images: Tensor, path: Sequence[int]) -> Tensor:
        """Images [n, 3, H, W] -> features [n, width] before the head of ``path``."""
        for depth, owner in enumerate(path[:-1]):
            images = self.block(depth, owner)(images)
        return images.mean(dim=(2, 3))

    def logits(self, images: Tensor, task_id: int) -> Tensor:
        return self._follow(images, self.path(task_id))

    def _follow(self, images: Tensor, path: Sequence[int]) -> Tensor:
        """Images [n, 3, H, W] -> logits [n, K] along a path of owners."""
        return self.block(self.depth - 1, path[-1])(self.features(images, path))

    def choose_source(self, task: LearningTask, key: str, k: int) -> dict[str, Any] | None:
        """Record of the earlier task whose features serve a k-NN classifier of ``task`` best; None for the first task.

        The classifier has training images as references and is scored on validation images, at most 1000 of each.
        On a tie the task learned later wins, as in the authors' code.
        """
        splits = [_some(task.train, f"{key}/train"), _some(task.valid, f"{key}/valid")]
        best, best_accuracy = None, -1.0
        self.eval()
        for record in self.tasks:
            train, valid = (self._all_features(images, record["path"]) for images in splits)
            accuracy = knn_accuracy(train, splits[0].labels, valid, splits[1].labels, k)
            if accuracy >= best_accuracy:
                best, best_accuracy = record, accuracy
        return best

    @torch.no_grad()
    def _all_features(self, images: Images, path: Sequence[int]) -> Tensor:
        chunks = torch.arange(len(images)).split(KNN_BATCH)
        with autocast(self.device):
            return torch.cat([self.features(images.batch(rows), path).float() for rows in chunks])


def _some(images: Images, key: str) -> Images:
    rows = torch.from_numpy(seeding.numpy_generator(key, "source").permutation(len(images)))
    return images.subset(rows[:MAX_KNN_IMAGES])


def knn_accuracy(train: Tensor, train_labels: Tensor, valid: Tensor, valid_labels: Tensor, k: int) -> float:
    """Share of ``valid`` [m, d] that the majority of the ``k`` nearest rows of ``train`` [n, d] names rightly.

    Euclidean distances; k is at most n; the lowest class wins a tied vote.
    """
    nearest = torch.cdist(valid, train).topk(min(k, len(train)), largest=False).indices
    votes = functional.one_hot(train_labels[nearest]).sum(dim=1)
    return float((votes.argmax(dim=1) == valid_labels).double().mean())


def paths(connections: Connections, source_head: bool, depth: int) -> list[tuple[int, ...]]:
    """All paths through source and fresh blocks, those with most source blocks first.

    Args:
        connections: ``fw`` lets fresh blocks follow source blocks (the source serves as a prefix: 8 paths), ``bw``
            the reverse (a suffix), ``fw_bw`` both (2^7 paths).
        source_head: whether the source's head fits the task; otherwise the last block is fresh.
        depth: blocks of a path, the head counted.
    """
    allowed = {(SOURCE, SOURCE), (FRESH, FRESH)}
    allowed |= {(SOURCE, FRESH)} if "fw" in connections else set()
    allowed |= {(FRESH, SOURCE)} if "bw" in connections else set()
    found = [
        path
        for path in itertools.product((SOURCE, FRESH), repeat=depth)
        if allowed.issuperset(itertools.pairwise(path)) and (source_head or path[-1] == FRESH)
    ]
    return sorted(found, key=lambda path: path.count(FRESH))


def owners(path: Sequence[int], task_id: int, source: dict[str, Any] | None) -> list[int]:
    """The path of choices as a path of owners, for a record; without a source all blocks are fresh."""
    old = source["path"] if source is not None else ()
    return [task_id if choice == FRESH else old[depth] for depth, choice in enumerate(path)]


def source_head_fits(source: dict[str, Any], task: LearningTask) -> bool:
    """Whether the source's head has as many outputs as the task has classes."""
    return source["n_classes"] == task.n_classes
