"""Who forgets, and who does not: the order that the literature expects, on embedded and on real images."""

from __future__ import annotations

import dataclasses

import pytest

from par.config import Network
from par.learning.store import Store
from par.reporting.metrics import accuracy_matrix, average_forgetting
from par.streams import build_stream, load_stream
from tests.methods.test_all_methods import jobs, run

REMEMBER = ("ewc", "mas", "lwf", "er", "agem", "gpm", "hat", "cat")
ALLOCATE = ("independent", "pnn", "learn_to_grow", "mntdp_s", "mntdp_d", "soft_gating", "lmc")


def forgetting(method: str, directory, store: Store, **changes) -> float:
    """AF of a method on a built class split; ``changes`` of the configuration."""
    stream = load_stream(directory)
    chains = [
        dataclasses.replace(job, config=dataclasses.replace(job.config, **changes))
        for job in jobs(method, stream.name, directory)
    ]
    found = run(chains, store)
    labels = [task.split("test").labels for task in stream.tasks]
    return average_forgetting(
        accuracy_matrix(found.predictions, labels, [[planned.index for planned in job.chain] for job in chains])
    )


@pytest.mark.slow
def test_on_the_demo_finetune_forgets_most_and_allocators_nothing(tmp_path):
    directory, store = tmp_path / "stream", Store(tmp_path / "store")
    build_stream("demo_split", 0, tmp_path, directory)
    finetune = forgetting("finetune", directory, store)
    found = {method: forgetting(method, directory, store) for method in (*REMEMBER, *ALLOCATE)}
    print({"finetune": finetune} | found)
    assert finetune < -0.2
    for method in REMEMBER:
        assert found[method] > finetune + 0.1, method
    for method in ALLOCATE:
        assert found[method] == 0.0, method


@pytest.mark.slow
def test_on_real_cifar10_finetune_forgets_most(tmp_path, real_data):
    """One epoch a task of CIFAR10-5 on a network of 16 channels."""
    directory, store = tmp_path / "stream", Store(tmp_path / "store")
    build_stream("cifar10_5", 0, real_data, directory)
    recipe = dataclasses.replace(jobs("finetune", "cifar10_5", directory)[0].config.recipe, epochs=1, batch_size=64)
    changes = {"recipe": recipe, "network": Network(width=16)}
    found = {
        method: forgetting(method, directory, store, **changes)
        for method in ("finetune", "ewc", "mas", "lwf", "er", "agem", "independent")
    }
    print(found)
    for method in ("ewc", "mas", "lwf", "er", "agem"):
        assert found[method] > found["finetune"], method
    assert found["finetune"] < -0.05 and found["independent"] == 0.0
