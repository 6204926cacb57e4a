"""Who forgets, and who does not, on real images: the order that the literature expects."""

from __future__ import annotations

import dataclasses

import pytest

from par.config import NetworkSettings
from par.metrics import average_forgetting
from par.steps.store import Store
from par.streams import build_stream, load_stream
from tests.methods.test_all_methods import accuracies, jobs, run


def forgetting(method: str, directory, store: Store, **changes) -> float:
    """AF of a method on a built class split; ``changes`` of the configuration."""
    stream = load_stream(directory)
    chains = [
        dataclasses.replace(job, settings=dataclasses.replace(job.settings, **changes))
        for job in jobs(method, stream.name, directory)
    ]
    return average_forgetting(accuracies(chains, run(chains, store), stream.tasks))


@pytest.mark.slow
@pytest.mark.exhaustive  # two minutes; the demo streams show the same order in every run
def test_on_real_cifar10_finetune_forgets_most(tmp_path, real_data):
    """One epoch a task of CIFAR10-5 on a network of 16 channels."""
    directory, store = tmp_path / "stream", Store(tmp_path / "store")
    build_stream("cifar10_5", 0, real_data, directory)
    recipe = dataclasses.replace(jobs("finetune", "cifar10_5", directory)[0].settings.recipe, epochs=1, batch_size=64)
    changes = {"recipe": recipe, "network": NetworkSettings(width=16)}
    found = {
        method: forgetting(method, directory, store, **changes) for method in ("finetune", "ewc", "lwf", "independent")
    }
    for method in ("ewc", "lwf"):
        assert found[method] > found["finetune"], found
    assert found["finetune"] < -0.05 and found["independent"] == 0.0
