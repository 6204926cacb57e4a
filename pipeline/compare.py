"""Does a run agree with the published one? ``python -m pipeline.compare [revision or folder of a report]``.

The report that ``tables`` wrote is compared with the one of the same preset in git, at HEAD or another revision, or
with one in a folder. The exit code is 1 where plans or data differ, or where there is nothing to compare; trained
numbers may differ between processors, except by ``numerics: portable``, and decide nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from par.files import read_json
from par.reporting.comparison import FILE, Record, Reference, compare, lines
from par.reporting.provenance import bits_of_both
from par.settings import load
from pipeline.stage import REPORTS, StageError, mistakes_in_one_sentence
from pipeline.tracking import git


def main() -> None:
    """Print the comparison; the exit code is 1 where plans or data differ, or where there is nothing to compare."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.compare", description=__doc__.partition("\n\n")[0])
    parser.add_argument("reference", nargs="?", default="HEAD", help="a git revision, or a folder with a report in it")
    where = parser.parse_args().reference
    with mistakes_in_one_sentence("compare"):
        folder = REPORTS / load().preset
        here = of_folder(folder)
        reference = of_folder(Path(where)) if Path(where).is_dir() else committed(folder, where)
        for one in (here, reference):
            if one.record is None:
                raise StageError(f"{one.name}.")
        assert here.record is not None and reference.record is not None
        compared = compare(here.record, reference.record)
        print(f"{folder} beside {reference.name}")
        print("\n".join([*bits_of_both(here.record.results, reference.record.results), *lines(compared)]))
        if compared.differs or not compared.rows:
            raise SystemExit(1)


def of_folder(folder: Path) -> Reference:
    """The report in a folder; without a record where there is none."""
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.json"))}
    return _reference(f"the report in {folder}", paths, f"{folder} holds no report; make one with dvc repro", read_json)


def committed(folder: Path, revision: str = "HEAD") -> Reference:
    """The report that git has of a folder at a revision; without a record where there is none."""
    commit = git("rev-parse", "--short", "--verify", "--quiet", f"{revision}^{{commit}}")
    if not commit:
        return Reference(f"{revision} is no commit of a git repository here, and no folder")
    listed = git("ls-tree", "-r", "--name-only", commit, "--", f"{folder}/").splitlines()
    paths = {str(PurePosixPath(path).relative_to(folder.as_posix())): path for path in listed if path.endswith(".json")}
    return _reference(
        f"the report committed at {commit}",
        paths,
        f"no report of this preset ({folder}) is committed at {commit}",
        lambda path: json.loads(git("show", f"{commit}:./{path}")),
    )


def _reference(name: str, paths: dict[str, Any], missing: str, read: Callable[[Any], Any]) -> Reference:
    """The record in the files of a report, by their names in its folder."""
    results = [path for name, path in paths.items() if PurePosixPath(name).parent.name == "results"]
    if not results:
        return Reference(missing)
    try:
        contents = [read(path) for path in results]
        digests = read(paths[FILE]) if FILE in paths else {}
        return Reference(name, Record({content["stream"]: content for content in contents}, digests))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StageError(f"{name} cannot be read ({error}); name another revision or folder.") from None


if __name__ == "__main__":
    main()
