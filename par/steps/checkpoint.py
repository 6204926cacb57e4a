"""The step in progress on disk, so that a killed one goes on from the end of an epoch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from par.steps.store import DamagedEntryError, Store, read_entry, write_entry


class RunningStep:
    """One file ``running/<key>.pt`` in the store while the step ``key`` is computed.

    It holds the state of the fit that saved itself last. A step's fits come one after another, and those that have
    ended are in the store as parts of the step, so that no other state is needed. The key depends on everything that
    decides the step's result, the code included: a file of other settings or of other code has another name.

    To be made by who holds the store's lease on ``key``, and to be followed by :func:`forget` when the entry is there.
    Two that both hold it for a while (:mod:`par.steps.lease`) replace each other's file, whole; whoever goes on from
    either ends with the same bits.

    Args:
        minutes: that lie between two saves at least.
        progress: called with the number of images of each batch; and at once with that of all the batches that a
            killed process went through before it last saved.
    """

    def __init__(self, store: Store, key: str, minutes: float, progress: Callable[[int], None]):
        self._path, self._interval = store.running_path(key), 60 * minutes
        self._started = self._saved = time.monotonic()
        self._progress, self._images = progress, 0
        self._found = self._read()
        self._seconds_before = self._found.get("seconds", 0.0)
        if self._found:
            self.advance(self._found["images"])

    def advance(self, n_images: int) -> None:
        """Count the images of a batch."""
        self._images += n_images
        self._progress(n_images)

    def seconds(self) -> float:
        """Wall-clock time spent on the step, that of killed processes up to their last save included."""
        return self._seconds_before + time.monotonic() - self._started

    def part(self, name: str) -> PartCheckpoint:
        """The checkpoint of the step's fit ``name``."""
        return PartCheckpoint(self, name)

    def state_of(self, part: str) -> dict[str, Any] | None:
        """What the fit ``part`` saved, or None where the last save was another's. Given once: the caller changes it."""
        return self._found.pop("state", None) if self._found.get("part") == part else None

    def is_due(self) -> bool:
        """Whether the last save, or the start, is as long ago as the interval."""
        return time.monotonic() - self._saved >= self._interval

    def save(self, part: str, state: dict[str, Any]) -> None:
        """Replace the file. A disk that does not take it is reported and does not stop the training."""
        entry = {"part": part, "state": state, "images": self._images, "seconds": self.seconds()}
        try:
            write_entry(self._path, entry)
        except OSError as error:
            print(
                f"Checkpoint {self._path} was not written ({error}); training goes on, and loses more if it is killed.",
                file=sys.stderr,
            )
        self._saved = time.monotonic()

    def _read(self) -> dict[str, Any]:
        try:
            found = read_entry(self._path)
        except FileNotFoundError:
            return {}
        except DamagedEntryError as error:  # another step's file is one too: its name is under its digest
            print(f"Checkpoint {self._path} {error}; the step is computed from its start.", file=sys.stderr)
            return {}
        return found


class PartCheckpoint:
    """One fit's place in the file (a :class:`par.training.trainer.Checkpoint`)."""

    def __init__(self, step: RunningStep, part: str):
        self._step, self._part = step, part

    def load(self) -> dict[str, Any] | None:
        return self._step.state_of(self._part)

    def is_due(self) -> bool:
        return self._step.is_due()

    def save(self, state: dict[str, Any]) -> None:
        self._step.save(self._part, state)


def forget(store: Store, key: str) -> None:
    """Remove what a step left that is done."""
    store.running_path(key).unlink(missing_ok=True)
