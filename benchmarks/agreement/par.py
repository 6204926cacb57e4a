"""PAR of this project beside PAR's own code, part by part: `python -m benchmarks.agreement.par --repository DIR --data
DIR`.

DIR are a checkout of github.com/WenjinW/PAR, whose code is imported and run on the CPU (benchmarks/agreement/
repository.py says what is patched), and a folder with CIFAR-100. Both sides get the same images, initial weights, draws
and batches in the same order; ours makes them. docs/agreement.md holds the outcome.

Both sides compute in float64, where two right implementations differ by 1e-12 and a wrong one by more; float32 is shown
beside it. Ours sums losses in float32 on purpose (``cross_entropy``); that cast is set aside here.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import par.cells.search
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
from par.cells.expert import Expert
from par.cells.genotype import (
    DARTS_V1,
    DARTS_V2,
    EDGES,
    KINDS,
    N_NODES,
    OPERATIONS,
    Genotype,
    random_genotype,
)
from par.cells.search import CellSearch, Mdl, search_cell
from par.config import Config, ExpertSettings, ExtractorSettings, Recipe, SearchSettings
from par.methods.bases.method import LearningTask, Step
from par.methods.par import Par
from par.relatedness.distance import distance_matrix, pair_score
from par.relatedness.extractor import load_extractor
from par.relatedness.prototypes import class_prototypes
from par.relatedness.routing import route
from par.settings import resolve
from par.training import trainer
from par.training.images import Images

PARTS = ("routing", "experts", "training", "search", "plans")
N_CLASSES = 10
N_IMAGES = 160  # of the first two tasks
RECIPE = Recipe(epochs=2, batch_size=16)  # 20 steps of 160 images; everything else as the authors' script has it


def copy_into(theirs: nn.Module, ours: dict[str, Tensor], only: str = "") -> None:
    """Give a network of theirs the values that ours has under the mapped names; ``only``: those that contain it."""
    state = theirs.state_dict()
    for name in state:
        mapped = repository.our_name(name)
        if mapped is not None and only in mapped:
            state[name] = ours[mapped].clone()
    theirs.load_state_dict(state)


def state_pairs(theirs: nn.Module, ours: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Every parameter and buffer of both."""
    return [(a, b) for _, a, b in repository.pair_up(theirs.state_dict(), dict(ours.state_dict()))]


class RecordedSearch(CellSearch):
    """A search that keeps what it began with, drew and trained on; ``last`` is the one made last."""

    last: RecordedSearch

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.to(torch.get_default_dtype())
        self.epochs: list[list[tuple[Tensor, Tensor]]] = []
        self.choices: list[np.ndarray] = []
        self.initial = {name: value.clone() for name, value in self.state_dict().items()}
        RecordedSearch.last = self

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        self.choices.append(self.choice)
        self.epochs.append([])

    def loss(self, batch: trainer.Batch) -> Tensor:
        self.epochs[-1].append((batch.images.to(torch.get_default_dtype()), batch.labels))
        return super().loss(batch)

    def predict(self, images: Tensor) -> Tensor:
        return super().predict(images.to(torch.get_default_dtype()))


def genotypes() -> dict[str, Genotype]:
    """Those that are compared: DARTS' two and two random ones, which together have every operation at every stride."""
    drawn = [random_genotype(np.random.default_rng(seed)) for seed in (0, 1)]
    return {"DARTS_V1": DARTS_V1, "DARTS_V2": DARTS_V2, "random 0": drawn[0], "random 1": drawn[1]}


def compare_experts(modules: SimpleNamespace, images: Tensor, labels: Tensor, channels: int) -> Iterator[Row]:
    """One forward and backward pass with copied weights: logits, loss and gradients of every genotype."""
    for dtype, allowed in ((torch.float64, 1e-9), (torch.float32, None)):
        for name, genotype in genotypes().items():
            with in_dtype(dtype):
                approach = repository.make_approach(modules, [N_CLASSES], nn.Identity(), channels)
                approach.model.expand(0, repository.make_genotype(modules, genotype), len(images))
                ours = nn.ModuleDict({"trunk": Expert(genotype, 4, channels), "heads": nn.Module()})
                ours["heads"].by_task = nn.ModuleDict({"0": nn.Linear(4 * channels, N_CLASSES)})
                copy_into(approach.model, ours.state_dict())
                approach.model.set_current_task(0)
                pixels = images.to(dtype)
                logits = approach.model.train()(pixels), ours["heads"].by_task["0"](ours["trunk"](pixels))
                losses = [functional.cross_entropy(each, labels) for each in logits]
                for loss in losses:
                    loss.backward()
                gradients = [
                    {key: parameter.grad for key, parameter in net.named_parameters()} for net in (approach.model, ours)
                ]
                unused = {key: value for key, value in gradients[0].items() if repository.our_name(key) is None}
                assert all(value is None for value in unused.values()), "a BatchNorm of theirs is used after all"
                paired = [(a, b) for _, a, b in repository.pair_up(*gradients)]
            bits = "float64" if dtype == torch.float64 else "float32"
            part = f"expert {name}, {channels} channels, {bits}"
            yield Row(part, "logits", largest_difference([logits]), allowed)
            yield Row(part, "loss", largest_difference([tuple(losses)]), allowed)
            yield Row(part, f"gradients of {len(paired)} parameters", largest_difference(paired), allowed)


def learning_tasks(stream: Any) -> list[LearningTask]:
    """A first task, one that joins it, one that trains its head only: 160, 160 and 80 images."""
    tasks = small_tasks(stream, (N_IMAGES, N_IMAGES, N_IMAGES // 2))
    return [dataclasses.replace(task, genotype=DARTS_V1.to_json(), head_only=task.id == 2) for task in tasks]


def compare_training(modules: SimpleNamespace, tasks: Sequence[LearningTask], channels: int) -> Iterator[Row]:
    """A chain of three tasks, 20 steps of a new expert, 20 of a joining task, 10 of a head: weights and statistics.

    The student's probabilities get 1e-5 / K added in theirs (sources.md#distillation); without that, and with it, where
    20 steps enlarge the difference by what rounding to float32, shown last, is enlarged too.
    """
    settings = resolve(Config("agreement", (), (0,), {}, expert=ExpertSettings(channels=channels)), "", "par")
    cases = ((torch.float64, 0.0, 1e-9, 1e-9), (torch.float64, 1e-5, 1e-3, None), (torch.float32, 0.0, None, None))
    for dtype, epsilon, of_loss, of_weights in cases:
        smoothed = modules.utils.cross_entropy

        def softened(*arguments: Any, epsilon: float = epsilon, loss: Any = smoothed, **options: Any) -> Tensor:
            return loss(*arguments, **options, eps=epsilon)

        with in_dtype(dtype), mock.patch.object(modules.utils, "cross_entropy", softened):
            approach = repository.make_approach(modules, [N_CLASSES] * 3, nn.Identity(), channels)
            ours = recorded(Par)(settings)
            for task in tasks:
                log = ours.learn(task, Step(RECIPE, f"agreement/{task.id}"))
                losses = _learn_theirs(modules, approach, ours, task)
                bits = "float64" if dtype == torch.float64 else "float32"
                kind = ("new expert", "joins, with distillation", "head only")[task.id]
                part = f"training, task {task.id} ({kind}), {bits}, epsilon {epsilon:g}"
                steps = sum(map(len, ours.epochs))
                own_losses = np.array([row["loss"] for row in log])
                yield Row(part, "losses of the epochs", largest_difference([(np.array(losses), own_losses)]), of_loss)
                states = state_pairs(approach.model, ours)
                yield Row(part, f"weights and statistics, {steps} steps", largest_difference(states), of_weights)


def _learn_theirs(modules: SimpleNamespace, approach: Any, ours: Any, task: LearningTask) -> list[float]:
    """Their side learns the task with our initial values and batches; returns the losses of the epochs."""
    count = len(task.train)
    if task.id == 0:
        approach.model.expand(0, repository.make_genotype(modules, DARTS_V1), count)
        way, only = "train", ""
    else:
        approach.model.reuse(task.id, 0, count)
        way, only = ("reuse" if task.head_only else "transfer"), f"heads.by_task.{task.id}."
    copy_into(approach.model, ours.initial, only)
    losses: list[float] = []
    epoch = getattr(approach, f"{way}_epoch")

    def logged(*arguments: Any, **options: Any) -> Any:
        result = epoch(*arguments, **options)
        losses.append(result[0])
        return result

    with (
        mock.patch.object(approach, f"{way}_epoch", logged),
        repository.loaders(ours.epochs, [batches_of(task.valid, 50)]),
    ):
        getattr(approach, way)(task.id, task.train, task.valid, RECIPE.batch_size, RECIPE.epochs, "cpu")
    return losses


def compare_search(modules: SimpleNamespace, task: LearningTask, channels: int, epochs: int) -> list[Row]:
    """A search with our draws and batches: accuracies, multinomials, weights, and the genotype that is chosen."""
    search = SearchSettings(update="mdl", epochs=epochs)
    with in_dtype(torch.float64):
        with mock.patch.object(par.cells.search, "CellSearch", RecordedSearch):
            found = search_cell(task.train, N_CLASSES, ExpertSettings(channels=channels), search, RECIPE, "agreement")
        ours = RecordedSearch.last
        halves = torch.from_numpy(par.seeding.numpy_generator("agreement", "halves").permutation(len(task.train)))
        held_out = task.train.subset(halves[len(halves) // 2 :])
        theirs = repository.make_search(modules, N_CLASSES, channels, RECIPE.weight_decay)
        copy_into(theirs.model, ours.initial)
        draws = iter([torch.from_numpy(kind)[:, None] for choice in ours.choices for kind in choice])
        accuracies: list[float] = []
        evaluate = theirs.eval

        def logged(*parts: Any) -> Any:
            result = evaluate(*parts)
            accuracies.append(result[1])
            return result

        with (
            mock.patch.object(torch, "multinomial", lambda *_: next(draws)),
            mock.patch.object(theirs, "eval", logged),
            repository.loaders(ours.epochs, [batches_of(held_out, 32)]),
        ):
            genotype = theirs.search(0, task.train, RECIPE.batch_size, epochs)
        ours_p = ours.updates
        assert isinstance(ours_p, Mdl)
        part = f"search, {epochs} epochs, {channels} channels, float64"
        probabilities = [(theirs.model.p[kind], ours_p.probabilities()[index]) for index, kind in enumerate(KINDS)]
        weights = state_pairs(theirs.model, ours)
    both = genotype, repository.make_genotype(modules, found.genotype)
    worth = [np.array([_worth(each, ours_p.probabilities())]) for each in both]
    other = sum(set(a) != set(b) for a, b in zip(*map(_nodes, both), strict=True))
    ours_accuracies = np.array([row["accuracy"] for row in found.history])
    return [
        Row(part, "accuracies", float(np.abs(np.array(accuracies) - ours_accuracies).max()), 0.0),
        Row(part, "multinomials", largest_difference(probabilities), 1e-8),  # theirs adds steps in float32
        Row(part, "weights and statistics", largest_difference(weights), 1e-9),
        Row(part, "probabilities of the genotype's operations", largest_difference([tuple(worth)]), 1e-8),
        Row(part, "nodes with other operations of equal probability", float(other), None),  # ties: any of them is right
    ]


def _nodes(genotype: Any) -> list[list[tuple[str, int]]]:
    """The two (operation, predecessor) of every node of both kinds of cell."""
    flat = [tuple(pair) for kind in KINDS for pair in getattr(genotype, kind)]
    return [flat[start : start + 2] for start in range(0, len(flat), 2)]


def _worth(genotype: Any, probabilities: np.ndarray) -> list[list[float]]:
    """Probability of the two operations of every node, the larger one last."""
    worth = []
    for position, pairs in enumerate(_nodes(genotype)):
        kind, node = divmod(position, N_NODES)
        edges = [EDGES.index((node, predecessor)) for _, predecessor in pairs]
        names = [OPERATIONS.index(name) for name, _ in pairs]
        worth.append(sorted(probabilities[kind, edges, names].tolist()))
    return worth


def compare_plans(
    modules: SimpleNamespace, name: str, features: Sequence[np.ndarray], labels: Sequence[np.ndarray], n_train: int
) -> list[Row]:
    """Distances and plan of a stream from the same features; their matrix, expert list and strategy against ours."""
    approach = repository.make_approach(modules, [N_CLASSES] * len(labels), nn.Identity(), 4)
    approach.model.task_dist = approach.model.task_dist.double()
    theirs = []
    with mock.patch.object(modules.par_v2.utils_draw, "draw_heatmap"):
        for task, (matrix, classes) in enumerate(zip(features, labels, strict=True)):
            data = [(torch.tensor(matrix).double(), torch.tensor(classes))]
            with repository.loaders([data]):
                means, _, by_class = approach.get_mean_cov_feats(task, data, 64, "cpu")
            approach.model.add_mean_cov(means)
            approach.get_relatedness(task, by_class)
            theirs.append(_follow(modules, approach, task, n_train))
    prototypes = [class_prototypes(*each, N_CLASSES) for each in zip(features, labels, strict=True)]
    distances = distance_matrix("reference", features, labels, prototypes)
    decisions = route(
        distances,
        [n_train] * len(labels),
        [str(task) for task in range(len(labels))],
        alpha=0.5,
        beta=0.75,
        freeze_below=0.5,
        estimator="reference",
    )
    ours = [(decision.decision, decision.group) for decision in decisions]
    lower = np.tril_indices(len(labels), -1)
    scores = pair_score("reference", distances[lower])
    difference = float(np.abs(approach.model.task_dist.numpy()[lower] - scores).max())
    n_other = sum(a != b for a, b in zip(theirs, ours, strict=True))
    groups = len({group for _, group in ours})
    span = f"{scores.min():.3f} to {scores.max():.3f}"
    return [
        Row(f"plan, {name}", f"{len(scores)} distances ({span})", difference, 1e-9),
        Row(f"plan, {name}", f"decisions of {len(ours)} tasks that differ ({groups} groups)", float(n_other), 0.0),
    ]


def _follow(modules: SimpleNamespace, approach: Any, task: int, n_train: int) -> tuple[str, int]:
    """Their decision on a task in our words, and its group; the model makes room for it, as when it learns."""
    kind, group = approach.strategy(task, n_train) if task else ("new", -1)
    if kind == "reuse":
        approach.model.reuse(task, group, n_train)
    else:
        new = repository.make_genotype(modules, DARTS_V1)
        approach.model.expand(task, group if kind == "reuse cell" else new, n_train)
    words = {"new": "search", "reuse cell": "reuse_cell", "reuse": "join"}
    return words[kind], approach.model.task2expert[task]


def compare_routing(modules: SimpleNamespace, n_streams: int = 200, n_tasks: int = 12) -> Iterator[Row]:
    """Streams of random distances and sizes, tiny tasks among them, through the whole of their ``learn``."""
    generator = np.random.default_rng(0)
    other, kinds = 0, dict.fromkeys(("search", "reuse_cell", "join", "head"), 0)
    for _ in range(n_streams):
        distances = generator.gamma(2.0, 0.35, (n_tasks, n_tasks)) * (generator.random((n_tasks, n_tasks)) > 0.02)
        n_train = generator.choice((15, 25, 26, 240, 260, 500, 5000), n_tasks).tolist()
        decisions = route(
            distances,
            n_train,
            list(map(str, range(n_tasks))),
            alpha=0.5,
            beta=0.75,
            freeze_below=0.5,
            estimator="reference",
        )
        ours = [("head" if decision.head_only else decision.decision, decision.group) for decision in decisions]
        theirs = _learn_nothing(modules, pair_score("reference", distances), n_train)
        other += sum(a != b for a, b in zip(theirs, ours, strict=True))
        for kind, _ in ours:
            kinds[kind] += 1
    found = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    yield Row("routing", f"decisions of {n_streams * n_tasks} tasks that differ ({found})", float(other), 0.0)


def _learn_nothing(modules: SimpleNamespace, scores: np.ndarray, n_train: Sequence[int]) -> list[tuple[str, int]]:
    """Their decisions in our words, from ``learn`` with everything that computes taken out of it."""
    approach = repository.make_approach(modules, [2] * len(n_train), nn.Identity(), 4)
    approach.model.task_dist = torch.from_numpy(scores)
    empty = SimpleNamespace(last_c=1, parameters=lambda: iter(()))
    done: list[str] = []
    with ExitStack() as patches:
        for name in ("experts", "fc"):  # lists of modules, which take no others
            patches.enter_context(mock.patch.dict(approach.model._modules, {name: []}))
        expand = type(approach.model).expand.__globals__
        stand_in = mock.Mock(return_value=mock.Mock(to=lambda device: empty))
        patches.enter_context(mock.patch.dict(expand, {"Expert": stand_in}))
        patches.enter_context(mock.patch.object(approach, "get_mean_cov_feats", lambda *_, **__: ([], [], [])))
        patches.enter_context(mock.patch.object(approach, "get_relatedness"))
        patches.enter_context(mock.patch.object(approach, "search_cell", lambda *_: done.append("search")))
        for name, word in (("train", "train"), ("reuse", "head"), ("transfer", "join")):
            patches.enter_context(mock.patch.object(approach, name, lambda *_, word=word: done.append(word)))
        kinds = []
        for task, count in enumerate(n_train):
            done.clear()
            approach.learn(task, range(count), range(1), "cpu")
            kinds.append({"search": "search", "train": "reuse_cell"}.get(done[0], done[0]))
    return [(kind, int(group)) for kind, group in zip(kinds, approach.model.task2expert, strict=True)]


def stream_features(
    modules: SimpleNamespace, stream: Any, weights: Path | None
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Features of every task's validation images: by their extractor and transform, and by our offline extractor.

    Without a file of ImageNet weights their ResNet18 has random ones.
    """
    from torchvision.models import resnet18

    torch.manual_seed(0)
    network = resnet18()
    if weights is not None:
        network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    theirs = modules.pretrained_feat_extractor.ResNet_FE(network).eval()
    features = []
    for task in stream.tasks:
        split = task.split("valid")
        images = Images(split.images, split.labels, task.mean, task.std)
        with torch.inference_mode():
            features.append(np.concatenate([theirs(batch).flatten(1).numpy() for batch, _ in batches_of(images, 250)]))
    yield "their ResNet18" + (", random weights" if weights is None else ""), features
    for size in (None, 64):
        extractor = load_extractor(ExtractorSettings(network="efficientnet_lite0", image_size=size))
        features = [extractor.features(task.split("valid").images) for task in stream.tasks]
        yield f"EfficientNet-Lite0, {size or 32} pixels", features


def compare(modules: SimpleNamespace, stream: Any, options: argparse.Namespace) -> Iterator[Row]:
    """All comparisons of the chosen parts."""
    tasks = learning_tasks(stream)
    if "routing" in options.parts:
        yield from compare_routing(modules)
    if "experts" in options.parts:
        images, labels = tasks[0].train.batch(torch.arange(16)), tasks[0].train.labels[:16]
        yield from compare_experts(modules, images, labels, options.channels)
    if "training" in options.parts:
        yield from compare_training(modules, tasks, options.channels)
    if "search" in options.parts:
        yield from compare_search(modules, tasks[0], options.channels, options.search_epochs)
    if "plans" in options.parts:
        labels_by_task = [np.asarray(task.split("valid").labels) for task in stream.tasks]
        for name, features in stream_features(modules, stream, options.weights):
            yield from compare_plans(modules, name, features, labels_by_task, stream.tasks[0].counts["train"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, required=True, help="checkout of WenjinW/PAR")
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    parser.add_argument("--weights", type=Path, help="ImageNet weights of torchvision's ResNet18")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--search-epochs", type=int, default=6)
    options = parser.parse_args()
    modules = repository.load(options.repository)
    print(f"WenjinW/PAR at {repository.commit(options.repository)}, torch {torch.__version__}, numpy {np.__version__}")
    run(options.data, lambda stream: compare(modules, stream, options))


if __name__ == "__main__":
    main()
