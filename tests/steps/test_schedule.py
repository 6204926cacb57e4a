"""Schedules against ones worked out by hand."""

from __future__ import annotations

import pytest

from par.steps.schedule import Timed, simulate

JOBS = [
    Timed("search a", None, 2),
    Timed("chain a", "search a", 5),
    Timed("search b", None, 1),
    Timed("chain b", "search b", 1),
    Timed("free", None, 4),
]


@pytest.mark.parametrize(
    ("workers", "makespan", "limit"),
    [
        (1, 13, "the number of workers"),
        (2, 7, "the longest chain"),  # 0-2 search a, 2-7 chain a; 0-4 free, 4-5 search b, 5-6 chain b
        (9, 7, "the longest chain"),
    ],
)
def test_makespan(workers, makespan, limit):
    schedule = simulate(JOBS, workers)
    assert (schedule.makespan, schedule.work, schedule.critical) == (makespan, 13, 7)
    assert schedule.limit == limit and schedule.utilisation == pytest.approx(13 / (makespan * workers))


def test_equal_jobs_come_in_rounds():
    assert simulate([Timed(str(n), None, 3) for n in range(10)], 4).makespan == 9


def test_nothing_takes_no_time():
    assert simulate([], 4).makespan == 0
