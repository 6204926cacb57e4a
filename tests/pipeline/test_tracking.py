"""What stages leave in the journal and in MLflow, however they end."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from par.steps import code_digest
from pipeline import tracking
from pipeline.tracking import stage
from tests.pipeline.helpers import CONFIG, PROGRAM, REPOSITORY, git, journals, make_checkout, publish, runs, start_stage


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    return make_checkout(tmp_path, monkeypatch)


def test_imports_lead_from_stages_to_sync_to_the_journal_and_load_no_mlflow():
    names = {"pipeline.tracking", "pipeline.sync", "pipeline.journal"}
    assert code_digest.import_closure(["pipeline.journal"]) & names == {"pipeline.journal"}
    assert code_digest.import_closure(["pipeline.sync"]) & names == {"pipeline.sync", "pipeline.journal"}
    assert not code_digest.import_closure(["pipeline.publisher"]) & {"pipeline.tracking", "pipeline.sync"}
    script = "import sys, pipeline.tracking; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY).returncode == 0


def test_quick_stage_leaves_its_journal_to_a_later_stage_and_says_so(checkout, capsys):
    with stage(CONFIG, "route", item="a") as run:
        run.metrics({"n_groups": 3})
    assert len(journals(checkout, ".jsonl")) == 1 and runs(checkout, "stage") == []
    assert "route@a is in the journal" in capsys.readouterr().out
    with stage(CONFIG, "tables", publish=True):
        pass
    assert [run.info.run_name for run in runs(checkout, "stage")] == ["route@a", "tables"]
    assert journals(checkout, ".jsonl") == [] and len(journals(checkout, ".done")) == 2


def test_stage_publishes_when_the_oldest_journal_has_waited_long_enough(checkout, monkeypatch):
    monkeypatch.setattr(tracking, "PUBLISH_AFTER", 0.2)
    with stage(CONFIG, "route", item="a"):
        pass
    assert runs(checkout, "stage") == []
    time.sleep(0.25)
    with stage(CONFIG, "search", item="a"):
        pass
    assert [run.info.run_name for run in runs(checkout, "stage")] == ["route@a", "search@a"]


@pytest.mark.parametrize("way", ["last stage", "stage near its end"])
def test_what_waits_is_published_beside_the_work_of_a_stage(checkout, monkeypatch, capsys, way):
    with stage(CONFIG, "train", item="a") as run:
        run.metrics({"AP": 0.5})
    monkeypatch.setattr(tracking, "PUBLISH_AFTER", 0.0)
    with stage(CONFIG, "tables", publish=way == "last stage") as run:
        time.sleep(0.01)
        run.ends_soon()
        deadline = time.monotonic() + 60
        while not journals(checkout, ".done"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(journals(checkout, ".jsonl")) == 1, "its own, which is still written"
    assert "MLflow: 2 runs published." in capsys.readouterr().out
    assert [run.info.run_name for run in runs(checkout, "stage")] == ["train@a", "tables"]
    assert journals(checkout, ".jsonl") == []


def test_a_publishing_process_that_was_ended_costs_one_line(checkout, capsys):
    with stage(CONFIG, "tables", publish=True):
        (process,) = multiprocessing.active_children()
        process.kill()
        process.join()
    assert "the publishing process was ended" in capsys.readouterr().out
    assert publish() == "MLflow: 1 runs published."


def test_everything_reported_arrives_in_mlflow(checkout):
    (checkout / "model").mkdir()
    (checkout / "model" / "genotype.json").write_text("{}")
    with stage(CONFIG, "train", item="a", publish=True) as run:
        run.params({"estimator": "paper", "epochs": 3})
        run.metrics({"AP": 0.5, "AF": None})
        run.curves({"task 0": [{"epoch": 1, "loss": 2.0, "phase": "x"}, {"epoch": 2, "loss": 1.0, "phase": "x"}]})
        run.artifact("model")
        run.text("plan.md", "joined")
        run.dataset("a", "f" * 64, "dvc:data/streams/a", [{"task": "t", "n": 3, "share": 0.5}])
        run.parent_metrics({"AP/a.par": 0.5})
        (checkout / "model" / "genotype.json").write_text("changed after it was reported")
    (child,), (parent,) = runs(checkout, "stage"), runs(checkout, "pipeline")
    assert child.data.params == {"estimator": "paper", "epochs": "3"}
    assert child.data.metrics == {"AP": 0.5, "task 0/loss": 1.0}
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.data.metrics == {"AP/a.par": 0.5}
    artifacts = Path(child.info.artifact_uri.removeprefix("file://"))
    assert (artifacts / "model" / "genotype.json").read_text() == "{}"
    assert (artifacts / "plan.md").read_text() == "joined"
    dataset = child.inputs.dataset_inputs[0].dataset
    assert dataset.name == "a" and "data/streams/a" in dataset.source and '"num_rows": 1' in dataset.profile


def test_store_is_in_the_main_checkout_when_the_stage_runs_elsewhere(checkout, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("temporary_experiment")
    monkeypatch.chdir(elsewhere)
    with stage(CONFIG, "train", item="a", publish=True) as run:
        run.text("plan.md", "joined")
    assert list(elsewhere.iterdir()) == []
    assert runs(checkout, "stage")[0].info.artifact_uri.startswith((checkout / "mlartifacts").as_uri())
    assert len(list((checkout / "mlartifacts").rglob("plan.md"))) == 1


def test_run_is_named_and_tagged_as_dvc_names_the_stage(checkout, monkeypatch):
    monkeypatch.setenv("DVC_STAGE", "train@demo_minus")
    monkeypatch.setenv("DVC_EXP_NAME", "alpha-1")
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)  # would make MLflow's fluent interface resume that run
    monkeypatch.setattr(tracking.sys, "platform", "test")  # this process is not to end with the one that started it
    with stage(CONFIG, "train", item="a", publish=True):
        pass
    (child,), (parent,) = runs(checkout, "stage"), runs(checkout, "pipeline")
    assert child.info.run_name == child.data.tags["dvc.stage"] == "train@demo_minus"
    assert parent.info.run_name == parent.data.tags["dvc.exp"] == "alpha-1"
    assert child.data.tags["par.pipeline"].startswith("alpha-1-") and child.data.tags["env.torch"]


def test_children_take_the_place_of_their_stage(checkout):
    with stage(CONFIG, "train", item="a", publish=True) as run:
        for seed in (0, 1):
            with run.child(f"par seed {seed}") as child:
                child.metrics({"AP": seed})
    assert [run.info.run_name for run in runs(checkout, "stage")] == ["train@a par seed 0", "train@a par seed 1"]
    assert {run.data.tags["mlflow.parentRunId"] for run in runs(checkout, "stage")} == {
        run.info.run_id for run in runs(checkout, "pipeline")
    }


def test_exception_is_raised_again_and_published_at_once_as_failed(checkout):
    with pytest.raises(ZeroDivisionError):
        with stage(CONFIG, "train", item="a") as run:
            with run.child("par seed 0"):
                pass
            with run.child("ewc seed 0"):
                raise ZeroDivisionError("no samples")
    status = {run.info.run_name: run.info.status for run in runs(checkout, "stage")}
    assert status == {"train@a": "FAILED", "train@a par seed 0": "FINISHED", "train@a ewc seed 0": "FAILED"}
    assert runs(checkout, "pipeline")[0].info.status == "FAILED"


@pytest.mark.parametrize(("code", "status"), [(None, "FINISHED"), (0, "FINISHED"), (1, "FAILED"), ("bad", "FAILED")])
def test_exit_code_decides_the_status(checkout, code, status):
    with pytest.raises(SystemExit):
        with stage(CONFIG, "train", publish=True):
            sys.exit(code)
    assert [run.info.status for run in runs(checkout, "stage")] == [status]


def test_sigterm_ends_the_stage_cleanly_and_keeps_the_journal(checkout):
    process = start_stage("run.metrics({'AP': 1}); print('ready', flush=True); time.sleep(60)")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 143 and "is in the journal" in output
    publish()
    (child,) = runs(checkout, "stage")
    assert child.info.status == "KILLED" and child.data.metrics == {"AP": 1}


def test_killed_stage_is_published_as_killed(checkout):
    process = start_stage("run.metrics({'AP': 1}); print('ready', flush=True); time.sleep(60)")
    assert process.stdout.readline() == "ready\n"
    publish()
    assert runs(checkout, "stage") == [] and len(journals(checkout, ".jsonl")) == 1  # it is still being written
    process.kill()
    process.communicate(timeout=10)
    publish()
    (child,) = runs(checkout, "stage")
    assert child.info.status == "KILLED" and child.data.metrics == {"AP": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tell a process that its parent has died")
def test_stage_ends_when_dvc_is_killed(checkout):
    code = "print('ready', flush=True); time.sleep(60)"
    starter = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DVC_STAGE": "train@a"}
    dvc = subprocess.Popen([sys.executable, "-c", starter, PROGRAM, code], env=environment, stdout=subprocess.PIPE)
    assert dvc.stdout.readline() == b"ready\n"
    dvc.kill()
    start = time.monotonic()
    with dvc:
        assert b"is in the journal" in dvc.stdout.read()  # returns once the stage has closed its output
    assert time.monotonic() - start < 20


def test_dead_server_costs_seconds_and_one_line_and_sync_delivers(checkout, monkeypatch, capfd):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with stage(CONFIG, "train", item="a", publish=True) as run:
        run.metrics({"AP": 0.5})
    output = capfd.readouterr()
    assert len(output.out.splitlines()) == 1 and "MLflow is out of reach" in output.out
    assert "Traceback" not in output.err
    assert len(journals(checkout, ".jsonl")) == 1
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert publish() == "MLflow: 1 runs published."
    assert [run.data.metrics for run in runs(checkout, "stage")] == [{"AP": 0.5}]


def test_same_pipeline_state_has_one_parent_and_another_its_own(checkout, capsys):
    other = dataclasses.replace(CONFIG, alpha=0.3)
    for config in (CONFIG, other, CONFIG):
        with stage(config, "tables", publish=True) as run:
            run.parent_metrics({"AP/a.par": config.alpha})
    parents = runs(checkout, "pipeline")
    assert [run.info.run_name for run in parents] == ["alpha=0.5 @no commit", "alpha=0.3 @no commit"]
    assert [run.data.params["alpha"] for run in parents] == ["0.5", "0.3"]
    assert [run.data.metrics["AP/a.par"] for run in parents] == [0.5, 0.3]
    assert len(runs(checkout, "stage")) == 3
    link = capsys.readouterr().out.splitlines()[-1]
    assert "compare-runs" in link and all(run.info.run_id in link for run in parents)


def test_parent_shows_the_root_keys_and_what_was_swept(checkout):
    git(checkout, "init", "--quiet")
    (checkout / "params.yaml").write_text("preset: test\nalpha: 0.5\nsearch:\n  epochs: 10\n  step: 0.1\n")
    git(checkout, "add", "params.yaml")
    git(checkout, "commit", "--quiet", "-m", "baseline")
    (checkout / "params.yaml").write_text("preset: test\nalpha: 0.3\nsearch:\n  epochs: 20\n  step: 0.1\n")
    with stage(dataclasses.replace(CONFIG, alpha=0.3), "route", publish=True):
        pass
    (parent,) = runs(checkout, "pipeline")
    assert parent.data.params == {"preset": "test", "alpha": "0.3", "beta": "0.75", "search.epochs": "20"}
    commit = git(checkout, "rev-parse", "HEAD")
    assert parent.info.run_name == f"alpha=0.3 @{commit[:7]}"
    assert parent.data.tags["git.commit"] == commit and parent.data.tags["git.dirty"] == "true"


@pytest.mark.slow
def test_four_stages_meeting_no_database_make_four_runs_and_one_parent(tmp_path, monkeypatch):
    checkout = make_checkout(tmp_path, monkeypatch, database=False)
    processes = [start_stage(f"run.metrics({{'AP': {i}}})", DVC_STAGE=f"train@s{i}") for i in range(4)]
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert journals(checkout, ".jsonl") == []
    assert sorted(run.data.metrics["AP"] for run in runs(checkout, "stage")) == list(range(4))
    assert len(runs(checkout, "pipeline")) == 1


def test_a_preset_copied_over_params_does_not_make_the_checkout_dirty(checkout):
    git(checkout, "init", "--quiet")
    (checkout / "presets").mkdir()
    (checkout / "presets/paper.yaml").write_text("preset: paper\n")
    (checkout / "params.yaml").write_text("preset: demo\n")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "code")
    (checkout / "params.yaml").write_text("preset: paper\n")
    assert tracking.git_state() == (git(checkout, "rev-parse", "HEAD"), False)
    (checkout / "params.yaml").write_text("preset: paper\nalpha: 0.3\n")
    assert tracking.git_state()[1]
