"""Methods beside their authors' code, each side by itself: `python -m benchmarks.agreement.alone --repository DIR
--hat DIR --gpm DIR --cat DIR --lmc DIR --mntdp DIR --data DIR`.

The other scripts hand theirs our initial weights and draws and compare step by step. Here each side draws its own and
trains by its own loop, and AP and AF over seeds are compared: what no step shows, such as a whole run that goes wrong,
would be seen here. Theirs is as it is released, but for what does not run any more (docs/agreement.md) and PNN, whose
gradients of the task before are cleared; with ``--as-ours`` also without what the other scripts set aside. Three tasks
of CIFAR100-10, both sides on the same images.
"""

from __future__ import annotations

import argparse
import copy
import io
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.agreement import lmc, mntdp, modular, repository
from benchmarks.agreement.baselines import N_CLASSES, PAIRS, RECIPE, as_ours_on_purpose, make_theirs
from benchmarks.agreement.comparison import Row, all_of, means_agree, run, small_split, small_tasks
from benchmarks.agreement.protected import load_gpm, load_hat, old_torch
from par.cells.search import search_cell
from par.config import Config, ExpertSettings, NetworkSettings, Recipe, SearchSettings
from par.methods import load_method
from par.methods.bases.method import LearningTask, Step
from par.settings import resolve
from par.streams import Stream
from par.training import trainer
from par.training.images import Images

N_TASKS, N_IMAGES, N_TESTED, EPOCHS = 3, 320, 500, 6
TEST_BATCH = 64
CAT_WIDTH = 400
# HAT, GPM and CAT train and stop by the validation loss, as presets/validation.yaml does
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


@dataclass(frozen=True)
class Case:
    """How both sides run a method; of the images every ``step``-th pixel, where the network does not ask for 32."""

    recipe: Recipe
    hyper: Mapping[str, Any]
    step: int = 1
    network: NetworkSettings = NetworkSettings()


CASES = {name: Case(replace(RECIPE, epochs=EPOCHS), hyper, 2) for name, (hyper, _) in PAIRS.items()} | {
    "learn_to_grow": Case(replace(modular.RECIPE, epochs=EPOCHS), modular.SEARCH | {"search_epochs": EPOCHS}, 2),
    "hat": Case(BY_LOSS, {"annealing": "code"}),
    "gpm": Case(
        replace(BY_LOSS, learning_rate=0.01, plateau_factor=0.5, plateau_patience=5, min_learning_rate=1e-5),
        {"first_task": "below"},
    ),
    "cat": Case(
        replace(BY_LOSS, learning_rate=0.025), {"width": CAT_WIDTH, "annealing": "code", "readout_masks": "code"}
    ),
    "soft_gating": Case(replace(modular.ADAM, epochs=10), {"channels": modular.CHANNELS}),
    "lmc": Case(
        replace(lmc.RECIPE, epochs=10),
        lmc.OURS | {"projection_epochs": 2, "catch_outliers": True, "target": "input"},
    ),
    "mntdp_d": Case(
        replace(mntdp.RECIPE, epochs=EPOCHS, learning_rate=0.01),
        {},
        2,
        NetworkSettings(width=mntdp.WIDTH, stem_pool=False),
    ),
}
OF_PAR = (*PAIRS, "learn_to_grow")
# PAR with its plan given, by thresholds that every distance is below or above: all join the first, or all are searched
PAR = Case(Recipe(epochs=10, batch_size=16), {}, 2)
PAR_JOINS = {"par, all in one expert": True, "par, a searched expert each": False}
PAR_CHANNELS, PAR_SEARCH = 8, SearchSettings(update="mdl", epochs=4)
CASES |= dict.fromkeys(PAR_JOINS, PAR)
Side = Callable[[Sequence[LearningTask], Sequence[Images], int], np.ndarray]  # to the matrix r_ij of a seed


def ours(name: str, tasks: Sequence[LearningTask], tests: Sequence[Images], seed: int) -> np.ndarray:
    """Our side of a method that needs no plan."""
    case = CASES[name]
    settings = resolve(Config("agreement", (), (0,), {name: dict(case.hyper)}, network=case.network), "", name)

    def begin(task: LearningTask, key: str, learners: list[Any]) -> LearningTask:
        if not learners or learners[-1].chains == "task":
            learners.append(load_method(name)(settings))
        return task

    return learned_by_us(begin, case.recipe, tasks, tests, seed)


def ours_par(joins: bool, tasks: Sequence[LearningTask], tests: Sequence[Images], seed: int) -> np.ndarray:
    """PAR on our side."""
    expert, cells = ExpertSettings(channels=PAR_CHANNELS), []
    settings = resolve(Config("agreement", (), (0,), {}, expert=expert), "", "par")

    def begin(task: LearningTask, key: str, experts: list[Any]) -> LearningTask:
        if not (experts and joins):
            found = search_cell(task.train, task.n_classes, expert, PAR_SEARCH, PAR.recipe, f"{key}/search")
            cells.append(found.genotype.to_json())
            experts.append(load_method("par")(settings))
        return replace(task, genotype=cells[-1])

    return learned_by_us(begin, PAR.recipe, tasks, tests, seed)


def learned_by_us(
    begin: Callable[[LearningTask, str, list[Any]], LearningTask],
    recipe: Recipe,
    tasks: Sequence[LearningTask],
    tests: Sequence[Images],
    seed: int,
) -> np.ndarray:
    """r_ij of our learners; the last of the list learns a task, as ``begin`` gives it, which may add one before."""
    learners: list[Any] = []
    matrix = blank_matrix(len(tasks))
    for task in tasks:
        key = f"agreement/{seed}/{task.id}"
        begun = begin(task, key, learners)
        learners[-1].learn(begun, Step(recipe, key))
        for number in range(task.id + 1):
            learner = learners[min(number, len(learners) - 1)]
            matrix[task.id, number] = trainer.accuracy(partial(learner.logits, task_id=number), tests[number])
    return matrix


def theirs_par(
    modules: SimpleNamespace, joins: bool, tasks: Sequence[LearningTask], tests: Sequence[Images], seed: int
) -> np.ndarray:
    """PAR's own: all of its ``learn``, the pixels in the place of features."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    approach = repository.make_approach(
        modules,
        [task.n_classes for task in tasks],
        nn.Flatten(),
        PAR_CHANNELS,
        sample_epochs=PAR_SEARCH.epochs,
        epochs=PAR.recipe.epochs,
        batch=PAR.recipe.batch_size,
        eval_batch=TEST_BATCH,
        reuse_threshold=1.0 if joins else -1.0,
        reuse_cell_threshold=-1.0,
    )
    search = approach.auto_ml  # whose network has 64 channels whatever the experts have
    approach.auto_ml = lambda *arguments, **options: search(*arguments, **options | {"init_channel": PAR_CHANNELS})
    with (
        mock.patch.object(modules.par_v2.utils_draw, "draw_heatmap"),
        mock.patch.object(modules.mdenas_search.utils, "count_parameters_in_MB", lambda network: 0.0),
    ):
        return learned_by(approach, lambda task_id: nullcontext(), tasks, tests)


def learned_by(
    approach: Any,
    set_aside: Callable[[int], AbstractContextManager[None]],
    tasks: Sequence[LearningTask],
    tests: Sequence[Images],
) -> np.ndarray:
    """r_ij of an approach of PAR's repository, which learns each task within ``set_aside`` of its id."""
    matrix = blank_matrix(len(tasks))
    with redirect_stdout(io.StringIO()), mock.patch("torch.utils.data.DataLoader", _loader):
        for task in tasks:
            splits = (TensorDataset(*all_of(split)) for split in (task.train, task.valid))
            with set_aside(task.id):
                approach.learn(task.id, *splits, "cpu")
            for number in range(task.id + 1):
                matrix[task.id, number] = approach.eval(number, [all_of(tests[number])], "test", "cpu")[1]
    return matrix


def _loader(data: Any, batch_size: int, shuffle: bool = False, sampler: Any = None, **_: Any) -> DataLoader[Any]:
    """A loader without processes."""
    return DataLoader(data, batch_size=batch_size, shuffle=shuffle, sampler=sampler)


def theirs_of_par(
    modules: SimpleNamespace,
    name: str,
    as_ours: bool,
    tasks: Sequence[LearningTask],
    tests: Sequence[Images],
    seed: int,
) -> np.ndarray:
    """Finetune to PNN and Learn to Grow of PAR's repository; ``as_ours``: without that in which ours differs on purpose
    (but for Learn to Grow's old adapters, by which earlier tasks predict)."""
    torch.manual_seed(seed)
    case, grows = CASES[name], name == "learn_to_grow"
    if grows:
        approach = modular.make_learn_to_grow(modules, case.recipe, len(tasks), case.hyper["search_epochs"])
    else:
        approach = make_theirs(modules, name, len(tasks), case.recipe)

    def set_aside(task_id: int) -> AbstractContextManager[None]:
        approach.model.zero_grad()
        if not as_ours:
            return nullcontext()
        if grows:
            return modular.without_quirks(approach.model, modular.QUIRKS)
        return as_ours_on_purpose(modules, approach, name, task_id)

    return learned_by(approach, set_aside, tasks, tests)


def theirs_hat(
    modules: SimpleNamespace, tasks: Sequence[LearningTask], tests: Sequence[Images], seed: int
) -> np.ndarray:
    """HAT's own."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    size, recipe = [3, *tests[0].size], CASES["hat"].recipe
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
    code, recipe = modules.main_cifar100, CASES["gpm"].recipe
    source = SimpleNamespace(get=lambda **_: data_of(tasks, tests))
    arguments = SimpleNamespace(
        seed=seed,
        pc_valid=0.0,
        n_epochs=recipe.epochs,
        batch_size_train=recipe.batch_size,
        batch_size_test=TEST_BATCH,
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
    return lower_triangle(percent / 100)


def theirs_cat(directory: Path, tasks: Sequence[LearningTask], tests: Sequence[Images], seed: int) -> np.ndarray:
    """CAT's own: its whole script on its perceptron, which is handed our tasks in the place of its data."""
    recipe = CASES["cat"].recipe
    options = {
        "experiment": "mixceleba",
        "approach": "mlp_cat_ncl",
        "seed": seed,
        "nepochs": recipe.epochs,
        "sbatch": recipe.batch_size,
        "lr": recipe.learning_rate,
        "lr_patience": recipe.plateau_patience + 1,
        "nhid": CAT_WIDTH,
        "n_head": 5,
        "similarity_detection": "auto",
        "loss_type": "multi-loss-joint-Tsim",
    }
    source = SimpleNamespace(mixceleba=SimpleNamespace(get=lambda **_: data_of(tasks, tests)))
    with old_torch(shuffles=True), tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "res").mkdir()
        found = repository.run_script(directory / "run_cat.py", options, Path(folder), {"dataloaders": source})
    return lower_triangle(found["acc_mcl"])


def theirs_soft_gating(
    modules: SimpleNamespace, tasks: Sequence[LearningTask], tests: Sequence[Images], seed: int
) -> np.ndarray:
    """SG-F of LMC's repository."""
    torch.manual_seed(seed)
    recipe, matrix = CASES["soft_gating"].recipe, blank_matrix(len(tasks))
    with redirect_stdout(io.StringIO()):
        learner = modular.make_soft_gating(modules, len(tasks))
        for task in tasks:
            learner.train(shuffled(task.train, recipe), task.id, in_order(task.valid), num_epochs=recipe.epochs)
            learner.net.eval()
            for number in range(task.id + 1):
                matrix[task.id, number] = accuracy(partial(learner.net, task_id=number), tests[number])
    return matrix


def theirs_lmc(
    modules: SimpleNamespace, tasks: Sequence[LearningTask], tests: Sequence[Images], seed: int
) -> np.ndarray:
    """LMC's own, which adds modules while it trains."""
    torch.manual_seed(seed)
    case, code, matrix = CASES["lmc"], modules.main_transfer, blank_matrix(len(tasks))
    arguments = lmc.arguments(
        projection_phase_length=case.hyper["projection_epochs"],
        epochs=case.recipe.epochs,
        reg_factor=case.hyper["structural_weight"],
        keep_best_model=1,
        warmup_bn_bf_training=0,
        running_stats_steps=100,
        anneal=0,
        str_anneal=0,
    )
    with redirect_stdout(io.StringIO()):
        model = lmc.make_theirs(modules, case.hyper["catch_outliers"], case.hyper["target"])
        for task in tasks:
            loaders = shuffled(task.train, case.recipe), in_order(tests[task.id]), in_order(task.valid)
            model, *_ = code.train(arguments, model, task.id, *loaders, [], None)
            for number in range(task.id + 1):
                temperatures = model.min_temp, model.min_str_prior_temp
                found, *_ = code.test(model, None, in_order(tests[number]), *temperatures, task_id=number)
                matrix[task.id, number] = float(found)
            lmc.finish_task(model, task.id)
            model.optimizer, model.optimizer_structure = model.get_optimizers()
    return matrix


def theirs_mntdp_d(
    modules: SimpleNamespace, tasks: Sequence[LearningTask], tests: Sequence[Images], seed: int
) -> np.ndarray:
    """MNTDP-D's own; its candidates are trained one after the other on copies, as its processes do."""
    torch.manual_seed(seed)
    recipe, matrix = CASES["mntdp_d"].recipe, blank_matrix(len(tasks))
    chosen: list[nn.Module] = []
    loss = partial(functional.cross_entropy, reduction="none")
    with mntdp.today(modules), tempfile.TemporaryDirectory() as drawings, redirect_stdout(io.StringIO()):
        theirs = mntdp.make_theirs(modules, "fw")
        for task in tasks:
            model = mntdp.open_task(theirs, task)
            for nodes, place in model.models_idx.items():
                candidate = copy.deepcopy(model.models[place])
                weights, rate, decay = candidate.parameters(), recipe.learning_rate, recipe.weight_decay
                optimizer = torch.optim.Adam(weights, rate, weight_decay=decay)
                loaders = shuffled(task.train, recipe), [in_order(task.valid)]
                options = {"log_epoch": True, "n_ep_max": recipe.epochs}
                found = modules.training.train(candidate, *loaders, optimizer, loss, None, 300, ["Val"], **options)
                model.res[nodes] = found
            selected = model._selected_path()
            chosen.append(model.models[model.models_idx[selected]])
            chosen[-1].load_state_dict(model.res[selected][2]["state_dict"])
            theirs.finish_task(None, task.id, viz=mock.Mock(), path=drawings)
            for number, path in enumerate(chosen):
                matrix[task.id, number] = accuracy(path.eval(), tests[number])
    return matrix


def shuffled(images: Images, recipe: Recipe) -> DataLoader[Any]:
    """Batches for training."""
    return DataLoader(TensorDataset(*all_of(images)), batch_size=recipe.batch_size, shuffle=True)


def in_order(images: Images) -> DataLoader[Any]:
    """One batch, for validation and test."""
    return DataLoader(TensorDataset(*all_of(images)), batch_size=len(images))


@torch.no_grad()
def accuracy(logits: Callable[[Tensor], Any], images: Images) -> float:
    """Share of images that are classified rightly; their networks may give a list of one output."""
    batch, labels = all_of(images)
    found = logits(batch)
    return float(((found[0] if isinstance(found, list) else found).argmax(1) == labels).double().mean())


def data_of(tasks: Sequence[LearningTask], tests: Sequence[Images]) -> tuple[dict[int, Any], Any, list[int]]:
    """Our tasks as their scripts want them: images and labels, classes by task, size of an image."""
    data = {
        task.id: {"name": f"task {task.id}"}
        | {
            name: dict(zip("xy", all_of(images), strict=True))
            for name, images in (("train", task.train), ("valid", task.valid), ("test", test))
        }
        for task, test in zip(tasks, tests, strict=True)
    }
    return data, [(task.id, N_CLASSES) for task in tasks], [3, *tests[0].size]


def lower_triangle(found: np.ndarray) -> np.ndarray:
    """r_ij of the tasks that were learned; chance for the others."""
    matrix = blank_matrix(len(found))
    lower = np.tril_indices(len(found))
    matrix[lower] = found[lower]
    return matrix


def blank_matrix(n_tasks: int) -> np.ndarray:
    """r_ij of nothing: chance."""
    return np.full((n_tasks, n_tasks), 1 / N_CLASSES)


def sides(options: argparse.Namespace) -> Iterator[tuple[str, Side]]:
    """Methods and their side, of the checkouts that are given."""
    if options.repository is not None:
        print(f"WenjinW/PAR at {repository.commit(options.repository)}")
        modules = repository.load(options.repository)
        names = [name for name in OF_PAR if name in options.methods]
        yield from ((name, partial(theirs_of_par, modules, name, options.as_ours)) for name in names)
        if "par" in options.methods:
            yield from ((name, partial(theirs_par, modules, joins)) for name, joins in PAR_JOINS.items())
    if options.hat is not None:
        yield "hat", partial(theirs_hat, load_hat(options.hat))
    if options.gpm is not None:
        yield "gpm", partial(theirs_gpm, load_gpm(options.gpm))
    if options.cat is not None:
        print(f"ZixuanKe/CAT at {repository.commit(options.cat)}")
        yield "cat", partial(theirs_cat, options.cat)
    if options.lmc is not None:
        print(f"oleksost/LMC at {repository.commit(options.lmc)}")
        yield "soft_gating", partial(theirs_soft_gating, modular.load_lmc(options.lmc))
        yield "lmc", partial(theirs_lmc, lmc.load(options.lmc))
    if options.mntdp is not None:
        print(f"TomVeniat/MNTDP at {repository.commit(options.mntdp)}")
        yield "mntdp_d", partial(theirs_mntdp_d, mntdp.load(options.mntdp))


def compare(stream: Stream, methods: Sequence[tuple[str, Side]], n_seeds: int) -> Iterator[Row]:
    """AP and AF of both."""
    for name, theirs in methods:
        step = CASES[name].step
        tasks = small_tasks(stream, (N_IMAGES,) * N_TASKS, step=step, kind=Images)
        tests = [small_split(task, "test", N_TESTED, step, Images) for task in stream.tasks[:N_TASKS]]
        here = partial(ours_par, PAR_JOINS[name]) if name in PAR_JOINS else partial(ours, name)
        found = [[side(tasks, tests, seed) for seed in range(n_seeds)] for side in (here, theirs)]
        yield from means_agree(f"{name}, each by itself", *found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, help="checkout of WenjinW/PAR")
    parser.add_argument("--hat", type=Path, help="checkout of joansj/hat")
    parser.add_argument("--gpm", type=Path, help="checkout of sahagobinda/GPM")
    parser.add_argument("--cat", type=Path, help="checkout of ZixuanKe/CAT")
    parser.add_argument("--lmc", type=Path, help="checkout of oleksost/LMC")
    parser.add_argument("--mntdp", type=Path, help="checkout of TomVeniat/MNTDP")
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    parser.add_argument("--seeds", type=int, default=3, help="of each side, at least 2")
    of_par = (*OF_PAR, "par")
    parser.add_argument("--methods", nargs="+", default=list(of_par), choices=of_par, help="of WenjinW/PAR")
    parser.add_argument("--as-ours", action="store_true", help="WenjinW/PAR without what differs on purpose")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("a standard error takes at least 2 seeds.")
    methods = list(sides(options))
    print(f"torch {torch.__version__}, numpy {np.__version__}")
    run(options.data, lambda stream: compare(stream, methods, options.seeds))


if __name__ == "__main__":
    main()
