"""What DVC promises of the pipeline: clones, worktrees, experiments, caches, and settings that are taken back.

One small project learns once; every test works on a copy or a clone of it.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from par.files import read_json
from pipeline.tables import _remove_unlisted
from tests.project import PARAMS, REPOSITORY, STAGES, environment, made_once, make_project, run, run_stage, stages_run

# a stream of image folders in a data_dir outside of the checkout, which only PAR learns
FOLDERS = """
image_size: 8
tasks:
  - {source: pets, train: 8, valid: 4, test: 4}
"""


def params(data_dir: Path, *, streams: tuple[str, ...] = ("tiny",)) -> str:
    """params.yaml of the project; ``folders``, where it is listed, is learned by PAR alone."""
    listed = "".join(f"  - {stream}\n" for stream in streams)
    text = PARAMS.replace("  - tiny\n", listed, 1).replace("data_dir: data/sources", f"data_dir: {data_dir}")
    for method in ("finetune", "independent"):
        text = text.replace(f"  {method}: {{}}\n", f"  {method}:\n    skip:\n      - folders\n")
    return text


def write_images(folder: Path) -> None:
    """A data set of two classes in the layout ``<split>/<class>/<image>``."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for name, base in (("cat", 0), ("dog", 128)):
            for number in range(count):
                path = folder / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(generator.integers(base, base + 128, (8, 8, 3), dtype=np.uint8)).save(path)


def snapshot(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Mode, time of the last change and digest of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, digest)
    return found


def git(folder: Path, *arguments: str) -> str:
    author = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    return run(folder, "git", *author, *arguments).stdout


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)


def ran(done: subprocess.CompletedProcess[str]) -> set[str]:
    """Stages that DVC ran, without the one that always runs."""
    return stages_run(done) - {"fingerprints"}


def nothing_to_run(folder: Path) -> bool:
    return ran(run(folder, "dvc", "repro")) == set()


def _make_origin(folder: Path) -> None:
    data_dir = folder / "data_dir"
    write_images(data_dir / "pets")
    before = snapshot(data_dir)
    project = make_project(folder / "origin", params=params(data_dir, streams=("tiny", "folders")))
    (project / "par/streams/definitions/folders.yaml").write_text(FOLDERS)
    for name in (".gitignore", ".dvcignore"):
        shutil.copy(REPOSITORY / name, project)
    git(project, "init", "-q", "-b", "main")
    run(project, "dvc", "init", "-q")
    for setting in ("user.name=test", "user.email=test@example.com"):
        git(project, "config", *setting.split("="))
    run(project, "dvc", "remote", "add", "-d", "remote", str(folder / "remote"))
    commit(project, "code")
    run(project, "dvc", "repro")
    assert snapshot(data_dir) == before, "a stage wrote into data_dir"
    commit(project, "two streams")
    (project / "params.yaml").write_text(params(data_dir))
    assert ran(run(project, "dvc", "repro")) == {"tables"}
    commit(project, "one stream")
    run(project, "dvc", "push", "-q")


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Path:
    """``origin``: a project that learned ``tiny`` and ``folders``, then ``tiny`` alone; ``remote``; ``data_dir``.

    It takes half a minute, so the test processes share one.
    """
    return made_once(tmp_path_factory, "dvc", _make_origin)


def copy_of(shared: Path, folder: Path) -> Path:
    return shutil.copytree(shared / "origin", folder, symlinks=True)


@pytest.mark.slow
def test_equal_runs_are_equal_files_and_clocks_lie_apart(shared, tmp_path):
    one, other = shared / "origin", copy_of(shared, tmp_path / "project")
    for computed in ("cells", "seconds", "runs", "results", ".par/store"):
        shutil.rmtree(other / computed)
    for stage in STAGES[4:7]:
        run_stage(other, stage)
    for part in ("cells/tiny", "runs/tiny", "results"):
        found = [{name: digest for name, (_, _, digest) in snapshot(folder / part).items()} for folder in (one, other)]
        assert found[0] == found[1] != {}
    assert {"predictions.npz", "model.pt", "settings.json", "log.csv", "steps.json"} == {
        path.name for path in (one / "runs/tiny/par").rglob("*.*")
    }
    clocks = [snapshot(folder / "seconds") for folder in (one, other)]
    assert list(clocks[0]) == list(clocks[1])
    assert all(clocks[0][name][2] != clocks[1][name][2] for name in ("search/tiny.json", "train/tiny.json"))
    entry = read_json(one / "reports/tiny/results/tiny.json")["learners"]["par"]["0"]
    assert entry["seconds"] > 0 and entry["seconds_search"] > 0


@pytest.mark.slow
def test_a_shallow_clone_and_a_worktree_have_nothing_to_run(shared, tmp_path):
    clone, worktree = tmp_path / "clone", tmp_path / "worktree"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{shared}/origin", str(clone))
    git(shared / "origin", "worktree", "add", "-q", str(worktree), "-b", "beside")
    for folder in (clone, worktree):
        run(folder, "dvc", "pull", "-q")
        assert nothing_to_run(folder) and git(folder, "status", "--short") == ""
        assert not (folder / "results/folders.json").exists(), "the removed stream is not pulled"


@pytest.mark.slow
def test_a_cache_on_another_file_system(shared, tmp_path):
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to write to")
    project = copy_of(shared, tmp_path / "project")
    with tempfile.TemporaryDirectory(dir=elsewhere) as cache:
        shutil.rmtree(project / ".dvc/cache")
        run(project, "dvc", "config", "--local", "cache.dir", cache)
        run(project, "dvc", "pull", "-q")
        assert nothing_to_run(project)
        (project / "results/tiny.json").unlink()
        run(project, "dvc", "checkout", "-q")
        assert nothing_to_run(project) and git(project, "status", "--short") == ""


@pytest.mark.slow
def test_a_stream_that_is_listed_again_comes_from_the_cache(shared, tmp_path):
    project = copy_of(shared, tmp_path / "project")
    (project / "params.yaml").write_text(params(shared / "data_dir", streams=("tiny", "folders")))
    done = run(project, "dvc", "repro")
    assert ran(done) == {"tables"} and (project / "results/folders.json").is_file()
    run(project, "dvc", "gc", "--workspace", "--force")  # keeps what the workspace uses
    shutil.rmtree(project / "results")
    run(project, "dvc", "checkout", "-q")
    assert nothing_to_run(project)


def test_only_what_dvc_made_of_unlisted_streams_is_removed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own = ["plans/notes/a.txt", "results/notes.json", "elsewhere/gone/a"]
    made = ["plans/gone/par.json", "results/gone.json", "distances/gone.csv", "cells/gone/par/0/0.json"]
    made += ["data/streams/gone/0/stream.json"]
    for name in (*own, *made, "plans/listed/par.json"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("content")
    left = snapshot(tmp_path)
    _remove_unlisted(("listed",))
    assert snapshot(tmp_path) == left, "without dvc.lock nothing is known to be DVC's"
    run(tmp_path, "dvc", "init", "-q", "--no-scm")
    outs = {name: hashlib.md5(name.encode()).hexdigest() for name in ("plans/gone", "results/gone.json")}
    cached = [outs["plans/gone"], hashlib.md5(b"x").hexdigest()]
    for digest in cached:
        place = Path(".dvc/cache/files/md5") / digest[:2] / digest[2:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    others = ("data/streams/gone", "distances/gone.csv", "cells/gone")
    lines = [f"    - {{path: {name}, md5: {digest}}}" for name, digest in outs.items()]
    lines += [f"    - {{path: {name}, md5: {cached[1]}}}" for name in others]
    stages = ["  route@gone:", "    outs:", *lines, "  route@../elsewhere/gone: {}", "  tables: {}"]
    Path("dvc.lock").write_text("\n".join(["stages:", *stages]) + "\n")
    _remove_unlisted(("listed",))
    kept = ("results/gone.json", "plans/listed/par.json")
    assert all(Path(name).is_file() for name in (*own, *kept))
    assert not any(Path(name).exists() for name in made if name not in kept)
    said = capsys.readouterr().out
    assert "gone is no longer listed in params.yaml: removed cells/gone, plans/gone" in said
    assert "DVC's cache does not hold results/gone.json, so they stay" in said


@pytest.mark.exhaustive  # a whole stream is learned once more
@pytest.mark.slow
def test_what_no_commit_left_out_of_the_cache_stays(shared, tmp_path):
    project = copy_of(shared, tmp_path / "project")
    shutil.rmtree(project / ".dvc/cache")
    run(project, "dvc", "pull", "-q")
    (project / "params.yaml").write_text(params(shared / "data_dir", streams=("tiny", "folders")))
    run(project, "dvc", "repro", "--no-commit")
    (project / "params.yaml").write_text(params(shared / "data_dir"))
    said = run(project, "dvc", "repro", "--no-commit").stdout
    assert "DVC's cache does not hold" in said and (project / "results/folders.json").is_file()
    assert nothing_to_run(project)


@pytest.mark.slow
def test_experiments_in_a_subfolder_of_a_repository(shared, tmp_path):
    project = copy_of(shared, tmp_path / "repository/sub")
    shutil.rmtree(project / ".git")
    git(project.parent, "init", "-q", "-b", "main")
    for setting in ("user.name=test", "user.email=test@example.com"):
        git(project, "config", *setting.split("="))
    commit(project, "a subfolder")
    assert nothing_to_run(project)
    before = (project / "params.yaml").read_bytes()

    failed = run(project, "dvc", "exp", "run", "-S", "alpha=high", check=False)
    assert failed.returncode != 0 and "Traceback" not in failed.stderr
    assert "alpha = 'high' has the wrong type" in failed.stderr and "git checkout params.yaml" in failed.stderr
    again = run(project, "dvc", "exp", "run", "-S", "beta=0.8", check=False)
    assert again.returncode != 0 and "git checkout params.yaml" in again.stderr, "the value stayed in the file"
    git(project, "checkout", "params.yaml")

    failed = run(project, "dvc", "exp", "run", "--temp", "-S", "alpha=high", check=False)
    assert failed.returncode != 0 and "git checkout" not in failed.stderr, "nothing of the user's was changed"
    temporary = run(project, "dvc", "exp", "run", "--temp", "-n", "temporary", "-S", "alpha=0.4")
    assert ran(temporary) == {"route@tiny", "tables"}
    assert "Beside the report committed at " in temporary.stdout and ": agrees: data 1 of 1 equal" in temporary.stdout

    run(project, "dvc", "exp", "run", "--queue", "-n", "queued", "-S", "alpha=0.3,0.45")
    try:
        run(project, "dvc", "queue", "start", "-j", "2")
        for _ in range(240):
            status = run(project, "dvc", "queue", "status").stdout
            if not {"Running", "Queued"} & set(status.split()):
                break
            time.sleep(1)
    finally:
        run(project, "dvc", "queue", "stop", "--kill")
    assert status.split().count("Success") == 2, status
    assert {"temporary", "queued-1", "queued-2"} <= set(
        run(project, "dvc", "exp", "list", "--name-only").stdout.split()
    )
    assert (project / "params.yaml").read_bytes() == before and nothing_to_run(project)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_curves_can_be_compared_after_a_method_is_removed(shared, tmp_path):
    project = copy_of(shared, tmp_path / "project")
    settings = params(shared / "data_dir").replace("  finetune:\n    skip:\n      - folders\n", "")
    (project / "params.yaml").write_text(settings)
    done = run(project, "dvc", "repro")
    assert ran(done) == {"search@tiny", "train@tiny", "evaluate@tiny", "tables"}
    assert done.stdout.count("steps computed: 0") == 2
    compared = run(project, "dvc", "plots", "diff")
    assert "WARNING" not in compared.stdout + compared.stderr and "ERROR" not in compared.stderr
    page = (project / "dvc_plots/index.html").read_text()
    assert page.count('"rev": "workspace"') == page.count('"rev": "HEAD"') > 0
    assert "mean_AP.finetune" in run(project, "dvc", "metrics", "diff").stdout


def _outside_of_dvc(folder: Path) -> set[str]:
    return {name for name in snapshot(folder) if not name.startswith(".dvc/")}


@pytest.mark.slow
def test_an_archive_without_git_computes_nothing_or_works_without_experiments(shared, tmp_path):
    archive = tmp_path / "archive"
    archive.mkdir()
    git(shared / "origin", "archive", "--output", str(tmp_path / "archive.tar"), "HEAD")
    shutil.unpack_archive(tmp_path / "archive.tar", archive, filter="data")
    before = _outside_of_dvc(archive)
    refused = run(archive, "dvc", "repro", check=False)
    assert (
        refused.returncode != 0 and "is not a git repository" in refused.stderr and _outside_of_dvc(archive) == before
    )
    run(archive, "dvc", "config", "--local", "core.no_scm", "true")
    run(archive, "dvc", "pull", "-q")
    assert nothing_to_run(archive)


@pytest.mark.slow
def test_two_checkouts_build_at_once_from_one_data_dir(shared, tmp_path):
    data_dir = shared / "data_dir"
    text = params(data_dir, streams=("folders",))
    before, built = snapshot(data_dir), []
    projects = [make_project(tmp_path / name, FOLDERS, text, "folders") for name in ("one", "two")]
    stages = [
        subprocess.Popen(
            [sys.executable, "-m", "pipeline.stream", "--stream", "folders"], cwd=project, env=environment(project)
        )
        for project in projects
    ]
    assert [stage.wait() for stage in stages] == [0, 0]
    for project in projects:
        built.append({name: found[2] for name, found in snapshot(project / "data/streams").items()})
    assert built[0] == built[1] != {} and snapshot(data_dir) == before


def journals(folder: Path) -> set[str]:
    return {path.name for path in (folder / ".mlflow/journal").iterdir()}


@pytest.mark.slow
def test_a_second_repro_does_nothing_and_thresholds_that_decide_otherwise_only_what_changed(shared, tmp_path):
    project = copy_of(shared, tmp_path / "project")
    assert nothing_to_run(project)
    before = journals(project)
    done = run(project, "dvc", "repro")
    assert stages_run(done) == {"fingerprints"} and "new or changed files read: 0" in done.stdout
    assert journals(project) == before, "no other stage started, not even to find that it has nothing to do"

    decisions = read_json(project / "plans/tiny/par.json")["seeds"]["0"]["tasks"]
    assert [decision["decision"] for decision in decisions] == ["search", "search", "join"]

    same = run(project, "dvc", "exp", "run", "-S", "alpha=0.4")
    assert stages_run(same) == {"fingerprints", "route@tiny", "tables"}

    never = run(project, "dvc", "exp", "run", "-S", "alpha=-inf", "-S", "beta=-inf")
    changed = {"route@tiny", "search@tiny", "train@tiny", "evaluate@tiny", "tables"}
    assert stages_run(never) == {"fingerprints", *changed}
    counts = [line for line in never.stdout.splitlines() if line.startswith("steps computed")]
    assert counts == ["steps computed: 1, from the store: 2", "steps computed: 1, from the store: 8"]
