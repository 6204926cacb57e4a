"""The stamp of a report."""

from __future__ import annotations

from par.config import Config
from par.reporting.provenance import stamp
from tests.reporting.cases import PROVENANCE, demo_config, plan, result


def test_stamp_says_where_numbers_come_from():
    config = demo_config()
    digests = {"demo_minus": {"10": "b" * 64, "9": "a" * 64}}
    contents, plans = {"demo_minus": result("demo_minus")}, {"demo_minus": {"par": plan()}}
    searched = {"0": {"0": {"seconds": 600.0}, "1": {"seconds": 600.0}}, "1": {"0": {"seconds": 600.0}}}
    searches = {"demo_minus": {"par": searched, "fine": {"0": {"0": {"seconds": 600.0}, "2": {"seconds": 1_800.0}}}}}
    stamped = stamp(config, config.streams, contents, plans, searches, digests, PROVENANCE)
    assert stamped["Preset"] == "demo (DEMO)" and stamped["Commit"] == "abc1234-dirty" and stamped["Seeds"] == "0, 1"
    assert stamped["Extractor"] == "resnet18 (sha256 0123456789ab)" and "test machine" in stamped["Hardware"]
    demo, cifar = stamped["Epochs"].removesuffix("; search 100").split("; ")
    assert demo.startswith("demo_minus: 100 a task (finetune, independent, par, fixed, search_advantage, alpha_000,")
    assert cifar == "cifar100_10: 100 a task (finetune, independent, par), 9 a task (ewc)"
    assert stamped["Data"] == "sha256 of the tasks by seed: demo_minus aaaaaaaaaaaa, bbbbbbbbbbbb"
    # seven learners share the steps of 1,000 s of three tasks and two seeds, two variants one search of 600 s
    assert stamped["Time"].startswith("1.67 h of training and 1.00 h of search")


def test_epochs_that_differ_by_stream_are_said_by_stream():
    config = Config("cifar", ("mixed", "cifar10_5"), (0,), {"par": {}}, recipes={"mixed": {"epochs": 7}})
    assert stamp(config, config.streams, {}, {}, {}, {}, PROVENANCE)["Epochs"] == (
        "mixed: 7 a task; cifar10_5: 100 a task; search 100"
    )


def test_a_report_that_trains_nothing_has_no_epochs():
    config = Config("relatedness", ("cifar100_coarse",), (0,), {})
    assert stamp(config, config.streams, {}, {}, {}, {}, PROVENANCE)["Epochs"] == "nothing is trained"
