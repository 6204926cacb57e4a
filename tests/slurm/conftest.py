"""A SLURM for the tests of this folder, or a reason to skip them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.slurm.cluster import Slurm, missing, running


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """A running SLURM."""
    if missing():
        pytest.skip(f"no SLURM here ({', '.join(missing())} missing): apt-get install slurm-wlm munge")
    if find_spec("submitit") is None:
        pytest.skip("no submitit here: pip install -e '.[slurm]'")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nothing may be left of it
    with running() as slurm:
        yield slurm
    signal.signal(signal.SIGTERM, before)
