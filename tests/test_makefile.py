"""The Makefile: presets beside an environment that counts as installed; installing, with a Python that only says so."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project import REPOSITORY, run
from tests.resolve_lock import CUDA

EDITED = "preset: demo\nalpha: 0.3\n"


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A git repository with the Makefile and two presets; its ``dvc`` says what it is asked for."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / "presets").mkdir()
    for name in ("demo", "cifar"):
        (tmp_path / f"presets/{name}.yaml").write_text(f"preset: {name}\n")
    (tmp_path / "params.yaml").write_text("preset: demo\n")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/dvc").write_text('#!/bin/sh\necho "dvc was told: $*"\n')
    (tmp_path / ".venv/bin/dvc").chmod(0o755)
    (tmp_path / ".venv/.installed").touch()
    commit(tmp_path)
    return tmp_path


def commit(folder: Path) -> None:
    author = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    for command in (("init", "-q"), ("add", "Makefile", "params.yaml"), (*author, "commit", "-qm", "state")):
        run(folder, "git", *command)


def preset(folder: Path, *variables: str) -> subprocess.CompletedProcess[str]:
    return make(folder, "preset", *variables)


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    clean["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
    return subprocess.run(["make", *arguments], cwd=folder, env=clean, capture_output=True, text=True, check=False)


def params(folder: Path) -> str:
    return (folder / "params.yaml").read_text()


def test_a_preset_takes_another_ones_place(checkout):
    for name in ("cifar", "demo"):
        done = preset(checkout, f"P={name}")
        assert done.returncode == 0 and "dvc was told: repro" in done.stdout, done.stderr
        assert params(checkout) == f"preset: {name}\n"


def test_an_edit_is_not_overwritten_without_a_word(checkout):
    (checkout / "params.yaml").write_text(EDITED)
    refused = preset(checkout, "P=cifar")
    assert refused.returncode != 0 and "dvc was told" not in refused.stdout
    assert "make preset P=cifar FORCE=1" in refused.stderr.splitlines()[0]
    assert params(checkout) == EDITED
    forced = preset(checkout, "P=cifar", "FORCE=1")
    assert forced.returncode == 0 and params(checkout) == "preset: cifar\n"


def test_a_committed_edit_is_not_lost(checkout):
    (checkout / "params.yaml").write_text(EDITED)
    commit(checkout)
    assert preset(checkout, "P=cifar").returncode == 0 and params(checkout) == "preset: cifar\n"


def test_without_params_a_preset_is_copied(checkout):
    (checkout / "params.yaml").unlink()
    run(checkout, "git", "rm", "--cached", "-q", "params.yaml")
    assert preset(checkout, "P=cifar").returncode == 0 and params(checkout) == "preset: cifar\n"
    (checkout / "params.yaml").write_text(EDITED)
    assert preset(checkout, "P=demo").returncode != 0 and params(checkout) == EDITED


def test_an_edit_that_is_staged_or_that_git_does_not_know_is_not_lost(checkout):
    (checkout / "params.yaml").write_text(EDITED)
    run(checkout, "git", "add", "params.yaml")
    assert preset(checkout, "P=cifar").returncode != 0 and params(checkout) == EDITED
    run(checkout, "git", "rm", "--cached", "-qf", "params.yaml")
    assert preset(checkout, "P=cifar").returncode != 0 and params(checkout) == EDITED
    (checkout / "presets/mine.yaml").write_text(EDITED)  # kept as a preset it is not lost
    assert preset(checkout, "P=cifar").returncode == 0 and params(checkout) == "preset: cifar\n"


def test_an_unknown_preset_is_refused_in_one_sentence(checkout):
    (checkout / "params.yaml").write_text(EDITED)
    for variables in (["P=ciphar"], ["P=ciphar", "FORCE=1"], ["P="]):
        refused = preset(checkout, *variables)
        assert refused.returncode != 0 and "dvc was told" not in refused.stdout and params(checkout) == EDITED
        name = variables[0].removeprefix("P=")
        assert refused.stderr.splitlines()[0] == f"There is no preset '{name}'; there are: cifar demo"


def test_a_copy_that_fails_runs_nothing(checkout):
    (checkout / ".venv/bin/cp").write_text("#!/bin/sh\necho no space left >&2\nexit 1\n")
    (checkout / ".venv/bin/cp").chmod(0o755)
    failed = preset(checkout, "P=cifar")
    assert failed.returncode != 0 and "no space left" in failed.stderr
    assert "dvc was told" not in failed.stdout and params(checkout) == "preset: demo\n"


def test_an_archive_without_git_is_told_what_to_do_before_anything_is_done(checkout):
    shutil.rmtree(checkout / ".git")
    (checkout / ".venv/.installed").unlink()  # not even the environment is made
    for target in ("preset", "repro"):
        refused = make(checkout, target, "P=cifar")
        assert refused.returncode != 0 and refused.stdout == "" and not (checkout / ".venv/.installed").exists()
        assert "git init && git add -A && git commit" in refused.stderr.splitlines()[0]
        assert params(checkout) == "preset: demo\n"
    (checkout / ".venv/.installed").touch()
    (checkout / ".dvc").mkdir()
    (checkout / ".dvc/config.local").write_text("[core]\n    no_scm = true\n")  # what `dvc config` writes
    assert "dvc was told: repro" in make(checkout, "repro").stdout


SYSTEM_PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >> "$LOG"
case "$*" in
*" venv "*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/uv ;;
-c*) exec python3 "$@" ;;
esac
"""


@pytest.fixture
def fresh(tmp_path, monkeypatch) -> Path:
    """A checkout without environment in a folder with spaces, and the Python beside it that make is told to use."""
    folder = tmp_path / "my own/check out"
    folder.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(REPOSITORY / name, folder)
    (tmp_path / "my own/python3").write_text(SYSTEM_PYTHON)
    (tmp_path / "my own/python3").chmod(0o755)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return folder


def install(folder: Path, *variables: str) -> list[str]:
    """What Python was told by ``make install``; nothing is written outside of the checkout."""
    done = make(folder, "install", f"PYTHON={folder.parent / 'python3'}", *variables)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.parent.iterdir()} == {"check out", "python3"}
    assert {path.name for path in folder.parent.parent.iterdir()} == {"my own", "log"}
    assert (folder / ".venv/.installed").exists()
    log = folder.parent.parent / "log"
    told = log.read_text().splitlines()
    log.write_text("")
    return [line for line in told if " pip " in line]


def test_a_path_with_spaces_gets_one_environment_inside(fresh):
    tool, everything, project = install(fresh)
    assert "--python .venv/bin/python install" in tool and everything.endswith("-r requirements.lock")
    assert project.endswith("--no-deps -e .")
    assert install(fresh) == []  # it is there
    os.utime(fresh / "requirements.lock", (2e9, 2e9))
    assert len(install(fresh)) == 3


def test_without_cuda_torch_comes_from_another_index_and_stays_so(fresh):
    for variables in (["CPU=1"], []):  # the second time, after a change of the lock, nobody says so again
        os.utime(fresh / "requirements.lock", (2e9, 2e9))
        _, torch, rest, _ = install(fresh, *variables)
        assert "--no-deps --index-url https://download.pytorch.org/whl/cpu -r .venv/torch.txt" in torch
        assert rest.endswith("-r .venv/requirements.txt")
        (fresh / ".venv/.installed").unlink()
    files = ("requirements.lock", ".venv/torch.txt", ".venv/requirements.txt")
    lock, torch, rest = ([line for line in (fresh / name).read_text().splitlines() if line[0] != "#"] for name in files)
    assert [line.partition("==")[0] for line in torch] == ["torch", "torchvision"]
    left_out = [line.partition("==")[0] for line in lock if line not in rest]
    assert left_out and all(name.startswith(CUDA) for name in left_out)
    assert not any(line.startswith(CUDA) for line in rest) and set(torch) < set(rest)


def test_uv_installs_the_same_into_the_same_environment(fresh):
    tool, *rest = install(fresh, "UV=1")
    assert tool.endswith("pip uv>=0.13,<0.14")
    by_uv = "uv pip install --python .venv/bin/python --compile-bytecode"
    assert rest == [f"{by_uv} -r requirements.lock", f"{by_uv} --no-deps -e ."]


def test_an_old_python_is_refused_before_anything_is_written(fresh):
    old = fresh.parent / "python3"
    old.write_text(
        SYSTEM_PYTHON.replace('exec python3 "$@"', 'echo "$2" | sed "s/sys.version_info/(3, 9, 1)/" | python3')
    )
    refused = make(fresh, "install", f"PYTHON={old}")
    assert refused.returncode != 0 and not (fresh / ".venv").exists()
    assert "This is Python 3.9; name one of 3.11 to 3.14: make install PYTHON=..." in refused.stderr.splitlines()
