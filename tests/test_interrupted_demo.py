"""The check of a whole run that is killed again and again, on a stream of its own settings."""

from __future__ import annotations

import pytest

from tests.interrupted_demo import compare_runs
from tests.project import PARAMS


@pytest.mark.slow
@pytest.mark.exhaustive  # two whole runs of dvc
def test_a_run_killed_three_times_ends_with_the_same_bytes(tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS.replace("- tiny", "- demo_split"))
    assert compare_runs(tmp_path, 3, 0, tmp_path / "params.yaml") == []
