"""Speed of the parts that a run spends its time in, as ratios measured in one run: `python -m benchmarks.speed`.

Run it on an otherwise idle machine. Parts can be chosen: loop input workers memory checkpoints
cells distance.

- loop: `trainer.fit` against a bare PyTorch loop with the same network, batches, layout and optimiser (goal: 0.97).
- input: augmented, normalised images a second on one thread (goal: 25,000).
- workers: two jobs side by side on one thread each against the same two one after the other on two (goal: 1.05).
- memory: resident memory of a learner over the 20 tasks of demo_long (goal: flat within 2%).
- checkpoints: processor time of a step of the demo that saves itself every five minutes, or at the end of every epoch,
  against one that never does (goal: 1.01 at the default, five minutes).
- cells, distance: `benchmarks/cells.py` (goals: 1.5 and 1.7) and `benchmarks/distance.py` (goal: 40).
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn

from par.config import CHECKPOINT_MINUTES, LearnerSettings, NetworkSettings, Recipe
from par.methods.bases.method import NoHyper
from par.networks.resnet import LightResNet
from par.operating_system import keep_large_blocks
from par.settings import load, resolve
from par.steps.chain_job import ChainJob, ChainTask
from par.steps.store import Store
from par.streams import build_stream
from par.training import trainer
from par.training.images import Images
from par.training.losses import cross_entropy

RECIPE = Recipe(epochs=1, batch_size=64, clip_norm=None)
CLASSES = 10


def some_images(count: int, augment: tuple[str, ...] = ("crop", "flip")) -> Images:
    """Random 32x32 images."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return Images(pixels, generator.integers(CLASSES, size=count), (0.5,) * 3, (0.25,) * 3, augment)


def resnet() -> nn.Module:
    """The paper's light ResNet18 with a head."""
    return nn.Sequential(LightResNet(), nn.Linear(64, CLASSES))


class Plain(trainer.Trainable):
    """The least that `trainer.fit` trains: a network that classifies."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def modules_to_train(self):
        return [self.network]

    def loss(self, batch):
        return cross_entropy(self.predict(batch.images), batch.labels)

    def predict(self, images):
        return self.network(images)


def bare_epoch(network: nn.Module, images: Images) -> None:
    """One epoch as a PyTorch tutorial would write it, on the same batches."""
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9, weight_decay=0.003)
    generator = torch.Generator().manual_seed(0)
    network.train()
    for rows in torch.randperm(len(images), generator=generator).split(RECIPE.batch_size):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(network(images.batch(rows, generator)), images.labels[rows]).backward()
        optimizer.step()


def measure_loop() -> None:
    images, valid, rounds = some_images(1280), some_images(2, ()), 5
    fitted, bare, seconds = Plain(resnet()), resnet(), {"fit": [], "bare": []}
    for number in range(rounds + 1):
        for name in ("fit", "bare") if number % 2 else ("bare", "fit"):
            started = time.perf_counter()
            if name == "fit":
                trainer.fit(fitted, images, valid, RECIPE, "benchmark")
            else:
                bare_epoch(bare, images)
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    rates = {name: len(images) / min(values) for name, values in seconds.items()}
    print(
        f"loop: trainer.fit reaches {rates['fit'] / rates['bare']:.3f} of the bare loop (goal 0.97); "
        f"{rates['fit']:.0f} against {rates['bare']:.0f} images/s on {torch.get_num_threads()} threads"
    )


def measure_input() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    images, generator, rates = some_images(20_000), torch.Generator().manual_seed(0), []
    for _ in range(4):
        started = time.perf_counter()
        for rows in torch.randperm(len(images), generator=generator).split(RECIPE.batch_size):
            images.batch(rows, generator)
        rates.append(len(images) / (time.perf_counter() - started))
    torch.set_num_threads(threads)
    print(f"input: {max(rates):,.0f} images/s on one thread (goal 25,000), crop and flip, batches of 64")


def _train(threads: int, barrier, seconds) -> None:
    """Train for three epochs; the first warms up. Everybody starts the measured ones together."""
    torch.set_num_threads(threads)
    network, images = resnet(), some_images(1280)
    bare_epoch(network, images)
    barrier.wait()
    started = time.perf_counter()
    for _ in range(2):
        bare_epoch(network, images)
    seconds.put(time.perf_counter() - started)


def measure_workers() -> None:
    context, rates = multiprocessing.get_context("spawn"), {}
    for processes, threads in ((2, 1), (1, 2), (2, 1), (1, 2)):
        barrier, seconds = context.Barrier(processes), context.Queue()
        workers = [context.Process(target=_train, args=(threads, barrier, seconds)) for _ in range(processes)]
        for worker in workers:
            worker.start()
        slowest = max(seconds.get() for _ in workers)
        for worker in workers:
            worker.join()
        rates.setdefault(processes, []).append(processes * 2 * 1280 / slowest)
    two, one = max(rates[2]), max(rates[1])
    print(
        f"workers: two of one thread reach {two / one:.2f} times one of two threads (goal 1.05); "
        f"{two:.0f} against {one:.0f} images/s"
    )


def measure_memory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        n_tasks = len(build_stream("demo_long", 0, folder, Path(folder) / "stream").tasks)
        settings = LearnerSettings("finetune", "finetune", NoHyper(), RECIPE, network=NetworkSettings(width=16))
        chain = tuple(ChainTask(index) for index in range(n_tasks))
        resident, process = [], psutil.Process()

        def note(n_images: int) -> None:
            resident.append(process.memory_info().rss / 1e6)

        job = ChainJob(settings, Path(folder) / "stream", 0, chain, (1,) * n_tasks, "ends", torch.device("cpu"))
        job.run(Store(Path(folder) / "store"), note)
    early, late = resident[len(resident) // 5], max(resident[-len(resident) // 5 :])
    print(
        f"memory: {late:.0f} MB resident in the last fifth of {n_tasks} tasks, {early:.0f} MB after the first: "
        f"{100 * (late / early - 1):+.1f}% (goal 2%)"
    )


def measure_checkpoints() -> None:
    settings = resolve(load("presets/demo.yaml"), "demo_split", "finetune")
    seconds: dict[float, list[float]] = {math.inf: [], CHECKPOINT_MINUTES: [], 1e-9: []}
    with tempfile.TemporaryDirectory() as folder:
        (task, *_) = build_stream("demo_split", 0, folder, Path(folder) / "stream").tasks
        chain, sizes = (ChainTask(0),), (len(task.samples("train")),)
        for number in range(8):
            for minutes in seconds if number % 2 else reversed(seconds):
                job = ChainJob(settings, Path(folder) / "stream", 0, chain, sizes, "ends", torch.device("cpu"), minutes)
                started = time.process_time()
                job.run(Store(Path(folder) / f"store {number} {minutes}"), lambda n_images: None)
                if number:  # the first round warms up
                    seconds[minutes].append(time.process_time() - started)
    never, default, always = map(min, seconds.values())
    print(
        f"checkpoints: a step of demo_split takes {default / never:.3f} times the processor time at the default "
        f"{CHECKPOINT_MINUTES:g} minutes (goal 1.01), {always / never:.3f} times saved after each of "
        f"{settings.recipe.epochs} epochs; {never:.2f} s without"
    )


def run_script(name: str) -> None:
    """A benchmark with a command line of its own, on one thread (it counts processor seconds)."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], env=environment, check=True)


PARTS = {
    "loop": measure_loop,
    "input": measure_input,
    "workers": measure_workers,
    "memory": measure_memory,
    "checkpoints": measure_checkpoints,
    "cells": lambda: run_script("cells"),
    "distance": lambda: run_script("distance"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"among {', '.join(PARTS)}; default: all")
    keep_large_blocks()  # as in the stages
    for part in parser.parse_args().parts or PARTS:
        PARTS[part]()
        sys.stdout.flush()


if __name__ == "__main__":
    main()
