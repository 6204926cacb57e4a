"""HAT, GPM and CAT beside their authors' code: `python -m benchmarks.agreement.protected --hat DIR --gpm DIR --cat DIR
--data DIR`.

As :mod:`benchmarks.agreement.par`: checkouts of github.com/joansj/hat, github.com/sahagobinda/GPM and
github.com/ZixuanKe/CAT run on the CPU, in float64, with our images, initial weights and batches; two tasks of
CIFAR100-10, one epoch each, on the AlexNet of HAT and GPM; four on CAT's perceptron.
Patched: what torch has removed since (``Variable(volatile=...)``, ``clip_grad_norm``), ``.cuda()``, the shuffles (ours
count) and dropout (none on either side). GPM's heads have no biases, so ours have none here; its batch normalisation
keeps no statistics, so that it gets our task's where it reads features for its bases. CAT attends to the tasks that are
said to be similar, in training too (docs/agreement.md).
"""

from __future__ import annotations

import argparse
import inspect
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
    all_of,
    as_it_began,
    in_dtype,
    largest_difference,
    recorded,
    run,
    small_tasks,
    without_dropout,
)
from par import seeding
from par.config import Config, Recipe
from par.methods.bases.method import LearningTask, Step
from par.methods.cat import Cat
from par.methods.gpm import Gpm
from par.methods.hat import Hat
from par.settings import resolve
from par.training import trainer

N_CLASSES, N_IMAGES, BATCH = 10, 192, 16  # 12 steps a task
LAYERS = {
    "hat": ("c1", "c2", "c3", "fc1", "fc2"),
    "gpm": ("conv1", "conv2", "conv3", "fc1", "fc2"),
}
EMBEDDINGS = ("ec1", "ec2", "ec3", "efc1", "efc2")
# CAT: earlier tasks that are declared similar to tasks 0 to 3, so that attention, gates and both together are met
SIMILAR: list[list[int]] = [[], [], [0, 1], [0, 2]]
CAT_WIDTH = 100


def recipe(learning_rate: float) -> Recipe:
    """One epoch of plain SGD."""
    return Recipe(
        epochs=1,
        batch_size=BATCH,
        learning_rate=learning_rate,
        momentum=0.0,
        weight_decay=0.0,
        schedule="constant",
        clip_norm=None,
    )


@contextmanager
def old_torch(shuffles: bool = False) -> Iterator[None]:
    """Inside, code for torch 0.2 runs on the CPU; unless it ``shuffles``, it keeps rows in their order."""
    with ExitStack() as patches:
        patches.enter_context(redirect_stdout(io.StringIO()))
        patches.enter_context(mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor))
        patches.enter_context(mock.patch("torch.autograd.Variable", lambda tensor, **_: tensor))
        clip = nn.utils.clip_grad_norm_
        patches.enter_context(mock.patch("torch.nn.utils.clip_grad_norm", clip, create=True))
        if not shuffles:
            patches.enter_context(mock.patch("numpy.random.shuffle", lambda rows: None))
        yield


def everything(epochs: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> tuple[Tensor, Tensor]:
    """Images, not in channels_last, and labels of the batches of a single epoch, in order."""
    (batches,) = epochs
    images, labels = zip(*batches, strict=True)
    return torch.cat(images).contiguous(), torch.cat(labels)


def weight_pairs(theirs: nn.Module, ours: Any, method: str, task: int, head: str) -> list[tuple[Tensor, Tensor]]:
    """Layers and the task's head of theirs and of ours, tensors that can be copied into."""
    pairs = []
    for name, layer in zip(LAYERS[method], ours.trunk.layers, strict=True):
        pairs += zip(getattr(theirs, name).parameters(), layer.parameters(), strict=True)
    pairs += zip(getattr(theirs, head)[task].parameters(), ours.heads[task].parameters(), strict=True)
    if method == "hat":
        embeddings = zip(EMBEDDINGS, ours.embeddings_of(task), strict=True)
        pairs += [(getattr(theirs, name).weight[task], embedding) for name, embedding in embeddings]
    else:
        for number, norm in enumerate(ours.trunk.norms, start=1):
            own = getattr(theirs, f"bn{number}")
            pairs += [(own.weight, norm.weight), (own.bias, norm.bias)]
    return [(a.detach(), b.detach()) for a, b in pairs]


def begin_alike(theirs: nn.Module, ours: Any, method: str, task: int, head: str) -> None:
    """Give theirs, before it learns a task, what ours began it with; of later tasks only what is new."""
    pairs = weight_pairs(theirs, ours, method, task, head)
    n_trunk = sum(1 for _ in ours.trunk.layers.parameters())
    n_new = len(pairs) - n_trunk - (2 * len(LAYERS[method]) if method == "gpm" else 0)
    with as_it_began(ours):
        for a, b in pairs if not task else pairs[n_trunk : n_trunk + n_new]:
            a.copy_(b)


def compare_hat(modules: SimpleNamespace, tasks: Sequence[LearningTask]) -> Iterator[Row]:
    """Weights, embeddings and cumulative masks."""
    with in_dtype(torch.float64):
        network = without_dropout(modules.alexnet_hat.Net([3, 32, 32], [(task.id, N_CLASSES) for task in tasks]))
        approach = modules.hat.Appr(network, nepochs=1, sbatch=BATCH, args=SimpleNamespace(parameter=""))
        settings = resolve(Config("agreement", (), (0,), {"hat": {"annealing": "code"}}), "", "hat")
        ours = recorded(Hat)(settings)
        for task in tasks:
            ours.learn(task, Step(recipe(approach.lr), f"agreement/{task.id}"))
            begin_alike(network, ours, "hat", task.id, "last")
            valid = all_of(task.valid)
            with old_torch():
                approach.train(task.id, *everything(ours.epochs), *valid)
            part, steps = f"hat, task {task.id}, float64", len(ours.epochs[0])
            weights = largest_difference(weight_pairs(network, ours, "hat", task.id, "last"))
            yield Row(part, f"weights and embeddings, {steps} steps", weights, 1e-9)
            masks = [mask.squeeze(0) for mask in approach.mask_pre]
            cumulative = ours.cumulative_masks([earlier.id for earlier in tasks[: task.id + 1]])
            yield Row(part, "cumulative masks", largest_difference(list(zip(masks, cumulative, strict=True))), 1e-9)


class UnbiasedGpm(Gpm):
    """GPM with heads as its authors' code has them."""

    def start_task(self, task: LearningTask, step: Step) -> None:
        super().start_task(task, step)
        self.heads.by_task[str(task.id)] = nn.Linear(self.heads.n_features, task.n_classes, bias=False)
        self._statistics_rows = ()  # nothing drops out here, so that running statistics are those that it evaluates by


def compare_gpm(modules: SimpleNamespace, tasks: Sequence[LearningTask]) -> Iterator[Row]:
    """Weights, ranks of the bases and the projections that they make."""
    code = modules.main_cifar100
    settings = resolve(Config("agreement", (), (0,), {"gpm": {"first_task": "below"}}), "", "gpm")
    arguments = SimpleNamespace(batch_size_train=BATCH, lr=0.01)
    # bases are kept in float32, a cast that is set aside like that of the losses
    with in_dtype(torch.float64), mock.patch.object(torch.Tensor, "float", lambda tensor: tensor):
        network = without_dropout(code.AlexNet([(task.id, N_CLASSES) for task in tasks]))
        ours, bases = recorded(UnbiasedGpm)(settings), []
        for task in tasks:
            step = Step(recipe(arguments.lr), f"agreement/{task.id}")
            ours.learn(task, step)
            begin_alike(network, ours, "gpm", task.id, "fc3")
            optimizer = torch.optim.SGD(network.parameters(), arguments.lr)
            learning = network, "cpu", *everything(ours.epochs), optimizer, nn.CrossEntropyLoss()
            with old_torch():
                if task.id:
                    code.train_projected(arguments, *learning, _projections(bases), task.id)
                else:
                    code.train(arguments, *learning, task.id)
                inputs = _representations(code, network, ours, task, step)
                bases = code.update_GPM(network, inputs, np.full(5, 0.97 + 0.003 * task.id), bases)
            part, steps = f"gpm, task {task.id}, float64", len(ours.epochs[0])
            weights = largest_difference(weight_pairs(network, ours, "gpm", task.id, "fc3"))
            yield Row(part, f"weights, {steps} steps", weights, 1e-9)
            ranks = [basis.shape[1] for basis in bases]
            other = sum(a != basis.shape[1] for a, basis in zip(ranks, ours.bases.values(), strict=True))
            yield Row(part, f"ranks {', '.join(map(str, ranks))} that differ", float(other), 0.0)
            own = _projections([basis.numpy() for basis in ours.bases.values()])
            pairs = list(zip(_projections(bases), own, strict=True))
            yield Row(part, "projections", largest_difference(pairs), 1e-6)  # an SVD's vectors lose digits


def _projections(bases: Sequence[np.ndarray]) -> list[Tensor]:
    return [torch.from_numpy(basis @ basis.T) for basis in bases]


def _representations(code: Any, network: Any, ours: Any, task: LearningTask, step: Step) -> list[np.ndarray]:
    """What their network feeds into its layers for our images, with our task's statistics of batch normalisation."""
    rows = torch.randperm(len(task.train), generator=seeding.torch_generator(step.key, "gpm"))[:125]
    norms = [getattr(network, f"bn{number}") for number in range(1, 6)]
    network.eval()
    for norm, own in zip(norms, ours.trunk.norms, strict=True):
        norm.running_mean = own.by_task[str(task.id)].running_mean
        norm.running_var = own.by_task[str(task.id)].running_var
    try:
        return code.get_representation_matrix(network, "cpu", task.train.batch(rows).contiguous())
    finally:
        for norm in norms:
            norm.running_mean = norm.running_var = None


class DeclaredCat(Cat):
    """CAT that is told which tasks are similar, and keeps both heads."""

    def similar_tasks(self, task: LearningTask, step: Step) -> list[int]:
        return SIMILAR[task.id]

    def end_task(self, task: LearningTask, step: Step) -> None:
        Hat.end_task(self, task, step)


def make_cat(modules: SimpleNamespace, n_tasks: int) -> Any:
    """Its approach, on a narrow perceptron, without a second head where there is nothing to attend to."""
    arguments = SimpleNamespace(
        pdrop1=0.0,
        pdrop2=0.0,
        n_head=5,
        smax=400.0,
        loss_type="multi-loss-joint-Tsim-no-isolate",
        similarity_detection="auto",
        model_weights=1,
        parameter="",
        nepochs=1,
        nepochs_kt=1,
        sbatch=BATCH,
        lr=0.025,
        lr_kt=0.025,
        lr_patience=10,
        lr_patience_kt=10,
    )
    tasks = [(task, N_CLASSES) for task in range(n_tasks)]
    network = without_dropout(modules.mlp_cat.Net([3, 32, 32], tasks, nhid=CAT_WIDTH, args=arguments))
    return modules.cat_ncl.Appr(network, arguments)


def cat_pairs(network: Any, ours: Cat, task: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Weights of theirs and of ours that can be copied into: trunk, embeddings, head and, where there is one, attention
    of the task."""
    shared, transfer = network.mcl, network.kt
    pairs = {"trunk": [], "mask path": [], "attention": []}
    for name, layer in zip(("fc1", "fc2"), ours.trunk.layers, strict=True):
        pairs["trunk"] += zip(getattr(shared, name).parameters(), layer.parameters(), strict=True)
    pairs["mask path"] += zip(shared.mask_last[task].parameters(), ours.heads[task].parameters(), strict=True)
    for name, embedding in zip(("efc1", "efc2"), ours.embeddings_of(task), strict=True):
        pairs["mask path"].append((getattr(shared, name).weight[task], embedding))
    if str(task) in ours.attentions:
        own, layer = ours.attentions[str(task)], transfer.encoder
        of_head = ours.attention_heads[task].parameters()
        pairs["attention"] += zip(shared.att_last[task].parameters(), of_head, strict=True)
        pairs["attention"].append((transfer.q1.weight[task], own.query))
        projections = (layer.slf_attn.w_qs, layer.slf_attn.w_ks, layer.slf_attn.w_vs)
        parts = own.attention.in_proj_weight.chunk(3)
        pairs["attention"] += [(theirs.weight, part) for theirs, part in zip(projections, parts, strict=True)]
        pairs["attention"].append((layer.slf_attn.fc.weight, own.attention.out_proj.weight))
        layers = (
            (layer.slf_attn.layer_norm, own.norms[0]),
            (layer.pos_ffn.layer_norm, own.norms[1]),
            (layer.layer_norm, own.norms[2]),
            (layer.pos_ffn.w_1, own.hidden),
            (layer.pos_ffn.w_2, own.output),
        )
        for theirs, mine in layers:
            pairs["attention"] += zip(theirs.parameters(), mine.parameters(), strict=True)
    return {part: [(a.detach(), b.detach()) for a, b in both] for part, both in pairs.items()}


class Told:
    """In the place of theirs that says at test time to which tasks to attend."""

    def __init__(self, similarity: Sequence[int]):
        self.similarity = similarity

    def check_t(self, task: int) -> bool:
        return bool(self.similarity[task])


def compare_cat(modules: SimpleNamespace, tasks: Sequence[LearningTask]) -> Iterator[Row]:
    """Similarity; weights and logits of both paths; cumulative masks."""
    with in_dtype(torch.float64):
        with old_torch():  # it prints
            approach = make_cat(modules, len(tasks))
        history: list[list[Tensor]] = []
        network, forward = approach.model, approach.model.forward
        hyper = {"width": CAT_WIDTH, "annealing": "code", "readout_masks": "code"}
        ours = recorded(DeclaredCat)(resolve(Config("agreement", (), (0,), {"cat": hyper}), "", "cat"))
        for task in tasks:
            similarity = [int(j in SIMILAR[task.id]) for j in range(task.id)]
            part = f"cat, task {task.id}, similar: {SIMILAR[task.id] or 'none'}, float64"
            step = Step(recipe(approach.lr), f"agreement/{task.id}")
            yield from _compare_similarity(approach, ours, task, step)
            ours.learn(task, step)
            _begin_cat_alike(network, ours, task.id)
            # theirs attends in training to the tasks that are not similar
            network.forward = _with_other_tokens(forward, [1 - flag for flag in similarity])
            told = dict(phase="mcl", similarity=similarity, history_mask_pre=history, check_federated=Told(similarity))
            valid = all_of(task.valid)
            with old_torch():
                approach.train(task.id, *everything(ours.epochs), *valid, args=approach.args, **told)
                network.eval()
                logits, _, attended = network.forward(torch.tensor([task.id]), valid[0], s=approach.smax, **told)
            history.append([mask.clone() for mask in approach.mask_pre])
            for name, pairs in cat_pairs(network, ours, task.id).items():
                if pairs:
                    what = f"weights of the {name}, {len(ours.epochs[0])} steps"
                    yield Row(part, what, largest_difference(pairs), 1e-9)
            own = Hat.logits(ours, valid[0], task.id)
            pairs = [(logits[task.id], own)]
            if attended is not None:
                pairs.append((attended[task.id], ours.attention_logits(valid[0], task.id)))
            yield Row(part, f"logits of {len(pairs)} heads", largest_difference(pairs), 1e-9)
            cumulative = ours.cumulative_masks([earlier.id for earlier in tasks[: task.id + 1]])
            masks = [mask.squeeze(0) for mask in approach.mask_pre]
            yield Row(part, "cumulative masks", largest_difference(list(zip(masks, cumulative, strict=True))), 1e-9)


def _begin_cat_alike(network: Any, ours: Cat, task: int) -> None:
    """Give theirs, before it learns a task, what ours began it with; of later tasks only what is new."""
    with as_it_began(ours):
        for name, pairs in cat_pairs(network, ours, task).items():
            for a, b in pairs if not task or name != "trunk" else ():
                a.copy_(b)


def _with_other_tokens(forward: Any, similarity: Sequence[int]) -> Any:
    def forwarded(*arguments: Any, **options: Any) -> Any:
        return forward(*arguments, **options | {"similarity": similarity})

    return forwarded


def _compare_similarity(approach: Any, ours: Cat, task: LearningTask, step: Step) -> Iterator[Row]:
    """Read-outs of earlier tasks' networks and the reference: weights after an epoch, validation accuracy."""
    network, valid = approach.model, all_of(task.valid)
    for earlier in range(task.id + 1) if task.id else ():
        is_reference = earlier == task.id
        purpose = "similarity/reference" if is_reference else f"similarity/{earlier}"
        with seeding.seeded_layers(step.key, purpose):
            probe = ours._reference(task) if is_reference else ours._readout(task, earlier)
        probe.to(torch.get_default_dtype())
        masks = [mask.detach() for mask in network.mask(torch.tensor([earlier]))]
        theirs = approach.transfer_initial_model
        pairs = _probe_pairs(theirs, probe, earlier, task.id)
        if is_reference:
            masks = [mask.view(1, -1) for mask in inspect.getclosurevars(probe.features).nonlocals["masks"]]
            for dropout in probe.trained[0].dropouts:
                dropout.p = 0.0
        for a, b in pairs:
            a.copy_(b)
        order = seeding.torch_generator(f"{step.key}/{purpose}", "order")
        rows = torch.cat(list(trainer.batches(len(task.train), BATCH, order)))
        train = task.train.batch(rows).to(torch.get_default_dtype()).contiguous(), task.train.labels[rows]
        told = dict(phase="reference" if is_reference else "transfer", pre_mask=masks, pre_task=earlier)
        log = step.fit(probe, task, purpose)
        with old_torch():
            approach.train(task.id, *train, *valid, args=approach.args, **told)
            _, accuracy = approach.eval(task.id, *valid, **told)
        part = f"cat, task {task.id}, {'reference' if is_reference else f'read-out of task {earlier}'}, float64"
        difference = largest_difference(_probe_pairs(network.transfer, probe, earlier, task.id))
        yield Row(part, "weights, 12 steps", difference, 1e-9)
        yield Row(part, "validation accuracy", abs(accuracy - log[0]["valid_accuracy"]), 1e-9)


def _probe_pairs(transfer: Any, probe: Any, earlier: int, task: int) -> list[tuple[Tensor, Tensor]]:
    pairs = list(zip(transfer.transfer[earlier][task].parameters(), probe.heads[0].parameters(), strict=True))
    if len(probe.trained):
        trunk, head = probe.trained
        own = [*trunk.layers.parameters(), *head.parameters()]
        layers = transfer.fc1, transfer.fc2, transfer.last[task]
        pairs += zip((value for layer in layers for value in layer.parameters()), own, strict=True)
    return [(a.detach(), b.detach()) for a, b in pairs]


def load_hat(directory: Path) -> SimpleNamespace:
    """HAT's modules, from a checkout whose commit is printed."""
    print(f"joansj/hat at {repository.commit(directory)}")
    return repository.import_from(directory, "src", ("utils", "networks.alexnet_hat", "approaches.hat"), "joansj/hat")


def load_gpm(directory: Path) -> SimpleNamespace:
    """GPM's script, from a checkout whose commit is printed."""
    print(f"sahagobinda/GPM at {repository.commit(directory)}")
    return repository.import_from(directory, ".", ("main_cifar100",), "sahagobinda/GPM")


def compare(tasks: Sequence[LearningTask], options: argparse.Namespace) -> Iterator[Row]:
    """The methods whose checkouts are given."""
    rows: list[Iterator[Row]] = []
    if options.hat is not None:
        rows.append(compare_hat(load_hat(options.hat), tasks[:2]))
    if options.gpm is not None:
        rows.append(compare_gpm(load_gpm(options.gpm), tasks[:2]))
    if options.cat is not None:
        print(f"ZixuanKe/CAT at {repository.commit(options.cat)}")
        code = repository.import_from(options.cat, ".", ("networks.mlp_cat", "approaches.cat_ncl"), "ZixuanKe/CAT")
        rows.append(compare_cat(code, tasks))
    return itertools.chain.from_iterable(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hat", type=Path, help="checkout of joansj/hat")
    parser.add_argument("--gpm", type=Path, help="checkout of sahagobinda/GPM")
    parser.add_argument("--cat", type=Path, help="checkout of ZixuanKe/CAT")
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, numpy {np.__version__}")
    run(options.data, lambda stream: compare(small_tasks(stream, (N_IMAGES,) * len(SIMILAR)), options))


if __name__ == "__main__":
    main()
