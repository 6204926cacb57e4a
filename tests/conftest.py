"""Fixtures that several test files share."""

from __future__ import annotations

import os

# Before torch and numpy are imported: the tests run in one process per core, and threads that wait for each other on a
# busy core cost eight times what they save.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Containers that forbid compiled files let each of a thousand processes compile par anew, 0.35 s of 3.2.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Hide a GPU that happens to be there from all tests but those marked ``gpu`` (`pytest -m gpu`)."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real image data (zips), named by PAR_REAL_DATA or lying beside the checkout."""
    folder = Path(os.environ.get("PAR_REAL_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real image data at {folder}; set PAR_REAL_DATA to a folder of image zips")
    return folder
