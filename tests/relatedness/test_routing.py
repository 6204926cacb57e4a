"""Plans from hand-made distances."""

from __future__ import annotations

import numpy as np
import pytest

from par.files import write_json
from par.relatedness.plan import chains, plan_from_json, plan_to_json
from par.relatedness.routing import route
from par.schema import ConfigError


def plan(rows, n_train=None, *, alpha=0.5, beta=0.75, freeze_below=0.1, estimator="paper"):
    """Route a stream whose task i has the distances ``rows[i - 1]`` to the tasks before it."""
    n_tasks = len(rows) + 1
    distances = np.full((n_tasks, n_tasks), np.nan)
    for task, row in enumerate(rows, start=1):
        distances[task, :task] = row
    names = [f"t{task}" for task in range(n_tasks)]
    return route(
        distances,
        n_train or [100] * n_tasks,
        names,
        alpha=alpha,
        beta=beta,
        freeze_below=freeze_below,
        estimator=estimator,
    )


def what(decisions):
    return [(decision.decision, decision.group, decision.nearest_group, decision.cell_from) for decision in decisions]


def test_every_decision_of_the_paper():
    decisions = plan([[2.0], [0.2, 3.0], [5.0, 0.7, 4.0], [9.0, 9.0, 9.0, 0.6], [9.0, 9.0, 9.0, 9.0, 0.1]])
    assert what(decisions) == [
        ("search", 0, None, 0),
        ("search", 1, 0, 1),  # 1 - exp(-4) = 0.98
        ("join", 0, 0, 0),
        ("reuse_cell", 2, 1, 1),  # eq. 8: min(0.7, 0.753)
        ("reuse_cell", 3, 2, 1),  # the cell of group 2, which task 1 searched
        ("join", 3, 3, 1),
    ]
    assert [decision.distance for decision in decisions] == [None, 0.981684, 0.2, 0.7, 0.6, 0.1]
    assert [(decision.task, decision.name) for decision in decisions] == [(i, f"t{i}") for i in range(6)]
    assert chains(decisions) == [[0, 2], [1], [3], [4, 5]]
    assert not any(decision.head_only for decision in decisions)


def test_single_task_is_searched():
    assert what(plan([])) == [("search", 0, None, 0)]


@pytest.mark.parametrize(
    ("distance", "decision"),
    [
        (-3.0, "join"),
        (0.0, "join"),
        (0.5, "join"),
        (0.500001, "reuse_cell"),
        (0.75, "reuse_cell"),
        (0.750001, "search"),
    ],
)
def test_thresholds_belong_to_the_nearer_side(distance, decision):
    assert plan([[distance]])[1].decision == decision


def test_large_distance_is_mapped_before_it_is_compared():
    """D = 1 has the score 1 - exp(-2) = 0.865."""
    assert plan([[1.0]], beta=0.87)[1].decision == "reuse_cell"
    assert plan([[1.0]], beta=0.86)[1].decision == "search"


def test_negative_distance_is_nearest_of_all():
    decisions = plan([[2.0], [0.0, -0.4]])
    assert what(decisions)[2] == ("join", 1, 1, 1)
    assert decisions[2].distance == pytest.approx(1 - np.exp(0.8), abs=1e-6)


def test_ties_go_to_the_earliest_group():
    assert what(plan([[2.0], [0.3, 0.3]]))[2] == ("join", 0, 0, 0)
    assert what(plan([[2.0], [9.0, 2.0], [0.3, 0.3, 0.1], [5.0, 2.0, 5.0, 2.0]], alpha=0.2))[4][2] == 1


def test_paper_averages_over_the_group_before_mapping():
    """Tasks 0 and 1 form a group; raw mean 1.3 has score 0.926, the mean of the scores is 0.626."""
    rows = [[0.1], [0.3, 2.3]]
    expected = 1 - np.exp(-2 * 1.3)
    for estimator in ("paper", "corrected"):
        assert plan(rows, estimator=estimator)[2].distance == pytest.approx(expected, abs=1e-6)
        assert plan(rows, estimator=estimator)[2].decision == "search"
    decision = plan(rows, estimator="reference")[2]
    assert decision.distance == pytest.approx((0.3 + 1 - np.exp(-4.6)) / 2, abs=1e-6)
    assert decision.decision == "reuse_cell"


def test_reference_reads_an_exact_zero_as_unrelated():
    assert plan([[0.0]], estimator="reference")[1].decision == "search"
    assert plan([[1e-6]], estimator="reference")[1].decision == "join"
    assert plan([[0.0]], estimator="paper")[1].decision == "join"


@pytest.mark.parametrize("estimator", ["paper", "reference"])
@pytest.mark.parametrize(("n_new", "head_only"), [(39, True), (40, False), (400, False), (4000, False)])
def test_head_only_below_a_share_of_the_group(estimator, n_new, head_only):
    assert plan([[0.2]], [400, n_new], estimator=estimator)[1].head_only is head_only


def test_head_only_looks_at_the_largest_task_of_the_joined_group_alone():
    decisions = plan([[2.0], [0.1, 2.0], [0.1, 2.0, 0.1], [2.0, 0.1, 2.0, 2.0]], [50, 9000, 1000, 60, 60])
    assert [decision.head_only for decision in decisions] == [False, False, False, True, True]
    assert "60 training images against 1000" in decisions[3].reason
    assert "60 training images against 9000" in decisions[4].reason


def test_new_expert_is_never_head_only():
    decisions = plan([[0.6], [3.0, 3.0]], [9000, 10, 10])
    assert [decision.decision for decision in decisions] == ["search", "reuse_cell", "search"]
    assert not any(decision.head_only for decision in decisions)


def test_freeze_below_zero_trains_every_expert():
    assert not plan([[0.2]], [400, 1], freeze_below=0.0)[1].head_only


def test_reference_sends_a_tiny_task_to_the_nearest_big_group():
    rows = [[4.0], [9.0, 9.0], [9.0, 3.0, 2.0]]
    n_train = [400, 250, 249, 25]
    decisions = plan(rows, n_train, estimator="reference", freeze_below=0.5)
    assert what(decisions)[3] == ("join", 1, 2, 1)  # group 2 is nearer, but 249 < 10 x 25
    assert decisions[3].head_only
    assert "only 25 training images" in decisions[3].reason
    assert what(plan(rows, [400, 250, 249, 26], estimator="reference"))[3][0] == "search"  # not tiny
    assert what(plan(rows, n_train, estimator="paper"))[3][0] == "search"  # the rule is the public code's alone


def test_reference_judges_a_tiny_task_by_distance_where_no_group_is_big():
    assert what(plan([[0.2]], [200, 25], estimator="reference"))[1] == ("join", 0, 0, 0)
    assert what(plan([[2.0]], [200, 25], estimator="reference"))[1] == ("search", 1, 0, 1)


def test_extreme_thresholds():
    rows = [[2.0], [0.2, 0.3], [0.4, 0.1, 0.2]]
    assert chains(plan(rows, alpha=1.0, beta=1.0)) == [[0, 1, 2, 3]]
    assert chains(plan(rows, alpha=0.0, beta=0.0)) == [[0], [1], [2], [3]]
    assert [decision.decision for decision in plan(rows, alpha=0.0, beta=1.0)] == ["search"] + ["reuse_cell"] * 3


def test_distance_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match=r"distances of task 2 \(t2\)"):
        plan([[0.3], [0.2, np.nan]])


def test_equal_decisions_give_equal_bytes(tmp_path):
    rows = [[2.0], [0.2, 3.0], [5.0, 0.7, 4.0]]
    files = {}
    for alpha in (0.25, 0.5, 0.19):
        plans = {seed: plan(rows, alpha=alpha, beta=0.75 if alpha != 0.25 else 0.9) for seed in (0, 1)}
        write_json(tmp_path / "plan.json", plan_to_json("demo", "par", "paper", plans))
        files[alpha] = (tmp_path / "plan.json").read_text()
    assert files[0.25] == files[0.5]
    assert files[0.5] != files[0.19]
    assert "alpha" not in files[0.5] and "beta" not in files[0.5]


def test_plan_survives_json(tmp_path):
    plans = {0: plan([[2.0], [-0.2, 3.0]], [100, 100, 5]), 3: plan([[0.6]])}
    content = plan_to_json("demo_minus", "par", "paper", plans)
    assert set(content) == {"stream", "variant", "estimator", "seeds"}
    assert plan_from_json(content) == plans


def test_damaged_plan_is_refused():
    content = plan_to_json("demo", "par", "paper", {0: plan([])})
    content["seeds"]["0"]["tasks"][0]["decision"] = "guess"
    with pytest.raises(ConfigError, match="plan demo/par, seed 0, task 0.decision = 'guess' is not allowed"):
        plan_from_json(content)
