"""Methods beside their authors' code, each side by itself:
`python -m benchmarks.agreement.alone --repository DIR --hat DIR --gpm DIR --data DIR`.

The other scripts hand theirs our initial weights and draws and compare step by step. Here each side draws its own and
trains by its own loop, and AP and AF over seeds are compared: what no step shows, such as a whole run that goes wrong,
would be seen here. Theirs is as it is released, but for what does not run any more (docs/agreement.md) and PNN, whose
gradients of the task before are cleared; with ``--as-ours`` also without what the other scripts set aside. Three tasks
of CIFAR100-10, both sides on the same images.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.agreement import repository
from benchmarks.agreement.baselines import N_CLASSES, PAIRS, RECIPE, as_ours_on_purpose, make_theirs
from benchmarks.agreement.comparison import Row, all_of, means_agree, run, small_split, small_tasks
from benchmarks.agreement.protected import load_gpm, load_hat, old_torch
from par.config import Config, Recipe
from par.methods import load_method
from par.methods.bases.method import LearningTask, Step
from par.settings import resolve
from par.streams import Stream
from par.training import trainer
from par.training.images import Images

N_TASKS, N_IMAGES, N_TESTED, EPOCHS = 3, 320, 500, 6
# HAT and GPM train and stop by the validation loss, as presets/validation.yaml does
BY_LOSS = Recipe(
    epochs=10,
    batch_size=16,
    learning_rate=0.05,
    momentum=0.0,
    weight_decay=0.0,
    schedule="plateau",
    select_by="loss",
    stop_at_floor=True,
    plateau_factor=1 / 3,
    plateau_patience=4,  # divided after 5 bad epochs
    min_learning_rate=1e-4,
    clip_norm=None,
)
RECIPES = {name: replace(RECIPE, epochs=EPOCHS) for name in PAIRS} | {
    "hat": BY_LOSS,
    "gpm": replace(BY_LOSS, learning_rate=0.01, plateau_factor=0.5, plateau_patience=5, min_learning_rate=1e-5),
}
HYPER: dict[str, Mapping[str, Any]] = {name: hyper for name, (hyper, _) in PAIRS.items()} | {
    "hat": {"annealing": "code"},
    "gpm": {"first_task": "below"},
}
Side = Callable[[Sequence[LearningTask], Sequence[Images], int], np.ndarray]  # to the matrix r_ij of a seed


def ours(name: str, tasks: Sequence[LearningTask], tests: Sequence[Images], seed: int) -> np.ndarray:
    """Our side."""
    settings = resolve(Config("agreement", (), (0,), {name: HYPER[name]}), "", name)
    learners: list[Any] = []
    matrix = blank_matrix(len(tasks))
    for task in tasks:
        if not learners or learners[-1].chains == "task":
            learners.append(load_method(name)(settings))
        learners[-1].learn(task, Step(RECIPES[name], f"agreement/{seed}/{task.id}"))
        for number in range(task.id + 1):
            learner = learners[min(number, len(learners) - 1)]
            matrix[task.id, number] = trainer.accuracy(partial(learner.logits, task_id=number), tests[number])
    return matrix


def theirs_of_par(
    modules: SimpleNamespace,
    name: str,
    as_ours: bool,
    tasks: Sequence[LearningTask],
    tests: Sequence[Images],
    seed: int,
) -> np.ndarray:
    """Finetune to PNN of PAR's repository; ``as_ours``: without that in which ours differs on purpose."""
    torch.manual_seed(seed)
    approach = make_theirs(modules, name, len(tasks), RECIPES[name])

    def loader(data: Any, batch_size: int, shuffle: bool = False, **_: Any) -> Any:
        return DataLoader(data, batch_size=batch_size, shuffle=shuffle)  # without processes

    matrix = blank_matrix(len(tasks))
    with redirect_stdout(io.StringIO()), mock.patch("torch.utils.data.DataLoader", loader):
        for task in tasks:
            splits = (TensorDataset(*all_of(split)) for split in (task.train, task.valid))
            with as_ours_on_purpose(modules, approach, name, task.id) if as_ours else nullcontext():
                approach.model.zero_grad()
                approach.learn(task.id, *splits, "cpu")
            for number in range(task.id + 1):
                matrix[task.id, number] = approach.eval(number, [all_of(tests[number])], "test", "cpu")[1]
    return matrix


def theirs_hat(
    modules: SimpleNamespace, tasks: Sequence[LearningTask], tests: Sequence[Images], seed: int
) -> np.ndarray:
    """HAT's own."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    size, recipe = [3, *tests[0].size], RECIPES["hat"]
    network = modules.alexnet_hat.Net(size, [(task.id, N_CLASSES) for task in tasks])
    arguments = SimpleNamespace(parameter="")
    approach = modules.hat.Appr(network, nepochs=recipe.epochs, sbatch=recipe.batch_size, args=arguments)
    matrix = blank_matrix(len(tasks))
    with old_torch(shuffles=True):
        for task in tasks:
            approach.train(task.id, *all_of(task.train), *all_of(task.valid))
            for number in range(task.id + 1):
                with torch.no_grad():
                    matrix[task.id, number] = approach.eval(number, *all_of(tests[number]))[1]
    return matrix


def theirs_gpm(
    modules: SimpleNamespace, tasks: Sequence[LearningTask], tests: Sequence[Images], seed: int
) -> np.ndarray:
    """GPM's own: its whole script, which is handed our tasks in the place of its data."""
    code, recipe = modules.main_cifar100, RECIPES["gpm"]
    data = {
        task.id: {"name": f"task {task.id}"}
        | {
            name: dict(zip("xy", all_of(images), strict=True))
            for name, images in (("train", task.train), ("valid", task.valid), ("test", test))
        }
        for task, test in zip(tasks, tests, strict=True)
    }
    classes = [(task.id, N_CLASSES) for task in tasks]
    source = SimpleNamespace(get=lambda **_: (data, classes, [3, *tests[0].size]))
    arguments = SimpleNamespace(
        seed=seed,
        pc_valid=0.0,
        n_epochs=recipe.epochs,
        batch_size_train=recipe.batch_size,
        batch_size_test=64,
        lr=recipe.learning_rate,
        lr_min=recipe.min_learning_rate,
        lr_patience=recipe.plateau_patience + 1,
        lr_factor=1 / recipe.plateau_factor,
    )
    with (
        redirect_stdout(io.StringIO()),
        mock.patch.dict(sys.modules, dataloader=SimpleNamespace(cifar100=source)),
        mock.patch.multiple(code, sn=mock.DEFAULT, plt=mock.DEFAULT, pd=mock.DEFAULT) as patched,
    ):
        code.main(arguments)
    percent = patched["pd"].DataFrame.call_args.args[0][: len(tasks), : len(tasks)]
    matrix = blank_matrix(len(tasks))
    lower = np.tril_indices(len(tasks))
    matrix[lower] = percent[lower] / 100
    return matrix


def blank_matrix(n_tasks: int) -> np.ndarray:
    """r_ij of nothing: chance."""
    return np.full((n_tasks, n_tasks), 1 / N_CLASSES)


def sides(options: argparse.Namespace) -> Iterator[tuple[str, Side]]:
    """Methods and their side, of the checkouts that are given."""
    if options.repository is not None:
        print(f"WenjinW/PAR at {repository.commit(options.repository)}")
        modules = repository.load(options.repository)
        names = [name for name in PAIRS if name in options.methods]
        yield from ((name, partial(theirs_of_par, modules, name, options.as_ours)) for name in names)
    if options.hat is not None:
        yield "hat", partial(theirs_hat, load_hat(options.hat))
    if options.gpm is not None:
        yield "gpm", partial(theirs_gpm, load_gpm(options.gpm))


def compare(stream: Stream, methods: Sequence[tuple[str, Side]], n_seeds: int) -> Iterator[Row]:
    """AP and AF of both."""
    for name, theirs in methods:
        step = 1 if name in ("hat", "gpm") else 2  # their AlexNets take 32 pixels
        tasks = small_tasks(stream, (N_IMAGES,) * N_TASKS, step=step, kind=Images)
        tests = [small_split(task, "test", N_TESTED, step, Images) for task in stream.tasks[:N_TASKS]]
        found = [[side(tasks, tests, seed) for seed in range(n_seeds)] for side in (partial(ours, name), theirs)]
        yield from means_agree(f"{name}, each by itself", *found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, help="checkout of WenjinW/PAR")
    parser.add_argument("--hat", type=Path, help="checkout of joansj/hat")
    parser.add_argument("--gpm", type=Path, help="checkout of sahagobinda/GPM")
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    parser.add_argument("--seeds", type=int, default=3, help="of each side, at least 2")
    parser.add_argument("--methods", nargs="+", default=list(PAIRS), choices=list(PAIRS), help="of WenjinW/PAR")
    parser.add_argument("--as-ours", action="store_true", help="WenjinW/PAR without what differs on purpose")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("a standard error takes at least 2 seeds.")
    methods = list(sides(options))
    print(f"torch {torch.__version__}, numpy {np.__version__}")
    run(options.data, lambda stream: compare(stream, methods, options.seeds))


if __name__ == "__main__":
    main()
