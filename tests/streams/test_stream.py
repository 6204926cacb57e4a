"""Streams: what a definition and a seed make of the sources, and what lies in the built directory."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from par.files import read_json, sha256_file, write_json
from par.schema import ConfigError
from par.streams import SourceError, build_stream, definition, known_streams, load_stream
from par.streams.definition import plan_stream, read_definition
from par.streams.sources import Request, load_source
from par.streams.transforms import colour_background, resize

NOWHERE = Path("nowhere")
SPLITS = ("train", "valid", "test")


@pytest.fixture
def define(tmp_path, monkeypatch):
    """Adds a stream of one's own: ``define(name, text)``."""
    folder = tmp_path / "definitions"
    folder.mkdir()
    monkeypatch.setattr(definition, "DEFINITIONS", folder)

    def write(text: str, name: str = "mine") -> str:
        (folder / f"{name}.yaml").write_text(text)
        return name

    return write


def digests(directory: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(directory.iterdir())}


def embedded(name: str):
    return load_source(Request(name, name, NOWHERE))


def test_every_definition_is_valid_and_names_its_source_in_a_comment():
    assert {"demo_minus", "demo_long", "ctrl_minus", "ctrl_long", "mixed", "cifar100_coarse"} <= set(known_streams())
    for name in known_streams():
        read_definition(name)
        assert "sources.md#" in (definition.DEFINITIONS / f"{name}.yaml").read_text().splitlines()[0] or "small" in name


def test_counts_and_repeated_classes_of_demo_minus(tmp_path):
    stream = build_stream("demo_minus", 0, NOWHERE, tmp_path / "s")
    assert [task.source for task in stream.tasks] == ["mnist5k", "faces", "digits", "textures", "scenes", "mnist5k"]
    assert [task.index for task in stream.tasks] == list(range(6))
    first, last = stream.tasks[0], stream.tasks[-1]
    assert first.counts == {"train": 400, "valid": 200, "test": 200}
    assert last.counts == {"train": 100, "valid": 100, "test": 200}
    assert first.class_names == last.class_names and first.n_classes == 5
    for task in stream.tasks:
        assert task.image_size == (16, 16) and task.augment == ("crop",) and task.transform == ""
        for split in SPLITS:
            part = task.split(split)
            assert part.images.shape == (task.counts[split], 3, 16, 16) and part.images.dtype == np.uint8
            assert part.labels.dtype == np.int64 and set(part.labels) == set(range(task.n_classes))


def test_pixels_and_labels_are_those_of_the_source(tmp_path):
    stream = build_stream("demo_minus", 0, NOWHERE, tmp_path / "s")
    for task in stream.tasks:
        source = embedded(task.source)
        for split in SPLITS:
            part, origin = task.split(split), "test" if split == "test" else "train"
            rows = task.samples(split)
            expected = resize(source.images[origin][rows], 16).transpose(0, 3, 1, 2)
            np.testing.assert_array_equal(part.images, expected)
            names = [source.classes[label] for label in source.labels[origin][rows]]
            assert names == [task.class_names[label] for label in part.labels]


def test_training_and_validation_images_are_different_ones(tmp_path):
    for name in ("demo_minus", "demo_split"):
        for task in build_stream(name, 0, NOWHERE, tmp_path / name).tasks:
            train, valid = task.samples("train"), task.samples("valid")
            assert len(np.unique(train)) == len(train) and len(np.unique(valid)) == len(valid)
            assert not set(train) & set(valid)


def test_validation_pools_are_disjoint_over_all_tasks_of_a_source(tmp_path):
    stream = build_stream("demo_minus", 0, NOWHERE, tmp_path / "s")
    first, last = stream.tasks[0], stream.tasks[-1]
    assert not set(first.samples("train")) & set(last.samples("valid"))
    assert not set(last.samples("train")) & set(first.samples("valid"))
    assert set(last.samples("train")) != set(first.samples("train")[:100]), "tasks draw independently"


def test_same_seed_same_bytes_other_seed_other_stream(tmp_path):
    for place, seed in (("a", 0), ("b", 0), ("c", 1)):
        build_stream("demo_minus", seed, NOWHERE, tmp_path / place)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert len(digests(tmp_path / "a")) == 10
    a, c = digests(tmp_path / "a"), digests(tmp_path / "c")
    assert all(a[name] != c[name] for name in a if "labels" not in name)
    assert str(tmp_path) not in (tmp_path / "a" / "stream.json").read_text()


def test_a_loaded_stream_equals_the_built_one_and_reads_lazily(tmp_path):
    built = build_stream("demo_split", 0, NOWHERE, tmp_path / "s")
    loaded = load_stream(tmp_path / "s")
    assert loaded == built
    images = loaded.tasks[1].split("train").images
    assert isinstance(images, np.memmap) and not images.flags.writeable


def test_a_stream_of_another_version_of_the_code_is_refused(tmp_path):
    build_stream("demo_split", 0, NOWHERE, tmp_path / "s")
    content = read_json(tmp_path / "s/stream.json")
    del content["tasks"][0]["resample"]
    write_json(tmp_path / "s/stream.json", content)
    with pytest.raises(SourceError, match="s was built by another version of the code; build it again"):
        load_stream(tmp_path / "s")


def test_loading_needs_a_built_stream(tmp_path):
    with pytest.raises(SourceError, match="holds no stream.json"):
        load_stream(tmp_path)


def test_recoloured_task_of_s_in_differs_in_background_only(tmp_path):
    for seed in range(4):
        stream = build_stream("demo_in", seed, NOWHERE, tmp_path / str(seed))
        first, last = stream.tasks[0], stream.tasks[-1]
        assert first.class_names == last.class_names and all(not task.transform for task in stream.tasks[:-1])
        colour = last.transform.removesuffix(" background")
        grey = resize(embedded("mnist5k").images["train"][last.samples("train")], 16)
        expected = colour_background(grey, colour).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(last.split("train").images, expected)
        channel = ("red", "green", "blue").index(colour)
        assert last.std[channel] == 1.0 and min(last.std) < 0.5


def test_relabelled_task_of_s_out_has_rotated_classes(tmp_path):
    stream = build_stream("demo_out", 0, NOWHERE, tmp_path / "s")
    first, last = stream.tasks[0], stream.tasks[-1]
    assert last.class_names == (first.class_names[-1], *first.class_names[:-1])
    assert last.transform == "labels rotated by one"


def test_streams_that_draw_alike_share_the_tasks_that_they_define_alike(tmp_path):
    names = ("demo_minus", "demo_in", "demo_out")
    first, *others = ([task.digest for task in build_stream(name, 1, NOWHERE, tmp_path / name).tasks] for name in names)
    assert all(first[:5] == other[:5] for other in others) and len({first[5], *(other[5] for other in others)}) == 3


def test_statistics_are_those_of_the_training_images(tmp_path):
    for task in build_stream("demo_pl", 0, NOWHERE, tmp_path / "s").tasks:
        pixels = task.split("train").images / 255
        np.testing.assert_allclose(task.mean, pixels.mean(axis=(0, 2, 3)), rtol=1e-12)
        np.testing.assert_allclose(task.std, pixels.std(axis=(0, 2, 3)), rtol=1e-10)


@pytest.mark.parametrize(
    "choice, mean, std",
    [
        ("normalise: none", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        ("normalise: imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("normalise: fixed\nmean: [0.5, 0.4, 0.3]\nstd: [0.2, 0.2, 0.1]", (0.5, 0.4, 0.3), (0.2, 0.2, 0.1)),
    ],
)
def test_other_normalisations_change_the_digest_but_no_pixel(tmp_path, define, choice, mean, std):
    tasks = "tasks:\n  - {source: faces, train: 10, valid: 5}\n"
    by_task = build_stream(define(tasks), 0, NOWHERE, tmp_path / "a").tasks[0]
    other = build_stream(define(f"{choice}\n{tasks}"), 0, NOWHERE, tmp_path / "b").tasks[0]
    assert (other.mean, other.std) == (mean, std)
    assert other.digest != by_task.digest
    np.testing.assert_array_equal(other.split("train").images, by_task.split("train").images)


def test_the_digest_ignores_names_and_sees_augmentation(tmp_path, define):
    text = "tasks:\n  - {source: faces, train: 10, valid: 5}\n"
    plain = build_stream(define(text), 0, NOWHERE, tmp_path / "a").tasks[0]
    renamed = build_stream(define(text.replace("{", "{name: people, ")), 0, NOWHERE, tmp_path / "b").tasks[0]
    flipped = build_stream(define(f"augment: [flip]\n{text}"), 0, NOWHERE, tmp_path / "c").tasks[0]
    assert renamed.name == "people" and renamed.digest == plain.digest
    assert flipped.digest != plain.digest


def test_demo_long_is_twenty_random_tasks(tmp_path):
    stream = build_stream("demo_long", 0, NOWHERE, tmp_path / "s")
    sizes = [task.counts["train"] for task in stream.tasks]
    assert len(sizes) == 20 and set(sizes) == {15, 120} and set(sizes[14:]) == {15}
    assert {task.source for task in stream.tasks} == {"mnist5k", "digits", "scenes", "textures"}
    assert all(task.n_classes == 3 for task in stream.tasks)
    assert sum(task.counts["train"] for task in stream.tasks) == len(np.load(tmp_path / "s" / "train_labels.npy"))


def test_class_splits_cover_every_class_once_in_the_seeds_order(tmp_path):
    orders = []
    for seed in range(2):
        stream = build_stream("demo_split", seed, NOWHERE, tmp_path / str(seed))
        names = [name for task in stream.tasks for name in task.class_names]
        assert sorted(names) == [str(digit) for digit in range(10)]
        orders.append(names)
    assert orders[0] != orders[1]


def test_the_seed_picks_one_of_the_given_orders(tmp_path, define):
    name = define(
        "class_splits:\n  - {source: digits, classes_per_task: 3, train: 5, valid: 5}\n"
        "orders:\n  - [digits 2, digits 0, digits 1]\n  - [digits 1, digits 2, digits 0]\n"
    )
    order = [[task.name for task in build_stream(name, seed, NOWHERE, tmp_path / str(seed)).tasks] for seed in range(3)]
    assert order[0] == ["digits 2", "digits 0", "digits 1"] == order[2]
    assert order[1] == ["digits 1", "digits 2", "digits 0"]


def test_a_share_of_all_images_can_be_for_validation(tmp_path, define):
    text = "sources: {digits: {valid_share: 0.1, valid_share_by: all, valid_share_of: SCOPE}}\n"
    text += "class_splits:\n  - {source: digits, classes_per_task: 5}\n"
    per_task = build_stream(define(text.replace("SCOPE", "task")), 0, NOWHERE, tmp_path / "a").tasks
    overall = build_stream(define(text.replace("SCOPE", "source")), 0, NOWHERE, tmp_path / "b").tasks
    for task in per_task:
        assert task.counts["valid"] == (task.counts["train"] + task.counts["valid"]) // 10
    assert sum(task.counts["valid"] for task in overall) == 134  # of 1347
    assert sum(task.counts["train"] + task.counts["valid"] for task in overall) == 1347
    of_class = np.bincount(overall[0].split("valid").labels)
    assert len(set(of_class)) > 1, "the share is not stratified"


def test_copies_of_the_validation_set(tmp_path, define):
    text = "valid_copies: COPIES\ntasks:\n  - {source: faces, train: 10, valid: 8}\n"
    plain, four, first = (
        build_stream(define(text.replace("COPIES", copies)), 0, NOWHERE, tmp_path / copies).tasks[0]
        for copies in ("originals", "four_crops", "first_crops")
    )
    assert [task.counts["valid"] for task in (plain, four, first)] == [16, 80, 16]
    np.testing.assert_array_equal(four.split("valid").images[64:], plain.split("valid").images)
    np.testing.assert_array_equal(four.samples("valid")[:64], np.repeat(plain.samples("valid"), 4))
    np.testing.assert_array_equal(first.split("valid").labels, np.repeat([0, 1], 8))
    assert len(np.unique(first.samples("valid"))) == 4, "two images a class, four crops each"
    np.testing.assert_array_equal(four.split("test").images, plain.split("test").images)


def test_duplicates_of_the_data_set_are_counted(tmp_path):
    warnings = [build_stream("demo_mixed", seed, NOWHERE, tmp_path / str(seed)).warnings for seed in range(3)]
    assert any("test images equal a training or validation image" in line for lines in warnings for line in lines)
    for seed in range(3):
        found = json.loads((tmp_path / str(seed) / "stream.json").read_text())["findings"]
        assert [f"{one['where']}: {one['what']}." for one in found] == list(warnings[seed])
        duplicates = [one for one in found if one["kind"] == "duplicates"]
        assert [int(one["what"].split()[0]) for one in duplicates] == [one["count"] for one in duplicates]


def test_tasks_are_written_one_after_the_other_under_the_callers_progress_bar(tmp_path):
    seen = []

    def progress(tasks):
        for task in tasks:
            seen.append(task.name)
            yield task

    build_stream("demo_pl", 0, NOWHERE, tmp_path / "s", progress)
    assert seen == ["faces", "digits", "textures", "scenes", "mnist5k"]


# --- what cannot be built ---


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "tasks:\n  - {source: digits, classes: ['1', eleven], train: 5, valid: 5}",
            r"tasks\[0\]: class 'eleven' is not in digits; its classes are 0, 1, 2",
        ),
        ("tasks:\n  - {source: digits, n_classes: 11, train: 5, valid: 5}", "n_classes = 11 but digits has 10 classes"),
        ("tasks:\n  - {source: digits, train: 5}", "say how many there are with sources.digits.valid_pool"),
        ("tasks:\n  - {source: digits, train: five, valid: 5}", r"tasks\[0\].train = 'five' has the wrong type"),
        ("tasks:\n  - {source: faces, train: 5, valid: 5}\nsources: {digits: {}}", "sources.digits is used by no task"),
        ("tasks:\n  - {source: faces, train: 5, valid: 5}\nsources: {faces: {resize: true}}", "needs .* image_size"),
        ("augment: [flip]", "has no tasks"),
        ("normalise: fixed\ntasks:\n  - {source: faces, train: 5, valid: 5}", "'fixed' needs mean and std"),
        ("class_splits:\n  - {source: faces, train: 5, valid: 5}", "give either groups or classes_per_task"),
        ("class_splits:\n  - {source: digits, classes_per_task: 5, n_tasks: 3, train: 5, valid: 5}", "make 2 tasks"),
        (
            "orders: [[faces]]\ntasks:\n  - {source: faces, name: people, train: 5, valid: 5}",
            "must list every task once",
        ),
    ],
)
def test_definitions_that_cannot_be_used(tmp_path, define, text, message):
    with pytest.raises(ConfigError, match=message):
        build_stream(define(text), 0, NOWHERE, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_too_few_images_name_class_and_numbers(tmp_path, define):
    name = define("tasks:\n  - {source: faces, train: 70, valid: 10}\n")
    with pytest.raises(SourceError, match="class '(face|other)' of faces has 65 train images, the task needs 70"):
        build_stream(name, 0, NOWHERE, tmp_path / "s")


def test_sources_of_unlike_sizes_need_an_image_size(tmp_path, define):
    tasks = "tasks:\n  - {source: faces, train: 5, valid: 5}\n  - {source: digits, train: 5, valid: 5}\n"
    with pytest.raises(SourceError, match=r"unlike sizes \(faces 25x25, digits 8x8\); set image_size"):
        build_stream(define(tasks), 0, NOWHERE, tmp_path / "s")
    stream = build_stream(define(f"image_size: 20\n{tasks}"), 0, NOWHERE, tmp_path / "s")
    assert [task.image_size for task in stream.tasks] == [(20, 20), (20, 20)]


def test_unknown_streams_are_named():
    with pytest.raises(ConfigError, match="'demo_minis' is unknown; known are .*demo_minus"):
        read_definition("demo_minis")


def test_a_failed_build_leaves_the_old_stream_and_no_debris(tmp_path):
    build_stream("demo_pl", 0, NOWHERE, tmp_path / "s")
    before = digests(tmp_path / "s")

    def fail(tasks):
        yield tasks[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_stream("demo_pl", 1, NOWHERE, tmp_path / "s", fail)
    assert digests(tmp_path / "s") == before
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_stream_of_ones_own_images(tmp_path, define):
    from PIL import Image

    generator = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 2)):
        for label in ("cup", "spoon"):
            folder = tmp_path / "data" / "kitchen" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (30 + number, 50), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    name = define(
        "image_size: 28\nsources: {kitchen: {resize: true}}\n"
        "tasks:\n  - {source: kitchen, train: 4, valid: 2}\n  - {source: faces, train: 4, valid: 2}\n"
    )
    stream = build_stream(name, 0, tmp_path / "data", tmp_path / "s")
    assert stream.tasks[0].counts == {"train": 8, "valid": 4, "test": 4}
    assert sorted(stream.tasks[0].class_names) == ["cup", "spoon"]
    assert stream.tasks[0].split("train").images.shape == (8, 3, 28, 28)


def test_plans_name_their_random_streams(define):
    """A task added at the end moves no draw of the tasks before it."""
    short = "sources: {digits: {valid_pool: 9}}\ntasks:\n  - {source: digits, train: 5, valid: 5}\n"
    longer = short + "  - {source: faces, train: 5, valid: 5}\n"
    plans = [plan_stream("mine", 0, read_definition(define(text))[0], NOWHERE) for text in (short, longer)]
    first, second = (plan.tasks[0] for plan in plans)
    assert first.labels == second.labels
    for split in SPLITS:
        np.testing.assert_array_equal(np.concatenate(first.rows[split]), np.concatenate(second.rows[split]))


def test_task_digests_cover_the_test_images(tmp_path):
    task = build_stream("demo_pl", 0, NOWHERE, tmp_path / "s").tasks[0]
    header = {"mean": list(task.mean), "std": list(task.std), "augment": ["crop"], "n_classes": 2}
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, separators=(",", ":")).encode())
    for split in SPLITS:
        part = task.split(split)
        digest.update(json.dumps([split, *part.images.shape], separators=(",", ":")).encode())
        digest.update(part.images.tobytes() + part.labels.tobytes())
    assert digest.hexdigest() == task.digest
