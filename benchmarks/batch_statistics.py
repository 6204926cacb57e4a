"""What GPM has by its authors' way to evaluate: `python -m benchmarks.batch_statistics STREAM`.

The released code normalises test images by the batch they come in, where ours keeps statistics of each task
(sources.md#gpm). In the checkout whose store holds the trained GPM, test images are predicted in both ways. What the
statistics kept forget beyond the others has not left the weights: the statistics have drifted.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import torch
from torch import nn

from par import metrics, seeding
from par.methods.bases.method import Method
from par.networks.task_norm import task_norms
from par.settings import load
from par.steps.jobs import computing_on_one_thread
from par.steps.store import DEFAULT_FOLDER, Store
from par.streams import load_stream
from par.training import trainer
from par.training.images import Images
from pipeline.train import jobs_of


def normalise_by_batch(network: nn.Module, task_id: int) -> None:
    """Normalise images of a task by the batch they come in; the statistics kept stay as they are."""
    for norm in task_norms(network):
        own = norm.by_task[str(task_id)]
        assert isinstance(own, nn.BatchNorm2d)
        own.train().momentum = 0.0


def accuracy_in_batches(network: Method, task_id: int, images: Images, size: int) -> float:
    """Accuracy of ``network.logits``, each batch of ``size`` shuffled images normalised by itself."""
    normalise_by_batch(network, task_id)
    shuffled = trainer.batches(len(images), size, seeding.torch_generator("batch statistics"))
    with torch.no_grad():
        right = [network.logits(images.batch(rows), task_id).argmax(1) == images.labels[rows] for rows in shuffled]
    network.eval()
    return float(torch.cat(right).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stream")
    parser.add_argument("--learner", default="gpm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    (job,) = jobs_of(load(), options.stream)[options.learner, options.seed]
    tasks, store = load_stream(job.directory).tasks, Store(DEFAULT_FOLDER)
    tests = [Images(test.images, test.labels, task.mean, task.std) for task in tasks for test in [task.split("test")]]
    kept, by_batch = (np.full((len(tasks), len(tasks)), np.nan) for _ in range(2))
    with computing_on_one_thread():
        for after, key in enumerate(job.step_keys()):
            learner = job.restored(store.get(key))
            for task in range(after + 1):
                kept[after, task] = trainer.accuracy(partial(learner.logits, task_id=task), tests[task])
                by_batch[after, task] = accuracy_in_batches(learner, task, tests[task], options.batch)
    names = ("statistics kept", f"those of batches of {options.batch}")
    print("| test images normalised by | AP | AF | just learned, mean |\n|---|---|---|---|")
    for name, matrix in zip(names, (kept, by_batch), strict=True):
        figures = (metrics.average_accuracy(matrix), metrics.average_forgetting(matrix), matrix.diagonal().mean())
        print(f"| {name} | " + " | ".join(f"{figure:.4f}" for figure in figures) + " |")


if __name__ == "__main__":
    main()
