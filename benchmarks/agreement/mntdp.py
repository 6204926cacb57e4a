"""MNTDP-D and MNTDP-S beside their authors' code: `python -m benchmarks.agreement.mntdp --mntdp DIR --data DIR`.

As :mod:`benchmarks.agreement.par`: a checkout of github.com/TomVeniat/MNTDP runs on the CPU, in float64, with our
images, initial weights, batches and draws; three tasks of CIFAR100-10 at 16 pixels. Its code needs the packages
pytorch-ignite and more_itertools. Its graphs are made of a package (``supernets``) of which the version that it needs
is not public: the blocks that add, pass on and hold the graph are stand-ins of ours. So are the modules that it imports
and nothing here calls (``STUBS``).

Patched: what networkx and numpy no longer have (``graph.node``, arrays of lists); no drawings. Its candidates are
trained one after the other on copies, as its processes do.
"""

from __future__ import annotations

import argparse
import copy
import functools
import io
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import networkx
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.agreement import repository
from benchmarks.agreement.comparison import (
    Row,
    batches_of,
    in_dtype,
    largest_difference,
    precise_casts,
    run,
    small_tasks,
)
from par.config import Config, NetworkSettings, Recipe
from par.methods.bases.method import LearningTask, Step
from par.methods.bases.mntdp import FRESH, SOURCE, knn_accuracy
from par.methods.bases.modular import Candidate
from par.methods.mntdp_d import MntdpD
from par.methods.mntdp_s import PathSampler
from par.settings import resolve
from par.streams import Stream
from par.training import trainer

STUBS = (
    "bs4",
    "ctrl",
    "ctrl.commons",
    "ctrl.commons.utils",
    "imageio",
    "json2html",
    "plotly",
    "plotly.express",
    "plotly.graph_objs",
    "pymongo",
    "ray",
    "ray.tune",
    "ray.tune.logger",
    "ray.tune.suggest.variant_generator",
    "src.datasets",
    "src.datasets.TensorDataset",
    "src.train.ray_training",
    "src.utils.external_resources",
    "visdom",
)
N_CLASSES, N_IMAGES, WIDTH, SIZE, SEARCHED = 10, 96, 8, 16, 3
RECIPE = Recipe(
    epochs=1,
    batch_size=16,
    optimizer="adam",
    learning_rate=0.001,
    weight_decay=1e-4,
    schedule="constant",
    clip_norm=None,
)


class Block(nn.Module):
    """In the place of a block of ``supernets``: a list of inputs is added up."""

    def __init__(self, activation: bool = False):
        super().__init__()
        self.activation = activation

    def forward(self, inputs: Tensor | list[Tensor]) -> Tensor:
        total = sum(inputs) if isinstance(inputs, list) else inputs
        return functional.relu(total) if self.activation else total


class PassingBlock(Block):
    """In the place of a block of ``supernets`` that does nothing."""


STAND_INS = {
    "supernets": SimpleNamespace(),
    "supernets.interface": SimpleNamespace(),
    "supernets.interface.NetworkBlock": SimpleNamespace(Add_Block=Block, DummyBlock=PassingBlock),
    "supernets.networks": SimpleNamespace(),
    "supernets.networks.StochasticSuperNetwork": SimpleNamespace(StochasticSuperNetwork=nn.Module),
}


def load(directory: Path) -> SimpleNamespace:
    """Their modules by the last part of their names."""
    names = ("src.models.PSSN_llmodel", "src.models.ssn_wrapper", "src.models.modular_model", "src.train.training")
    return repository.import_from(directory, ".", names, "TomVeniat/MNTDP", STUBS, STAND_INS)


@contextmanager
def today(modules: SimpleNamespace) -> Iterator[None]:
    """Inside, their code runs with this networkx and numpy, and draws nothing."""
    make_layer = modules.PSSN_llmodel._make_layer

    def made(*arguments: Any, n_blocks: int, **options: Any) -> Any:
        return make_layer(*map(_listed, arguments), n_blocks=int(n_blocks), **options)

    with ExitStack() as patches:
        nodes = property(lambda graph: graph.nodes)
        patches.enter_context(mock.patch.object(networkx.Graph, "node", nodes, create=True))
        patches.enter_context(mock.patch.object(modules.modular_model, "np", SimpleNamespace(array=_ragged)))
        patches.enter_context(mock.patch.object(modules.PSSN_llmodel, "_make_layer", made))
        patches.enter_context(mock.patch.object(modules.PSSN_llmodel, "graph_to_svg", lambda *_, **__: b""))
        patches.enter_context(mock.patch.object(modules.PSSN_llmodel, "plot_svg", mock.Mock()))
        yield


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, np.ndarray) else value


def _ragged(values: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        array[number] = value
    return array


def make_theirs(modules: SimpleNamespace, connections: str) -> Any:
    """Their learner, as configured for S_long but for the width and the size of the images."""
    return modules.PSSN_llmodel.MNTDP(
        grid_params={},
        ray_resources={},
        n_hidden=None,
        n_convs=5,
        hidden_size=[WIDTH],
        dropout_p=[],
        channel_scaling=False,
        deter_eval=True,
        use_adapters=False,
        residual=True,
        block_depth=2,
        initial_p=1,
        stride=[1, 1, 2, 2, 2],
        k=3,
        pool="avgpool",
        pool_k=2,
        padding=1,
        pruning_treshold=0.5,
        connections=connections.split("_"),
        store_graphs=True,
        learn_in_and_out=True,
        learn_all=True,
        norm_layer="batch",
        arch_sampler_type="conditional_softmax",
        split_training=False,
        single_stage=True,
        strat="search_all",
        block_id=[0, 1, 1, 2, 2, 3, 3, 4, 5, 6],
        n_neighbors=15,
        n_source_models=1,
    )


@dataclass
class Fit:
    """A candidate: its choices, what its own blocks were before and after, its batches and accuracy."""

    path: tuple[int, ...]
    before: dict[str, Tensor] = field(default_factory=dict)
    batches: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    after: dict[str, Tensor] = field(default_factory=dict)
    accuracy: float = 0.0


class RecordedMntdpD(MntdpD):
    """MNTDP-D that keeps each fit of a task."""

    def learn(self, task: LearningTask, step: Step) -> list[dict[str, float]]:
        self.fits: list[Fit] = []
        return super().learn(task, step)

    def _try(self, task: LearningTask, step: Step, candidate: Candidate) -> dict[str, Any]:
        letters = candidate.name.partition("/")[0]
        self.fits.append(Fit(tuple("sf".index(letter) for letter in letters)))
        found = super()._try(task, step, candidate)
        self.fits[-1].accuracy = found["accuracy"]
        return found

    def start_epoch(self, epoch: int) -> None:
        self.fits[-1].before = self._own_state()

    def loss(self, batch: trainer.Batch) -> Tensor:
        self.fits[-1].batches.append((batch.images.contiguous(), batch.labels))
        return super().loss(batch)

    def end_epoch(self, epoch: int, valid_accuracy: float) -> None:
        self.fits[-1].after = self._own_state()

    def _own_state(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.own(self.current.id).state_dict().items()}


def choices_of(nodes: Sequence[tuple[Any, ...]], task: int) -> tuple[int, ...]:
    """Which blocks a path through their graph takes. A node is (column, depth) or, for a block, (column, depth, kind
    or the other column); depths begin at 1."""
    blocks = [node for node in nodes if len(node) > 2 and isinstance(node[1], int)]
    return tuple(FRESH if node[0] == task else SOURCE for node in blocks)


def block_pairs(model: nn.Module, state: dict[str, Tensor], path: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Parameters and statistics of the fresh blocks of a path of theirs, and of ours."""
    blocks = [block for block in model if any(True for _ in block.parameters())]
    pairs = []
    for depth, (block, choice) in enumerate(zip(blocks, path, strict=True)):
        if choice == FRESH:
            prefix = "head." if depth == len(path) - 1 else f"parts.{depth}."
            own = [value for name, value in state.items() if name.startswith(prefix)]
            pairs += zip(block.state_dict().values(), own, strict=True)
    return [(a, b) for a, b in pairs if a.is_floating_point()]


def train(code: Any, model: nn.Module, fit: Fit, task: LearningTask) -> float:
    """One epoch of their training; returns the validation accuracy after it."""
    for a, b in block_pairs(model, fit.before, fit.path):
        a.copy_(b)
    batches = fit.batches or batches_of(task.train, RECIPE.batch_size)
    optimizer = torch.optim.Adam(model.parameters(), RECIPE.learning_rate, weight_decay=RECIPE.weight_decay)
    loss = functools.partial(functional.cross_entropy, reduction="none")
    valid = [(images.contiguous(), labels) for images, labels in batches_of(task.valid, len(task.valid))]
    _, metrics, _ = code.train(
        model, batches, [valid], optimizer, loss, None, 300, ["Val"], log_epoch=True, n_ep_max=RECIPE.epochs
    )
    return metrics["Val accuracy_0"][len(batches)]


def compare_search(modules: SimpleNamespace, tasks: Sequence[LearningTask], connections: str) -> Iterator[Row]:
    """Source, candidates, their training and the choice among them."""
    with in_dtype(torch.float64), precise_casts(), today(modules), tempfile.TemporaryDirectory() as drawings:
        network = NetworkSettings(width=WIDTH, stem_pool=False)
        config = Config("agreement", (), (0,), {"mntdp_d": {"connections": connections}}, network=network)
        ours, theirs = RecordedMntdpD(resolve(config, "", "mntdp_d")), make_theirs(modules, connections)
        for task in tasks:
            part = f"mntdp_d, {connections}, task {task.id}, float64"
            scored = mock.Mock(side_effect=knn_accuracy)
            with mock.patch("par.methods.bases.mntdp.knn_accuracy", scored):
                ours.learn(task, Step(RECIPE, f"agreement/{task.id}"))
            model = open_task(theirs, task)
            if task.id:
                calls = [knn_accuracy(*call.args) for call in scored.call_args_list]
                yield Row(
                    part, "k-NN accuracies", largest_difference([(theirs.arch_scores[task.id]["knn"], calls)]), 1e-6
                )
            found: dict[tuple[int, ...], Any] = {}
            for nodes in model.models_idx:  # with fw and bw some differ in nothing but their initial values
                found.setdefault(choices_of(nodes, task.id), nodes)
            differing = {fit.path for fit in ours.fits} ^ found.keys()
            what = f"networks of {len(model.models_idx)} candidates ({len(found)}) that differ"
            yield Row(part, what, float(len(differing)), 0.0)
            pairs, accuracies, trained = [], [], {}
            for fit in ours.fits[:: -(-len(ours.fits) // 8)]:
                nodes = found[fit.path]
                trained[nodes] = copy.deepcopy(model.models[model.models_idx[nodes]])
                accuracies.append((train(modules.training, trained[nodes], fit, task), fit.accuracy))
                pairs += block_pairs(trained[nodes], fit.after, fit.path) if fit.after else []
                model.res[nodes] = (0, {}, {"value": accuracies[-1][0]})
            steps = len(ours.fits[-1].batches)
            yield Row(
                part, f"weights and statistics of {len(trained)}, {steps} steps each", largest_difference(pairs), 1e-9
            )
            yield Row(part, "validation accuracies", largest_difference(accuracies), 1e-6)
            if len(trained) < len(found):
                return
            selected = model._selected_path()
            own = tuple(FRESH if owner == task.id else SOURCE for owner in ours.path(task.id))
            yield Row(part, "chosen path differs", float(choices_of(selected, task.id) != own), 0.0)
            model.models[model.models_idx[selected]].load_state_dict(trained[selected].state_dict())
            with redirect_stdout(io.StringIO()):
                theirs.finish_task(None, task.id, viz=mock.Mock(), path=drawings)
            for modules_of_column in theirs.columns:
                for layer in modules_of_column.values():
                    for module in layer.values():
                        module.eval()


def edges_of(group: Sequence[tuple[Any, ...]], task: int) -> list[tuple[int, int, int]]:
    """Where the choices of one branching of theirs stand in ours: depth, block before, block."""
    kinds = {node[-1] for node in group}
    edges = []
    for node in group:
        if isinstance(node[1], str):  # which column the image enters
            edges.append((0, SOURCE, FRESH if node[2] == task else SOURCE))
        elif "f" in kinds:
            edges.append((node[1] - 1, SOURCE, FRESH if node[-1] == "f" else SOURCE))
        else:  # a block that leads back to the source's, chosen with the block itself
            edges.append((node[1], FRESH, SOURCE if node[-1] == "b" else FRESH))
    return edges


def compare_sampler(modules: SimpleNamespace, tasks: Sequence[LearningTask], connections: str) -> Iterator[Row]:
    """Probabilities of the paths, draws, the policy's gradient and its steps; from random logits."""
    part = f"mntdp_s, {connections}, float64"
    with in_dtype(torch.float64), precise_casts(), today(modules), tempfile.TemporaryDirectory() as drawings:
        theirs = make_theirs(modules, connections)
        model = open_task(theirs, tasks[0])
        model.res.update({nodes: (0, {}, {"value": 1.0}) for nodes in model.models_idx})
        theirs.finish_task(None, 0, viz=mock.Mock(), path=drawings)
        with redirect_stdout(io.StringIO()):
            model = open_task(theirs, tasks[1])
        places = [node for node in model.graph.nodes if node in model.stochastic_nodes]
        graph = SimpleNamespace(
            graph=model.graph,
            stochastic_node_ids={node: place for place, node in enumerate(places)},
            n_sampling_params=len(places),
            in_nodes=[model.in_node],
            out_nodes=[model.out_node],
        )
        wrapper = modules.ssn_wrapper.SSNWrapper(graph, 1, True, 0.0, 0.0, False, 1, arch_sampler="conditional_softmax")
        sampler = wrapper.arch_sampler
        found = {choices_of(nodes, 1): nodes for nodes in model.models_idx}
        ours = PathSampler(list(found))
        generator = torch.Generator().manual_seed(0)
        branchings = [(at, edges_of(names, 1)) for at, names in enumerate(sampler.group_var_names) if len(names) > 1]
        for at, edges in branchings:
            sampler.params[at].data = torch.randn(len(edges), generator=generator)
            for value, edge in zip(sampler.params[at].data, edges, strict=True):
                ours.logits[edge] = value
        ours.logits.requires_grad_()
        likely = wrapper.get_top_archs(len(found))
        own = ours.log_probability(ours.choices).exp()
        pairs = [([likely[nodes] for nodes in found.values()], own)]
        yield Row(part, f"probabilities of {len(found)} paths", largest_difference(pairs), 1e-9)
        yield from _compare_policy(wrapper, graph, found, ours, branchings, part)
        other = sum(_best_differs(wrapper, graph, found, ours, branchings, seed) for seed in range(200))
        yield Row(part, "share of 200 random logits whose best path differs", other / 200, None)


def _compare_policy(
    wrapper: Any, graph: Any, found: dict, ours: PathSampler, branchings: Sequence[Any], part: str
) -> Iterator[Row]:
    """Steps of Adam on REINFORCE from the same draws and losses; theirs takes means over branchings, ours sums."""
    sampler, generator = wrapper.arch_sampler, torch.Generator().manual_seed(1)
    torch.manual_seed(2)  # for their draws
    optimizers = torch.optim.Adam(sampler.parameters(), 0.01), torch.optim.Adam([ours.logits], 0.01)
    for step in range(12):
        losses = torch.rand(64, generator=generator)
        sampler.start_new_sequence()
        graph.samplings = sampler.sample_archs(64, sampler())
        torch.autograd.set_detect_anomaly(False)  # which theirs switches on
        (log_p,) = sampler.log_probas
        drawn = torch.tensor([_drawn(row, graph.stochastic_node_ids, found) for row in graph.samplings])
        total, _ = wrapper.loss_wrapper(lambda *_, losses=losses: losses)()
        for optimizer in optimizers:
            optimizer.zero_grad()
        (log_p.shape[1] * total.mean()).backward()
        (-ours.objective(losses, drawn, 0.0)).backward()
        if not step:
            pairs = [(log_p.sum(dim=1), ours.log_probability(drawn))]
            yield Row(part, "log-probabilities of 64 drawn paths", largest_difference(pairs), 1e-9)
            gradients = [
                (value, ours.logits.grad[edge])
                for at, edges in branchings
                for value, edge in zip(sampler.params[at].grad, edges, strict=True)
            ]
            theirs, own = (torch.stack(values) for values in zip(*gradients, strict=True))
            yield Row(part, "gradient of the logits", largest_difference([(theirs, own)]), 1e-9)
        for optimizer in optimizers:
            optimizer.step()
    after = [
        (value.detach(), ours.logits.detach()[edge])
        for at, edges in branchings
        for value, edge in zip(sampler.params[at], edges, strict=True)
    ]
    theirs, own = (torch.stack(values) for values in zip(*after, strict=True))
    yield Row(part, "logits, 12 steps", largest_difference([(theirs, own)]), 1e-9)


@torch.no_grad()
def _best_differs(wrapper: Any, graph: Any, found: dict, ours: PathSampler, branchings: Any, seed: int) -> bool:
    """Whether, for some logits, the path of theirs that is fixed is another than ours."""
    generator, sampler = torch.Generator().manual_seed(seed), wrapper.arch_sampler.eval()
    for at, edges in branchings:
        sampler.params[at].copy_(torch.randn(len(edges), generator=generator))
        for value, edge in zip(sampler.params[at], edges, strict=True):
            ours.logits[edge] = value
    sampler.start_new_sequence()
    (taken,) = sampler.sample_archs(1, sampler())
    torch.autograd.set_detect_anomaly(False)
    return _drawn(taken, graph.stochastic_node_ids, found) != ours.best()


def _drawn(samplings: Tensor, places: dict, found: dict) -> tuple[int, ...]:
    """The path of ours that one row of their draws describes."""
    taken = {node for node, place in places.items() if samplings[place]}
    (path,) = [path for path, nodes in found.items() if taken.issuperset(node for node in nodes if node in places)]
    return path


def open_task(theirs: Any, task: LearningTask) -> Any:
    """Their candidates for a new task, after the choice of its source."""
    splits = [[(x.contiguous(), y) for x, y in batches_of(split, 1024)] for split in (task.train, task.valid)]
    size = [3, *task.train.size]
    model = theirs.get_model(task.id, x_dim=size, n_classes=[N_CLASSES], descriptor=None, dataset=splits)
    model.init_models()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mntdp", type=Path, required=True, help="checkout of TomVeniat/MNTDP")
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    options = parser.parse_args()
    modules = load(options.mntdp)
    print(f"TomVeniat/MNTDP at {repository.commit(options.mntdp)}, torch {torch.__version__}, numpy {np.__version__}")

    def compared(stream: Stream) -> Iterator[Row]:
        tasks = small_tasks(stream, (N_IMAGES,) * SEARCHED, step=2)
        rows = [compare_search(modules, tasks, connections) for connections in ("fw", "bw", "fw_bw")]
        rows += [compare_sampler(modules, tasks, connections) for connections in ("fw", "bw")]
        return itertools.chain.from_iterable(rows)

    run(options.data, compared)


if __name__ == "__main__":
    main()
