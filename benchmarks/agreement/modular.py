"""Learn to Grow and SG-F beside the code of others: `python -m benchmarks.agreement.modular --repository DIR --lmc DIR
--data DIR`.

As :mod:`benchmarks.agreement.par`: checkouts of github.com/WenjinW/PAR (``ltg.py``) and github.com/oleksost/LMC (its
SG-F) run on the CPU, in float64, with our images, initial weights, draws and batches; three tasks of CIFAR100-10.

Set aside of their Learn to Grow, and shown without that for the second task (docs/agreement.md): "adapt" drops the
kernel that it adapts, kernels of the shortcuts are not trained while it searches, old adapters count as parts of their
kernel, gradients of choices are clipped together with old ones of the weights. The padding of SG-F's convolutions is
ours. SG-F's code needs the packages simple_parsing, runstats and sortedcontainers.
"""

from __future__ import annotations

import argparse
import io
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import par.methods.learn_to_grow
from benchmarks.agreement import repository
from benchmarks.agreement.comparison import (
    Row,
    as_it_began,
    batches_of,
    in_dtype,
    largest_difference,
    last_epoch_stays,
    recorded,
    run,
    small_tasks,
)
from par.config import Config, Recipe
from par.methods.bases.method import LearningTask, Step
from par.methods.learn_to_grow import ADAPT, NEW, REUSE, LearnToGrow, MixedConv, Search, convolutions
from par.methods.soft_gating import SoftGating
from par.networks import build_network
from par.networks.modules import DEPTH
from par.settings import resolve
from par.streams import Stream
from par.training import trainer

N_CLASSES, N_TASKS, N_IMAGES, BATCH = 10, 3, 96, 16
RECIPE = Recipe(epochs=2, batch_size=BATCH, learning_rate=0.01, weight_decay=3e-3, clip_norm=5.0)  # 12 steps
SEARCH = {"search_epochs": 2, "size_weight": 1.0}  # 6 steps; their weight of the size
# what is set aside of their Learn to Grow
QUIRKS = ("adapt", "shortcuts", "old adapters", "clipping")
CHANNELS = 8  # of SG-F's modules
ADAM = Recipe(
    epochs=1,
    batch_size=BATCH,
    optimizer="adam",
    learning_rate=1e-3,
    weight_decay=1e-3,
    schedule="constant",
    clip_norm=None,
)
Batches = list[tuple[Tensor, Tensor]]


class RecordedSearch(Search):
    """A search that keeps what it began with and trained on; ``last`` is the one made last."""

    last: RecordedSearch

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.initial = {name: value.detach().clone() for name, value in self.state_dict().items()}
        self.epochs: list[Batches] = []
        self.held_out_batches: Batches = []
        RecordedSearch.last = self

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        self.epochs.append([])

    def loss(self, batch: trainer.Batch) -> Tensor:
        rows = batch.drawn["rows"]
        self.held_out_batches.append((self.held_out.augmented(rows, batch.drawn), self.held_out.labels[rows]))
        self.epochs[-1].append((batch.images, batch.labels))
        return super().loss(batch)


class Layer:
    """One convolution of their Learn to Grow: where its kernels and its choice are."""

    def __init__(self, network: Any, name: str):
        parts = name.split(".")
        self.name, self.owner = name, network
        if parts[0] == "stages":
            self.owner = getattr(network, f"layer{int(parts[1]) + 1}")[int(parts[2])]
        # in our network, and in theirs: the list of kernels, its short name in choices
        kinds = {"stem": ("conv1", "conv1"), "shortcut": ("downsample_conv", "d_conv")}
        self.attribute, self.key = kinds.get(parts[0] if parts[0] == "stem" else parts[3], (parts[-1], parts[-1]))

    @property
    def kernels(self) -> nn.ModuleList:
        """A list for each stored kernel: it, its adapters."""
        return getattr(self.owner, self.attribute)

    @property
    def alpha(self) -> nn.Parameter:
        return self.owner.a[self.key]


class Adapted(nn.Module):
    """A kernel and its adapter, added up; the adapter is what is trained."""

    def __init__(self, kernel: nn.Module, adapter: nn.Module):
        super().__init__()
        self._kernel, self.adapter = (kernel,), adapter

    def forward(self, inputs: Tensor) -> Tensor:
        return self._kernel[0](inputs) + self.adapter(inputs)


def norms(network: Any, ours: nn.Module, task: int) -> list[tuple[nn.Module, nn.Module]]:
    """Their batch normalisations of the task, and those of our network for it."""
    pairs = [(network.bn1[task], ours.stem[1])]
    for stage, blocks in enumerate(ours.stages, start=1):
        for theirs, block in zip(getattr(network, f"layer{stage}"), blocks, strict=True):
            pairs += [(theirs.bn1[task], block.norm1), (theirs.bn2[task], block.norm2)]
            if theirs.downsample is not None:
                pairs.append((theirs.downsample_bn[task], block.shortcut[1]))
    return pairs


def _states(pairs: Sequence[tuple[nn.Module, nn.Module]]) -> list[tuple[Tensor, Tensor]]:
    values = []
    for theirs, ours in pairs:
        values += zip(theirs.state_dict().values(), ours.state_dict().values(), strict=True)
    return values


def search_pairs(network: Any, search: Search, task: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Choices, new kernels and adapters, and the rest of what their search and ours change; can be copied into."""
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {"choices": [], "new kernels": []}
    for name, module in search.trunk.named_modules():
        if isinstance(module, MixedConv):
            layer = Layer(network, name)
            pairs["choices"].append((layer.alpha.detach(), module.alpha))
            pairs["new kernels"].append((layer.kernels[-1][0].weight.detach(), module.conv.weight))
            adapters = [kernels[-1].weight.detach() for kernels in layer.kernels[:-1]]
            pairs["new kernels"] += zip(adapters, module.corrections, strict=True)
    pairs["norms and head"] = _states([*norms(network, search.trunk, task), (network.fc[task], search.head)])
    return pairs


def task_pairs(
    network: Any, ours: LearnToGrow, task: int, chosen: Mapping[str, nn.Module]
) -> list[tuple[Tensor, Tensor]]:
    """What their task and ours own; ``chosen``: by layer, their convolution."""
    trunk = ours.parts[str(task)]
    pairs = _states([*norms(network, trunk, task), (network.fc[task], ours.heads[task])])
    for name, module in chosen.items():
        own = trunk.get_submodule(name)
        if isinstance(own, nn.Conv2d):
            pairs.append((module.weight.detach(), own.weight))
        elif own.correction is not None:
            pairs.append((getattr(module, "adapter", module).weight.detach(), own.correction))
    return pairs


def chosen_kernels(network: Any, architecture: Any) -> Iterator[tuple[Layer, int, int]]:
    """Their layers and, of the kernel that an architecture takes there, the numbers: which one, and 0 or an adapter."""
    yield Layer(network, "stem.0"), *architecture["conv1"][0]
    for stage in range(4):
        for number, block in enumerate(architecture[f"layer{stage + 1}"]):
            for key, name in (("conv1", "conv1"), ("conv2", "conv2"), ("d_conv", "shortcut.0")):
                if key in block:
                    yield Layer(network, f"stages.{stage}.{number}.{name}"), *block[key][0]


def chosen_modules(network: Any, architecture: Any) -> Iterator[tuple[str, nn.Module]]:
    """Our names of layers and what an architecture of theirs has there."""
    for layer, base, option in chosen_kernels(network, architecture):
        yield layer.name, layer.kernels[base][option]


_clip = nn.utils.clip_grad_norm_


def clip_what_is_trained(parameters: Any, largest: float) -> None:
    """Clips as ours does: the gradients of what is trained, but not those of choices, which are trained alone."""
    trained = [value for value in parameters if value.requires_grad]
    if any(value.dim() > 1 for value in trained):
        _clip(trained, largest)


def make_learn_to_grow(modules: SimpleNamespace, recipe: Recipe, n_tasks: int, search_epochs: int) -> Any:
    """Their approach, whose values inside are those of our settings."""
    network = modules.resnet_ltg.Net([3, 16, 16], [(task, N_CLASSES) for task in range(n_tasks)])
    return modules.ltg.Appr(
        network,
        o_epochs=search_epochs,
        o_batch=BATCH,
        o_lamb_size=SEARCH["size_weight"],
        epochs=recipe.epochs,
        batch=BATCH,
        lr=recipe.learning_rate,
        lamb=recipe.weight_decay,
        clipgrad=recipe.clip_norm,
        writer=mock.Mock(),
        device="cpu",
        args=SimpleNamespace(logger=mock.Mock(), metric="acc", mode="train"),
    )


@contextmanager
def as_ours(modules: SimpleNamespace, network: Any, aside: Sequence[str], *queues: Any) -> Iterator[None]:
    """Inside, theirs trains on our batches, keeps the last weights and has its quirks set aside."""
    keep = mock.patch.object(modules.utils, "set_model_", lambda model, state: None)
    with redirect_stdout(io.StringIO()), repository.loaders(*queues), keep, without_quirks(network, aside):
        yield


@contextmanager
def without_quirks(network: Any, aside: Sequence[str]) -> Iterator[None]:
    """Inside, theirs learns a task without those of its quirks that are set aside; old adapters stay."""
    with ExitStack() as patches:
        if "clipping" in aside:
            patches.enter_context(mock.patch("torch.nn.utils.clip_grad_norm_", clip_what_is_trained))
        if "shortcuts" in aside:
            patches.enter_context(mock.patch.object(network, "expand", with_shortcuts(network)))
        if "adapt" in aside:
            patches.enter_context(mock.patch.object(network, "select", with_kernels(network)))
        yield


def with_shortcuts(network: Any) -> Callable[[int, str], None]:
    """Their ``expand``, after which new kernels of shortcuts stand under the name by which they are looked for."""
    expand = network.expand

    def expanded(task: int, device: str) -> None:
        expand(task, device)
        for stage in range(1, 5):
            for block in network.new_models[f"layer{stage}"]:
                if "d_conv1" in block:
                    block["d_conv"] = block.pop("d_conv1")

    return expanded


def with_kernels(network: Any) -> Callable[[int], Any]:
    """Their ``select``, after which an adapter adds to its kernel."""
    select = network.select

    def selected(task: int) -> Any:
        architecture = select(task)
        for layer, base, option in chosen_kernels(network, architecture):
            if option:
                layer.kernels[base][option] = Adapted(layer.kernels[base][0], layer.kernels[base][option])
        return architecture

    return selected


def learn_to_grow_theirs(modules: Any, approach: Any, ours: Any, task: LearningTask, aside: Any) -> dict[str, float]:
    """Their side learns the task with our initial values and draws; the differences after its search."""
    network, search_network, found = approach.model, approach.search_network, {}
    valid, queues = [batches_of(task.valid, 50)], []
    if task.id:
        search = RecordedSearch.last
        queues = [search.epochs, [[batch] for batch in search.held_out_batches]]
    else:
        with as_it_began(ours):
            for theirs, own in task_pairs(network, ours, 0, dict(chosen_modules(network, approach.archis[0]))):
                theirs.copy_(own.detach())

    def searched(*arguments: Any, **options: Any) -> None:
        with as_it_began(search):
            for pairs in search_pairs(network, search, task.id).values():
                for theirs, own in pairs:
                    theirs.copy_(own.detach())
        search_network(*arguments, **options)
        found.update((part, largest_difference(each)) for part, each in search_pairs(network, search, task.id).items())

    with as_ours(modules, network, aside, *queues, ours.epochs, valid):
        with mock.patch.object(approach, "search_network", searched):
            approach.learn(task.id, task.train, task.valid, "cpu")
    return found


def compare_learn_to_grow(
    modules: SimpleNamespace, tasks: Sequence[LearningTask], left: str | None = None
) -> Iterator[Row]:
    """What the search found, which options were taken, and the weights of the task.

    Args:
        left: one of ``QUIRKS`` that is not set aside; then the last task is shown, without a judgement.
    """
    aside = [quirk for quirk in QUIRKS if quirk != left]
    settings = resolve(Config("agreement", (), (0,), {"learn_to_grow": SEARCH}), "", "learn_to_grow")
    with ExitStack() as patches:
        patches.enter_context(in_dtype(torch.float64))
        patches.enter_context(last_epoch_stays())
        patches.enter_context(mock.patch.object(par.methods.learn_to_grow, "Search", RecordedSearch))
        approach = make_learn_to_grow(modules, RECIPE, len(tasks), SEARCH["search_epochs"])
        ours = recorded(LearnToGrow)(settings)
        for task in tasks:
            ours.learn(task, Step(RECIPE, f"agreement/{task.id}"))
            counts = {name: len(Layer(approach.model, name).kernels) for name in layer_names(ours)} if task.id else {}
            found = learn_to_grow_theirs(modules, approach, ours, task, aside)
            if left is None or task is tasks[-1]:
                part = f"learn_to_grow, {f'their {left}, ' if left else ''}task {task.id}, float64"
                for what, difference, allowed in judged(approach, ours, task, counts, found):
                    yield Row(part, what, difference, None if left else allowed)
            if "old adapters" in aside:
                for name in layer_names(ours):
                    for kernels in Layer(approach.model, name).kernels:
                        del kernels[1:]


def layer_names(ours: LearnToGrow) -> list[str]:
    """The layers that have a choice."""
    return list(convolutions(build_network(ours.settings.network)))


def judged(
    approach: Any, ours: LearnToGrow, task: LearningTask, counts: Mapping[str, int], found: Mapping[str, float]
) -> Iterator[tuple[str, float, float]]:
    """What is compared after a task, the difference, how large it may be.

    Args:
        counts: by layer, kernels before the task.
        found: differences after the search.
    """
    if found:
        steps = sum(map(len, RecordedSearch.last.epochs))
        for what, difference in found.items():
            yield f"{what}, {steps} steps of the search", difference, 1e-9
    network, architecture, names = approach.model, approach.archis[task.id], layer_names(ours)
    own = dict(zip(names, map(list, ours.tasks[-1]["choices"]), strict=True))
    taken = {
        layer.name: [ADAPT, base] if option else [NEW, 0] if base == counts.get(layer.name, 0) else [REUSE, base]
        for layer, base, option in chosen_kernels(network, architecture)
    }
    tally = ", ".join(f"{sum(kind == one for one, _ in own.values())} {kind}" for kind in (REUSE, ADAPT, NEW))
    other = sum(taken[name] != own[name] for name in names)
    yield f"options taken ({tally}) that differ", float(other), 0.0
    if not other:
        difference = largest_difference(task_pairs(network, ours, task.id, dict(chosen_modules(network, architecture))))
        yield f"weights and statistics, {sum(map(len, ours.epochs))} steps", difference, 1e-9


class RecordedSoftGating(SoftGating):
    """SG-F that keeps what each of its networks began with and trained on."""

    def learn(self, task: LearningTask, step: Step) -> list[dict[str, float]]:
        self.initial: list[dict[str, Tensor]] = []
        self.batches: list[Batches] = []
        self.found: dict[str, dict[str, Any]] = {}

        def remember(name: str, compute: Callable[[], Any]) -> Any:
            self.found[name] = compute()
            return self.found[name]

        return super().learn(task, replace(step, remember=remember))

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        self.initial.append({name: value.clone() for name, value in self.own(self.current.id).state_dict().items()})
        self.batches.append([])

    def loss(self, batch: trainer.Batch) -> Tensor:
        self.batches[-1].append((batch.images.contiguous(), batch.labels))
        return super().loss(batch)


class Loader(list):
    """Batches that say, as theirs asks, how many images there are."""

    @property
    def dataset(self) -> range:
        return range(sum(len(labels) for _, labels in self))


def make_soft_gating(modules: SimpleNamespace, n_tasks: int) -> Any:
    """Their learner, with the options of their run on S- but for the width and the padding."""
    blocks = modules.base_modular.conv_block_base
    of_module = blocks.Options(padding=1, track_running_stats_bn=True, keep_bn_in_eval_after_freeze=True)
    of_module.momentum_bn = 0.1
    networks = modules.cnn_soft_gated_lifelong_dynamic.CNNSoftGatedLLDynamic
    options = networks.Options(
        num_tasks=n_tasks,
        seperate_pool_per_layer=1,
        padd_input=True,
        single_oh_controller=0,
        keep_bn_in_eval_after_freeze=1,
    )
    network = networks(options, of_module, i_size=32, channels=3, hidden_size=CHANNELS, num_classes=N_CLASSES)
    return modules.lllcst_learner.CompositionalDynamicFM(network, lr=ADAM.learning_rate, wdecay=ADAM.weight_decay)


def soft_gating_pairs(network: Any, ours: dict[str, Tensor], task: int) -> list[tuple[Tensor, Tensor]]:
    """What the last task of their network owns, which can be copied into, and of ours by name."""
    named: dict[str, Tensor] = {}
    for layer, pool in enumerate(network.components):
        for name, value in pool[-1].module.module.state_dict().items():
            number = {"conv": 0, "norm": 1}[name.partition(".")[0]]
            named[f"parts.blocks.{layer}.{number}.{name.partition('.')[2]}"] = value
        gate = network.structure[task][layer]
        for name, value in gate[-1].state_dict().items():
            named[f"parts.gate.outputs.{layer}.{name}"] = value
        for number, block in enumerate(list(gate)[:-2]):
            for name, value in block[0].state_dict().items():
                named[f"parts.gate.blocks.{number}.0.{name}"] = value
    named |= {f"head.{name}": value for name, value in network.decoder[task].state_dict().items()}
    return [(named[name], value) for name, value in ours.items()]


def compare_soft_gating(modules: SimpleNamespace, tasks: Sequence[LearningTask]) -> Iterator[Row]:
    """Every network that a task tries, the one that it keeps, and the logits."""
    with in_dtype(torch.float64):
        with redirect_stdout(io.StringIO()):
            learner = make_soft_gating(modules, len(tasks))
        hyper = {"soft_gating": {"channels": CHANNELS}}
        ours = RecordedSoftGating(resolve(Config("agreement", (), (0,), hyper), "", "soft_gating"))
        network, space = learner.net, learner.net.create_search_space
        for task in tasks:
            ours.learn(task, Step(ADAM, f"agreement/{task.id}"))
            tried: dict[str, float] = {}

            def searched(number: int, tried: dict[str, float] = tried) -> Iterator[Any]:
                own = zip(ours.initial, ours.found.items(), strict=True)
                for (model, structure), (initial, (name, found)) in zip(space(number), own, strict=True):
                    for theirs, value in soft_gating_pairs(model, initial, number):
                        theirs.copy_(value)
                    yield model, structure
                    tried[name] = largest_difference(soft_gating_pairs(model, found["tensors"], number))

            batches = ours.batches[0]
            valid = [(images.contiguous(), labels) for images, labels in batches_of(task.valid, 50)]
            with mock.patch.object(network, "create_search_space", searched), redirect_stdout(io.StringIO()):
                learner.train(Loader(batches), task.id, Loader(valid), num_epochs=ADAM.epochs)
                network.eval()
                logits = [(network(valid[0][0], record["task"]), record["task"]) for record in ours.tasks]
            part = f"soft_gating, task {task.id}, float64"
            for name, difference in tried.items():
                what = f"{name}: weights and statistics, {len(batches)} steps"
                yield Row(part, what, difference, 1e-9)
            sizes = [len(ours.owners(layer, ours.tasks)) for layer in range(DEPTH)]
            other = sum(size != len(pool) for size, pool in zip(sizes, network.components, strict=True))
            yield Row(part, f"pools of {', '.join(map(str, sizes))} modules that differ", float(other), 0.0)
            pairs = [(theirs, ours.logits(valid[0][0], number)) for theirs, number in logits]
            yield Row(part, "logits on all tasks so far", largest_difference(pairs), 1e-9)


def load_lmc(directory: Path) -> SimpleNamespace:
    """What SG-F needs of a checkout of LMC, without the other methods that its package imports."""
    package = types.ModuleType("Methods")
    package.__path__ = [str(directory / "Methods")]
    names = ("base_modular", "cnn_soft_gated_lifelong_dynamic")
    return repository.import_from(
        directory,
        ".",
        [*(f"Methods.models.{name}" for name in names), "Methods.lerners.lllcst_learner"],
        "oleksost/LMC",
        ("torchvision.models.utils",),
        {"Methods": package},
    )


def compare(stream: Stream, options: argparse.Namespace) -> Iterator[Row]:
    """The methods whose checkouts are given."""
    rows: list[Iterator[Row]] = []
    if options.repository is not None:
        print(f"WenjinW/PAR at {repository.commit(options.repository)}")
        modules, tasks = repository.load(options.repository), small_tasks(stream, (N_IMAGES,) * N_TASKS, step=2)
        rows.append(compare_learn_to_grow(modules, tasks))
        for quirk in QUIRKS:
            rows.append(compare_learn_to_grow(modules, tasks[: 3 if quirk == "old adapters" else 2], quirk))
    if options.lmc is not None:
        print(f"oleksost/LMC at {repository.commit(options.lmc)}")
        rows.append(compare_soft_gating(load_lmc(options.lmc), small_tasks(stream, (2 * N_IMAGES,) * N_TASKS)))
    return itertools.chain.from_iterable(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, help="checkout of WenjinW/PAR")
    parser.add_argument("--lmc", type=Path, help="checkout of oleksost/LMC")
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, numpy {np.__version__}")
    run(options.data, lambda stream: compare(stream, options))


if __name__ == "__main__":
    main()
