"""Tasks that cannot be learned are refused with all that they lack, what is left aside or odd is reported, and names
mean what their users think they mean."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from par.config import Config
from par.schema import ConfigError
from par.streams import SourceError, build_stream, definition
from par.streams.definition import plan_stream, read_definition
from par.streams.findings import Finding, counts_by_kind, table, task_findings
from par.streams.reading import LeftAside, Source
from par.streams.show import main as show
from pipeline import stream as stage
from pipeline.journal import read_closed
from pipeline.tracking import stage as tracked
from tests.pipeline.helpers import make_checkout

SPLITS = ("train", "valid", "test")


def source(name: str, classes: Sequence[str], **counts: Sequence[int]) -> Source:
    """A data set of noise, 8x8, with so many images of each class in each split."""
    generator = np.random.default_rng(len(classes))
    labels = {split: np.repeat(np.arange(len(of_class)), of_class) for split, of_class in counts.items()}
    images = {split: generator.integers(0, 256, (len(rows), 8, 8, 3), np.uint8) for split, rows in labels.items()}
    return Source(name, tuple(classes), images, labels, "")


ABC = source("letters", "abc", train=(9, 3, 30), test=(4, 2, 1))


@pytest.fixture
def own(tmp_path, monkeypatch) -> Callable[..., str]:
    """``own(text, letters=source, ...)``: a definition by that text, whose sources are those given."""
    monkeypatch.setattr(definition, "DEFINITIONS", tmp_path)

    def write(text: str, **sources: Source) -> str:
        if sources:
            monkeypatch.setattr(definition, "load_source", lambda request: sources[request.dataset])
        (tmp_path / "mine.yaml").write_text(text)
        return "mine"

    return write


def plan(name: str, seed: int = 0, data_dir: Path = Path("nowhere")) -> definition.Plan:
    return plan_stream(name, seed, read_definition(name)[0], data_dir)


def per_class(task: definition.PlannedTask, split: str) -> list[int]:
    return [len(rows) for rows in task.rows[split]]


# --- classes that lose everything ---


def test_a_share_is_drawn_from_every_class(own):
    text = "sources: {letters: {valid_share: SHARE}}\nclass_splits:\n  - {source: letters, classes_per_task: 3}\n"
    for share, expected in (("0.1", {9: 1, 3: 1, 30: 3}), ("0.5", {9: 4, 3: 2, 30: 15})):
        for scope in ("", ", valid_share_of: source"):
            task = plan(own(text.replace("SHARE", share + scope), letters=ABC)).tasks[0]
            sizes = dict(zip((ABC.classes[label] for label in task.labels), per_class(task, "valid")))
            assert sizes == {name: expected[n] for name, n in zip("abc", (9, 3, 30))}
            for train, valid in zip(task.rows["train"], task.rows["valid"]):
                assert not set(train) & set(valid) and len({*train, *valid}) in (9, 3, 30)


def test_a_share_of_all_images_together_must_be_asked_for(own):
    text = "sources: {letters: {valid_share: 0.2, valid_share_by: all}}\n"
    text += "class_splits:\n  - {source: letters, classes_per_task: 3}\n"
    big = source("letters", "abc", train=(50, 50, 50), test=(1, 1, 1))
    sizes = {tuple(per_class(plan(own(text, letters=big), seed).tasks[0], "valid")) for seed in range(5)}
    assert all(sum(one) == 30 for one in sizes) and len(sizes) > 1


def test_all_that_tasks_lack_is_said_at_once(own):
    text = "tasks:\n  - {source: letters, classes: [a, b], train: 5, valid: 2, test: 9}\n"
    text += "  - {source: letters, name: again, train: 2, valid: 2}\n"
    with pytest.raises(SourceError) as caught:
        plan(own(text, letters=ABC))
    message = str(caught.value)
    assert "\n" not in message and message.count("the task needs") == 2
    assert "task 0 (letters): class 'b' of letters has 1 train images, the task needs 5" in message
    assert "task 1 (again): class 'b' of letters has 1 train images, the task needs 2" in message


def test_a_class_without_images_in_a_split_is_refused(own):
    poor = source("letters", "abcdefgh", train=(4,) * 8, test=(1,) + (0,) * 7)
    text = "sources: {letters: {valid_pool: 4}}\ntasks:\n  - {source: letters, valid: 1}\n"
    with pytest.raises(SourceError) as caught:
        plan(own(text, letters=poor))
    message = str(caught.value)
    assert "has 0 train images, the task needs 1" in message and message.count("has 0") == 5
    assert "; and 10 more; lower the tasks' counts" in message  # 8 classes without training, 7 without test images


@pytest.mark.parametrize("n_classes", [1, 257])
def test_a_task_has_two_to_256_classes(own, n_classes):
    many = source("many", [str(label) for label in range(n_classes)], train=(2,) * n_classes, test=(1,) * n_classes)
    with pytest.raises(ConfigError, match=rf"2 to 256 classes, but task 0 \(many\) has {n_classes}\."):
        plan(own("tasks:\n  - {source: many, train: 1, valid: 1}\n", many=many))


def test_classes_in_no_task_are_named(own):
    five = source("letters", "abcde", train=(4,) * 5, test=(1,) * 5)
    text = "sources: {letters: {class_order: natural}}\nclass_splits:\n"
    text += "  - {source: letters, classes_per_task: 2, train: 2, valid: 2}\n"
    found = plan(own(text, letters=five)).findings
    assert [(one.kind, one.where, one.count) for one in found] == [("classes in no task", "source letters", 1)]
    assert "1 of 5 classes are in no task: e" in found[0].what
    rest = "  - {source: letters, groups: {rest: [d, e]}, train: 2, valid: 2}\n"
    assert plan(own(text + rest, letters=five)).findings == ()


def test_a_source_with_fewer_classes_than_asked_is_refused(own):
    tasks = "random_tasks:\n  sources: [letters]\n  classes_per_task: 4\n  phases: [{tasks: 2, large: 0.5}]\n"
    tasks += "  large: {train: 2, valid: 1}\n  small: {train: 1, valid: 1}\n"
    with pytest.raises(ConfigError, match="random_tasks.classes_per_task = 4 but letters has 3 classes"):
        plan(own(tasks, letters=ABC))
    text = "class_splits:\n  - {source: letters, classes_per_task: 4, train: 1, valid: 1}\n"
    with pytest.raises(ConfigError, match="classes_per_task = 4 but letters has 3 classes"):
        plan(own(text, letters=ABC))


def test_labels_beyond_the_classes_are_refused(own):
    strange = replace(ABC, labels={**ABC.labels, "test": np.array([0, 1, 2, 3, -1, 3, 0])})
    with pytest.raises(SourceError, match="letters: 3 of 7 test labels are not among its 3 classes"):
        plan(own("tasks:\n  - {source: letters, train: 1, valid: 1}\n", letters=strange))


def test_validation_images_of_the_source_are_taken_where_there_are_any(own, tmp_path):
    split = source("letters", "abc", train=(3, 3, 3), valid=(2, 2, 4), test=(1, 1, 1))
    name = own("image_size: 8\ntasks:\n  - {source: letters}\n", letters=split)
    task = plan(name).tasks[0]
    assert per_class(task, "train") == [3, 3, 3] and sorted(per_class(task, "valid")) == [2, 2, 4]
    built = build_stream(name, 0, tmp_path, tmp_path / "s").tasks[0]
    for part in SPLITS:
        pixels = split.images[part][built.samples(part)].transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(built.split(part).images, pixels)
    for setting in ("valid_pool: 1", "valid_share: 0.5"):
        text = f"sources: {{letters: {{{setting}}}}}\ntasks:\n  - {{source: letters}}\n"
        with pytest.raises(ConfigError, match=f"letters.{setting[:9]}.* brings its own validation images"):
            plan(own(text, letters=split))


def test_ways_to_set_validation_images_aside_do_not_mix(own):
    text = "sources: {letters: {valid_share_by: all}}\ntasks:\n  - {source: letters, train: 1, valid: 1}\n"
    with pytest.raises(ConfigError, match="letters.valid_share_by needs valid_share, which is not set"):
        plan(own(text, letters=ABC))
    text = "sources: {letters: {valid_pool: 1, valid_share: 0.1}}\ntasks:\n  - {source: letters}\n"
    with pytest.raises(ConfigError, match="sources.letters has both valid_pool and valid_share; give one"):
        plan(own(text, letters=ABC))


# --- names that mean something else ---


def write_folder(place: Path) -> None:
    for split, count in (("train", 4), ("test", 2)):
        for label, name in enumerate(("cup", "spoon")):
            (place / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.full((8, 8), 90 * label + 20 * number + (split == "test"), np.uint8)
                Image.fromarray(pixels).save(place / split / name / f"{number}.png")


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_own_images_under_the_name_of_an_embedded_set(own, tmp_path, kind):
    write_folder(tmp_path / "data" / "faces")
    if kind == "zip":
        import shutil

        shutil.make_archive(str(tmp_path / "data" / "faces"), "zip", tmp_path / "data" / "faces")
        shutil.rmtree(tmp_path / "data" / "faces")
    task = "tasks:\n  - {source: faces, train: 2, valid: 2}\n"
    with pytest.raises(ConfigError, match="faces.* has the name of an embedded data set, 'faces'; rename it"):
        plan(own(task), data_dir=tmp_path / "data")
    meant = plan(own(task + "sources: {faces: {file: faces}}\n"), data_dir=tmp_path / "data")
    assert sorted(meant.sources["faces"].classes) == ["cup", "spoon"]
    embedded = plan(own(task), data_dir=tmp_path / "elsewhere")
    assert sorted(embedded.sources["faces"].classes) == ["face", "other"]


NUMBERS = source("numbers", ["0", "1", "07", "10", "010", "yes", "true"], train=(4,) * 7, test=(1,) * 7)


@pytest.mark.parametrize(
    ("classes", "labels"),
    [("[0, 1]", (0, 1)), ("['0', 1, yes]", (0, 1, 5)), ("['010', '10', 'true']", (4, 3, 6))],
)
def test_whole_numbers_may_name_classes(own, classes, labels):
    text = f"tasks:\n  - {{source: numbers, classes: {classes}, train: 1, valid: 1}}\n"
    assert plan(own(text, numbers=NUMBERS)).tasks[0].labels == labels


@pytest.mark.parametrize("value", ["true", "null", "0.5", "2024-01-01", "7", "10", "2", "[0]", "{a: 1}"])
def test_what_yaml_makes_no_text_of_must_be_quoted(own, value):
    text = f"tasks:\n  - {{source: numbers, classes: [0, 1, {value}], train: 1, valid: 1}}\n"
    with pytest.raises(ConfigError, match=r"tasks\[0\]: .* put the class's name in quotes"):
        plan(own(text, numbers=NUMBERS))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks:\n  - {source: numbers, name: 2024-01-01, train: 1, valid: 1}", "name = 2024-01-01 is no text"),
        ("tasks:\n  - {source: numbers, name: 3, train: 1, valid: 1}", "name = 3 is no text to YAML; put it in quotes"),
        ("class_splits:\n  - {source: numbers, groups: {1: ['0', '1']}, train: 1, valid: 1}", "the name 1 is no text"),
        (
            "class_splits:\n  - {source: numbers, groups: {a: '01'}, train: 1, valid: 1}",
            "groups.a = '01' is not a list",
        ),
        ("class_splits:\n  - {source: numbers, groups: {a: }, train: 1, valid: 1}", "groups.a = None is not a list"),
        ("sources: {1: {}}\ntasks:\n  - {source: numbers, train: 1, valid: 1}", "sources: the name 1 is no text"),
    ],
)
def test_names_of_tasks_are_texts(own, text, message):
    with pytest.raises(ConfigError, match=message):
        plan(own(text, numbers=NUMBERS))


DOMAINS = """
sources: {photo: {ORDER}, sketch: {ORDER}}
tasks:
  - {source: photo, train: 1, valid: 1}
  - {source: sketch, train: 1, valid: 1}
"""


def test_sources_of_equal_classes_have_one_order(own):
    names = [f"class {letter}" for letter in "abcdefgh"]
    photo = source("photo", names, train=(2,) * 8, test=(1,) * 8)
    sketch = source("sketch", names[::-1], train=(2,) * 8, test=(1,) * 8)

    def orders(order: str, seed: int = 0) -> list[list[str]]:
        made = plan(own(DOMAINS.replace("ORDER", order), photo=photo, sketch=sketch), seed)
        said = [one for one in made.findings if one.kind == "class order"]
        assert bool(said) == (order == "") and all("sources photo, sketch" == one.where for one in said)
        return [[made.sources[task.source].classes[label] for label in task.labels] for task in made.tasks]

    assert orders("") == orders("", seed=1) == [names, names]
    assert orders("class_order: natural") == [names, names[::-1]]
    mixed = DOMAINS.replace("photo: {ORDER}", "photo: {}").replace("ORDER", "class_order: natural")
    made = plan(own(mixed, photo=photo, sketch=sketch))
    assert [[made.sources[task.source].classes[label] for label in task.labels] for task in made.tasks] == [
        names[::-1], names[::-1]
    ]  # fmt: skip
    alone = plan(own(mixed.replace("natural", "shuffled"), photo=photo, sketch=sketch))
    assert alone.findings == () and alone.tasks[0].labels != tuple(range(8)), "its partner is drawn, so it is too"
    shuffled = orders("class_order: shuffled")
    assert sorted(shuffled[0]) == names and shuffled[0] not in (names, shuffled[1])


def test_one_source_alone_keeps_its_shuffled_order(own):
    names = [str(label) for label in range(10)]
    text = "tasks:\n  - {source: a, train: 1, valid: 1}\n  - {source: b, train: 1, valid: 1}\n"
    a = source("a", names, train=(2,) * 10, test=(1,) * 10)
    b = source("b", names[:9], train=(2,) * 9, test=(1,) * 9)
    first = plan(own(text, a=a, b=b))
    assert first.tasks[0].labels != tuple(range(10)) and first.findings == ()


# --- what the data shows ---


def test_findings_of_a_task():
    generator = np.random.default_rng(0)
    images = {split: generator.integers(0, 256, (n, 3, 4, 4), np.uint8) for split, n in zip(SPLITS, (24, 4, 6))}
    labels = {
        "train": np.array([0] * 22 + [1] * 2),
        "valid": np.array([0, 0, 1, 1]),
        "test": np.array([0] * 4 + [1] * 2),
    }
    images["valid"][3] = images["train"][5]
    images["test"][0], images["test"][1] = images["train"][6], images["valid"][0]
    images["test"][4:] = np.array([9, 200, 30], np.uint8)[:, None, None]
    found = task_findings(3, "x\ny", ["a", "b$"], images, labels)
    assert {one.where for one in found} == {"task 3 (x y)"}
    assert [(one.kind, one.count) for one in found] == [
        ("duplicates", 1), ("duplicates", 2), ("constant images", 2), ("equal images", 2), ("unbalanced classes", 1)
    ]  # fmt: skip
    sentences = list(map(str, found))
    assert sentences[1] == (
        "task 3 (x y): 2 of 6 test images equal a training or validation image; "
        "they are duplicates inside the data set."
    )
    assert "all 2 test images of class 'b$' are equal" in sentences[3]
    assert "class 'a' has 22 training images, class 'b$' 2; 1 of 2 classes" in sentences[4]
    assert counts_by_kind(found)["duplicates"] == 3


def test_nothing_is_found_in_plain_data():
    generator = np.random.default_rng(0)
    images = {split: generator.integers(0, 256, (20, 3, 4, 4), np.uint8) for split in SPLITS}
    labels = {split: np.repeat([0, 1], 10) for split in SPLITS}
    assert task_findings(0, "x", ["a", "b"], images, labels) == []


LEFT = (LeftAside("a suffix that is no image's", 1234, "train/a/notes.txt"), LeftAside("hidden", 1, "train/.git/x"))


def odd_source() -> Source:
    """With files left aside, a note, a duplicate and a constant image."""
    made = source("odd", ["a", "b"], train=(6, 6), test=(2, 2))
    made.images["test"][0] = made.images["train"][1]
    made.images["test"][3] = 7
    return replace(made, left_aside=LEFT, notes=("val/ was taken for the validation split.",))


TASK = "image_size: 8\ntasks:\n  - {source: odd, train: 5, valid: 1}\n"


def test_findings_reach_the_file_the_command_and_mlflow(own, tmp_path, monkeypatch, capsys):
    name = own(TASK, odd=odd_source())
    built = build_stream(name, 0, tmp_path, tmp_path / "s")
    written = json.loads((tmp_path / "s" / "stream.json").read_text())["findings"]
    assert [Finding(**one) for one in written] == list(built.findings)
    counts = counts_by_kind(built.findings)
    assert counts.pop("duplicates", 1) == 1  # unless the copied image is not drawn
    assert counts == {"left aside": 1235, "note": 1, "constant images": 1}
    assert show([name, "--data-dir", str(tmp_path), "--out", str(tmp_path / "sheet.png")]) == 0
    assert table(built.findings) in capsys.readouterr().out and "1234" in table(built.findings)

    checkout = tmp_path / "checkout"
    checkout.mkdir()
    make_checkout(checkout, monkeypatch, database=False)
    config = Config(preset="test", streams=(name,), seeds=(0,), methods={})
    with tracked(config, "stream", item=name) as run:
        stage.main(config, name, run)
    (journal,) = (checkout / ".mlflow" / "journal").glob("*.jsonl")
    events = read_closed(journal)
    metrics = {key: value for event in events if event["kind"] == "metrics" for key, value, _ in event["values"]}
    assert metrics["found/left aside"] == 1235 and metrics["found/constant images"] == 1 and metrics["tasks"] == 1
    (kept,) = (event["file"] for event in events if event["kind"] == "artifact")
    assert (checkout / ".mlflow" / "files" / kept).read_text() == table(built.findings) + "\n"
    errors = capsys.readouterr().err
    assert "source odd: 1234 files not read: a suffix that is no image's, such as train/a/notes.txt.\n" in errors


# --- any definition: a right stream or one sentence ---


def _used(settings_of: Mapping[str, object], text: str) -> dict[str, object]:
    return {name: one for name, one in settings_of.items() if repr(name) in text}


# Mostly what can be used: one value in so many is odd.
names = st.sampled_from(["a", "b", "c", "0", "1", 0, 1])
odd = st.sampled_from([2, None, True, 0.5, date(2024, 1, 1), "z", ["a"]])
classes = st.integers(0, 19).flatmap(lambda number: names if number else odd)
counts = st.sampled_from([1, 1, 1, 2, 2, 3, 5, None])
sizes = {"train": counts, "valid": counts, "test": counts}
which = st.sampled_from(["small", "big", "big"])
tasks = st.fixed_dictionaries(
    {"source": which},
    optional={
        **sizes, "name": st.sampled_from(["x", "y\n$"]), "classes": st.lists(classes, min_size=1, max_size=3),
        "n_classes": st.integers(1, 6), "rotate_labels": st.booleans(),
    },
)  # fmt: skip
splits = st.one_of(
    st.fixed_dictionaries(
        {"source": which, "classes_per_task": st.sampled_from([1, 2, 2, 3, 3, 4, 9])},
        optional={**sizes, "n_tasks": counts},
    ),
    st.fixed_dictionaries(
        {"source": which, "groups": st.dictionaries(names.map(str), st.lists(classes, max_size=3), max_size=2)},
        optional=sizes,
    ),
)
size = st.fixed_dictionaries({"train": st.integers(1, 9), "valid": st.integers(1, 3)})
random_tasks = st.fixed_dictionaries(
    {
        "sources": st.lists(which, min_size=1, max_size=2),
        "classes_per_task": st.sampled_from([1, 2, 2, 3, 3, 4, 9]),
        "phases": st.lists(
            st.fixed_dictionaries({"tasks": st.integers(1, 3), "large": st.floats(0, 1)}), min_size=1, max_size=1
        ),
        "large": size,
        "small": size,
    }
)
source_settings = st.fixed_dictionaries(
    {},
    optional={
        "valid_pool": st.sampled_from([1, 2, None, None]),
        "valid_share": st.sampled_from([0.0, 0.1, 0.5, 0.5, None, None]),
        "valid_share_of": st.sampled_from(["task", "source"]),
        "valid_share_by": st.sampled_from(["class", "all"]),
        "valid_draw": st.sampled_from(["random", "last"]),
        "class_order": st.sampled_from(["natural", "shuffled", None]),
    },
)
one_kind = (
    st.fixed_dictionaries({kind: strategy})
    for kind, strategy in (
        ("tasks", st.lists(tasks, min_size=1, max_size=3)),
        ("class_splits", st.lists(splits, min_size=1, max_size=2)),
        ("random_tasks", random_tasks),
    )
)
definitions = st.tuples(
    st.one_of(*one_kind),
    st.fixed_dictionaries(
        {"sources": st.dictionaries(st.sampled_from(["small", "big"]), source_settings, max_size=2)},
        optional={
            "shuffle_tasks": st.booleans(),
            "orders": st.sampled_from([[], [], [["big 0", "big 1"]], [[3]], [[]]]),
        },
    ),
).map(lambda parts: parts[0] | parts[1] | {"sources": _used(parts[1]["sources"], str(parts[0]))})
SOURCES = {
    "small": source("small", ["a", "b", "0", "1"], train=(4, 4, 1, 5), test=(2, 2, 1, 0)),
    "big": source("big", ["a", "b", "c", "0", "1"], train=(9, 8, 9, 9, 9), test=(3, 3, 3, 3, 3)),
    "valid": source("big", ["a", "b", "c", "0"], train=(9, 8, 9, 9), valid=(1, 2, 0, 3), test=(3, 3, 3, 3)),
}


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(raw=definitions, has_valid=st.booleans())
def test_any_definition_makes_whole_tasks_or_one_sentence(own, monkeypatch, raw, has_valid):
    sources = {**SOURCES, "big": SOURCES["valid"]} if has_valid else SOURCES
    name = own("", **sources)
    monkeypatch.setattr(definition, "read_yaml", lambda path: raw)
    try:
        made = plan(name)
    except (ConfigError, SourceError) as error:
        assert "\n" not in str(error) and str(error).startswith("stream mine") and str(error).endswith(".")
        return
    assert made.tasks
    for task in made.tasks:
        assert 2 <= len(set(task.labels)) == len(task.labels)
        _whole(task, made.sources[task.source])


def _whole(task: definition.PlannedTask, data: Source) -> None:
    """Every class of a task has its own images in every split, and no training image is for validation."""
    for split in SPLITS:
        origin = split if split in data.images else "train"
        for label, rows in zip(task.labels, task.rows[split], strict=True):
            assert len(set(rows)) == len(rows) > 0 and set(data.labels[origin][rows]) == {label}
    if "valid" not in data.images:
        assert not set(np.concatenate(task.rows["train"])) & set(np.concatenate(task.rows["valid"]))


def test_counts_in_sentences_are_those_of_the_data(own):
    """The numbers of the refusal are right for every split."""
    text = "sources: {letters: {valid_pool: 2}}\ntasks:\n  - {source: letters, train: 8, valid: 3, test: 1}\n"
    with pytest.raises(SourceError) as caught:
        plan(own(text, letters=ABC))
    found = re.findall(r"class '(\w)' of letters has (\d+) (\w+) images, the task needs (\d+)", str(caught.value))
    expected: Mapping[str, int] = dict(zip("abc", (9, 3, 30)))
    for name, has, split, needs in found:
        assert (int(has), int(needs)) == ((expected[name] - 2, 8) if split == "train" else (2, 3))
    assert len(found) == 5


def test_what_was_left_aside_stands_beside_what_is_lacking(tmp_path, monkeypatch):
    """Images in folders below the classes are not read; the sentence about too few images says so."""
    generator = np.random.default_rng(0)
    for split, name in itertools.product(("train", "test"), ("a", "b")):
        for place in (tmp_path / "own" / split / name, tmp_path / "own" / split / name / "more"):
            place.mkdir(parents=True)
            for number in range(3):
                Image.fromarray(generator.integers(0, 256, (8, 8, 3), np.uint8)).save(place / f"{number}.png")
    definitions = tmp_path / "definitions"
    definitions.mkdir()
    (definitions / "own.yaml").write_text("tasks:\n  - {source: own, train: 5, valid: 1}\n")
    monkeypatch.setattr(definition, "DEFINITIONS", definitions)
    with pytest.raises(SourceError, match=r"has 2 train images, the task needs 5.*12 files of own were left aside"):
        build_stream("own", 0, tmp_path, tmp_path / "built")
