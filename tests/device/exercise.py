"""Everything that trains, saves, restores and predicts, on the emulated device: ``python -m tests.device.exercise``.

Prints a line for each part and ends with exit code 1 where one fails. Parts can be chosen by name.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from par.cells.genotype import DARTS_V1
from par.cells.search import search_cell
from par.config import ExtractorSettings, SearchSettings
from par.relatedness.extractor import load_extractor
from par.settings import resolve
from par.steps.chain_job import ChainJob, ChainTask, assemble
from par.steps.store import Store
from par.streams import build_stream, definition
from par.training import trainer
from par.training.precision import policy
from par.training.step import capturing
from tests.device.cases import CASES, CONFIG, EXPERT, OTHER_CASES, RECIPE, Case, images, through
from tests.device.emulated import GPU, EmulatedGraphs, Emulation, emulated_gpu


def in_float32(case: Case) -> str:
    """A method on the device in float32: what a CPU computes, bit for bit, as the same kernels run."""
    with emulated_gpu(), policy(GPU, "float32"):
        losses, predictions = through(case, GPU)
    expected, others = through(case, torch.device("cpu"))
    assert losses == expected and all(map(torch.equal, predictions, others)), f"{losses} for {expected} on a CPU"
    return "a CPU's bits in float32"


def in_bf16(case: Case) -> str:
    """A method on the device in bf16, of which no step waits: its first loss is near."""
    waits: list[str] = []
    with emulated_gpu() as mode, policy(GPU, "bf16"), watched(mode, waits):
        losses, _ = through(case, GPU)
    assert not waits, f"the host waits in a step: {waits[:3]}"
    expected, _ = through(replace(case, tasks=1), torch.device("cpu"))
    assert np.isfinite(losses).all() and abs(losses[0] - expected[0]) < 0.2, f"{losses} for {expected} on a CPU"
    return f"{abs(losses[0] - expected[0]):.4f} from its first loss in bf16"


def captured(case: Case) -> str:
    """Steps replayed from a graph give a CPU's bits, in float32, as the same kernels run, and wait for nothing.

    Two epochs of two whole batches and a shorter one: a warm-up, then captured or replayed steps, with two rates.
    """
    recipe, replayed, waits = replace(RECIPE, epochs=2, batch_size=9), [], []

    def recorder(device: torch.device) -> EmulatedGraphs:
        replayed.append(EmulatedGraphs(mode))
        return replayed[-1]

    kept: tuple[list[Tensor], list[Tensor]] = ([], [])
    with emulated_gpu() as mode, policy(GPU, "float32"), capturing(recorder), watched(mode, waits):
        losses, predictions = through(case, GPU, recipe, kept[0])
    assert not waits, f"the host waits in a step: {waits[:3]}"
    with capturing(lambda device: None):  # steps are called, with the arithmetic of those in a graph
        expected, others = through(case, torch.device("cpu"), recipe, kept[1])
    same = all(map(torch.equal, predictions + kept[0], others + kept[1]))
    assert losses == expected and same, f"other bits: {losses} for {expected} on a CPU"
    n_graphs, n_steps = (sum(getattr(one, name) for one in replayed) for name in ("n_captured", "n_replayed"))
    is_drawing = "freeze_after" in case.hyper  # of a second task no path is ever fixed
    assert n_graphs >= (1 if is_drawing else case.tasks), f"{n_graphs} graphs in {len(replayed)} fits"
    return f"a CPU's bits; {n_graphs} graphs in {len(replayed)} fits, {n_steps} steps replayed, no wait in a step"


@contextmanager
def watched(mode: Emulation, waits: list[str]) -> Iterator[None]:
    """Within the block what makes a step wait is added to ``waits``."""

    class Watched(trainer.Steps):
        def __call__(self, *arguments: Any) -> None:
            before = mode.copies + mode.reads
            super().__call__(*arguments)
            waits.extend((mode.copies + mode.reads - before).elements())

    with mock.patch.object(trainer, "Steps", Watched):
        yield


def cell_search(update: str) -> str:
    """The search network, in float32: the cell is the one that a CPU finds."""

    def search(device: torch.device) -> Any:
        train = images(0, "train", device, ("crop", "flip"))
        return search_cell(train, 3, EXPERT, SearchSettings(update=update, epochs=2), RECIPE, "search")

    with emulated_gpu(), policy(GPU, "float32"):
        found = search(GPU)
    expected = search(torch.device("cpu"))
    assert found.genotype == expected.genotype
    assert [row["loss"] for row in found.history] == [row["loss"] for row in expected.history]
    with emulated_gpu(), policy(GPU, "bf16"):
        search(GPU)
    return "a CPU's cell"


def extractor() -> str:
    """The frozen extractor: a CPU's features."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    settings = ExtractorSettings(network="efficientnet_lite0", image_size=40, batch_size=4)
    with emulated_gpu():
        found = load_extractor(settings, "gpu").features(pixels)
    assert np.array_equal(found, load_extractor(settings, "cpu").features(pixels))
    return "a CPU's features"


DIGITS = """
image_size: 8
augment: [crop]
class_splits:
  - {source: digits, classes_per_task: 3, train: 8, valid: 4, test: 4}
"""


def chain() -> str:
    """A chain of PAR with a joining and a head-only task, resumed from its store, as the stage runs it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "tiny.yaml").write_text(DIGITS)
        definition.DEFINITIONS = folder  # this process has no other use for them
        build_stream("tiny", 0, folder, folder / "0")
        cell = DARTS_V1.to_json()
        tasks = (ChainTask(0, cell), ChainTask(1, cell), ChainTask(2, cell, head_only=True))
        settings = resolve(replace(CONFIG, recipe=RECIPE), "tiny", "par")
        store = Store(folder / "store")
        job = ChainJob(settings, folder / "0", 0, tasks, (24,) * 3, "full", GPU, precision="bf16")
        with emulated_gpu():
            for part in (replace(job, chain=tasks[:2]), job):
                part.run(store, lambda n_images: None)
        n_predictions = len(assemble([job], store).predictions)
    assert n_predictions == 6
    return f"{n_predictions} predictions"


CAPTURED = {
    **CASES,
    "learn_to_grow": Case("learn_to_grow", {"search_epochs": 3}),  # half the images: one whole batch an epoch
    "hat resnet": OTHER_CASES["hat resnet"],
    "mntdp_s drawing": Case("mntdp_s", {"freeze_after": 1.0}),
}
PARTS: dict[str, Callable[[], str]] = {
    **{name: partial(in_bf16, case) for name, case in CASES.items()},
    **{name: partial(in_float32, case) for name, case in OTHER_CASES.items() if name not in CAPTURED},
    **{f"captured {name}": partial(captured, case) for name, case in CAPTURED.items()},
    **{f"search {update}": partial(cell_search, update) for update in ("mdl", "advantage")},
    "extractor": extractor,
    "chain": chain,
}


def main() -> None:
    """Run the parts, print what each found."""
    parser = argparse.ArgumentParser(prog="python -m tests.device.exercise", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"among {', '.join(PARTS)}; all by default")
    parser.add_argument("--trace", action="store_true", help="print the traceback of a part that fails")
    options = parser.parse_args()
    torch.set_num_threads(1)
    n_failed = 0
    for name in options.parts or PARTS:
        started = time.process_time()
        try:
            line = f"ok    {PARTS[name]()}"
        except Exception as error:
            n_failed += 1
            line = f"FAIL  {type(error).__name__}: {' '.join(str(error).split())[:160]}"
            if options.trace:
                traceback.print_exc()
        print(f"{name:25} {line}; {time.process_time() - started:.1f} s", flush=True)
    sys.exit(bool(n_failed))


if __name__ == "__main__":
    main()
