"""The store of finished steps."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import pickle
import random
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable

import pytest
import torch

from par.steps.store import Store, entry_key, main
from par.steps.workers import run_jobs
from tests.project import OneStep

KEY = entry_key({"method": "finetune", "seed": 0})


def test_keys_depend_on_content_not_on_order():
    assert KEY == entry_key({"seed": 0, "method": "finetune"}) != entry_key({"method": "finetune", "seed": 1})


def test_asking_twice_computes_once(tmp_path):
    store = Store(tmp_path)
    assert store.get(KEY) is None
    first = store.get_or_compute(KEY, lambda: {"tensor": torch.arange(3), "log": [{"loss": 0.5}]})
    second = store.get_or_compute(KEY, lambda: pytest.fail("computed twice"))
    assert (first[1], second[1]) == (True, False)
    assert torch.equal(second[0]["tensor"], torch.arange(3)) and second[0]["log"] == [{"loss": 0.5}]


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1], lambda content: content[:40] + b"x" + content[41:], lambda _: b""]
)
def test_a_damaged_entry_is_reported_and_computed_again(tmp_path, capsys, damage):
    store = Store(tmp_path)
    store.get_or_compute(KEY, lambda: {"value": 1})
    path = store.path(KEY)
    path.write_bytes(damage(path.read_bytes()))
    assert main(["verify", "--folder", str(tmp_path)]) == 1
    assert store.get_or_compute(KEY, lambda: {"value": 2}) == ({"value": 2}, True)
    assert "damaged" in capsys.readouterr().err
    assert main(["verify", "--folder", str(tmp_path)]) == 0


def test_an_entry_under_another_entrys_name_is_computed_again(tmp_path, capsys):
    store, other = Store(tmp_path), entry_key("other")
    store.get_or_compute(KEY, lambda: {"value": 1})
    store.path(other).parent.mkdir(exist_ok=True)
    shutil.copy(store.path(KEY), store.path(other))
    assert main(["verify", "--folder", str(tmp_path)]) == 1
    assert store.get_or_compute(other, lambda: {"value": 2}) == ({"value": 2}, True)
    assert other in (errors := capsys.readouterr().err) and "another entry's" in errors
    assert store.get(KEY) == {"value": 1}


def write_sealed(path, payload: bytes, name: bytes) -> None:
    """An entry with a right digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hashlib.sha256(name + payload).digest() + payload)


def test_an_entry_of_an_earlier_version_is_named_so_and_computed_again(tmp_path, capsys):
    store, payload = Store(tmp_path), io.BytesIO()
    torch.save({"value": 1}, payload)
    write_sealed(store.path(KEY), payload.getvalue(), b"")
    assert store.get_or_compute(KEY, lambda: {"value": 2}) == ({"value": 2}, True)
    assert "earlier version" in capsys.readouterr().err


@pytest.mark.parametrize("payload", [pickle.dumps(print, 2), b"", b"PK", pickle.dumps({"value": 1}, 2)])
def test_a_right_digest_over_what_torch_refuses_is_set_aside_and_computed_again(tmp_path, capsys, payload):
    store = Store(tmp_path)
    write_sealed(store.path(KEY), payload, f"{KEY[:2]}/{KEY}.pt".encode())
    assert main(["verify", "--folder", str(tmp_path)]) == 1 and "refuses to load" in capsys.readouterr().out
    assert store.get_or_compute(KEY, lambda: {"value": 2}) == ({"value": 2}, True)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert store.path(KEY).with_suffix(".bad").is_file() and main(["verify", "--folder", str(tmp_path)]) == 0


def test_a_folder_in_a_files_place_and_a_file_in_a_folders_are_set_aside(tmp_path, capsys):
    store, other = Store(tmp_path), entry_key("other")
    assert KEY[:2] != other[:2]
    store.path(KEY).mkdir(parents=True)
    (store.path(KEY) / "mine.txt").write_text("kept")
    store.path(other).parent.write_text("kept")
    assert main(["verify", "--folder", str(tmp_path)]) == 1 and "is a folder" in capsys.readouterr().out
    for key in (KEY, other):
        assert store.get_or_compute(key, lambda: {"value": 2}) == ({"value": 2}, True)
    assert (store.path(KEY).with_suffix(".bad") / "mine.txt").read_text() == "kept"
    assert store.path(other).parent.with_suffix(".bad").read_text() == "kept"
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and "is a folder" in errors[0] and "is no folder" in errors[1]


def test_damage_upon_damage_loses_no_evidence(tmp_path):
    store = Store(tmp_path)
    for number in range(3):
        store.get_or_compute(KEY, lambda number=number: {"value": number})
        store.path(KEY).write_bytes(b"%d" % number)
        assert store.get(KEY) is None
    assert sorted(path.read_bytes() for path in tmp_path.glob("??/*.bad*")) == [b"0", b"1", b"2"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of 256 kB, and a way to mount it anew with other options."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs the rights of root")
    yield folder, lambda options: subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)
    subprocess.run(["umount", str(folder)], check=True)


class Keep(OneStep):
    """A job that puts one entry of 100 kB into the store."""

    def run(self, store: Store, progress: Callable[[int], None]) -> tuple[int, int]:
        is_new = store.get_or_compute(entry_key(self.label), lambda: torch.zeros(25_000))[1]
        return int(is_new), int(not is_new)


def test_a_full_store_is_one_sentence_and_goes_on_when_there_is_room(small_disk, capsys):
    folder, remount = small_disk
    store, jobs = Store(folder / "store"), [Keep(str(number)) for number in range(5)]
    outcome = run_jobs(jobs, store, 1, "test")
    assert (outcome.steps_computed, len(outcome.failures)) == (2, 3)
    (failure,) = {failure for _, failure in outcome.failures}
    assert not failure.is_bug and "No space left" in failure.text and "make room" in failure.text
    assert str(store.folder) in failure.text
    assert not list(store.folder.glob("??/.*")) and main(["verify", "--folder", str(store.folder)]) == 0
    remount("size=2m")
    outcome = run_jobs(jobs, store, 1, "test")
    assert (outcome.steps_computed, outcome.steps_reused, outcome.failures) == (3, 2, [])


def test_a_read_only_store_serves_what_it_has_and_is_one_sentence_for_the_rest(small_disk):
    folder, remount = small_disk
    store, jobs = Store(folder / "store"), [Keep(str(number)) for number in range(5)]
    run_jobs(jobs[:2], store, 1, "test")
    remount("ro")
    outcome = run_jobs(jobs, store, 1, "test")
    assert (outcome.steps_computed, outcome.steps_reused, len(outcome.failures)) == (0, 2, 3)
    (failure,) = {failure for _, failure in outcome.failures}
    assert not failure.is_bug and "Read-only" in failure.text and str(store.folder) in failure.text
    remount("rw")
    (store.path(entry_key("0"))).unlink()  # room for another
    outcome = run_jobs(jobs[1:3], store, 1, "test")
    assert (outcome.steps_computed, outcome.steps_reused, outcome.failures) == (1, 1, [])


def test_a_failing_computation_leaves_nothing(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(ZeroDivisionError):
        store.get_or_compute(KEY, lambda: 1 / 0)
    assert store.get(KEY) is None and not list(store.entries())


def _compute_slowly(folder, log):
    def compute():
        with open(log, "a") as handle:
            handle.write("computed\n")
        time.sleep(0.3)
        return {"value": 3}

    assert Store(folder).get_or_compute(KEY, compute)[0] == {"value": 3}


def test_two_processes_compute_an_entry_once(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_compute_slowly, args=(tmp_path / "s", tmp_path / "log")) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "log").read_text() == "computed\n"


def test_list_and_prune(tmp_path, capsys):
    store = Store(tmp_path)
    store.get_or_compute(KEY, lambda: 1)
    new = entry_key("new")
    store.get_or_compute(new, lambda: 2)
    os.utime(store.path(KEY), (0, 0))
    assert main(["list", "--folder", str(tmp_path)]) == 0 and KEY in capsys.readouterr().out
    main(["prune", "--folder", str(tmp_path), "--older-than-days", "1"])
    assert store.get(KEY) is None and store.get(new) == 2


def test_prune_takes_what_killed_processes_and_damage_left_but_not_what_is_new(tmp_path, capsys):
    store = Store(tmp_path)
    store.get_or_compute(KEY, lambda: 1)
    shard = store.path(KEY).parent
    names = (f"{shard.name}/{KEY}.bad", f"{shard.name}/.{KEY}.pt.abc/{KEY}.pt", f"running/{KEY}.pt", "zz.bad/x")
    names += (str(store.lease_path(KEY).relative_to(tmp_path)), "locks/of an earlier version")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("left")
    assert main(["prune", "--folder", str(tmp_path), "--older-than-days", "0.5"]) == 0
    assert "0 entries and 0 leftovers deleted" in capsys.readouterr().out
    assert all((tmp_path / name).exists() for name in names)
    for path in (*tmp_path.glob("*/*"), *tmp_path.glob("*")):
        os.utime(path, (0, 0))
    os.utime(store.path(KEY))
    assert main(["prune", "--folder", str(tmp_path), "--older-than-days", "0.5"]) == 0
    assert "0 entries and 6 leftovers deleted" in capsys.readouterr().out
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [store.path(KEY)]


@pytest.fixture
def exported(tmp_path, capsys):
    """An archive of three entries and their keys."""
    store, keys = Store(tmp_path / "cluster"), [entry_key(number) for number in range(3)]
    for number, key in enumerate(keys):
        store.get_or_compute(key, lambda number=number: {"tensor": torch.full((4,), number)})
    assert main(["export", str(tmp_path / "steps.zip"), "--folder", str(store.folder)]) == 0
    assert "3 entries exported" in capsys.readouterr().out
    return tmp_path / "steps.zip", keys


def test_exported_entries_come_home_and_replace_only_bad_ones(exported, tmp_path, capsys):
    archive, keys = exported
    home = Store(tmp_path / "home")
    home.get_or_compute(keys[0], lambda: {"tensor": "my own"})
    home.get_or_compute(keys[1], lambda: {"tensor": "my own"})
    home.path(keys[1]).write_bytes(b"damaged")
    assert main(["import", str(archive), "--folder", str(home.folder)]) == 0
    assert "2 entries imported, 1 were there, 0 refused" in capsys.readouterr().out
    assert home.get(keys[0]) == {"tensor": "my own"}
    assert [home.get(key)["tensor"].tolist() for key in keys[1:]] == [[1] * 4, [2] * 4]
    assert main(["import", str(archive), "--folder", str(home.folder)]) == 0
    assert "0 entries imported, 3 were there, 0 refused" in capsys.readouterr().out


def test_equal_stores_make_equal_archives_and_bad_entries_stay_out(exported, tmp_path, capsys):
    archive, keys = exported
    store, again = Store(tmp_path / "cluster"), tmp_path / "again.zip"
    os.utime(store.path(keys[0]), (0, 0))
    main(["export", str(again), "--folder", str(store.folder)])
    assert again.read_bytes() == archive.read_bytes()
    store.path(keys[0]).write_bytes(b"damaged")
    assert main(["export", str(again), "--folder", str(store.folder)]) == 1
    assert "2 entries exported" in (output := capsys.readouterr().out) and "1 bad ones left out" in output


def test_an_import_writes_nothing_but_whole_entries_and_nothing_outside(exported, tmp_path, capsys):
    archive, keys = exported
    with zipfile.ZipFile(archive) as source:
        good = source.read(f"{keys[0][:2]}/{keys[0]}.pt")
    hostile = (
        *("../evil.pt", "/tmp/evil.pt", f"../{keys[0]}.pt", f"{keys[0]}.pt", "locks/x", f"running/{keys[0]}.pt"),
        *(f"{keys[0][:2]}/../{keys[0]}.pt", f"00/{keys[0]}.pt", f"{keys[1][:2]}/{keys[1]}.pt", "", "a\n.pt"),
        f"{keys[0][:2]}\\{keys[0]}.pt",
    )
    with zipfile.ZipFile(tmp_path / "hostile.zip", "w") as made:
        for name in hostile:
            made.writestr(zipfile.ZipInfo(name), good)
        made.writestr(f"{keys[2][:2]}/{keys[2]}.pt", bytes(10**8), zipfile.ZIP_DEFLATED)
        made.writestr(f"{keys[0][:2]}/{keys[0]}.pt", good)
    home = Store(tmp_path / "a" / "b" / "home")
    assert main(["import", str(tmp_path / "hostile.zip"), "--folder", str(home.folder)]) == 1
    printed = capsys.readouterr()
    assert f"1 entries imported, 0 were there, {len(hostile) + 1} refused" in printed.out
    assert len(printed.err.splitlines()) == len(hostile) + 1
    assert [path for path in (tmp_path / "a").rglob("*") if path.is_file()] == [home.path(keys[0])]


def test_no_damage_of_an_archive_is_a_traceback_or_a_wrong_entry(exported, tmp_path, capsys):
    archive, keys = exported
    whole, draw = archive.read_bytes(), random.Random(0)
    home = Store(tmp_path / "home")
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 3))):
            damaged[draw.choice((draw.randrange(len(whole)), draw.randrange(-400, 0)))] = draw.choice((0, 255))
        (tmp_path / "damaged.zip").write_bytes(damaged[: draw.choice((len(whole), draw.randrange(len(whole))))])
        assert main(["import", str(tmp_path / "damaged.zip"), "--folder", str(home.folder)]) in (0, 1)
        for number, key in enumerate(keys):
            entry = home.get(key)
            assert entry is None or entry["tensor"].tolist() == [number] * 4
        shutil.rmtree(home.folder, ignore_errors=True)
    assert main(["import", str(tmp_path / "nowhere.zip"), "--folder", str(home.folder)]) == 1
    assert "nowhere.zip: No such file" in capsys.readouterr().err
