"""LMC beside its authors' code: `python -m benchmarks.agreement.lmc --lmc DIR --data DIR`.

As :mod:`benchmarks.agreement.par`: a checkout of github.com/oleksost/LMC runs on the CPU, in float64, with our images,
initial weights and batches; three tasks of CIFAR100-10, of which the second and the third add modules to the two
inner layers, one epoch for each phase. Its code needs the packages simple_parsing, runstats and sortedcontainers; what
else it imports and nothing here calls is a stand-in (``STUBS``).

Patched: its modules are asked for by their own statistics, set so that they find the task foreign in that layer alone;
its optimisers begin anew with each phase. Ours, for the comparison only: its decoders' paddings.
"""

from __future__ import annotations

import argparse
import copy
import io
import itertools
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
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
    precise_casts,
    run,
    small_tasks,
)
from par.config import Config, Recipe
from par.methods.bases.method import LearningTask, Step
from par.methods.lmc import Lmc, LocalModule, TaskParts
from par.networks.modules import DEPTH
from par.settings import resolve
from par.streams import Stream
from par.training import trainer

STUBS = (
    "wandb",
    "seaborn",
    "higher",
    "kornia",
    "bs4",
    "ctrl",
    "torchmeta",
    "torchmeta.modules",
    "torchmeta.modules.utils",
    "torchvision.models.utils",
    "Utils.ctrl.ctrl.tasks.task_generator",
    "Utils.nngeometry.nngeometry.metrics",
    "Utils.nngeometry.nngeometry.object",
    "Utils.nngeometry.nngeometry.object.pspace",
    "Methods.replay",
)
N_CLASSES, N_IMAGES, CHANNELS = 10, 192, 8
RECIPE = Recipe(
    epochs=1,
    batch_size=16,
    optimizer="adam",
    learning_rate=0.001,
    weight_decay=0.001,
    schedule="constant",
    clip_norm=None,
)
EXPANDED = (1, 2)  # the layers to which every task but the first adds a module
FAR = 1e3  # a mean structural loss from which everything is far
OURS = {
    "channels": CHANNELS,
    "projection_epochs": RECIPE.epochs,
    "threshold": 4.0,
    "structural_weight": 10.0,
    "temperature": 0.1,
    "prior_temperature": 0.1,
}


def load(directory: Path) -> SimpleNamespace:
    """Their modules by the last part of their names."""
    names = ("Methods", "Methods.models.LMC", "main_transfer")
    modules = repository.import_from(directory, ".", names, "oleksost/LMC", STUBS)
    modules.main_transfer.PMatAbstract = ()  # of a stand-in; it is asked whether something is an instance of it
    return modules


class PaddedModule(LocalModule):
    """A module whose decoder pads as theirs does: inside its first layer, not inside its second."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.structural[0].padding, self.structural[3].padding = (1, 1), (0, 0)


@dataclass
class Phase:
    """A fit of one epoch: the learner before and after it, and the batches."""

    before: RecordedLmc
    batches: list[tuple[Tensor, Tensor]]
    after: RecordedLmc


class RecordedLmc(Lmc):
    """LMC that finds every later task foreign to the layers ``EXPANDED`` alone, and keeps each fit of a task."""

    def start_task(self, task: LearningTask, step: Step) -> None:
        self.phases: list[Phase] = []
        self.found: dict[int, float] = {}  # z-scores of the most foreign batch by layer
        super().start_task(task, step)

    def _deviation(self, task: LearningTask, step: Step, layer: int) -> tuple[Tensor, float]:
        losses, self.found[layer] = super()._deviation(task, step, layer)
        return losses, float(layer in EXPANDED) * FAR

    def _expand(self, layer: int, mean_losses: Tensor) -> None:
        super()._expand(layer, mean_losses)
        for statistics in self._statistics.values():
            statistics[0] = FAR

    def start_epoch(self, epoch: int) -> None:
        self.phases.append(Phase(self._copy(), [], self))

    def loss(self, batch: trainer.Batch) -> Tensor:
        self.phases[-1].batches.append((batch.images.contiguous(), batch.labels))
        return super().loss(batch)

    def end_epoch(self, epoch: int, valid_accuracy: float) -> None:
        self.phases[-1].after = self._copy()

    def _copy(self) -> RecordedLmc:
        return copy.deepcopy(self, {id(self.phases): [], id(self.current): self.current})


def make_theirs(modules: SimpleNamespace, catch_outliers: bool, target: str) -> Any:
    """Their network, with the options of their run on S- but for the width, the padding and the two named."""
    options = modules.Methods.ModelOptions()
    of_module = dict(
        use_backup_system=0,
        use_backup_system_structural=0,
        structure_inv="ae",
        padding=1,
        activation_structural="sigmoid",
        activation_target_decoder="None" if target == "input" else target,
        running_stats_steps=100,
        momentum_bn=0.1,
        track_running_stats_bn=1,
        keep_bn_in_eval_after_freeze=1,
        normalize_oh=1,
    )
    of_network = dict(
        regime="normal",
        lr=RECIPE.learning_rate,
        lr_structural=RECIPE.learning_rate,
        wdecay=RECIPE.weight_decay,
        temp=OURS["temperature"],
        str_prior_temp=OURS["prior_temperature"],
        str_prior_factor=1.0,
        deviation_threshold=OURS["threshold"],
        module_init="mean",
        multihead="gated_linear",
        mask_str_loss=1,
        automated_module_addition=1,
        catch_outliers_old=catch_outliers,
    )
    for values, chosen in ((of_module, options.Module), (of_network, options.LMC)):
        for name, value in values.items():
            setattr(chosen, name, value)
    return modules.LMC.LMC_net(options.LMC, options.Module, i_size=32, channels=3, hidden_size=CHANNELS, num_classes=10)


def arguments(**others: Any) -> SimpleNamespace:
    """For their training loop: none of its extensions, but for ``others``."""
    values = dict(
        temp=OURS["temperature"],
        str_prior_temp=OURS["prior_temperature"],
        epochs_str_only_after_addition=0,
        epochs_structure_only_at_start=0,
        ewc=0,
        early_stop_complete=0,
        num_epochs_added_after_projection=0,
        multihead="gated_linear",
        keep_best_model=0,
        task_agnostic_test=0,
        task_sequence="s_long",
        gating="locspec",
    )
    return SimpleNamespace(**values | others)


def module_pairs(theirs: Any, ours: LocalModule) -> list[tuple[Tensor, Tensor]]:
    """Parameters and statistics of one module of theirs and of ours, tensors that can be copied into."""
    decoder = theirs.inv_block.decoder
    layers = (
        (theirs.module.module.conv, ours.functional[0]),
        (theirs.module.module.norm, ours.functional[1]),
        (decoder.conv_t1, ours.structural[0]),
        (decoder.norm, ours.structural[1]),
        (decoder.conv_t2, ours.structural[3]),
    )
    pairs = []
    for a, b in layers:
        pairs += zip(a.parameters(), b.parameters(), strict=True)
        if isinstance(b, nn.BatchNorm2d):
            pairs += [(a.running_mean, b.running_mean), (a.running_var, b.running_var)]
    return [(a.detach(), b.detach()) for a, b in pairs]


def pairs_of(theirs: Any, ours: Lmc, task: int) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """Of all modules, by layer in the order of their making; of the task's head."""
    modules = []
    for layer in range(DEPTH):
        blocks = [ours.parts[str(owner)].blocks[str(layer)] for owner in ours.owners(layer, task)]
        for a, b in zip(theirs.components[layer], blocks, strict=True):
            modules += module_pairs(a, b)
    head = zip(theirs.decoder[task].classifier.parameters(), ours.heads[task].parameters(), strict=True)
    return modules, [(a.detach(), b.detach()) for a, b in head]


def add_module(theirs: Any, layer: int, images: Tensor, task: int, n_projection: int) -> None:
    """Let their old modules find the task foreign in the layers ``EXPANDED`` up to ``layer``: one is added to it."""
    for number, modules in enumerate(theirs.components):
        for module in modules:
            module.inv_block.reset_stats()  # without three values there is no z-score: nothing is foreign
            for step in range(4 if number in EXPANDED and number <= layer and module.module_learned else 0):
                module.inv_block.runing_activation_window_buffer.push(torch.tensor(FAR + step))
            module.inv_block.consolidate_stats_from_inner_to_outer()
    theirs.args.projection_phase_length = n_projection
    theirs._steps_since_last_addition = torch.tensor(float(n_projection))
    theirs.train()
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    theirs(images, task_id=task, record_running_stats=True)


@torch.no_grad()
def _z_score(theirs: Any, task: LearningTask, layer: int) -> float:
    """Absolute z-score of the first module of a layer for the most foreign training batch, in eval mode."""
    theirs.eval()
    batches = [images.contiguous() for images, _ in batches_of(task.train, RECIPE.batch_size)]
    scores = [theirs(images, task_id=task.id).info["outlier_signal"][layer][0].mean() for images in batches]
    return float(torch.stack(scores).max())


def finish_task(theirs: Any, task: int) -> None:
    """Freeze all that was learned and make room for the next head."""
    theirs.fix_oh(task)
    theirs.add_output_head(N_CLASSES)
    for modules in theirs.components:
        for module in modules:
            module.freeze_functional(inner_loop_free=False)
            module.freeze_structural()
            module.module_learned = torch.tensor(1.0)


def compare(
    modules: SimpleNamespace, tasks: Sequence[LearningTask], catch_outliers: bool, target: str
) -> Iterator[Row]:
    """Initial values of added modules; weights and statistics after each phase; structural losses, weights of the
    modules, logits."""
    hyper = OURS | {"catch_outliers": catch_outliers, "target": target}
    code = modules.main_transfer
    padded = mock.patch("par.methods.lmc.LocalModule", PaddedModule)
    with in_dtype(torch.float64), precise_casts(), padded:
        ours = RecordedLmc(resolve(Config("agreement", (), (0,), {"lmc": hyper}), "", "lmc"))
        theirs = make_theirs(modules, catch_outliers, target)
        for task in tasks:
            ours.learn(task, Step(RECIPE, f"agreement/{task.id}"))
            yield from _compare_task(code, theirs, ours, task, f"lmc, target {target}, catch_outliers {catch_outliers}")


def _compare_task(code: Any, theirs: Any, ours: RecordedLmc, task: LearningTask, part: str) -> Iterator[Row]:
    weight, layers = OURS["structural_weight"], EXPANDED if task.id else ()
    if task.id == 1:
        scores = [
            _z_score(theirs, task, layer) for layer in (0, 1)
        ]  # ours of those above come after the first addition
        own = [ours.found[layer] for layer in (0, 1)]
        what = ", ".join(f"{a:.1f} (ours {b:.1f})" for a, b in zip(scores, own, strict=True))
        yield Row(
            f"{part}, task 1, float64", f"z-scores of layers 0 and 1: {what}", largest_difference([(scores, own)]), None
        )
    names = [*(f"projection of layer {layer}" for layer in layers), "training"]
    for number, (name, phase) in enumerate(zip(names, ours.phases, strict=True)):
        where = f"{part}, task {task.id}, {name}, float64"
        if name != "training":
            layer, (images, _) = layers[number], phase.batches[0]
            with redirect_stdout(io.StringIO()):
                add_module(theirs, layer, images, task.id, len(phase.batches))
            fresh = phase.before.part(task.id, TaskParts).blocks[str(layer)]
            pairs = module_pairs(theirs.components[layer][-1], fresh)
            yield Row(where, "added module, initial values", largest_difference(pairs), 1e-9)
        of_modules, of_head = pairs_of(theirs, phase.before, task.id)
        for a, b in [*(of_modules if not task.id else ()), *(of_head if not number else ())]:
            a.copy_(b)
        theirs.optimizer, theirs.optimizer_structure = theirs.get_optimizers()
        batches = phase.batches
        with redirect_stdout(io.StringIO()):
            code.train_on_task(theirs, arguments(), batches, [], batches[:1], 1, task_id=task.id, reg_factor=weight)
        of_modules, of_head = pairs_of(theirs, phase.after, task.id)
        what = f"weights and statistics of modules, {len(batches)} steps"
        yield Row(where, what, largest_difference(of_modules), 1e-9)
        yield Row(where, "weights of the head", largest_difference(of_head), 1e-9)
    images = batches_of(task.valid, len(task.valid))[0][0].contiguous()
    with torch.no_grad():
        logits, losses, weights = ours._forward(images, task.id, by_batch=True)
        theirs.eval()
        found = theirs(images, task_id=task.id, temp=OURS["temperature"], str_prior_temp=OURS["prior_temperature"])
    where = f"{part}, task {task.id}, validation images, float64"
    yield Row(
        where,
        "structural losses",
        largest_difference([(a.T, b) for a, b in zip(found.mask_bf_act, losses, strict=True)]),
        1e-9,
    )
    pairs = [(mask[: weight.shape[1]], weight.mean(dim=0)) for mask, weight in zip(found.mask, weights, strict=True)]
    yield Row(where, "mean weights of the modules", largest_difference(pairs), 1e-9)
    yield Row(where, "logits", largest_difference([(found.logit, logits)]), 1e-9)
    with redirect_stdout(io.StringIO()):
        finish_task(theirs, task.id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lmc", type=Path, required=True, help="checkout of oleksost/LMC")
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    options = parser.parse_args()
    modules = load(options.lmc)
    print(f"oleksost/LMC at {repository.commit(options.lmc)}, torch {torch.__version__}, numpy {np.__version__}")
    runs = ((False, "sigmoid"), (True, "input"))

    def compared(stream: Stream) -> Iterator[Row]:
        tasks = small_tasks(stream, (N_IMAGES,) * 3)
        return itertools.chain.from_iterable(compare(modules, tasks, *each) for each in runs)

    run(options.data, compared)


if __name__ == "__main__":
    main()
