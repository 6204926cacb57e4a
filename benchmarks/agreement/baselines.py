"""Finetune, Independent, LwF, EWC, MAS and PNN beside the versions of PAR's authors:
`python -m benchmarks.agreement.baselines --repository DIR --data DIR`.

As :mod:`benchmarks.agreement.par`: their code runs from a checkout of github.com/WenjinW/PAR, both sides in float64
with our images, initial weights and batches. Tasks of CIFAR100-10 at 16 pixels on the light ResNet18. What of
theirs is set aside, because ours differs from it on purpose (docs/agreement.md): importances are estimated in eval
mode, old heads get no weight decay, the student's probabilities no 1e-5 / K, clipping counts what is trained.
"""

from __future__ import annotations

import argparse
import functools
import io
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.agreement import repository
from benchmarks.agreement.comparison import (
    Row,
    batches_of,
    in_dtype,
    largest_difference,
    recorded,
    run,
    small_tasks,
)
from par import seeding
from par.config import Config, Recipe
from par.methods import load_method
from par.methods.bases.method import LearningTask, Step
from par.methods.bases.penalty import QuadraticPenalty, flatten
from par.settings import resolve
from par.streams import Stream
from par.training import trainer

N_CLASSES, N_IMAGES = 10, 96
RECIPE = Recipe(epochs=2, batch_size=16, learning_rate=0.025, weight_decay=1e-3, clip_norm=5.0)  # 12 steps
WEIGHTS = {"ewc": 3000.0, "mas": 300.0, "lwf": 2.0}  # of their scripts (sources.md#par-recipe)
# Ours, with the options that make it theirs; and the module of theirs.
PAIRS: dict[str, tuple[dict[str, Any], str]] = {
    "finetune": ({}, "single"),
    "independent": ({}, "individual"),
    "lwf": ({"weight": WEIGHTS["lwf"]}, "lwf"),
    "ewc": ({"weight": WEIGHTS["ewc"], "fisher": "minibatch"}, "ewc"),
    "mas": ({"weight": WEIGHTS["mas"], "importance": "squared", "gradients": "minibatch"}, "mas"),
    "pnn": ({}, "progressive"),
}


def importance_batches(task: LearningTask, key: str) -> list[tuple[Tensor, Tensor]]:
    """The batches from which our minibatch estimate of importance is made."""
    order = seeding.torch_generator(key, "importance/order")
    chunks = trainer.batches(len(task.train), RECIPE.batch_size, order)
    return [(task.train.batch(rows), task.train.labels[rows]) for rows in chunks]


def make_theirs(modules: SimpleNamespace, name: str, n_tasks: int, recipe: Recipe = RECIPE) -> Any:
    """Their approach on their light ResNet18."""
    arguments = SimpleNamespace(
        logger=mock.Mock(),
        metric="acc",
        epochs=recipe.epochs,
        batch=recipe.batch_size,
        lr=recipe.learning_rate,
        lamb=recipe.weight_decay,
        lamb_ewc=WEIGHTS["ewc"],
        c_mas=WEIGHTS["mas"],
        c_lwf=WEIGHTS["lwf"],
    )
    network = make_network(modules, name, [(task, N_CLASSES) for task in range(n_tasks)])
    if name == "pnn":  # theirs leaves scale and shift of a new stem's batch normalisation untrained
        unfreeze = network.unfreeze_column
        network.unfreeze_column = lambda t: (unfreeze(t), network.bn1[t].requires_grad_(True))
    approach = getattr(modules, PAIRS[name][1])
    return approach.Appr(network, writer=mock.Mock(), device="cpu", args=arguments)


def make_network(modules: SimpleNamespace, name: str, classes: Sequence[tuple[int, int]]) -> Any:
    """Their network; that of their Independent with the light ResNet18 in the place of the full-width one."""
    if name == "pnn":
        return modules.resnet_pn.Net([3, 16, 16], classes)
    if name != "independent":
        return modules.resnet.Net([3, 16, 16], classes)
    network = modules.individual_model.Net([3, 16, 16], [])
    for _, n_classes in classes:
        trunk = modules.resnet.Net([3, 16, 16], [])
        trunk.forward = trunk.extract_feat
        network.feat_extractor.append(trunk)
        network.fc.append(nn.Linear(64, n_classes))
    return network


def _state(network: nn.Module, method: str, task: int) -> dict[str, Tensor]:
    """Their parameters and buffers, as they are; of Independent those of the task, named as in the light ResNet18."""
    state = network.state_dict()
    if method != "independent":
        return state
    trunk, head = f"feat_extractor.{task}.", f"fc.{task}."
    return {name.removeprefix(trunk): value for name, value in state.items() if name.startswith((trunk, head))}


def _our_name(name: str, method: str) -> str:
    return repository.our_column_name(name) if method == "pnn" else repository.our_resnet_name(name)


def _copy(network: nn.Module, method: str, task: int, ours: dict[str, Tensor], only: Sequence[str]) -> None:
    """Into their network what ours began with; ``only``: names that contain one of these."""
    for name, value in _state(network, method, task).items():
        mapped = _our_name(name, method)
        if mapped in ours and any(part in mapped for part in only):
            value.copy_(ours[mapped].reshape(value.shape))


def _in_eval_mode(estimate: Any, network: nn.Module) -> Any:
    """Their estimate of importance, with its ``network.train()`` as ``network.eval()``."""

    @functools.wraps(estimate)
    def estimated(*arguments: Any, **options: Any) -> Any:
        with mock.patch.object(network, "train", lambda mode=True: nn.Module.train(network, False)):
            return estimate(*arguments, **options)

    return estimated


@contextmanager
def as_ours_on_purpose(modules: SimpleNamespace, approach: Any, name: str, task_id: int) -> Iterator[None]:
    """Inside, their side learns a task without that in which ours differs from it on purpose."""
    network = approach.model
    network.zero_grad()  # theirs clips by a norm in which the last gradients of frozen columns count
    if name not in ("lwf", "pnn"):  # theirs decays old heads, as their optimiser holds them
        for old in range(task_id):
            network.fc[old].requires_grad_(False)
    plain = functools.partial(modules.utils.cross_entropy, eps=0.0)
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(modules.utils, "cross_entropy", plain))
        if name == "ewc":
            fisher = _in_eval_mode(modules.utils.fisher_matrix_diag, network)
            patches.enter_context(mock.patch.object(modules.utils, "fisher_matrix_diag", fisher))
        if name == "mas":
            approach.compute_importance = _in_eval_mode(type(approach).compute_importance.__get__(approach), network)
        yield


def learn_theirs(modules: SimpleNamespace, approach: Any, name: str, ours: Any, task: LearningTask, key: str) -> None:
    """Their side learns the task with our initial values and batches."""
    new = (f"heads.by_task.{task.id}.", f"parts.{task.id}.") if len(ours.tasks) > 1 else ("",)
    _copy(approach.model, name, task.id, ours.initial, new)
    queues = [[*ours.epochs, importance_batches(task, key)], [batches_of(task.valid, 50)]]
    with (
        redirect_stdout(io.StringIO()),  # its LwF prints
        repository.loaders(*queues),
        as_ours_on_purpose(modules, approach, name, task.id),
    ):
        approach.learn(task.id, task.train, task.valid, "cpu")


def compare(modules: SimpleNamespace, name: str, tasks: Sequence[LearningTask]) -> Iterator[Row]:
    """Weights, statistics and importances after each task."""
    hyper, _ = PAIRS[name]
    with in_dtype(torch.float64):
        approach = make_theirs(modules, name, len(tasks))
        settings = resolve(Config("agreement", (), (0,), {name: hyper}), "", name)
        ours = recorded(load_method(name))(settings)
        for task in tasks:
            if ours.chains == "task":
                ours = recorded(load_method(name))(settings)
            step = Step(RECIPE, f"agreement/{task.id}")
            ours.learn(task, step)
            learn_theirs(modules, approach, name, ours, task, step.key)
            kept = {key: value for key, value in ours.state_dict().items() if key not in ("importance", "anchor")}
            theirs = {
                key: value.reshape(kept[_our_name(key, name)].shape)
                for key, value in _state(approach.model, name, task.id).items()
                if _our_name(key, name) in kept
            }
            paired = repository.pair_up(theirs, kept, functools.partial(_our_name, method=name))
            part = f"{name}, task {task.id}, float64"
            difference = largest_difference([(a, b) for _, a, b in paired])
            yield Row(part, f"weights and statistics, {sum(map(len, ours.epochs))} steps", difference, 1e-9)
            if isinstance(ours, QuadraticPenalty):
                found = {repository.our_resnet_name(key): value for key, value in approach.fisher.items()}
                of_trunk = flatten(found[f"trunk.{key}"] for key, _ in ours.trunk.named_parameters())
                yield Row(part, "importances", largest_difference([(of_trunk, ours.importance)]), 1e-9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, required=True, help="checkout of WenjinW/PAR")
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    parser.add_argument("--tasks", type=int, default=2, help="3 show PNN's mixture of columns")
    parser.add_argument("--methods", nargs="+", default=list(PAIRS), choices=list(PAIRS))
    options = parser.parse_args()
    modules = repository.load(options.repository)
    print(f"WenjinW/PAR at {repository.commit(options.repository)}, torch {torch.__version__}, numpy {np.__version__}")

    def compared(stream: Stream) -> Iterator[Row]:
        tasks = small_tasks(stream, (N_IMAGES,) * options.tasks, step=2)
        return itertools.chain.from_iterable(compare(modules, name, tasks) for name in options.methods)

    run(options.data, compared)


if __name__ == "__main__":
    main()
