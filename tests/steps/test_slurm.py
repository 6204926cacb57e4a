"""Jobs on a cluster: what is submitted, attached to, cancelled and reported; on a scheduler of the tests' own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from par.schema import ConfigError
from par.steps import slurm
from par.steps.cluster import Cluster
from par.steps.jobs import Planned
from par.steps.store import Store
from par.steps.workers import run_jobs
from tests.steps.fake_slurm import FakeSlurm

pytest.importorskip("submitit")
CLUSTER = Cluster(poll_seconds=0.1, gpus=1, hours=1.5, memory_gb=2.5, partition="gpu", setup=("module load x",))


@dataclass(frozen=True)
class Mark:
    """A job that leaves an entry in the store, or fails with a sentence."""

    label: str
    fails: bool = False

    def cost(self) -> int:
        return 10

    def run(self, store: Store, progress: Callable[[int], None]) -> tuple[int, int]:
        if self.fails:
            raise ConfigError(f"{self.label} = 1 is not allowed.")
        _, is_new = store.get_or_compute(entry(self.label), lambda: {"label": self.label})
        progress(10)
        return int(is_new), int(not is_new)


def entry(label: str) -> str:
    return label.encode().hex().ljust(64, "0")


def planned(label: str, after: str | None = None, seconds: float = 1.0, *, fails: bool = False) -> Planned:
    return Planned(label, Mark(label, fails), after, seconds)


@pytest.fixture
def scheduler(tmp_path, monkeypatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def running(scheduler) -> Iterator[FakeSlurm]:
    process = scheduler.start()
    yield scheduler
    process.kill()
    process.wait()


@pytest.mark.slow
def test_jobs_are_computed_once_and_one_that_fails_is_a_sentence(running, tmp_path):
    jobs = [planned("search", seconds=2), planned("chain", after="search"), *(planned(f"free {n}") for n in range(3))]
    jobs += [planned("broken", fails=True, seconds=9), planned("behind", after="broken")]
    store = Store(tmp_path / "store")
    outcome = run_jobs(jobs, store, 1, "test", CLUSTER)
    assert (outcome.steps_computed, outcome.steps_reused) == (5, 0)
    failures = dict(outcome.failures)
    assert failures.keys() == {"broken", "behind"}
    assert failures["broken"].text == "broken = 1 is not allowed." and "left the queue" in failures["behind"].text
    for array in running.arrays():
        assert array["time"] == "90" and array["mem"] == "2560MB" and array["gpus-per-node"] == "1"
        assert array["partition"] == "gpu"
    searches, chains, free = running.arrays()
    assert chains["dependency"] == "aftercorr:1" and searches["array"] == chains["array"] == "0-1%2"
    assert "dependency" not in searches and free["array"] == "0-2%3"


@pytest.mark.slow
def test_a_second_run_attaches_to_what_is_in_the_queue(scheduler, tmp_path):
    jobs, store = [planned("search", seconds=2), planned("chain", after="search")], Store(tmp_path / "store")
    first = slurm.submit(jobs, store, CLUSTER)
    again = slurm.submit([*jobs, planned("more", after="search")], store, CLUSTER)
    assert {key: again[key] for key in first} == first and scheduler.calls("sbatch") == 3
    assert scheduler.arrays()[2]["dependency"] == "afterany:1", "its search is in the queue already"
    process = scheduler.start()
    outcome = run_jobs(jobs, store, 1, "test", CLUSTER)
    process.kill()
    process.wait()
    assert outcome.steps_computed == 2 and scheduler.calls("sbatch") == 3


def test_cancelled_jobs_are_submitted_again(scheduler, tmp_path):
    jobs, store = [planned(f"job {n}") for n in range(3)], Store(tmp_path / "store")
    slurm.submit(jobs, store, CLUSTER)
    assert slurm.cancel(jobs[:2], store) == 2 and slurm.cancel(jobs[:2], store) == 0
    slurm.submit(jobs, store, CLUSTER)
    assert [array["array"] for array in scheduler.arrays()] == ["0-2%3", "0-1%2"]


def test_a_job_that_ends_without_a_word_has_failed(scheduler, tmp_path):
    jobs, store = [planned("job 0"), planned("job 1")], Store(tmp_path / "store")
    slurm.submit(jobs, store, CLUSTER)
    slurm.cancel(jobs, store)
    places = {"job 0": (scheduler.arrays()[0]["job-name"], 0), "job 1": (scheduler.arrays()[0]["job-name"], 1)}
    log = store.folder / "jobs" / places["job 0"][0] / "1_0_0_log.out"
    log.write_text("epoch 3\nslurmstepd: error: out of memory\n")
    results = {result.label: result for result in slurm._watch(jobs, places, store, CLUSTER, "test")}
    assert "out of memory" in results["job 0"].failure.text and str(log) in results["job 0"].failure.text
    assert "left no log" in results["job 1"].failure.text


def test_followers_match_the_indices_of_what_they_wait_for(scheduler, tmp_path):
    jobs = [planned(f"search {n}", seconds=n) for n in range(1, 5)]
    jobs += [planned(f"chain {n} {k}", after=f"search {n}", seconds=10) for n in range(1, 5) for k in range(n)]
    places = slurm.submit(jobs, Store(tmp_path / "store"), Cluster(max_array=3))
    number_of = {array["job-name"]: str(number + 1) for number, array in enumerate(scheduler.arrays())}
    dependency = {array["job-name"]: array.get("dependency") for array in scheduler.arrays()}
    for job in jobs:
        if job.after is not None:
            (name, index), (before, index_before) = places[job.key], places[job.after]
            assert dependency[name] == f"aftercorr:{number_of[before]}" and index == index_before
    assert len(places) == len(jobs)


def test_5000_chains_take_a_few_calls(scheduler, tmp_path):
    jobs = [planned(f"chain {n}", seconds=n) for n in range(4000)]
    jobs += [planned(f"search {n}") for n in range(500)]
    jobs += [planned(f"routed {n}", after=f"search {n}") for n in range(500)]
    started = time.monotonic()
    places = slurm.submit(jobs, Store(tmp_path / "store"), Cluster())
    seconds = time.monotonic() - started
    assert len(places) == 5000 and seconds < 60
    assert scheduler.calls("sbatch") == 6 and scheduler.calls("squeue") == 1
    assert places["chain 3999"][1] == 0, "the longest first"


def test_what_is_missing_is_one_sentence(tmp_path, monkeypatch):
    jobs, store = [planned("job")], Store(tmp_path / "store")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="needs squeue, which is not on this machine's PATH"):
        slurm.submit(jobs, store, CLUSTER)
    FakeSlurm(tmp_path / "slurm", monkeypatch)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[slurm\]'"):
        slurm.submit(jobs, store, CLUSTER)


def test_a_refusal_of_the_scheduler_is_one_sentence_and_leaves_nothing(scheduler, tmp_path):
    Path(scheduler.folder / "sbatch.py").write_text("import sys\nsys.exit('sbatch: error: invalid partition')")
    store = Store(tmp_path / "store")
    with pytest.raises(ConfigError, match="SLURM does not take 1 jobs .*invalid partition.*cluster.yaml"):
        slurm.submit([planned("job")], store, CLUSTER)
    assert not list((store.folder / "jobs").glob("*/keys.json"))
