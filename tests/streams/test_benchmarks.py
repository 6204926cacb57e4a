"""The paper's benchmarks (sources.md#ctrl, sources.md#cifar): sizes and relations, on stand-ins and on real images."""

from __future__ import annotations

import re

import numpy as np
import pytest

from par.streams import build_stream, definition
from par.streams.definition import plan_stream, read_definition
from par.streams.reading import Source
from par.streams.transforms import colour_background, resize

SPLITS = ("train", "valid", "test")
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
SVHN_TRAIN = (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659)
SVHN_TEST = (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595)
SIZES = {  # training and test images of each class as published
    "cifar10": ((5000,) * 10, (1000,) * 10),
    "cifar100": ((500,) * 100, (100,) * 100),
    "mnist": ((5421,) * 10, MNIST_TEST),
    "fashionmnist": ((6000,) * 10, (1000,) * 10),
    "svhn": (SVHN_TRAIN, SVHN_TEST),
    "dtd": ((80,) * 47, (40,) * 47),
    "miniimagenet": ((540,) * 100, (60,) * 100),
    "fceleba": ((48,) * 20, (6, 5) * 10),
}


def stand_in(request) -> Source:
    """A data set of the published size whose images have no pixels: plans do not look at them."""
    sizes = dict(zip(("train", "test"), SIZES[request.dataset]))
    labels = {split: np.repeat(np.arange(len(of_class)), of_class) for split, of_class in sizes.items()}
    images = {split: np.empty((len(rows), 1, 1, 3), np.uint8) for split, rows in labels.items()}
    names = coarse_classes() if request.dataset == "cifar100" else range(len(sizes["train"]))
    return Source(request.dataset, tuple(map(str, names)), images, labels, "")


def coarse_classes() -> list[str]:
    groups = read_definition("cifar100_coarse")[0].class_splits[0].groups
    return sorted(name for names in groups.values() for name in names)


@pytest.fixture
def plan(monkeypatch, tmp_path):
    """``plan(name, seed)`` with stand-ins for the data sets."""
    monkeypatch.setattr(definition, "load_source", stand_in)
    return lambda name, seed=0: plan_stream(name, seed, read_definition(name)[0], tmp_path)


def counts(task) -> tuple[int, ...]:
    return tuple(sum(map(len, task.rows[split])) for split in SPLITS)


CIFAR_LARGE, CIFAR_SMALL = ("cifar10", 4000, 2000, 10_000), ("cifar10", 400, 200, 10_000)
MNIST_SMALL, FASHION, SVHN = ("mnist", 400, 200, 9786), ("fashionmnist", 400, 200, 10_000), ("svhn", 400, 200, 10_000)
DTD = ("dtd", 400, 200, 400)
UNRELATED = [MNIST_SMALL, DTD, FASHION, SVHN]
CTRL = {
    "ctrl_minus": [CIFAR_LARGE, *UNRELATED, CIFAR_SMALL],
    "ctrl_plus": [CIFAR_SMALL, *UNRELATED, CIFAR_LARGE],
    "ctrl_out": [CIFAR_LARGE, *UNRELATED, CIFAR_SMALL],
    "ctrl_pl": [*UNRELATED, CIFAR_LARGE],
    "ctrl_in": [("mnist", 4000, 2000, 9786), CIFAR_SMALL, DTD, FASHION, SVHN, ("mnist", 50, 30, 9786)],
}


@pytest.mark.parametrize("name", CTRL)
def test_sizes_and_sources_of_the_ctrl_streams(plan, name):
    tasks = plan(name).tasks
    assert [(task.source, *counts(task)) for task in tasks] == CTRL[name]
    assert all(len(task.labels) == 10 for task in tasks)


def test_relations_of_the_ctrl_streams(plan):
    for name in ("ctrl_minus", "ctrl_plus", "ctrl_in"):
        tasks = plan(name).tasks
        assert tasks[0].labels == tasks[-1].labels, name
    tasks = plan("ctrl_out").tasks
    assert tasks[-1].labels == (tasks[0].labels[-1], *tasks[0].labels[:-1])
    assert plan("ctrl_minus").tasks[0].labels != plan("ctrl_minus", 1).tasks[0].labels
    assert len({plan("ctrl_in", seed).tasks[0].background for seed in range(12)}) == 3
    assert all((t := plan("ctrl_in", seed).tasks)[0].background != t[-1].background for seed in range(12))


def test_ctrl_long_has_the_published_statistics(plan):
    n_large = []
    plans = [plan("ctrl_long", seed).tasks for seed in range(16)]
    for tasks in plans:
        assert len(tasks) == 100 and all(len(set(task.labels)) == 5 for task in tasks)
        n_large.append(sum(counts(task)[0] > 25 for task in tasks))
        assert all(counts(task)[:2] == (25, 15) for task in tasks[66:])
        for task in tasks:
            large = (2250, 250) if task.source == "cifar100" else (5000, 2500)
            assert counts(task)[:2] in (large, (25, 15))
            n_test = sum(min(1000, SIZES[task.source][1][label]) for label in task.labels)
            assert counts(task)[2] == n_test
    assert abs(np.mean(n_large) - 24.75) < 3 * 3.8 / 16**0.5
    assert 2 < np.std(n_large) < 6
    sources = [task.source for tasks in plans for task in tasks]
    shares = [sources.count(name) / len(sources) for name in ("mnist", "svhn", "cifar10", "fashionmnist", "cifar100")]
    assert sum(shares) == pytest.approx(1) and max(abs(share - 0.2) for share in shares) < 0.04


def test_the_superclasses_are_twenty_times_five_and_all_hundred_once(plan):
    groups = read_definition("cifar100_coarse")[0].class_splits[0].groups
    assert len(groups) == 20 and {len(names) for names in groups.values()} == {5}
    assert len({name for names in groups.values() for name in names}) == 100
    tasks = plan("cifar100_coarse").tasks
    assert [task.name for task in tasks] == list(groups)
    assert list(groups)[:4] == ["vehicles 1", "vehicles 2", "aquatic mammals", "fish"]
    assert {counts(task) for task in tasks} == {(2250, 250, 500)}


@pytest.mark.parametrize(
    "name, n_tasks, n_classes, sizes",
    [
        ("cifar100_10", 10, 10, (4500, 500, 1000)),
        ("cifar100_20", 20, 5, (2250, 250, 500)),
        ("miniimagenet_20", 20, 5, (2400, 300, 300)),
    ],
)
def test_sizes_of_the_class_splits(plan, name, n_tasks, n_classes, sizes):
    tasks = plan(name).tasks
    assert len(tasks) == n_tasks and {counts(task) for task in tasks} == {sizes}
    labels = [label for task in tasks for label in task.labels]
    assert sorted(labels) == list(range(100)) and labels != sorted(labels)
    assert {len(task.labels) for task in tasks} == {n_classes}


def test_miniimagenet_takes_the_first_480_and_the_next_60(plan):
    for task in plan("miniimagenet_20").tasks:
        for label, train, valid in zip(task.labels, task.rows["train"], task.rows["valid"]):
            np.testing.assert_array_equal(train, 540 * label + np.arange(480))
            np.testing.assert_array_equal(valid, 540 * label + np.arange(480, 540))


def test_cifar10_5_has_consecutive_pairs_and_an_unstratified_tenth(plan):
    tasks = plan("cifar10_5").tasks
    assert sorted(task.labels for task in tasks) == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert len({tuple(t.labels for t in plan("cifar10_5", seed).tasks) for seed in range(5)}) > 1
    assert sum(counts(task)[1] for task in tasks) == 5000
    for task in tasks:
        train, valid, test = counts(task)
        assert train + valid == 10_000 and 850 < valid < 1150 and test == 2000
    assert len({counts(task)[1] for task in tasks}) > 1


def test_mixed_follows_the_published_order(plan):
    tasks = plan("mixed").tasks
    order = " ".join(task.name.replace("fceleba ", "F").replace("cifar100 ", "C") for task in tasks)
    assert order == "C7 F1 F4 C2 C4 C8 C0 C9 F6 F5 F7 C6 C3 C5 F0 F2 F8 F3 C1 F9"
    for task in tasks:
        number = int(re.search(r"\d+$", task.name)[0])
        if task.source == "cifar100":
            assert task.labels == tuple(range(10 * number, 10 * number + 10)) and counts(task) == (4500, 500, 1000)
        else:
            assert task.labels == (2 * number, 2 * number + 1) and counts(task) == (87, 9, 11)
    assert [task.name for task in plan("mixed", 1).tasks[:2]] == ["fceleba 3", "fceleba 1"]


# --- real images ---


def no_leak(stream) -> int:
    """Checks that a stream's splits share no image of the source; returns how many pixel duplicates there are."""
    for task in stream.tasks:
        assert not set(task.samples("train")) & set(task.samples("valid"))
        for split in SPLITS:
            assert len(np.unique(task.samples(split))) == task.counts[split]
    return sum(finding.count for finding in stream.findings if finding.kind == "duplicates")


@pytest.mark.slow
def test_real_cifar100_streams(real_data, tmp_path):
    streams = [build_stream("cifar100_10", seed, real_data, tmp_path / str(seed)) for seed in range(2)]
    for stream in streams:
        assert [task.counts for task in stream.tasks] == [{"train": 4500, "valid": 500, "test": 1000}] * 10
        assert no_leak(stream) < 40, "CIFAR-100 has a few duplicates"
    assert streams[0].digest != streams[1].digest
    for name in ("cifar100_20", "cifar100_coarse"):
        stream = build_stream(name, 0, real_data, tmp_path / name)
        assert [task.counts for task in stream.tasks] == [{"train": 2250, "valid": 250, "test": 500}] * 20
        no_leak(stream)
    for split, count in stream.tasks[3].counts.items():
        images = stream.tasks[3].split(split).images
        assert isinstance(images, np.memmap) and images.shape == (count, 3, 32, 32), "a task reads no other's images"


def check_ctrl_with_gtsrb(stream, expected) -> None:
    names = {"svhn": "gtsrb-ten", "dtd": "dtd-ten"}
    sizes = [(names.get(source, source), *sizes) for source, *sizes in expected]
    sizes = [(s, a, b, 1000 if s == "gtsrb-ten" else c) for s, a, b, c in sizes]
    assert [(task.source, *(task.counts[split] for split in SPLITS)) for task in stream.tasks] == sizes
    assert all(task.image_size == (32, 32) for task in stream.tasks)
    no_leak(stream)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ctrl_minus", "ctrl_plus", "ctrl_out", "ctrl_pl"])
def test_real_ctrl_streams_with_gtsrb(real_data, tmp_path, name):
    check_ctrl_with_gtsrb(build_stream(f"{name}_gtsrb", 0, real_data, tmp_path), CTRL[name])


@pytest.mark.slow
def test_in_the_real_s_in_only_the_background_is_new(real_data, tmp_path):
    stream = build_stream("ctrl_in_gtsrb", 0, real_data, tmp_path)
    check_ctrl_with_gtsrb(stream, CTRL["ctrl_in"])
    first, last = (stream.tasks[i] for i in (0, -1))
    assert first.class_names == last.class_names
    shared, where_first, where_last = np.intersect1d(first.samples("test"), last.samples("test"), return_indices=True)
    assert len(shared) > 8000
    grey = [None, None]
    for position, (task, where) in enumerate(((first, where_first), (last, where_last))):
        colour = ("red", "green", "blue").index(task.transform.removesuffix(" background"))
        images = task.split("test").images[where]
        assert len(np.unique(images[:, colour])) == 1
        grey[position] = images[:, (colour + 1) % 3]
    np.testing.assert_array_equal(*grey)


@pytest.mark.slow
def test_other_real_streams(real_data, tmp_path):
    stream = build_stream("cifar10_5", 0, real_data, tmp_path / "a")
    assert sum(task.counts["valid"] for task in stream.tasks) == 5000
    assert {task.counts["train"] + task.counts["valid"] for task in stream.tasks} == {10_000}
    stream = build_stream("miniimagenet_20_small", 0, real_data, tmp_path / "b")
    assert [task.counts for task in stream.tasks] == [{"train": 160, "valid": 20, "test": 30}] * 20
    assert stream.tasks[0].image_size == (84, 84)
    no_leak(stream)


@pytest.mark.slow
def test_colour_of_real_mnist_follows_the_formula(real_data, tmp_path):
    from par.streams.sources import Request, load_source

    task = build_stream("ctrl_in_gtsrb", 1, real_data, tmp_path / "s").tasks[0]
    source = load_source(Request("mnist", "mnist", real_data))
    grey = resize(source.images["train"][task.samples("valid")[:50]], 32)
    colour = task.transform.removesuffix(" background")
    expected = colour_background(grey, colour).transpose(0, 3, 1, 2)
    plain = [channel for channel in range(3) if ("red", "green", "blue")[channel] != colour]
    np.testing.assert_array_equal(task.split("valid").images[:50][:, plain], expected[:, plain])
