"""The architecture search of one task, as a job that fills the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from par.cells.search import search_cell
from par.config import CHECKPOINT_MINUTES, LearnerSettings
from par.numerics import Numerics
from par.schema import to_plain
from par.steps.checkpoint import RunningStep, forget
from par.steps.code_digest import PLUMBING, code_digest
from par.steps.store import Store, entry_key
from par.streams import load_stream
from par.training.images import Images
from par.training.precision import Precision, policy


@dataclass(frozen=True)
class SearchJob:
    """Search a cell for one task (a :class:`par.steps.jobs.Job`); ``directory`` is the built stream of ``seed``.

    ``checkpoint_minutes``, as in params.yaml, lie between two saves of a search in progress.
    The store's entry holds ``genotype`` (JSON of :mod:`par.cells.genotype`), ``history`` (rows) and ``seconds``.
    """

    settings: LearnerSettings
    directory: Path
    seed: int
    task: int
    n_train: int
    device: torch.device
    checkpoint_minutes: float = CHECKPOINT_MINUTES
    precision: Precision = "float32"
    numerics: Numerics = "native"

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.settings.search.update} search seed {self.seed} task {self.task}"

    def cost(self) -> int:
        """See :class:`par.steps.jobs.Job`; half of the images train, the other half only predict."""
        trains = self.settings.search.update in ("mdl", "advantage")
        return self.settings.search.epochs * (self.n_train // 2) if trains else 0

    @property
    def key(self) -> str:
        """Store key: what the genotype depends on."""
        settings, recipe = self.settings, self.settings.recipe
        content = {
            "search": to_plain(settings.search),
            "expert": to_plain(settings.expert),
            "recipe": {name: getattr(recipe, name) for name in ("batch_size", "momentum", "weight_decay")},
            "task": load_stream(self.directory).tasks[self.task].digest,
            "seed": self.seed,
            "device": self.device.type,
            "precision": self.precision,
            "numerics": self.numerics,
            "torch": torch.__version__,
            "code": code_digest([__name__], PLUMBING),
        }
        return entry_key(content)

    def run(self, store: Store, progress: Callable[[int], None]) -> tuple[int, int]:
        """See :class:`par.steps.jobs.Job`."""
        key = self.key
        with policy(self.device, self.precision):
            _, is_new = store.get_or_compute(
                key, lambda: self._search(RunningStep(store, key, self.checkpoint_minutes, progress))
            )
        forget(store, key)
        if not is_new:
            progress(self.cost())
        return int(is_new), int(not is_new)

    def _search(self, running: RunningStep) -> dict[str, Any]:
        task = load_stream(self.directory).tasks[self.task]
        part = task.split("train")
        train = Images(part.images, part.labels, task.mean, task.std, task.augment, self.device)
        result = search_cell(
            train,
            task.n_classes,
            self.settings.expert,
            self.settings.search,
            self.settings.recipe,
            f"{self.seed}/{task.digest}",
            running.advance,
            running.part("search"),
        )
        return {"genotype": result.genotype.to_json(), "history": result.history, "seconds": running.seconds()}
