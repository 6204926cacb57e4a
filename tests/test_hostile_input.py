"""Input that makes no sense or means harm: a clear error or a right result, whatever a file says.

Hypothesis damages files that are right: params.yaml, definitions of streams, plans, genotypes, entries of the store and
data sets. What reads them either raises the error that is documented, in one bounded line, or returns what keeps its
type's promises. Nothing that a file names is run, and nothing is written but what was asked for.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import pickle
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from ruamel.yaml import YAML

from par.cells.genotype import DARTS_V1, Genotype, from_json
from par.config import resolve_path
from par.relatedness.plan import Decision, chains, plan_to_json, read_plan
from par.schema import ConfigError, read_yaml, to_plain
from par.settings import load, resolve
from par.steps.store import Store, entry_key
from par.streams import SourceError, build_stream
from par.streams.sources import Request, load_source
from tests.project import REPOSITORY

MAX_MESSAGE = 3000  # characters; a message that repeats a file is of no use
SENTINEL = "a_file_made_this"  # what a hostile file would create if it were obeyed
PRESET = (REPOSITORY / "presets/demo.yaml").read_text()

# --- values and damages that all kinds of files share ---

TEXTS = st.sampled_from(
    ["", " ", "a-b", "../../x", "/etc/passwd", "~nobody_here/x", "$x_{", "${alpha}", "<b>", "a\nb", "\x00", "é", "1e-3"]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([-(10**30), 10**30, 2**63]),
    st.floats(-2, 2),
    st.sampled_from([float("nan"), float("inf"), float("-inf")]),
    TEXTS,
    st.text(max_size=5),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2), max_leaves=6
)
YAML_VALUES = (
    VALUES
    | st.just(date(2024, 2, 29))
    | st.binary(max_size=4)
    | st.dictionaries(st.integers(0, 3), SCALARS, min_size=1, max_size=2)
)


def places(document: Any, path: tuple = ()) -> list[tuple]:
    """The paths of everything below the top of nested mappings and lists."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [found for key, value in items for found in ((*path, key), *places(value, (*path, key)))]


def at(document: Any, path: Sequence) -> Any:
    """What lies at a path of nested mappings and lists."""
    for step in path:
        document = document[step]
    return document


@st.composite
def damaged(draw: Callable, documents: list[Any], values: st.SearchStrategy) -> Any:
    """One of the documents with one to three of its values replaced, removed, doubled or joined by a new one.

    Half of the new values stand elsewhere in the document: such ones get past the checks of types.
    """
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        if not (known := places(document)):
            break
        *above, key = draw(st.sampled_from(known))
        parent = at(document, above)
        match draw(st.sampled_from(["replace", "replace", "move", "move", "remove", "add"])):
            case "replace":
                parent[key] = draw(values)
            case "move":
                parent[key] = copy.deepcopy(at(document, draw(st.sampled_from(known))))
            case "remove":
                del parent[key]
            case "add" if isinstance(parent, dict):
                parent[draw(TEXTS | st.integers(0, 3))] = draw(values)
            case _:
                parent.append(draw(st.just(copy.deepcopy(parent[key])) | values))
    return document


@st.composite
def garbled(draw: Callable, contents: list[bytes], nasty: list[bytes]) -> bytes:
    """The bytes of a file, cut, overwritten or with something nasty in them."""
    content = bytearray(draw(st.sampled_from(contents)))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 0, 1, 8, 10**9])))
        content[start:end] = draw(st.sampled_from(nasty) | st.binary(max_size=8))
    return bytes(content)


def as_yaml(document: Any) -> bytes:
    stream = io.BytesIO()
    YAML(typ="safe").dump(document, stream)
    return stream.getvalue()


def refused(error: Exception) -> None:
    """An error that a user can read."""
    assert 0 < len(str(error)) < MAX_MESSAGE, f"{len(str(error))} characters: {str(error)[:200]}"
    assert "\n" not in str(error).strip(), str(error)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- params.yaml ---

EVIL_YAML = [
    b"!!python/object/apply:os.system ['touch a_file_made_this']",
    b"!!python/name:os.system",
    b"alpha: !!python/object/new:os.system [touch a_file_made_this]\n",
    b"&a [*a]",
    b"*nowhere",
    b"<<: *a",
    b"\n? [a, b]\n: c\n",
    b"\t",
    b"\x00",
    b"\xff\xfe",
    b"[" * 2000,
    b"\nstreams: &s {<<: *s}\n",
    b"%YAML 9.9\n---\n",
    b"\nmethods: &m {par: *m}\n",
    b"\nrecipes: &r {demo_in: *r}\n",
    b"\nx: &x [a,a,a,a,a,a,a,a,a]\ny: &y [*x,*x,*x,*x,*x,*x,*x,*x]\nz: &z [*y,*y,*y,*y,*y,*y,*y,*y]\n"
    b"w: &w [*z,*z,*z,*z,*z,*z,*z,*z]\nv: &v [*w,*w,*w,*w,*w,*w,*w,*w]\nseeds: [*v,*v,*v,*v,*v,*v,*v,*v]\n",
]
PARAMS = st.builds(
    as_yaml,
    damaged([read_yaml(REPOSITORY / f"presets/{name}.yaml") for name in ("demo", "cifar", "paper")], YAML_VALUES),
)


def check_params(content: bytes, folder: Path) -> None:
    (folder / "params.yaml").write_bytes(content)
    try:
        config = load(folder / "params.yaml")
        resolve_path(config.data_dir)
        json.dumps(to_plain(config), sort_keys=True)  # what tracking writes into the journal of every stage
        assert (Path("reports") / config.preset).resolve().parent == Path("reports").resolve()
        for stream in config.streams:
            for learner in config.learners(stream):
                json.dumps(to_plain(resolve(config, stream, learner)))
    except ConfigError as error:
        refused(error)
    assert list(tree(folder)) == ["params.yaml"]


# --- definitions of streams ---

DEFINITIONS = [
    {
        "image_size": 8,
        "augment": ["crop", "flip"],
        "sources": {"digits": {"class_order": "natural"}, "other": {"dataset": "digits", "valid_pool": 9}},
        "tasks": [
            {"source": "digits", "n_classes": 3, "train": 4, "valid": 2, "test": 3, "background": "first"},
            {"source": "other", "name": "again", "classes": ["1", "7"], "train": 4, "valid": 2, "rotate_labels": True},
        ],
        "orders": [["digits", "again"], ["again", "digits"]],
    },
    {
        "normalise": "fixed",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.2, 0.2, 0.2],
        "sources": {"digits": {"valid_share": 0.2, "valid_share_of": "source"}},
        "class_splits": [{"source": "digits", "classes_per_task": 4, "n_tasks": 2, "train": 3, "test": 3}],
        "shuffle_tasks": True,
    },
    {
        "valid_copies": "four_crops",
        "class_splits": [{"source": "digits", "groups": {"a": ["0", "1"], "b": ["2", "3"]}, "train": 3, "valid": 2}],
        "random_tasks": {
            "sources": ["digits"],
            "classes_per_task": 3,
            "phases": [{"tasks": 2, "large": 0.5}],
            "large": {"train": 20, "valid": 4},
            "small": {"train": 3, "valid": 2},
            "test": 3,
        },
    },
]


def check_definition(document: Any, folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "definitions").mkdir()
    (folder / "definitions/hostile.yaml").write_bytes(as_yaml(document))
    try:
        with mock.patch("par.streams.definition.DEFINITIONS", folder / "definitions"):
            built = build_stream("hostile", 1, folder / "data", folder / "out")
    except (ConfigError, SourceError) as error:
        refused(error)
        written = {"definitions/hostile.yaml"}
    else:
        assert built.tasks
        for task in built.tasks:
            for split, count in task.counts.items():
                part = task.split(split)
                assert count == len(part.images) == len(part.labels) > 0
                assert part.images.dtype == np.uint8 and set(part.labels.tolist()) <= set(range(task.n_classes))
        written = {name for name in tree(folder) if name.startswith("out/")} | {"definitions/hostile.yaml"}
    assert set(tree(folder)) == written


# --- plans and genotypes ---


def _decision(task: int, decision: str, group: int, cell_from: int) -> Decision:
    nearest, distance = (None, None) if task == 0 else (0, 0.5)
    return Decision(task, f"task {task}", decision, group, nearest, distance, cell_from, False, "so")


PLAN = plan_to_json(
    "s",
    "par",
    "paper",
    {0: [_decision(0, "search", 0, 0), _decision(1, "reuse_cell", 1, 0), _decision(2, "join", 1, 0)]},
)
EVIL_JSON = [
    b"NaN",
    b"[" * 3000,
    b'{"seeds": {"0": {"tasks": []}}}',
    b"\xff",
    b"1e999",
    b"-1",
    b"1" * 5000,
    b'"\\ud800"',
]


def check_plan(content: bytes, folder: Path) -> None:
    (folder / "plan.json").write_bytes(content)
    try:
        plan = read_plan(folder / "plan.json")
    except ConfigError as error:
        refused(error)
        return
    for decisions in plan.values():
        assert [decision.task for decision in decisions] == list(range(len(decisions)))
        assert sorted(task for chain in chains(decisions) for task in chain) == list(range(len(decisions)))
        assert all(chains(decisions)) and all(decisions[one.cell_from].decision == "search" for one in decisions)


def check_genotype(raw: Any, folder: Path) -> None:
    try:
        genotype = from_json(raw)
    except ValueError as error:
        refused(error)
    else:
        assert isinstance(genotype, Genotype) and from_json(genotype.to_json()) == genotype


# --- entries of the store ---


class Evil:
    """An object whose unpickling runs a program."""

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {SENTINEL}",)


KEY = entry_key("an entry")
ENTRY = {"weights": torch.arange(3.0), "log": [{"epoch": 1}]}


def _entry_bytes(entry: Any) -> bytes:
    """A file of the store whose digest is right, whatever is in it."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        store.get_or_compute(KEY, lambda: entry)
        return store.path(KEY).read_bytes()


def check_entry(content: bytes, folder: Path) -> None:
    store = Store(folder)
    store.path(KEY).parent.mkdir()
    store.path(KEY).write_bytes(content)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        entry = store.get(KEY)
    if entry is None:
        assert "Store entry" in said.getvalue()
    else:
        assert content == _entry_bytes(ENTRY) and torch.equal(entry["weights"], ENTRY["weights"])


# --- data sets ---


def _image(size: tuple[int, int] = (8, 8), kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, (10, 200, 30)).save(stream, kind)
    return stream.getvalue()


CONTENTS = st.one_of(
    st.just(_image()),
    st.sampled_from(
        [b"", b"no image", _image((9, 7)), _image((8, 8), "GIF"), _image()[:40], b"\x89PNG\r\n\x1a\n" + bytes(30)]
    ),
    garbled([_image(), _image((8, 8), "JPEG")], [b"\xff\xff\xff\xff", b"IHDR"]),
)
MEMBERS = st.sampled_from(
    [
        *(f"{split}/{name}/{number}.png" for split in ("train", "test") for name in "ab" for number in (0, 1)),
        "../../escaped.png",
        "/tmp/../escaped.png",
        "train/../../escaped.png",
        "train/a/../../../escaped.png",
        "train/a/",
        "train/c/",
        "train/a/deep/0.png",
        "train/.hidden/0.png",
        "train//0.png",
        "train",
        "test/a/..png",
        "test/\udcff/0.png",
        "C:\\train\\a\\0.png",
        "__MACOSX/train/a/0.png",
        "train/a/0.png\x00.txt",
    ]
)
WHOLE = {f"{split}/{name}/{number}.png": _image() for split in ("train", "test") for name in "ab" for number in (0, 1)}


@st.composite
def zips(draw: Callable) -> bytes:
    """A data set as a zip with some hostile members, sometimes garbled."""
    members = dict(WHOLE) if draw(st.booleans()) else {}
    members |= draw(st.dictionaries(MEMBERS, CONTENTS, max_size=3))
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # of two members that have one name once it is cut at the NUL
        for name, content in members.items():
            archive.writestr(name.encode("utf-8", "replace").decode(), content)
    content = stream.getvalue()
    return draw(st.just(content) | garbled([content], [b"PK\x05\x06", b"\xff" * 8]))


def check_source(folder: Path, dataset: str) -> None:
    """The data set in a folder is refused, or complete; the folder stays as it is."""
    before = tree(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of images whose colour tables are broken
            source = load_source(Request(dataset, dataset, folder))
    except SourceError as error:
        refused(error)
    else:
        for split in ("train", "test"):
            images, labels = source.images[split], source.labels[split]
            assert images.dtype == np.uint8 and images.ndim == 4 and images.shape[-1] == 3
            assert labels.shape == (len(images),) and set(labels.tolist()) <= set(range(len(source.classes)))
    assert tree(folder) == before and not (folder.parent / "escaped.png").exists()


def check_zip(content: bytes, folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data/mine.zip").write_bytes(content)
    check_source(folder / "data", "mine")


ARRAYS = st.sampled_from(
    [
        np.zeros((4, 3072), np.uint8),
        np.zeros((4, 3072)),
        np.zeros((4, 5), np.uint8),
        np.zeros((0, 3072), np.uint8),
        np.array([None, 1], object),
        np.zeros(3072, np.uint8),
    ]
)
BATCHES = (
    st.fixed_dictionaries(
        {},
        optional={
            "data": ARRAYS | st.just(np.zeros((4, 3072), np.uint8)) | VALUES,
            "labels": st.just([0, 1, 0, 1]) | VALUES,
            "label_names": st.just(["a", "b"]) | VALUES,
            "evil": st.builds(Evil),
        },
    )
    | VALUES
)
CIFAR = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]
BATCH = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 0, 1], "label_names": ["a", "b"]}


def check_pickles(damage: tuple[str, Any], folder: Path) -> None:
    """CIFAR-10 in its official layout, one file of which is hostile."""
    name, content = damage
    batches = folder / "data/cifar-10-batches-py"
    batches.mkdir(parents=True)
    for file in CIFAR:
        (batches / file).write_bytes(pickle.dumps(content if file == name else BATCH))
    check_source(folder / "data", "cifar10")


IDX = [b"\0\0\x08\x03" + bytes([0, 0, 0, 2] * 1 + [0, 0, 0, 28] * 2) + bytes(2 * 784), b"\0\0\x08\x01\0\0\0\x02\0\x01"]


def check_idx(damage: tuple[int, bytes], folder: Path) -> None:
    """MNIST's four files, one of which is hostile."""
    raw = folder / "data/MNIST/raw"
    raw.mkdir(parents=True)
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    for number, name in enumerate(names):
        (raw / name).write_bytes(damage[1] if number == damage[0] else IDX[number % 2])
    check_source(folder / "data", "mnist")


# kind: what is fed, what must hold, how often in the fast run
KINDS: dict[str, tuple[st.SearchStrategy, Callable[[Any, Path], None], int]] = {
    "params": (PARAMS, check_params, 60),
    "params as bytes": (garbled([PRESET.encode()], EVIL_YAML), check_params, 60),
    "definition": (damaged(DEFINITIONS, YAML_VALUES), check_definition, 60),
    "plan": (damaged([PLAN], VALUES).map(lambda plan: json.dumps(plan).encode()), check_plan, 100),
    "plan as bytes": (garbled([json.dumps(PLAN).encode()], EVIL_JSON), check_plan, 100),
    "genotype": (damaged([DARTS_V1.to_json()], VALUES) | VALUES, check_genotype, 100),
    "entry": (
        garbled([_entry_bytes(ENTRY)], [b"PK", b"\x80\x02."])
        | st.sampled_from([_entry_bytes(Evil()), _entry_bytes({"x": Evil()}), b"", _entry_bytes(ENTRY)]),
        check_entry,
        60,
    ),
    "zip": (zips(), check_zip, 60),
    "pickles": (st.tuples(st.sampled_from(CIFAR), BATCHES), check_pickles, 60),
    "idx": (st.tuples(st.integers(0, 3), garbled(IDX, [b"\xff" * 4, bytes(4)])), check_idx, 60),
}


@pytest.mark.parametrize("times", [1, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.exhaustive])])
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_is_refused_or_understood(kind, times, tmp_path, monkeypatch):
    strategy, check, examples = KINDS[kind]
    monkeypatch.chdir(tmp_path)

    @settings(
        max_examples=examples * times,
        derandomize=times == 1,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(strategy)
    def run(content: Any) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            check(content, Path(folder))
        assert os.listdir(tmp_path) == [], "something was written, or run, where it was not asked for"

    run()
