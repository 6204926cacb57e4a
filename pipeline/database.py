"""The checkout's MLflow database: made whole or not at all, and set aside where it was left half-made.

MLflow makes a database in some fifty steps; killed between two of them, it can never go on ("table ... already
exists"). All functions here work in the current directory, which has to be the checkout, under the publication lock.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from pipeline.address import DATABASE
from pipeline.journal import milliseconds, wait_again

DATABASE_FILE = Path(DATABASE.removeprefix("sqlite:///"))
SIDE_FILES = ("-journal", "-wal", "-shm")  # sqlite's; one beside a new database of the same name would spoil it
LOCKED_AFTER = 2.0  # seconds that another program may hold the database
IN_MAKING = 30.0  # seconds; a database that grew just now may be in another program's hands


class DatabaseError(RuntimeError):
    """A database that cannot be used, in words for the user."""


def prepare() -> str:
    """See to it that there is a database; returns a sentence if one was set aside for that, else nothing.

    A database is half-made if it holds no experiment: the first one is MLflow's last step. Only such a one is set
    aside, so nothing is lost; one that is locked, damaged or of another version stays where it is.

    Raises:
        DatabaseError: the database is locked, is none, or is being made by another program.
    """
    sentence = ""
    if DATABASE_FILE.exists() and _is_half_made():
        age = time.time() - DATABASE_FILE.stat().st_mtime
        if age < IN_MAKING:
            raise DatabaseError(
                f"{DATABASE_FILE} is half-made and {age:.0f} s old: another program may be making it; "
                f"if none is, it is set aside after {IN_MAKING:g} s"
            )
        sentence = f"MLflow: {DATABASE_FILE} was left half-made and is now {_set_aside()}; a new one gets all journals."
    if not DATABASE_FILE.exists():
        _make()
    return sentence


def _is_half_made() -> bool:
    try:
        with closing(sqlite3.connect(DATABASE_FILE, timeout=LOCKED_AFTER)) as database:
            database.execute("BEGIN IMMEDIATE")  # fails here, and soon, where another program holds it
            tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'experiments'").fetchall()
            return not tables or database.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is None
    except sqlite3.Error as error:
        raise DatabaseError(
            f"{DATABASE_FILE}: {error}"
            + ("; move it away, then python -m pipeline.sync --rebuild" if "not a database" in str(error) else "")
        ) from None


def _set_aside() -> str:
    """Rename the database, and let every journal be published into the next one; returns its new name."""
    wait_again()  # before the database goes: killed in between, this is simply done again
    name = f"{DATABASE_FILE}.broken-{milliseconds()}"
    for suffix in (*SIDE_FILES, ""):
        if Path(f"{DATABASE_FILE}{suffix}").exists():
            os.rename(f"{DATABASE_FILE}{suffix}", f"{name}{suffix}")
    return name


def _make() -> None:
    """Make the database under another name, then give it its own."""
    from mlflow import MlflowClient

    draft = Path(f"{DATABASE_FILE}.making")
    _remove(draft)  # of a process that was killed
    try:
        MlflowClient(f"sqlite:///{draft}").search_experiments(max_results=1)
        os.replace(draft, DATABASE_FILE)
    finally:
        _remove(draft)  # where the disk is full, it needs the room


def _remove(path: Path) -> None:
    for suffix in ("", *SIDE_FILES):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
