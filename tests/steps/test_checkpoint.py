"""A step that is killed at any epoch goes on from there and ends with the same bits: every method, both searches."""

from __future__ import annotations

import dataclasses
import os
import time

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.speed import Plain
from par import seeding
from par.cells.genotype import DARTS_V1
from par.config import Config, ExpertSettings, NetworkSettings, Recipe, SearchSettings
from par.methods import METHODS
from par.settings import resolve
from par.steps.chain_job import ChainJob, ChainTask, assemble
from par.steps.checkpoint import RunningStep, forget
from par.steps.search_job import SearchJob
from par.steps.store import Store, entry_key, main
from par.training import trainer
from par.training.images import Images
from tests.methods.tasks import through_a_file
from tests.steps.streams import built

DEFINITION = """
image_size: 8
augment: [crop]
class_splits:
  - {source: digits, classes_per_task: 3, train: 12, valid: 8, test: 10}
"""
N_TRAIN = 36
# Small, and such that everything happens that a fit can change: CAT's attention, LMC's projections, ...
HYPER = {
    "cat": {"width": 20, "similarity_epochs": 2},
    "gpm": {"network": "resnet", "images": 20},
    "hat": {"network": "resnet"},
    "learn_to_grow": {"search_epochs": 4},
    "lmc": {"channels": 4, "projection_epochs": 2, "threshold": 0.0},
    "mntdp_s": {"path_learning_rate": 0.1, "freeze_after": 0.7},
    "soft_gating": {"channels": 4},
}
CONFIG = Config(
    preset="test",
    streams=("tiny",),
    seeds=(0,),
    methods=HYPER,
    recipe=Recipe(epochs=3, batch_size=8, learning_rate=0.05, patience=2),
    network=NetworkSettings(width=4),
    expert=ExpertSettings(cells=2, channels=4),
)
ALWAYS = 1e-9  # minutes between two saves
KEY = entry_key("a step")


class Killed(BaseException):
    """What stands for a killed process where there is none."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return built(tmp_path_factory.mktemp("streams"), DEFINITION)


@pytest.fixture
def resumed(monkeypatch):
    """How many epochs each resumed fit did not train again."""
    epochs, load_state = [], trainer._Fit.load_state

    def counting(self, state):
        epochs.append(len(state["log"]))
        load_state(self, state)

    monkeypatch.setattr(trainer._Fit, "load_state", counting)
    return epochs


@pytest.fixture
def logs(monkeypatch):
    """The log of every fit that came to its end: also of those whose later epochs leave nothing else behind."""
    found, finish = [], trainer._Fit.finish

    def recording(self):
        found.append(untimed(self.log))
        finish(self)

    monkeypatch.setattr(trainer._Fit, "finish", recording)
    return found


def killer(n_batches: int):
    """A progress callback that does not survive ``n_batches`` batches."""
    left = [n_batches]

    def progress(n_images: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    return progress


def run_killed(job, store: Store, batches: int, name: str) -> int:
    """Run a job that is killed again and again until it is done; returns how often.

    Each process trains one epoch, of ``batches``, and dies at random in the next one: every epoch is gone on from.
    """
    generator = seeding.numpy_generator("kills", name)
    for n_kills in range(200):
        torch.manual_seed(n_kills)  # another process stands elsewhere
        try:
            job.run(store, killer(batches + 1 + int(generator.integers(1, batches))))
        except Killed:
            continue
        return n_kills
    raise AssertionError("never done")


def untimed(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_chain_ends_with_the_same_bits(directory, tmp_path, resumed, logs, method):
    genotype = DARTS_V1.to_json() if method == "par" else None
    length = 3 if method == "cat" else 2  # its attention is over two earlier tasks
    chain = tuple(ChainTask(index, genotype) for index in range(length))
    settings = resolve(CONFIG, "tiny", method)
    job = ChainJob(settings, directory, 0, chain, (N_TRAIN,) * length, "full", torch.device("cpu"), ALWAYS)
    straight, killed = Store(tmp_path / "straight"), Store(tmp_path / "killed")
    job.run(straight, lambda n_images: None)
    expected = assemble([job], straight)
    assert not resumed
    n_fits = len(logs)
    n_kills = run_killed(job, killed, 5, method)
    found = assemble([job], killed)
    assert n_kills >= 4 and resumed.count(1) >= 2 and resumed.count(2) >= 2
    assert logs[n_fits:] == logs[:n_fits], "all fits, and none of them twice"
    assert untimed(found.log) == untimed(expected.log) and untimed(found.steps) == untimed(expected.steps)
    for name, predicted in expected.predictions.items():
        assert np.array_equal(found.predictions[name], predicted)
    ((one,), (other,)) = expected.models, found.models
    assert one["tasks"] == other["tasks"] and one["state"]["tasks"] == other["state"]["tasks"]
    for part in ("tensors", "bases"):
        tensors, others = one["state"].get(part, {}), other["state"].get(part, {})
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    assert not list(killed.folder.glob("running/*")) and not list(straight.folder.glob("running/*"))


@pytest.mark.parametrize("update", ["mdl", "advantage"])
def test_a_killed_search_ends_with_the_same_cell_and_course(directory, tmp_path, resumed, update):
    config = dataclasses.replace(CONFIG, search=SearchSettings(update=update, epochs=8))
    job = SearchJob(resolve(config, "tiny", "par"), directory, 0, 1, N_TRAIN, torch.device("cpu"), ALWAYS)
    straight, killed = Store(tmp_path / "straight"), Store(tmp_path / "killed")
    job.run(straight, lambda n_images: None)
    n_kills = run_killed(job, killed, 3, update)
    expected, found = straight.get(job.key), killed.get(job.key)
    assert n_kills == 7 and resumed == [1, 2, 3, 4, 5, 6, 7]
    assert found["genotype"] == expected["genotype"]
    assert untimed(found["history"]) == untimed(expected["history"]) != []
    assert not list(killed.folder.glob("running/*"))


@pytest.mark.parametrize("method", ["finetune", "soft_gating"])
def test_progress_shows_what_was_learned_before_the_kill(directory, tmp_path, method):
    settings = resolve(CONFIG, "tiny", method)
    job = ChainJob(settings, directory, 0, (ChainTask(0),), (N_TRAIN,), "full", torch.device("cpu"), ALWAYS)
    store, seen = Store(tmp_path), []
    with pytest.raises(Killed):
        job.run(store, killer(12))  # in the third of three epochs of five batches
    job.run(store, seen.append)
    assert seen[0] == 2 * N_TRAIN and sum(seen) == job.cost()


def test_a_search_shows_what_it_did_before_the_kill(directory, tmp_path):
    config = dataclasses.replace(CONFIG, search=SearchSettings(epochs=3))
    job = SearchJob(resolve(config, "tiny", "par"), directory, 0, 0, N_TRAIN, torch.device("cpu"), ALWAYS)
    store, seen = Store(tmp_path), []
    with pytest.raises(Killed):
        job.run(store, killer(5))  # an epoch has three batches
    job.run(store, seen.append)
    assert seen[0] == N_TRAIN // 2 and sum(seen) == job.cost()


def test_the_interval_is_no_part_of_the_key(directory):
    job = ChainJob(
        resolve(CONFIG, "tiny", "finetune"), directory, 0, (ChainTask(0),), (N_TRAIN,), "full", torch.device("cpu")
    )
    search = SearchJob(resolve(CONFIG, "tiny", "par"), directory, 0, 0, N_TRAIN, torch.device("cpu"))
    for one in (job, search):
        assert one.checkpoint_minutes == CONFIG.checkpoint_minutes == 5.0
    assert dataclasses.replace(job, checkpoint_minutes=1.0).step_keys() == job.step_keys()
    assert dataclasses.replace(search, checkpoint_minutes=1.0).key == search.key


def test_within_the_interval_nothing_is_saved(directory, tmp_path):
    settings = resolve(CONFIG, "tiny", "finetune")
    job = ChainJob(settings, directory, 0, (ChainTask(0),), (N_TRAIN,), "full", torch.device("cpu"))
    with pytest.raises(Killed):
        job.run(Store(tmp_path), killer(12))
    assert not (tmp_path / "running").exists()


def running(store: Store, progress=lambda n_images: None, minutes: float = ALWAYS, key: str = KEY) -> RunningStep:
    return RunningStep(store, key, minutes, progress)


def test_one_file_holds_the_last_save_and_counts_images_and_seconds(tmp_path):
    store, seen = Store(tmp_path), []
    first = running(store)
    assert first.part("train").load() is None
    first.advance(7)
    first.save("search", {"weights": torch.zeros(2)})
    time.sleep(0.05)
    first.save("train", {"weights": torch.ones(2)})
    assert [path.name for path in store.running()] == [f"{KEY}.pt"]
    again = running(store, seen.append)
    assert seen == [7] and again.seconds() >= 0.05
    assert again.part("search").load() is None
    assert torch.equal(again.part("train").load()["weights"], torch.ones(2))
    assert again.part("train").load() is None, "what is loaded belongs to the fit, which changes it"
    forget(store, KEY)
    forget(store, KEY)
    assert not list(store.folder.glob("running/*"))


def test_it_is_due_when_the_interval_has_passed(tmp_path):
    step = running(Store(tmp_path), minutes=0.1 / 60)
    assert not step.is_due()
    time.sleep(0.11)
    assert step.is_due()
    step.save("train", {})
    assert not step.is_due()


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:40] + b"x", lambda _: b""])
def test_a_damaged_file_is_one_sentence_and_the_step_begins_anew(tmp_path, capsys, damage):
    store = Store(tmp_path)
    running(store).save("train", {"value": 1})
    path = store.running_path(KEY)
    path.write_bytes(damage(path.read_bytes()))
    assert main(["verify", "--folder", str(tmp_path)]) == 1
    capsys.readouterr()
    assert running(store).part("train").load() is None
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"Checkpoint {path} is damaged") and said.endswith("; the step is computed from its start.")


def test_the_file_of_another_step_is_one_sentence_and_not_used(tmp_path, capsys):
    store, other = Store(tmp_path), entry_key("other code")
    running(store, key=other).save("train", {"value": 1})
    store.running_path(other).rename(store.running_path(KEY))
    assert running(store).part("train").load() is None
    assert capsys.readouterr().err.count("is damaged or another entry's") == 1


def test_a_disk_that_takes_nothing_does_not_stop_the_training(tmp_path, capsys):
    store = Store(tmp_path)
    (tmp_path / "running").write_text("a file in the folder's place")
    step = running(Store(tmp_path / "other"))
    step._path = store.running_path(KEY)
    step.save("train", {"value": 1})
    assert "was not written" in capsys.readouterr().err


def test_leftovers_are_listed_and_pruned(tmp_path, capsys):
    store = Store(tmp_path)
    running(store).save("train", {"value": 1})
    assert main(["list", "--folder", str(tmp_path)]) == 0 and KEY in capsys.readouterr().out
    two_days_ago = time.time() - 2 * 86400
    os.utime(store.running_path(KEY), (two_days_ago, two_days_ago))
    main(["prune", "--folder", str(tmp_path), "--older-than-days", "1"])
    assert not list(store.folder.glob("running/*"))


class Memory:
    """A checkpoint that keeps every state, as a file would give it back."""

    def __init__(self, state=None):
        self.state, self.states = state, []

    def load(self):
        return self.state

    def is_due(self):
        return True

    def save(self, state):
        self.states.append(through_a_file(state))


def dropping() -> Plain:
    """A network that drops units by torch's global generator."""
    torch.manual_seed(0)
    return Plain(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(144, 2))
    )


def noise(n: int, seed: int, augment=()) -> Images:
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (n, 3, 8, 8)).astype(np.uint8)
    return Images(pixels, generator.integers(0, 2, n), (0.5,) * 3, (0.3,) * 3, augment)


BASE = Recipe(epochs=6, batch_size=8, learning_rate=0.05, momentum=0.9)
RECIPES = {
    "cosine": BASE,
    "constant": dataclasses.replace(BASE, schedule="constant"),
    "adam": dataclasses.replace(BASE, optimizer="adam", learning_rate=0.003, weight_decay=0.01),
    "plateau": dataclasses.replace(BASE, schedule="plateau", plateau_patience=1, min_learning_rate=1e-4),
    "patience": dataclasses.replace(BASE, epochs=30, patience=3),
    "floor": dataclasses.replace(
        BASE,
        epochs=30,
        schedule="plateau",
        plateau_patience=1,
        select_by="loss",
        min_learning_rate=1e-3,
        stop_at_floor=True,
    ),
}


@pytest.mark.parametrize("keep_best", [True, False])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_fit_goes_on_from_every_epoch_bit_for_bit(recipe, keep_best):
    def fit(checkpoint):
        model = dropping()
        torch.manual_seed(99)
        data = noise(30, 1, ("crop", "flip", "brightness")), noise(20, 2)
        log = trainer.fit(model, *data, RECIPES[recipe], "k", keep_best=keep_best, checkpoint=checkpoint)
        assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())
        return untimed(log), model.state_dict()

    log, weights = fit(memory := Memory())
    assert len(memory.states) == len(log) >= 4
    for state in memory.states:
        again, others = fit(Memory(state))
        assert again == log and all(torch.equal(weights[name], others[name]) for name in weights)
