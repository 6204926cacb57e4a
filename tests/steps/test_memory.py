"""What is said of memory before jobs run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from par.steps import memory
from par.steps.cluster import Cluster
from par.steps.estimate import SEARCH, Kind
from par.steps.memory import GB, peak_bytes, shortage, shortage_of
from par.steps.slots import Workers
from par.steps.store import Store
from tests.steps.streams import built
from tests.steps.test_chain_job import DEFINITION, job

CPU = torch.device("cpu")
PAR = Kind("par", "", width=64, size=84, device="cpu", stops=False, batch=64)


@pytest.fixture(autouse=True)
def sixteen_gigabytes(monkeypatch):
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GB))


def test_par_at_84_pixels_takes_what_was_measured():
    assert 13.9 * GB < peak_bytes(PAR) < 16 * GB
    assert peak_bytes(replace(PAR, size=32)) < 3.5 * GB
    assert peak_bytes(replace(PAR, method=SEARCH)) == peak_bytes(PAR) > 4 * peak_bytes(replace(PAR, method="finetune"))


def test_it_grows_with_batch_pixels_and_width():
    growing = peak_bytes(PAR) - memory.PROCESS
    for other, factor in ((replace(PAR, batch=32), 0.5), (replace(PAR, size=42), 0.25), (replace(PAR, width=16), 0.25)):
        assert peak_bytes(other) - memory.PROCESS == pytest.approx(factor * growing)


@pytest.mark.parametrize(
    ("peaks", "workers", "said"),
    [
        ([], 9, None),
        ([15 * GB, 1 * GB], 1, None),
        ([17 * GB, 1 * GB], 1, "the largest job needs some 17.0 GB"),
        ([8 * GB, 7 * GB, 1 * GB], 2, None),
        ([2 * GB, 9 * GB, 8 * GB], 2, "the 2 largest jobs together need some 17.0 GB"),
    ],
)
def test_the_largest_jobs_have_to_fit_side_by_side(peaks, workers, said):
    sentence = shortage(peaks, Workers(workers, workers), CPU, None)
    if said is None:
        assert sentence is None
    else:
        assert said in sentence and ("`workers`" in sentence) == (workers > 1) and "recipe.batch_size" in sentence


def test_a_job_of_a_cluster_has_its_own_memory():
    sentence = shortage([9.5 * GB] * 3, Workers(1, 1), CPU, Cluster(memory_gb=8))
    assert "9.5 GB" in sentence and "set it to 10" in sentence and "cluster.yaml" in sentence
    assert shortage([9.5 * GB] * 3, Workers(1, 1), CPU, Cluster(memory_gb=10)) is None


def test_what_the_store_has_needs_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    one, store, workers = job(built(tmp_path, DEFINITION)), Store(tmp_path / "store"), Workers(1, 1)
    assert "the largest job needs" in shortage_of([one], store, workers, CPU, None)
    one.run(store, lambda n_images: None)
    assert shortage_of([one], store, workers, CPU, None) is None
