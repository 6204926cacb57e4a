"""The reports in git: every number follows from the accuracy matrices beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from par.files import read_json
from tests.reporting.traceability import check_report

REPORTS = sorted(path.parent for path in (Path(__file__).resolve().parents[2] / "reports").glob("*/metrics.json"))


@pytest.mark.parametrize("folder", REPORTS, ids=lambda folder: folder.name)
def test_every_number_can_be_traced(folder):
    results = [read_json(path) for path in (folder / "results").glob("*.json")]
    measured = any(result["learners"] or result.get("identification") for result in results)
    assert (check_report(folder) > 0) == measured, "a report of routing alone has no number to trace"
