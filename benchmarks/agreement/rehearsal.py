"""ER and A-GEM beside Avalanche's: `python -m benchmarks.agreement.rehearsal --data DIR`.

As :mod:`benchmarks.agreement.par`: avalanche-lib 0.6.0, installed beside this project, trains with its own loop,
loaders, plugins and heads, on our light ResNet18, in float64. Our side learns a task first; its initial weights, the
order of its batches, the images that it draws from the memory and the random numbers that choose what the memory keeps
are handed to theirs. Three tasks of CIFAR100-10 at 16 pixels.

With ``--seeds`` each side then runs by itself, with its own initial weights and draws: AP and AF of both.

Set aside for A-GEM, and shown without that (docs/agreement.md): theirs takes the gradient of the memory before that of
the batch, so that running statistics move in the other order, and moves no old heads under torch 2.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import io
import itertools
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.agreement.comparison import (
    Row,
    as_it_began,
    in_dtype,
    largest_difference,
    last_epoch_stays,
    means_agree,
    recorded,
    run,
    small_split,
    small_tasks,
)
from par.config import Config, LearnerSettings, Recipe
from par.methods import load_method
from par.methods.bases.memory import Recall
from par.methods.bases.method import LearningTask, Step
from par.networks import build_network
from par.settings import resolve
from par.streams import Stream
from par.training import trainer
from par.training.images import Images

N_CLASSES, N_TASKS, N_IMAGES, PER_CLASS = 10, 3, 96, 2
EPOCHS, BATCH = 2, 16  # 12 steps a task
MODULES = ("training", "training.plugins", "training.storage_policy", "models", "benchmarks", "benchmarks.utils")
Place = tuple[int, int]  # an image: its task, its row there


@dataclass(frozen=True)
class Case:
    """One comparison: a method of ours, its options, its recipe, and what of their A-GEM is set aside."""

    method: str
    hyper: Mapping[str, Any]
    recipe: Recipe
    what: str
    our_order: bool = True  # the gradient of the memory after that of the batch
    our_heads: bool = True  # projected steps move old heads


def recipe(**changes: Any) -> Recipe:
    """Two epochs at one rate."""
    options = dict(epochs=EPOCHS, batch_size=BATCH, learning_rate=0.01, schedule="constant", clip_norm=None)
    return Recipe(**options | changes)


PLAIN = recipe(momentum=0.0, weight_decay=0.0)  # A-GEM's own; with it a gradient of zeros leaves a head where it is
CASES = (
    Case("er", {"mode": "ring"}, recipe(weight_decay=1e-3), "ring"),
    Case("er", {"mode": "reservoir"}, recipe(weight_decay=1e-3), "reservoir"),
    Case("agem", {}, PLAIN, "order and old heads as ours"),
    Case("agem", {}, PLAIN, "their order", our_order=False),  # of the last task
    Case("agem", {}, PLAIN, "their old heads", our_heads=False),
)


# each side by itself: images to learn a task from and to test it with
N_ALONE, N_TESTED = 320, 500
ALONE = (
    Case("er", {"mode": "ring"}, recipe(weight_decay=1e-3, epochs=6), "ring"),
    Case("er", {"mode": "reservoir"}, recipe(weight_decay=1e-3, epochs=6), "reservoir"),
    Case(
        "agem",
        {},
        recipe(momentum=0.0, weight_decay=0.0, learning_rate=0.03, epochs=6),
        "theirs as it is",
        False,
        False,
    ),
)


class ExactImages(Images):
    """Images normalised in torch's default dtype: the memory and a task give the same image by the same bits."""

    def augmented(self, rows: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        assert not self.augment
        pixels = self.pixels[rows].to(torch.get_default_dtype())
        return ((pixels / 255 - self.mean) / self.std).permute(0, 3, 1, 2)


class Places:
    """Finds normalised images again among those of the tasks, by their bits."""

    def __init__(self, tasks: Sequence[LearningTask]):
        self._by_bits: dict[bytes, Place] = {}
        for task in tasks:
            for row, image in enumerate(task.train.batch(torch.arange(len(task.train)))):
                self._by_bits[self._bits(image)] = (task.id, row)
        assert len(self._by_bits) == sum(len(task.train) for task in tasks), "two images are equal"

    @staticmethod
    def _bits(image: Tensor) -> bytes:
        return np.ascontiguousarray(image.numpy()).tobytes()

    def of(self, images: Sequence[Tensor]) -> list[Place]:
        """The places of images [3, H, W]."""
        return [self._by_bits[self._bits(image)] for image in images]

    def in_memory(self, learner: Any) -> list[Place]:
        """The places of what the memory of one of our learners holds, in its order."""
        recall = Recall(learner.memory, learner.tasks, (), torch.Generator())
        return self.of(recall.batch({"rows": torch.arange(len(recall.images))})[0])


def with_places(method: type[Any], places: Places, chances: Sequence[Tensor]) -> type[Any]:
    """A recorded learner of ``method`` that keeps which images its steps saw (``steps``: for each epoch and batch,
    places), and whose memory keeps images by ``chances``: of each task's images a random number, the largest stay."""

    def start_task(self, task: LearningTask, step: Step) -> None:
        self.steps: list[list[list[Place]]] = []
        self.projected = 0
        self.held = places.in_memory(self) if self.tasks else []
        base.start_task(self, task, step)

    def start_epoch(self, epoch: int) -> None:
        base.start_epoch(self, epoch)
        self.steps.append([])

    def loss(self, batch: trainer.Batch) -> Tensor:
        seen = [(self.current.id, int(row)) for row in batch.rows]
        self.steps[-1].append(seen + [self.held[int(row)] for row in batch.drawn.get("rows", ())])
        return base.loss(self, batch)

    def after_backward(self) -> None:
        base.after_backward(self)
        resting = self.at_rest()
        self.projected += resting is not None and not bool(resting[1])

    def fill_memory(self, task: LearningTask, generator: torch.Generator) -> None:
        new = chances[task.id]
        orders = [new]
        if getattr(self.hyper, "mode", "ring") == "reservoir":
            held = torch.tensor([chances[number][row] for number, row in self.held])
            orders = [torch.cat(list(chances[: task.id + 1])), held, new]
        drawn = (order.argsort(descending=True) for order in orders)
        with mock.patch("torch.randperm", lambda count, generator: next(drawn)):
            base.fill_memory(self, task, generator)

    base: Any = recorded(method)
    functions = (start_task, start_epoch, loss, after_backward, fill_memory)
    return type(method.__name__, (base,), {function.__name__: function for function in functions})


class Replay:
    """Their samplers, by our steps: of each batch what lies in the data set that is asked for.

    Args:
        steps: for each epoch, for each batch, the places of its images.
        joined: whether the memory is gone through beside each epoch, not once for all.
    """

    def __init__(self, places: Places, steps: Sequence[Sequence[Sequence[Place]]], joined: bool):
        self.places, self.steps, self.joined, self.epoch = places, steps, joined, -1

    def sampler(self, data: Any, *_: Any) -> list[np.ndarray]:
        """Rows of ``data`` for each batch; each time that the current task is asked for, of the next epoch."""
        rows = {place: row for row, place in enumerate(self.places.of(images_of(data)))}
        current = self.steps[0][0][0][0]
        is_current = any(task == current for task, _ in rows)
        self.epoch += is_current
        epochs = [self.steps[self.epoch]] if is_current or self.joined else self.steps
        steps = itertools.chain.from_iterable(epochs)
        return [np.array([rows[place] for place in step if place in rows], np.int64) for step in steps]


def images_of(data: Any) -> list[Tensor]:
    """The images of one of their data sets."""
    return [data[row][0] for row in range(len(data))]


@contextmanager
def replayed(places: Places, ours: Any, chances: Sequence[Tensor], joined: bool) -> Iterator[None]:
    """Inside, theirs draws what ours drew in its last task."""
    loader = importlib.import_module("avalanche.benchmarks.utils.data_loader")
    storage = importlib.import_module("avalanche.training.storage_policy").ReservoirSamplingBuffer
    update, kept = storage.update_from_dataset, set(places.in_memory(ours))

    def by_chances(buffer: Any, data: Any) -> None:
        drawn = torch.stack([chances[task][row] for task, row in places.of(images_of(data))])
        with mock.patch("torch.rand", lambda count: drawn):
            update(buffer, data)

    def kept_first(rows: list[int]) -> None:
        rows.sort(key=lambda row: (ours.tasks[-1]["task"], row) not in kept)

    with ExitStack() as patches:
        patches.enter_context(quiet())
        patches.enter_context(mock.patch.object(loader, "_make_sampler", Replay(places, ours.steps, joined).sampler))
        patches.enter_context(mock.patch.object(storage, "update_from_dataset", by_chances))
        patches.enter_context(mock.patch.object(random, "shuffle", kept_first))
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, theirs prints nothing."""
    with redirect_stdout(io.StringIO()), warnings.catch_warnings(record=True):  # its own filter lets them through
        yield


class KeepingSGD(torch.optim.SGD):
    """SGD whose gradients become zeros, as before torch 2, and not nothing."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none=False)


def load() -> SimpleNamespace:
    """Modules of Avalanche by the last part of their names.

    Raises:
        SystemExit: it is not installed, or is another version.
    """
    try:
        modules = {name.rpartition(".")[2]: importlib.import_module(f"avalanche.{name}") for name in MODULES}
        version = importlib.import_module("avalanche").__version__
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}; install avalanche-lib 0.6.0 beside this project.") from None
    if version != "0.6.0":
        raise SystemExit(f"avalanche-lib is {version}; install 0.6.0.")
    return SimpleNamespace(**modules)


def make_network(modules: SimpleNamespace, trunk: nn.Module) -> nn.Module:
    """A trunk of ours under their heads."""
    layers = modules.models

    class Network(layers.MultiTaskModule):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = trunk
            # heads of one size: theirs fills up the logits of a smaller one by zeros, and they count in the softmax
            self.heads = layers.MultiHeadClassifier(trunk.n_features, initial_out_features=N_CLASSES * N_TASKS)

        def forward(self, images: Tensor, tasks: Tensor) -> Tensor:
            return self.heads(self.trunk(images), tasks)

    return Network()


def make_experiences(modules: SimpleNamespace, tasks: Sequence[LearningTask]) -> list[Any]:
    """The tasks as theirs; classes are numbered through, as its buffers tell them apart by number."""
    pairs = [
        (task.train.batch(torch.arange(len(task.train))), task.train.labels + N_CLASSES * task.id) for task in tasks
    ]
    numbers = [task.id for task in tasks]
    scenario = modules.benchmarks.tensors_benchmark(train_tensors=pairs, test_tensors=pairs, task_labels=numbers)
    return list(scenario.train_stream)


def case_settings(case: Case) -> LearnerSettings:
    """The settings of our side."""
    hyper = {case.method: {"per_class": PER_CLASS, **case.hyper}}
    return resolve(Config("agreement", (), (0,), hyper), "", case.method)


def make_plugin(modules: SimpleNamespace, case: Case) -> tuple[Any, Callable[[int], None]]:
    """Their plugin, and what makes room in its memory for so many tasks."""
    count = PER_CLASS * N_CLASSES
    if case.method == "agem":
        kind = in_our_order(modules.plugins.AGEMPlugin) if case.our_order else modules.plugins.AGEMPlugin
        return kind(patterns_per_experience=count, sample_size=BATCH), lambda n_tasks: None
    if case.hyper["mode"] == "ring":
        policy = modules.storage_policy.ClassBalancedBuffer(
            count * N_TASKS, adaptive_size=False, total_num_classes=N_CLASSES * N_TASKS
        )
        room = lambda n_tasks: None  # noqa: E731
    else:
        policy = modules.storage_policy.ReservoirSamplingBuffer(count)

        def room(n_tasks: int) -> None:
            policy.max_size = count * n_tasks

    return modules.plugins.ReplayPlugin(policy.max_size, storage_policy=policy), room


def in_our_order(plugin: type[Any]) -> type[Any]:
    """Their A-GEM, whose gradient of the memory is taken after that of the batch."""

    def before_training_iteration(self: Any, strategy: Any, **_: Any) -> None:
        """Nothing yet."""

    def after_backward(self: Any, strategy: Any, **options: Any) -> None:
        parameters = list(strategy.model.parameters())
        gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]
        with torch.enable_grad():
            plugin.before_training_iteration(self, strategy, **options)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        plugin.after_backward(self, strategy, **options)

    functions = (before_training_iteration, after_backward)
    return type(plugin.__name__, (plugin,), {function.__name__: function for function in functions})


def state_pairs(network: Any, ours: Any) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Parameters and statistics of theirs, which can be copied into, and of ours, by part."""
    state = network.trunk.state_dict()
    own = ours.trunk.state_dict(keep_vars=True)
    pairs = {"trunk": [(state[name], value) for name, value in own.items()]}
    for record in ours.tasks:
        number = record["task"]
        theirs, own = network.heads.classifiers[str(number)].classifier, ours.heads[number]
        rows = slice(N_CLASSES * number, N_CLASSES * (number + 1))
        pairs[f"head {number}"] = [(theirs.weight[rows].detach(), own.weight), (theirs.bias[rows].detach(), own.bias)]
    return pairs


def learn_theirs(modules: SimpleNamespace, strategy: Any, ours: Any, experience: Any, case: Case) -> None:
    """Their side learns the task with our initial values and our draws."""
    number = ours.tasks[-1]["task"]

    class Begin(modules.plugins.SupervisedPlugin):
        def before_training_exp(self, strategy: Any, **_: Any) -> None:
            with as_it_began(ours):
                for part, pairs in state_pairs(strategy.model, ours).items():
                    for theirs, own in pairs if not number or part == f"head {number}" else ():
                        theirs.copy_(own.detach())

    strategy.plugins.append(begin := Begin())
    strategy.train(experience, reset_optimizer_state=True)
    strategy.plugins.remove(begin)


def compare(modules: SimpleNamespace, case: Case, tasks: Sequence[LearningTask]) -> Iterator[Row]:
    """Weights, statistics and what the memory holds after each task."""
    with in_dtype(torch.float64), ExitStack() as patches:
        patches.enter_context(mock.patch("par.methods.bases.memory.Images", ExactImages))
        patches.enter_context(last_epoch_stays())
        places = Places(tasks)
        chances = [torch.rand(len(task.train), generator=torch.Generator().manual_seed(task.id)) for task in tasks]
        ours = with_places(load_method(case.method), places, chances)(case_settings(case))
        plugin, room = make_plugin(modules, case)
        strategy = None
        as_theirs = not (case.our_order and case.our_heads)
        for task, experience in zip(tasks, make_experiences(modules, tasks), strict=True):
            ours.learn(task, Step(case.recipe, f"agreement/{task.id}"))
            strategy = strategy or make_strategy(modules, case, copy.deepcopy(ours.trunk), plugin)
            room(task.id + 1)
            with replayed(places, ours, chances, joined=case.method == "er"):
                learn_theirs(modules, strategy, ours, experience, case)
            if as_theirs and task is not tasks[-1]:
                continue
            yield from compare_states(strategy.model, ours, case)
            kept = [places.of(images_of(data)) for data in buffers(plugin)]
            other = set(itertools.chain.from_iterable(kept)) ^ set(places.in_memory(ours))
            part = f"{case.method}, {case.what}, task {task.id}, float64"
            yield Row(part, f"{sum(map(len, kept))} images in the memory that differ", float(len(other)), 0.0)


def compare_states(network: Any, ours: Any, case: Case) -> Iterator[Row]:
    """Weights and statistics of both; those are shown, not judged, that differ where something is not set aside."""
    number, steps = ours.tasks[-1]["task"], f"{sum(map(len, ours.steps))} steps"
    if case.method == "agem" and number:
        steps += f", {ours.projected} of them projected"
    pairs = state_pairs(network, ours)
    weights = [pair for each in pairs.values() for pair in each if isinstance(pair[1], nn.Parameter)]
    statistics = [pair for pair in pairs["trunk"] if not isinstance(pair[1], nn.Parameter)]
    part = f"{case.method}, {case.what}, task {number}, float64"
    same_weights, same_statistics = case.our_heads or not number, case.our_order and case.our_heads or not number
    yield Row(part, f"weights, {steps}", largest_difference(weights), 1e-9 if same_weights else None)
    yield Row(part, "statistics", largest_difference(statistics), 1e-9 if same_statistics else None)


def compare_accuracies(
    modules: SimpleNamespace, case: Case, tasks: Sequence[LearningTask], tests: Sequence[Images], n_seeds: int
) -> Iterator[Row]:
    """AP and AF of both, each by itself."""
    found: dict[str, list[np.ndarray]] = {"here": [], "theirs": []}
    with last_epoch_stays():
        for seed in range(n_seeds):
            ours = load_method(case.method)(case_settings(case))
            torch.manual_seed(seed)
            random.seed(seed)
            plugin, room = make_plugin(modules, case)
            strategy = make_strategy(modules, case, build_network(ours.settings.network), plugin)
            rows: dict[str, list[list[float]]] = {"here": [], "theirs": []}
            for task, experience in zip(tasks, make_experiences(modules, tasks), strict=True):
                ours.learn(task, Step(case.recipe, f"agreement/{seed}/{task.id}"))
                room(task.id + 1)
                with quiet():
                    strategy.train(experience, reset_optimizer_state=True)
                strategy.model.eval()
                rows["here"].append(accuracies(ours.logits, tests, task.id))
                rows["theirs"].append(accuracies(partial(logits_of, strategy.model), tests, task.id))
            for side, matrix in rows.items():
                found[side].append(np.array(matrix))
    yield from means_agree(f"{case.method}, {case.what}, each by itself", found["here"], found["theirs"])


def accuracies(logits: Callable[[Tensor, int], Tensor], tests: Sequence[Images], last: int) -> list[float]:
    """Accuracy on every task; chance on those after ``last``."""
    row = [1 / N_CLASSES] * len(tests)
    for number, images in enumerate(tests[: last + 1]):
        with torch.no_grad():
            predicted = logits(images.batch(torch.arange(len(images))), number).argmax(dim=1)
        row[number] = float((predicted == images.labels).double().mean())
    return row


def logits_of(network: nn.Module, images: Tensor, task: int) -> Tensor:
    """Of one of their networks, for the classes of a task."""
    every = network(images, torch.full((len(images),), task))
    return every[:, N_CLASSES * task : N_CLASSES * (task + 1)]


def make_strategy(modules: SimpleNamespace, case: Case, trunk: nn.Module, plugin: Any) -> Any:
    """Their loop around a trunk of ours."""
    network = make_network(modules, trunk.to(memory_format=torch.contiguous_format))  # theirs flattens gradients
    kind = KeepingSGD if case.method == "agem" and case.our_heads else torch.optim.SGD
    options = dict(lr=case.recipe.learning_rate, momentum=case.recipe.momentum, weight_decay=case.recipe.weight_decay)
    trunk.requires_grad_(True)
    return modules.training.Naive(
        model=network,
        optimizer=kind(network.parameters(), **options),
        train_mb_size=BATCH,
        train_epochs=case.recipe.epochs,
        plugins=[plugin],
        evaluator=None,
    )


def buffers(plugin: Any) -> list[Any]:
    """The data sets in the memory of one of their plugins."""
    return plugin.buffers if hasattr(plugin, "buffers") else [plugin.storage_policy.buffer]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    parser.add_argument("--seeds", type=int, default=0, help="also runs of each side by itself: 3 minutes a seed")
    options = parser.parse_args()
    if options.seeds == 1:
        parser.error("--seeds 1 has no standard error; give at least 2.")
    modules = load()
    print(f"avalanche-lib 0.6.0, torch {torch.__version__}, numpy {np.__version__}")

    def compared(stream: Stream) -> Iterator[Row]:
        with in_dtype(torch.float64):
            tasks = small_tasks(stream, (N_IMAGES,) * N_TASKS, step=2, kind=ExactImages)
        rows = [compare(modules, case, tasks) for case in CASES]
        if options.seeds:
            tasks = small_tasks(stream, (N_ALONE,) * N_TASKS, step=2, kind=ExactImages)
            tests = [small_split(task, "test", N_TESTED, 2, ExactImages) for task in stream.tasks[:N_TASKS]]
            rows += [compare_accuracies(modules, case, tasks, tests, options.seeds) for case in ALONE]
        return itertools.chain.from_iterable(rows)

    run(options.data, compared)


if __name__ == "__main__":
    main()
