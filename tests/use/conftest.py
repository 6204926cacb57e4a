"""A finished run of every method on a tiny stream, for all tests of what comes after training."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from par.methods import METHODS
from par.streams import load_stream
from par.streams.embedded import EMBEDDED
from tests.methods.test_all_methods import SMALL
from tests.project import PARAMS, STAGES, make_project, run_stage

STREAM = "demo_split"  # a name that the code under test knows, with a definition of its own
DEFINITION = """
image_size: 16
augment: [crop]
tasks:
  - {source: digits, n_classes: 4, train: 10, valid: 8, test: 30}
  - {source: textures, train: 8, valid: 8, test: 20}
  - {source: digits, name: digits again, n_classes: 4, train: 6, valid: 8, test: 20}
"""


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose stages up to ``evaluate`` are done for every method, with one epoch a task."""
    blocks = "".join(f"  {name}: {SMALL.get(name, {})}\n".replace("'", "") for name in METHODS)
    params = PARAMS.replace("tiny", STREAM).replace("  finetune: {}\n  independent: {}\n  par: {}\n", blocks)
    for before, after in (
        ("search_epochs: 3", "search_epochs: 1"),
        ("projection_epochs: 2", "projection_epochs: 1"),
        ("epochs: 2", "epochs: 1"),
        ("image_size: 48", "image_size: 48\n  identify: true"),
        ("estimator: paper", "estimator: corrected"),
    ):
        params = params.replace(before, after)
    folder = make_project(tmp_path_factory.mktemp("learned"), DEFINITION, params, STREAM)
    for stage in STAGES[:-1]:
        run_stage(folder, stage, STREAM)
    return folder


@pytest.fixture(scope="session")
def pictures(project: Path) -> Path:
    """The test images of every task as files ``<task>/<row>.png`` of the size that they have in their source."""
    folder = project / "pictures"
    for task in load_stream(project / f"data/streams/{STREAM}/0").tasks:
        source = EMBEDDED[task.source]()
        (folder / str(task.index)).mkdir(parents=True)
        for number, row in enumerate(task.samples("test")):
            Image.fromarray(source.images["test"][row]).save(folder / f"{task.index}/{number:03}.png")
    return folder


@pytest.fixture
def at_home(project: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as the current folder, for commands that are called in this process."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("DVC_ROOT", str(project))
    return project
