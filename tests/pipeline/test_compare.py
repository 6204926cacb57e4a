"""``make check``: the report of the checkout beside one in git or in a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from par.files import read_json, write_json
from par.reporting.comparison import FILE
from pipeline import compare
from pipeline.stage import StageError
from tests.project import PARAMS, run
from tests.reporting.cases import inputs

REPORT = Path("reports/tiny")


def write_report(folder: Path) -> None:
    record = inputs().record
    for stream, result in record.results.items():
        write_json(folder / "results" / f"{stream}.json", result)
    write_json(folder / FILE, record.digests)


def commit(folder: Path) -> None:
    author = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    for command in (("init", "-q"), ("add", "-A"), (*author, "commit", "-qm", "state")):
        run(folder, "git", *command)


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A subfolder of a repository, with a committed report."""
    folder = tmp_path / "repository" / "sub"
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_text(PARAMS.replace("  - tiny\n", "  - demo_minus\n"))
    write_report(folder / REPORT)
    commit(folder.parent)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["compare"])
    return folder


def check(*arguments: str) -> int:
    """The exit code of ``python -m pipeline.compare``."""
    sys.argv[1:] = arguments
    try:
        compare.main()
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


def change(path: str, old: str, new: str) -> None:
    text = (REPORT / path).read_text()
    assert old in text
    (REPORT / path).write_text(text.replace(old, new))


def test_an_unchanged_report_agrees(checkout, capsys):
    assert check() == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("reports/tiny beside the report committed at ")
    assert printed[1] == "Both: not recorded."
    assert printed[-1].startswith("agrees: data 2 of 2 equal; plans 4 of 4 equal")


def test_other_numbers_are_shown_and_other_data_make_it_fail(checkout, capsys):
    for entry in (content := read_json(REPORT / "results/demo_minus.json"))["learners"]["par"].values():
        entry["ap"] -= 0.4
    write_json(REPORT / "results/demo_minus.json", content)
    assert check() == 0 and "20 of 21 numbers agree, 1 differ" in capsys.readouterr().out
    change(FILE, "aa" * 32, "cc" * 32)
    assert check() == 1 and "differs: data 1 of 2 equal" in capsys.readouterr().out


def test_another_revision_or_a_folder(checkout, tmp_path, capsys):
    change(FILE, "aa" * 32, "cc" * 32)
    commit(checkout.parent)
    assert check() == 0 and check("HEAD~1") == 1
    write_report(tmp_path / "elsewhere")
    assert check(str(tmp_path / "elsewhere")) == 1
    assert f"beside the report in {tmp_path}/elsewhere" in capsys.readouterr().out


def test_what_is_missing_is_said_in_one_sentence(checkout, capsys):
    (checkout / "presets").mkdir()
    for reference, words in (
        ("v9", "v9 is no commit of a git repository here, and no folder."),
        ("presets", "presets holds no report; make one with dvc repro."),
    ):
        assert check(reference) == 1 and capsys.readouterr().err == f"compare: {words}\n"
    run(checkout, "git", "rm", "-rq", "--cached", str(REPORT))
    commit_without = ("-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "-qm", "none")
    run(checkout, "git", *commit_without)
    assert check() == 1 and "no report of this preset (reports/tiny) is committed at " in capsys.readouterr().err


def test_a_damaged_report_is_named(checkout):
    change(FILE, "{", "")
    with pytest.raises(StageError, match="the report in reports/tiny cannot be read"):
        compare.of_folder(REPORT)


def test_without_git_there_is_nothing_to_compare_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = compare.committed(REPORT)
    assert found.record is None and found.name == "HEAD is no commit of a git repository here, and no folder"
