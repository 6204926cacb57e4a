"""Scores, their verdicts, and the metrics that DVC reads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from par.reporting.published import Value, load_published
from par.reporting.scores import METRICS, Score, dvc_metrics, headline, stream_scores, with_seconds
from tests.reporting.cases import demo_config, result


@pytest.fixture(scope="module")
def published():
    return load_published()


def a_score(values, printed, metric="AP") -> Score:
    value = None if printed is None else Value("ctrl", "par", "ctrl_minus", metric, printed, (), False)
    return Score("ctrl_minus", "par", metric, values, None, value)


@pytest.mark.parametrize(
    "values, printed, verdict",
    [
        ((0.70, 0.72), 0.71, "reproduced"),
        ((0.72,), 0.71, "reproduced"),  # exactly one point
        ((0.721,), 0.71, "above"),
        ((0.699,), 0.71, "below"),
        ((0.60, 0.70), 0.78, "reproduced"),  # 2 std are 14 points
        ((0.60, 0.61), 0.78, "below"),
        ((), 0.71, "not run"),
        ((0.71,), None, ""),
    ],
)
def test_verdict(values, printed, verdict):
    assert a_score(values, printed).verdict == verdict


def test_only_accuracies_are_judged():
    score = a_score((1.401,), 1.4, "M")
    assert score.verdict == "" and score.difference == pytest.approx(0.001)


def test_seconds_join_the_result_from_their_own_files():
    steps = [{"task": 0, "epochs": 2}, {"task": 1, "epochs": 2}]
    stored = {"stream": "s", "learners": {name: {"0": {"steps": steps}} for name in ("par", "finetune")}}
    trained = {name: {"0": {"steps": {"0": 1000.0, "1": 500.0}, "epochs": []}} for name in ("par", "finetune")}
    searched = {"par": {"0": {"0": {"seconds": 300.0}, "1": {"seconds": 0.0}}}}
    joined = with_seconds(stored, trained, searched)["learners"]
    assert METRICS["seconds"](joined["par"]["0"]) == 1800.0 and METRICS["hours"](joined["par"]["0"]) == 0.5
    assert METRICS["seconds"](joined["finetune"]["0"]) == 1500.0
    assert [step["seconds"] for step in joined["par"]["0"]["steps"]] == [1000.0, 500.0]
    assert "seconds" not in steps[0], "what was read stays as it was"


def test_score_as_text():
    assert a_score((0.70, 0.72), None).text() == "0.710 ± 0.014"
    assert a_score((0.7064,), None).text() == "0.706"
    assert a_score((), None).text() == "-"
    assert a_score((-0.0004,), None, "AF").text() == "0.000"
    assert a_score((1234.6, 1234.6), None, "seconds").text() == "1,235"


def test_scores_average_seeds_and_intervals(published):
    config = demo_config()
    content = result("cifar100_10")
    score = stream_scores(config, "cifar100_10", content, published)["par"]["AP"]
    entries = content["learners"]["par"].values()
    assert score.mean == pytest.approx(np.mean([entry["ap"] for entry in entries]))
    assert score.std == pytest.approx(np.std([entry["ap"] for entry in entries], ddof=1))
    assert score.interval[0] == pytest.approx(np.mean([entry["ap_interval"][0] for entry in entries]))
    assert score.published.value == 0.853


def test_other_images_get_the_papers_value_but_no_verdict(published):
    score = stream_scores(demo_config(), "demo_minus", result("demo_minus"), published)["par"]["AP"]
    assert score.published.value == 0.706 and score.published.stream == "ctrl_minus" and score.values
    assert not score.comparable and score.difference is None and score.verdict == ""


@pytest.mark.parametrize(("block", "judged"), [({}, True), ({"network": "resnet"}, False)])
def test_a_value_of_another_network_gets_no_verdict(published, block, judged):
    """GPM's published values are an AlexNet's."""
    config = dataclasses.replace(demo_config(), methods={"gpm": block})
    learners = {"gpm": result("cifar100_10")["learners"]["finetune"]}
    score = stream_scores(config, "cifar100_10", {"learners": learners}, published)["gpm"]["AP"]
    assert score.published.value == 0.725 and score.published.backbone == "AlexNet"
    assert (score.difference is not None) == (score.verdict != "") == judged


def test_a_preset_that_trains_less_than_the_paper_says_so_in_place_of_a_verdict(published):
    config = demo_config()
    knows = dataclasses.replace(published, settings=config)
    assert a_stream(config, knows)["par"]["AP"].verdict == "below", "the whole budget"
    short = dataclasses.replace(config, recipe=dataclasses.replace(config.recipe, epochs=3))
    narrow = dataclasses.replace(short, network=dataclasses.replace(config.network, width=32))
    score = a_stream(narrow, knows)["finetune"]["AP"]
    assert (score.budget, score.verdict) == ("3 of 100 epochs, width 32 of 64", "") and score.difference is not None
    assert score.row()["budget"] == score.budget
    shallow = dataclasses.replace(short, network=dataclasses.replace(config.network, name="resnet10_light"))
    assert a_stream(shallow, knows)["finetune"]["AP"].budget == "3 of 100 epochs, layers 10 of 18"
    expert = dataclasses.replace(config, expert=dataclasses.replace(config.expert, channels=16))
    assert a_stream(expert, knows)["par"]["AF"].budget == "channels 16 of 64"
    searched = dataclasses.replace(config, search=dataclasses.replace(config.search, epochs=12))
    assert a_stream(searched, knows)["par"]["AP"].budget == "12 of 100 search epochs"
    assert a_stream(searched, knows)["finetune"]["AP"].budget == ""
    assert a_stream(narrow, knows)["ewc"]["AP"].budget == "", "it was not run"
    assert stream_scores(narrow, "demo_minus", result("demo_minus"), knows)["par"]["AP"].budget == "", "other images"
    assert a_stream(narrow, published)["finetune"]["AP"].verdict == "above", "without settings all is judged"


def a_stream(config, published) -> dict:
    return stream_scores(config, "cifar100_10", result("cifar100_10"), published)


def scores_of(published) -> dict:
    contents = {"demo_minus": result("demo_minus"), "cifar100_10": result("cifar100_10"), "mixed": {}}
    return {name: stream_scores(demo_config(), name, content, published) for name, content in contents.items()}


def test_headline_numbers_are_named_for_mlflows_charts(published):
    scores = scores_of(published)
    numbers = headline(["finetune", "ewc", "par"], scores)
    kinds = ("AP", "AF", "params_M", "hours")
    ran = {f"{kind}/{s}.{m}" for kind in kinds for s in ("demo_minus", "cifar100_10") for m in ("finetune", "par")}
    assert set(numbers) == ran | {"AP.par", "gap/cifar100_10.finetune", "gap/cifar100_10.par"}
    assert next(iter(numbers)) == "AP.par", "MLflow draws the first one when runs are compared"
    of_par = [numbers[f"AP/{stream}.par"] for stream in ("demo_minus", "cifar100_10")]
    assert numbers["AP.par"] == pytest.approx(sum(of_par) / 2)
    assert numbers["params_M/cifar100_10.par"] == pytest.approx(1.2141) and numbers["hours/cifar100_10.par"] == 1.0
    assert numbers["gap/cifar100_10.par"] == pytest.approx(numbers["AP/cifar100_10.par"] - 0.853)


def test_dvc_metrics_are_few(published):
    scores = scores_of(published)
    metrics = dvc_metrics(["finetune", "ewc", "par"], scores)
    assert set(metrics) == {"mean_AP", "par"} and set(metrics["mean_AP"]) == {"finetune", "par"}
    means = [scores[stream]["par"]["AP"].mean for stream in ("demo_minus", "cifar100_10")]
    assert metrics["mean_AP"]["par"] == round(np.mean(means), 4)
    assert set(metrics["par"]) == {"demo_minus", "cifar100_10"}
    assert metrics["par"]["cifar100_10"] == {
        "AP": round(means[1], 4),
        "AF": round(scores["cifar100_10"]["par"]["AF"].mean, 4),
        "M": 1.2141,
    }
