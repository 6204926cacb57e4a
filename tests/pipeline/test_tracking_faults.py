"""MLflow's server, its database and the disk fail in every way; stages go on, journals stay, and a sentence says so."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from base64 import b64encode
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pipeline import address, database, sync, ui
from pipeline.tracking import stage
from tests.pipeline.fault_server import fault_server
from tests.pipeline.helpers import (
    CONFIG,
    REPOSITORY,
    journals,
    make_checkout,
    migrated_database,
    publish,
    runs,
    start_stage,
)

PASSWORD = "s3cr3t/w@rd+1"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    shutil.copy(REPOSITORY / "params.yaml", tmp_path)
    return make_checkout(tmp_path, monkeypatch)


def run_sync(monkeypatch, capfd, *arguments: str) -> tuple[int, str]:
    """Run the command in this process; returns its exit code and all that it prints."""
    monkeypatch.setattr(sys, "argv", ["sync", *arguments])
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        sync.main()
    output = capfd.readouterr()
    sentence = end.value.code if isinstance(end.value.code, str) else ""  # sys.exit(sentence) prints it and means 1
    return (1 if sentence else end.value.code), output.out + output.err + sentence


def write_stage(**options: bool) -> None:
    with stage(CONFIG, "train", item="a", **options) as run:
        run.metrics({"AP": 0.5})
        run.text("plan.md", "joined")


# -- servers


@pytest.mark.parametrize("fault", ["mute", "trickling", "slow", "hanging uploads"])
def test_a_stage_waits_for_a_server_no_longer_than_its_limit(checkout, monkeypatch, capfd, fault):
    monkeypatch.setattr(sync, "SERVER_SECONDS", 1.0)
    write_stage()
    with fault_server(fault, seconds=0.3) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{server.place}")
        started = time.monotonic()
        write_stage(publish=True)
        assert time.monotonic() - started < 3
    output = capfd.readouterr()
    assert "not done within 1 s" in output.out and "2 journals are kept" in output.out and output.err == ""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert publish() == "MLflow: 2 runs published."
    assert [run.data.metrics for run in runs(checkout, "stage")] == [{"AP": 0.5}] * 2


@pytest.mark.slow
def test_limit_of_a_stage_in_real_use(tmp_path, monkeypatch):
    make_checkout(tmp_path, monkeypatch)
    with fault_server("mute") as server:
        process = start_stage("print(time.monotonic(), flush=True)", MLFLOW_TRACKING_URI=f"http://{server.place}")
        started = float(process.stdout.readline())
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0 and "not done within 4.5 s" in output and errors == ""
    assert time.monotonic() - started < sync.SERVER_SECONDS + 10  # of which loading MLflow takes 1 to 8


def test_what_a_stage_has_published_of_a_slow_server_is_not_published_again(checkout, monkeypatch, capfd):
    monkeypatch.setattr(sync, "SERVER_SECONDS", 1.5)
    with stage(CONFIG, "train", item="a") as run:
        for seed in range(8):
            with run.child(f"par seed {seed}") as child:
                child.metrics({"AP": seed})
    with fault_server("slow", seconds=0.05) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{server.place}")
        assert "not done within" in publish() and 0 < len(server.ended()) < 9
        code, output = run_sync(monkeypatch, capfd, "--limit", "60")
        assert code == 0 and "journals are kept" not in output
        stages = [name for name in server.ended() if name.startswith("train")]
        assert stages == [f"train@a par seed {seed}" for seed in range(8)]
    assert journals(checkout, ".jsonl") == []


def test_server_out_of_reach_is_not_asked_again_by_every_stage(checkout, monkeypatch, capfd):
    monkeypatch.setattr("pipeline.tracking.PUBLISH_AFTER", 1.0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    write_stage()
    time.sleep(1.1)
    write_stage()
    write_stage()
    told = capfd.readouterr().out.splitlines()
    assert ["out of reach" in line for line in told] == [False, True, False]


BAD_ADDRESSES = {
    "dead": "http://127.0.0.1:1",
    "no such host": "http://mlflow.invalid",
    "wrong scheme": "gopher://127.0.0.1",
    "no driver": "postgresql+pg8000x://127.0.0.1/db",
    "no port": "http://127.0.0.1:port",
}


@pytest.mark.parametrize("fault", ["mute", "401", "429", "500", "html", *BAD_ADDRESSES])
def test_sync_says_in_one_sentence_that_an_address_is_unusable(checkout, monkeypatch, capfd, fault):
    write_stage()
    with fault_server(fault) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", BAD_ADDRESSES.get(fault, f"http://{server.place}"))
        code, output = run_sync(monkeypatch, capfd, "--limit", "4")
    (line,) = output.splitlines()
    state = "too slow" if fault == "mute" else "out of reach"
    assert code == 1 and line.startswith(f"MLflow is {state} (") and "1 journals are kept" in line
    assert "Traceback" not in output and len(journals(checkout, ".jsonl")) == 1


def test_sync_says_in_one_sentence_that_params_yaml_is_unusable(checkout, monkeypatch, capfd):
    (checkout / "params.yaml").write_text("alpha: [")
    code, output = run_sync(monkeypatch, capfd)
    assert code == 1 and len(output.splitlines()) == 1 and "params.yaml" in output


def publishers(process: int) -> list[int]:
    """The publishing processes that a process has started; git is another child of a stage."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children if "pipeline.publisher" in command_line(child)]


def command_line(process: str) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except FileNotFoundError:
        return ""


def is_running(process: int) -> bool:
    """Whether a process is there and no zombie, which a container without an init leaves for ever."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tell a process that its parent has died")
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["when it begins", "while it waits for the server"])
def test_publishing_process_ends_with_its_stage(tmp_path, monkeypatch, signal_number, moment):
    make_checkout(tmp_path, monkeypatch)
    with fault_server("mute") as server:
        process = start_stage("pass", MLFLOW_TRACKING_URI=f"http://{server.place}")
        deadline = time.monotonic() + 60
        while not (found := publishers(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert moment == "when it begins" or server.is_asked.wait(60)
        process.send_signal(signal_number)
        process.communicate(timeout=10)
        time.sleep(2)
        assert not any(map(is_running, found))
    assert len(journals(tmp_path, ".jsonl")) == 1


# -- the database


def make_database_and_die(size: int, make) -> None:
    """Run ``make`` in a process and kill it when the files of the database have grown to ``size`` bytes."""
    process = multiprocessing.get_context("fork").Process(target=make)
    process.start()
    while process.is_alive() and sum(map(size_of, Path().glob("mlflow.db*"))) < size:
        time.sleep(0.002)
    process.kill()
    process.join()


def size_of(path: Path) -> int:
    """Size of a file, 0 if it has gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.slow
def test_database_whose_making_was_killed_is_made_anew(tmp_path, monkeypatch):
    checkout = make_checkout(tmp_path, monkeypatch, database=False)
    size = migrated_database().stat().st_size
    for share in (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95):
        make_database_and_die(int(share * size), database.prepare)
        assert not Path("mlflow.db").exists() and not database_is_whole(Path("mlflow.db.making"))
    write_stage(publish=True)
    assert len(runs(checkout, "stage")) == 1
    assert sorted(path.name for path in checkout.iterdir()) == [".mlflow", "mlartifacts", "mlflow.db"]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_database_that_another_program_left_half_made_is_set_aside(checkout, capfd, share):
    from mlflow import MlflowClient

    write_stage(publish=True)
    os.remove("mlflow.db")
    size = migrated_database().stat().st_size
    make_database_and_die(int(share * size), lambda: MlflowClient("sqlite:///mlflow.db").search_experiments())
    assert not database_is_whole(Path("mlflow.db"))
    capfd.readouterr()
    write_stage(publish=True)
    assert "half-made and" in capfd.readouterr().out and len(journals(checkout, ".jsonl")) == 1
    os.utime("mlflow.db", (0, 0))
    write_stage(publish=True)
    output = capfd.readouterr().out
    assert "left half-made and is now mlflow.db.broken-" in output and "MLflow: 3 runs published." in output
    assert len(runs(checkout, "stage")) == 3 and len(list(checkout.glob("mlflow.db.broken-*"))) >= 1


def database_is_whole(path: Path) -> bool:
    """Whether the file's database has an experiment."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            return bool(connection.execute("SELECT * FROM experiments").fetchall())
    except sqlite3.Error:
        return False


def test_locked_database_costs_seconds_and_stays(checkout, capfd):
    content = Path("mlflow.db").read_bytes()
    with closing(sqlite3.connect("mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        started = time.monotonic()
        write_stage(publish=True)
        assert time.monotonic() - started < 5
    assert "database is locked" in capfd.readouterr().out
    assert Path("mlflow.db").read_bytes() == content and list(checkout.glob("*broken*")) == []
    assert publish() == "MLflow: 1 runs published."


def test_database_of_a_later_mlflow_stays(checkout, capfd):
    write_stage(publish=True)
    change = "UPDATE alembic_version SET version_num = 'ffffffffffff'"
    with closing(sqlite3.connect("mlflow.db")) as connection, connection:
        connection.execute(change)
        connection.execute("ALTER TABLE latest_metrics RENAME TO newest_metrics")
    os.utime("mlflow.db", (0, 0))
    content = Path("mlflow.db").read_bytes()
    capfd.readouterr()
    write_stage(publish=True)
    assert "out of reach" in capfd.readouterr().out
    assert Path("mlflow.db").read_bytes() == content and list(checkout.glob("*broken*")) == []
    assert len(journals(checkout, ".jsonl")) == 1


def test_file_that_is_no_database_stays_and_the_remedy_is_named(checkout, capfd, monkeypatch):
    write_stage()
    Path("mlflow.db").write_bytes(b"photographs" * 1000)
    os.utime("mlflow.db", (0, 0))
    assert "not a database; move it away, then python -m pipeline.sync --rebuild" in publish()
    assert Path("mlflow.db").read_bytes() == b"photographs" * 1000
    shutil.copy(migrated_database(), "mlflow.db")
    code, output = run_sync(monkeypatch, capfd, "--rebuild")
    assert code == 0 and "1 runs published" in output


@pytest.mark.slow
def test_deleted_experiment_comes_back_by_the_command_that_is_printed(checkout, capfd):
    from mlflow import MlflowClient

    write_stage(publish=True)
    client = MlflowClient(f"sqlite:///{checkout / 'mlflow.db'}")
    client.delete_experiment(client.get_experiment_by_name("par").experiment_id)
    write_stage()
    capfd.readouterr()
    write_stage(publish=True)
    output = capfd.readouterr().out
    assert "MLFLOW_TRACKING_URI=sqlite:///mlflow.db mlflow experiments restore --experiment-id 1" in output
    assert len(journals(checkout, ".jsonl")) == 2
    (command,) = [line.partition("bring it back with ")[2] for line in output.splitlines() if "restore" in line]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(command, shell=True, check=True, env=os.environ | {"PATH": path})
    assert publish() == "MLflow: 2 runs published."


# -- the disk


def results_of_a_stage(checkout: Path) -> None:
    with stage(CONFIG, "train", item="a") as run:
        run.metrics({"AP": 0.5})
        (checkout / "result.json").write_text("whole")
        with run.child("par seed 0") as child:
            child.text("plan.md", "joined" * 1000)
            child.metrics({"AP": 0.5})
    assert (checkout / "result.json").read_text() == "whole"


def test_stage_goes_on_where_there_can_be_no_journal(checkout, capfd):
    (checkout / ".mlflow").write_text("a file where the folder should be")
    results_of_a_stage(checkout)
    output = capfd.readouterr().out
    assert "8 of 8 events of train@a are not recorded" in output and str(checkout / ".mlflow") in output
    with stage(CONFIG, "tables", publish=True):
        pass
    assert "2 of 2 events" not in capfd.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("n_before", range(8))
def test_stage_goes_on_when_the_disk_fills_up_and_what_is_recorded_is_whole(checkout, monkeypatch, capfd, n_before):
    """The disk takes ``n_before`` events and half of the next, then nothing: one call in one place writes them all."""
    write, n_calls = os.pwrite, []

    def filling_up(file, content, offset):
        n_calls.append(1)
        if len(n_calls) == n_before + 1:
            return write(file, content[: len(content) // 2], offset)
        if len(n_calls) > n_before:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, content, offset)

    monkeypatch.setattr(os, "pwrite", filling_up)
    results_of_a_stage(checkout)
    output = capfd.readouterr().out
    assert f"{8 - n_before} of 8 events" in output if n_before < 8 else "not recorded" not in output
    monkeypatch.undo()
    make_checkout(checkout, monkeypatch)
    n_runs = 0 if n_before < 2 else 1 + (n_before > 3)
    assert publish() == f"MLflow: {n_runs} runs published."
    assert [run.info.run_name for run in runs(checkout, "stage")] == ["train@a", "train@a par seed 0"][:n_runs]


@contextmanager
def tmpfs(folder: Path, size: str):
    """A small file system of its own; skips the test where the sandbox does not let one be mounted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.skipif(not shutil.which("mount"), reason="no mount")
def test_stage_goes_on_with_a_full_or_read_only_file_system(checkout, capfd):
    with tmpfs(checkout / ".mlflow", "64k"):
        with stage(CONFIG, "train", item="a", publish=True) as run:
            run.text("large.md", "x" * 100_000)
            for i in range(40):
                run.params({f"p{i}": "x" * 4000})
        output = capfd.readouterr().out
        assert "No space left on device" in output and "events of train@a are not recorded" in output
        subprocess.run(["mount", "-o", "remount,ro", checkout / ".mlflow"], check=True)
        results_of_a_stage(checkout)
        output = capfd.readouterr().out
        assert "8 of 8 events" in output and "Read-only file system" in output


@pytest.mark.skipif(not shutil.which("mount"), reason="no mount")
def test_stage_goes_on_when_the_database_finds_no_room(tmp_path, monkeypatch, capfd):
    size = migrated_database().stat().st_size
    with tmpfs(tmp_path / "checkout", f"{2 * size + 300_000}"):
        checkout = make_checkout(tmp_path / "checkout", monkeypatch)
        with stage(CONFIG, "train", item="a", publish=True) as run:
            run.text("large.md", "x" * size)  # once in the journal's files, once more in MLflow's
            run.metrics({"AP": 0.5})
        output = capfd.readouterr().out
        assert len(journals(checkout, ".jsonl")) == 1 and "Traceback" not in output
        assert "not published, kept" in output and "No space left on device" in output
        monkeypatch.chdir(tmp_path)


def test_many_reasons_are_counted_not_listed():
    outcome = sync.Outcome(kept={f"reason {i}": [f"journal {i}"] for i in range(50)})
    assert len(outcome.lines()) == 5 and "47 more" in outcome.lines()[-1]


# -- addresses


def test_only_files_of_this_machine_have_more_time():
    assert all(map(address.is_local, [address.DATABASE, "sqlite:////x/y.db", "./mlruns", "file:///x"]))
    assert not any(map(address.is_local, ["http://h", "postgresql://h/db", "mysql+pymysql://h/db"]))


def test_shown_address_has_no_credentials():
    for given, expected in {
        "http://user:pw@host:80/x?token=1": "http://host:80/x",
        "http://user:p@w/d?#@host/path#frag": "http://host/path",
        "postgresql+psycopg2://u:p@host/db?password=x": "postgresql+psycopg2://host/db",
        "sqlite:///mlflow.db": "sqlite:///mlflow.db",
        "databricks": "databricks",
    }.items():
        assert address.shown(given) == expected


def test_scrubbed_text_holds_no_secret_in_any_form(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:p%40ss w@host/")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "you")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "other&pass")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    basic = b64encode(b"you:other&pass").decode()
    text = (
        f"http://me:p%40ss w@host p@ss%20w p@ss w Basic {basic} other%26pass other&pass Bearer t0ken "
        "ftp://x:y7@z s3?X-Amz-Signature=abc&part=1&access_token=qq"
    )
    clean = address.scrubbed(text)
    for secret in ("p@ss", "p%40ss", basic, "other", "t0ken", "y7", "abc", "qq"):
        assert secret not in clean
    assert "part=1" in clean and "http://" in clean


@pytest.mark.parametrize("fault", ["dead", "html", "401", "mute", "database"])
def test_passwords_are_nowhere(checkout, monkeypatch, capfd, fault):
    monkeypatch.setattr(sync, "SERVER_SECONDS", 1.0)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken-t0ken")
    secret = address.quote(PASSWORD, safe="")
    with fault_server(fault) as server:
        uri = {"dead": f"http://me:{secret}@127.0.0.1:1", "database": f"postgresql://me:{secret}@127.0.0.1:1/db"}
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.get(fault, f"http://me:{secret}@{server.place}"))
        write_stage(publish=True)
        _, told = run_sync(monkeypatch, capfd, "--limit", "2")
    told += "".join(capfd.readouterr())
    told += "".join(path.read_text() for path in checkout.rglob("*") if path.is_file() and ".mlflow" in path.parts)
    for form in (PASSWORD, secret, "me:", "t0ken", b64encode(f"me:{PASSWORD}".encode()).decode()):
        assert form not in told
    assert "out of reach" in told or "too slow" in told


def test_links_of_a_server_have_no_credentials(checkout, monkeypatch, capfd):
    with fault_server("none") as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@{server.place}/")
        write_stage(publish=True)
        output = capfd.readouterr().out
    assert f"MLflow runs (open): http://{server.place}/#/experiments/1/runs" in output and "secret" not in output


# -- odd folders and taken ports


READ_BACK = """
import sys
from pathlib import Path
from mlflow import MlflowClient
client = MlflowClient("sqlite:///mlflow.db")
(run,) = client.search_runs([client.get_experiment_by_name("par").experiment_id], "tags.`par.role` = 'stage'")
(item,) = client.list_artifacts(run.info.run_id)
sys.stdout.write(Path(client.download_artifacts(run.info.run_id, item.path)).read_text())
"""


@pytest.mark.slow
def test_checkout_of_any_name_keeps_all_in_itself(tmp_path, monkeypatch):
    checkout = tmp_path / "100% a%20b what? C# é"
    checkout.mkdir()
    make_checkout(checkout, monkeypatch, fork=False)
    write_stage(publish=True)
    assert [path.name for path in tmp_path.iterdir()] == [checkout.name]
    assert sorted(path.name for path in checkout.iterdir()) == [".mlflow", "mlartifacts", "mlflow.db"]
    read = subprocess.run([sys.executable, "-c", READ_BACK], capture_output=True, text=True)
    assert read.stdout == "joined", read.stderr
    assert [path.name for path in tmp_path.iterdir()] == [checkout.name]


def test_links_have_the_port_of_make_ui(checkout, monkeypatch, capfd):
    monkeypatch.setenv("PORT", "5077")
    write_stage(publish=True)
    assert "http://127.0.0.1:5077/#/experiments/1/runs" in capfd.readouterr().out


def test_ui_has_its_port_in_the_address_and_in_the_line_for_another_machine(monkeypatch):
    monkeypatch.setenv("PORT", "5077")
    address, tunnel = ui._how_to_open(5077).splitlines()
    assert address.startswith("Open http://127.0.0.1:5077/#/experiments/1/runs")
    assert "ssh -L 5077:127.0.0.1:5077 " in tunnel


@pytest.mark.parametrize("port", ["taken", "0", "99999", "http"])
def test_ui_says_in_one_sentence_that_a_port_cannot_be_had(checkout, port):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.ui"],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PORT": str(taken) if port == "taken" else port},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and done.stdout == ""
    assert (f"make ui PORT={taken + 1}" if port == "taken" else f"PORT={port} is no port") in done.stderr
