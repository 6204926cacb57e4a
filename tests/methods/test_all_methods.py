"""Every method on every demo stream: it learns, resumes, forgets as expected, and predicts each image for itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from par.cells.genotype import DARTS_V1
from par.config import Config, ExpertSettings, NetworkSettings, Recipe
from par.methods import METHODS
from par.metrics import accuracy_matrix, average_accuracy, average_forgetting
from par.settings import resolve
from par.steps.chain_job import ChainJob, ChainTask, Learned, assemble, plan_chains
from par.steps.store import Store
from par.streams import Task, build_stream, load_stream
from tests.methods.tasks import through_a_file

# One relation in every run, the other five with `make test-exhaustive`: all take some seven minutes of two cores.
STREAMS = ("demo_in",)
MORE_STREAMS = ("demo_split", "demo_minus", "demo_plus", "demo_out", "demo_pl")
# Than Finetune, whatever the processor. A-GEM is not among them: from -.11 to -.32 were seen with kernels for AVX2 and
# AVX-512 and 13 and 40 images a class, so that last bits decide (test_agem.py has its projection).
FORGET_LESS = ("ewc", "mas", "lwf", "er", "gpm", "hat", "cat")
FORGET_NOTHING = ("independent", "pnn", "learn_to_grow", "mntdp_s", "mntdp_d", "soft_gating", "lmc")
# Settings that make a method small; what is missing keeps its defaults.
SMALL = {
    "agem": {"per_class": 40},  # with its 13 it ends near chance on demo_plus, on which side is a matter of last bits
    "cat": {"width": 100},
    "gpm": {"width": 0.25},
    "hat": {"network": "resnet"},  # the AlexNet without batch normalisation needs more than a demo's epochs
    "learn_to_grow": {"search_epochs": 3},
    "lmc": {"channels": 8, "projection_epochs": 2},
    "soft_gating": {"channels": 6},
}
RECIPES = {
    "cat": {"learning_rate": 0.025},
    "lmc": {"optimizer": "adam", "learning_rate": 0.003},
    "mntdp_d": {"epochs": 6},  # eight candidates a task
    "soft_gating": {"optimizer": "adam", "learning_rate": 0.003, "epochs": 3},
}


@pytest.fixture(scope="session")
def directories(tmp_path_factory):
    """The built demo streams, each made when it is first asked for."""
    folder, built = tmp_path_factory.mktemp("streams"), {}

    def directory(stream: str):
        if stream not in built:
            built[stream] = build_stream(stream, 0, folder, folder / stream)
        return folder / stream

    return directory


def jobs(method: str, stream: str, directory, length: int | None = None, **recipe: int) -> list[ChainJob]:
    """The chains of a method on (the first ``length`` tasks of) a stream; PAR's plan is two interleaved groups."""
    config = Config(
        preset="test",
        streams=(stream,),
        seeds=(0,),
        methods={method: {**SMALL.get(method, {}), "recipe": {**RECIPES.get(method, {}), **recipe}}},
        recipe=Recipe(epochs=8, batch_size=16, learning_rate=0.05, weight_decay=0.001),
        network=NetworkSettings(name="resnet10_light", width=8),
        expert=ExpertSettings(cells=2, channels=4),
    )
    tasks = load_stream(directory).tasks[:length]
    genotype, settings = DARTS_V1.to_json(), resolve(config, stream, method)
    groups = [[ChainTask(index, genotype) for index in range(start, len(tasks), 2)] for start in (0, 1)]
    return [
        ChainJob(settings, directory, 0, tuple(chain), (0,) * len(chain), "ends", torch.device("cpu"))
        for chain in plan_chains(method, len(tasks), groups)
    ]


def run(chains: list[ChainJob], store: Store) -> Learned:
    for job in chains:
        job.run(store, lambda n_images: None)
    return assemble(chains, store)


def accuracies(chains: list[ChainJob], found: Learned, tasks: Sequence[Task]) -> np.ndarray:
    """The accuracy matrix of what :func:`run` found on a stream's tasks."""
    labels = [task.split("test").labels for task in tasks]
    return accuracy_matrix(found.predictions, labels, [[planned.index for planned in job.chain] for job in chains])


@pytest.mark.slow
@pytest.mark.parametrize(
    "stream", [*STREAMS, *(pytest.param(stream, marks=pytest.mark.exhaustive) for stream in MORE_STREAMS)]
)
@pytest.mark.parametrize("method", METHODS)
def test_it_learns_forgets_as_expected_and_predicts_each_image_for_itself(method, stream, directories, tmp_path):
    directory = directories(stream)
    chains = jobs(method, stream, directory)
    found = run(chains, Store(tmp_path))
    tasks = load_stream(directory).tasks
    matrix = accuracies(chains, found, tasks)
    chance = np.mean([1 / task.n_classes for task in tasks])
    assert average_accuracy(matrix) > chance + 0.03  # two standard deviations of the test images
    forgetting = average_forgetting(matrix)
    assert forgetting == 0.0 or method not in FORGET_NOTHING
    if stream == "demo_split":
        # At this budget Finetune has -.38, and the worst of those that forget less, MAS, -.17.
        assert forgetting < -0.3 if method == "finetune" else forgetting > -0.25 or method not in FORGET_LESS

    learner, first = chains[0].restored(found.models[0]), tasks[0]
    images = chains[0]._images(first, "test")
    rows = torch.arange(20)
    with torch.no_grad():
        whole = learner.logits(images.batch(rows), 0)
        for size in (1, 7):
            parts = [learner.logits(images.batch(part), 0) for part in rows.split(size)]
            torch.testing.assert_close(torch.cat(parts), whole, atol=1e-4, rtol=1e-4)
        shuffled = torch.randperm(20, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(learner.logits(images.batch(shuffled), 0), whole[shuffled], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_resumed_after_two_tasks_it_is_bit_identical(method, directories, tmp_path):
    directory = directories("demo_split")
    straight, resumed = Store(tmp_path / "straight"), Store(tmp_path / "resumed")
    expected = run(jobs(method, "demo_split", directory, 3, epochs=1), straight)
    run(jobs(method, "demo_split", directory, 2, epochs=1), resumed)
    found = run(jobs(method, "demo_split", directory, 3, epochs=1), resumed)
    assert found.predictions.keys() == expected.predictions.keys()
    for name, predicted in expected.predictions.items():
        assert np.array_equal(found.predictions[name], predicted)
    for model, other in zip(expected.models, found.models, strict=True):
        one, two = model["state"]["tensors"], other["state"]["tensors"]
        assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
        through_a_file(model)
