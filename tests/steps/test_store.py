"""The store of finished steps."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest
import torch

from par.steps.store import Store, entry_key, main

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
