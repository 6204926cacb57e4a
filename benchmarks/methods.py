"""Training speed of every method on the light ResNet18 relative to Finetune: `python -m benchmarks.methods`.

Each method goes through two short tasks; then the steps of its third task are timed, a few per method in turn, so that
other load on the machine moves all methods alike. A step is what lies between two mini-batches of ``trainer.fit``:
augmenting, loss, gradients, update; of a method that fits several candidates, any of their steps. Its seconds
are the median over all rounds, of processor time: run it with OMP_NUM_THREADS=1, because threads that wait for each
other count too. For EWC and MAS the importance pass over a task of CIFAR100-10's size is compared with an epoch of
Finetune. As in the stages, glibc keeps large blocks (:func:`par.operating_system.keep_large_blocks`).

Where `avalanche` can be imported (`pip install avalanche-lib==0.6.0` in an environment of its own, beside this
project), our methods and its strategies also train its slim ResNet18 on the same images, one epoch a task.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor, nn

from par.config import Config, NetworkSettings, Recipe
from par.methods import METHODS, load_method
from par.methods.bases.method import LearningTask, Method, Step
from par.methods.bases.penalty import QuadraticPenalty
from par.operating_system import keep_large_blocks
from par.settings import resolve
from par.training.images import Images

GOALS = {"ewc": 1.05, "mas": 1.05, "lwf": 1.4, "er": 2.05, "agem": 2.2}  # of Finetune's time a step (sources.md#goals)
AVALANCHE_GOALS = {"finetune": 1.2, "ewc": 1.35, "lwf": 2.2, "er": 1.4}  # of Avalanche's speed (sources.md#goals)
TASK_IMAGES = 4500  # of one task of CIFAR100-10
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


def task(index: int, n_images: int, size: int, n_classes: int = 10) -> LearningTask:
    """Noise; learning it takes as long as learning anything else."""
    generator = np.random.default_rng(index)

    def split(count: int, augment: Sequence[str]) -> Images:
        pixels = generator.integers(0, 256, (count, 3, size, size), dtype=np.uint8)
        return Images(pixels, np.arange(count) % n_classes, MEAN, STD, augment)

    return LearningTask(index, n_classes, split(n_images, ("crop", "flip")), split(4 * n_classes, ()))


def build(name: str, config: Config, **hyper) -> Method:
    """A new learner on the light ResNet18, also of a method that has the choice; it searches for one epoch at most."""
    method = load_method(name)
    choices = {"network": "resnet", "search_epochs": 1}
    hyper |= {field.name: choices[field.name] for field in fields(method.Hyper) if field.name in choices}
    return method(resolve(replace(config, methods={name: hyper}), "", name))


class Timed:
    """A method that has learned two tasks; times steps of its third as often as asked."""

    def __init__(self, name: str, config: Config, recipe: Recipe, size: int):
        self.name, self.config, self.recipe = name, config, recipe
        learner = build(name, config)
        for index in (0, 1):
            learner.learn(task(index, 2 * recipe.batch_size, size), Step(recipe, f"{index}"))
        self.state = learner.save()
        self.seconds: list[float] = []

    def learner(self) -> Method:
        learner = build(self.name, self.config)
        learner.restore(self.state)
        return learner

    def time_steps(self, third: LearningTask) -> None:
        moments: list[float] = []
        self.learner().learn(third, Step(self.recipe, "2", lambda _: moments.append(time.process_time())))
        # The first step of a fit warms up, and between two fits there is more than a step: the median forgets both.
        self.seconds += np.diff(moments)[1:].tolist()

    @property
    def seconds_per_step(self) -> float:
        return statistics.median(self.seconds)

    def seconds_of_importance(self, size: int) -> float:
        learner, large = self.learner(), task(1, TASK_IMAGES, size)
        started = time.process_time()
        learner.estimate(large, Step(self.recipe, "importance"))
        return time.process_time() - started


def relative_to_finetune(names: Sequence[str], options: argparse.Namespace) -> None:
    """Measure and print the table of step times."""
    recipe = Recipe(epochs=1, batch_size=options.batch)
    config = Config("benchmark", (), (0,), {}, network=NetworkSettings(width=options.width))
    timed = [Timed(name, config, recipe, options.size) for name in names]
    third = task(2, (options.steps + 2) * options.batch, options.size)
    for round_number in range(options.rounds):
        for method in timed if round_number % 2 else reversed(timed):
            method.time_steps(third)
    reference = next(method for method in timed if method.name == "finetune").seconds_per_step
    print(f"{'method':16}{'images/s':>10}{'x Finetune':>12}{'goal':>8}")
    for method in timed:
        ratio = method.seconds_per_step / reference
        goal = f"{GOALS[method.name]:.2f}" if method.name in GOALS else "-"
        print(f"{method.name:16}{options.batch / method.seconds_per_step:10.0f}{ratio:12.2f}{goal:>8}")
    for method in timed:
        if issubclass(load_method(method.name), QuadraticPenalty):
            epoch = reference / options.batch * TASK_IMAGES
            ratio = method.seconds_of_importance(options.size) / epoch
            print(f"importance pass of {method.name}, {TASK_IMAGES} images: {ratio:.2f} epochs of Finetune (goal 1)")


class SlimTrunk(nn.Module):
    """Avalanche's slim ResNet18 without its head."""

    def __init__(self):
        super().__init__()
        from avalanche.models import SlimResNet18

        self.network = SlimResNet18(2)
        self.n_features = self.network.linear.in_features
        self.network.linear = nn.Identity()
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)


def seconds_of_ours(name: str, tasks: Sequence[LearningTask], recipe: Recipe, **hyper) -> float:
    """Processor seconds of all tasks but the first, with everything that belongs to learning a task."""
    on_slim = type(name, (load_method(name),), {"build_trunk": lambda self, record: SlimTrunk()})
    learner = on_slim(resolve(Config("benchmark", (), (0,), {name: hyper}), "", name))
    learner.learn(tasks[0], Step(recipe, "0"))
    started = time.process_time()
    for later in tasks[1:]:
        learner.learn(later, Step(recipe, str(later.id)))
    return time.process_time() - started


class PilDataset(torch.utils.data.Dataset):
    """The training images of all tasks the way Avalanche's users have them; task t has classes 2t and 2t + 1."""

    def __init__(self, tasks: Sequence[LearningTask]):
        from PIL import Image

        edge = tasks[0].train.padding
        pixels = torch.cat([each.train.pixels[:, edge:-edge, edge:-edge] for each in tasks]).numpy()
        self.images = [Image.fromarray(image) for image in pixels]
        self.targets = torch.cat([each.train.labels + 2 * each.id for each in tasks]).tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int):
        return self.images[row], self.targets[row]


def seconds_of_avalanche(strategy: Callable, tasks: Sequence[LearningTask], recipe: Recipe, **options) -> float:
    """As :func:`seconds_of_ours`."""
    from avalanche.benchmarks import nc_benchmark
    from avalanche.models import MTSlimResNet18
    from avalanche.training.plugins import EvaluationPlugin
    from torchvision import transforms

    normalise = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    data = PilDataset(tasks)
    benchmark = nc_benchmark(
        data,
        data,
        n_experiences=len(tasks),
        task_labels=True,
        shuffle=False,
        class_ids_from_zero_in_each_exp=True,
        train_transform=transforms.Compose(
            [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), *normalise]
        ),
        eval_transform=transforms.Compose(normalise),
    )
    model = MTSlimResNet18(2)
    optimizer = torch.optim.SGD(
        model.parameters(), recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    trained = strategy(
        model=model,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=recipe.batch_size,
        train_epochs=1,
        device="cpu",
        evaluator=EvaluationPlugin(),
        **options,
    )
    first, *others = benchmark.train_stream
    trained.train(first)
    started = time.process_time()
    for experience in others:
        trained.train(experience)
    return time.process_time() - started


def against_avalanche(options: argparse.Namespace) -> None:
    """Measure and print ours against Avalanche on three tasks of two classes."""
    from avalanche.training import supervised

    recipe = Recipe(epochs=1, batch_size=64)
    tasks = [task(index, options.avalanche_images, 32, n_classes=2) for index in range(3)]
    # Ours, its hyper-parameters; theirs and its arguments. Avalanche's EWC squares mean gradients of mini-batches, so
    # ours does here too; 500 replayed images in both (sources.md#avalanche).
    pairs = (
        ("finetune", {}, supervised.Naive, {}),
        ("ewc", {"fisher": "minibatch"}, supervised.EWC, {"ewc_lambda": 1.0}),
        ("lwf", {}, supervised.LwF, {"alpha": 1.0, "temperature": 2.0}),
        ("er", {"per_class": 125}, supervised.Replay, {"mem_size": 500}),
    )
    print(f"\n{'slim ResNet18':16}{'ours img/s':>12}{'Avalanche':>12}{'ratio':>8}{'goal':>8}")
    n_images = (len(tasks) - 1) * options.avalanche_images
    for name, hyper, strategy, arguments in pairs:
        ours = seconds_of_ours(name, tasks, recipe, **hyper)
        theirs = seconds_of_avalanche(strategy, tasks, recipe, **arguments)
        goal = AVALANCHE_GOALS[name]
        print(f"{name:16}{n_images / ours:12.0f}{n_images / theirs:12.0f}{theirs / ours:8.2f}{goal:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sharing = [name for name in METHODS if "network" in load_method(name).settings]
    parser.add_argument("--methods", nargs="+", default=sharing, choices=sharing, help="Finetune is always measured")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--size", type=int, default=32, help="pixels")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4, help="timed in each round and method")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--avalanche-images", type=int, default=1920, help="per task")
    options = parser.parse_args()
    keep_large_blocks()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {vars(options)}")
    relative_to_finetune(["finetune", *(name for name in options.methods if name != "finetune")], options)
    if importlib.util.find_spec("avalanche") is not None:
        against_avalanche(options)
    else:
        print("avalanche is not installed here: no comparison with it")


if __name__ == "__main__":
    main()
