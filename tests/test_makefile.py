"""``make preset`` and ``make repro`` on a copy of the Makefile, beside an environment that counts as installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project import REPOSITORY, run

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
