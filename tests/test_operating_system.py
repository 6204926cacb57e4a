"""What only Linux has is left out elsewhere in silence; what replaces it is tried with Python saying it is macOS."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
import time

import pytest
import torch

from par import device
from par.operating_system import GRACE_SECONDS, WATCH_SECONDS, keep_large_blocks
from tests.project import REPOSITORY

# A parent that starts a child, as on a system without prctl, and waits for it.
CHILD = """
import ctypes, os, signal, sys, time
def absent(*arguments, **options): raise OSError("macOS has no such symbol")
ctypes.CDLL = absent
sys.platform = "darwin"
from par.operating_system import die_with_parent
signal.signal(signal.SIGTERM, {handler})
die_with_parent()
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def seconds_until_the_child_ends(handler: str) -> tuple[float, str]:
    """How long the child outlives its parent, which is killed; and what it printed then."""
    command = [sys.executable, "-c", PARENT, CHILD.format(handler=handler)]
    folder = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    parent = subprocess.Popen(command, env=folder, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert parent.stdout is not None
    try:
        int(parent.stdout.readline())
        parent.kill()
        killed = time.monotonic()
        said = parent.stdout.read()  # ends when the child, which shares it, does
        return time.monotonic() - killed, said
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


@pytest.mark.parametrize("handler, said", [("lambda *_: (print('asked', flush=True), os._exit(0))", "asked\n"),
                                           ("signal.SIG_IGN", "")])  # fmt: skip
def test_without_prctl_a_process_ends_soon_after_its_parent(handler, said):
    seconds, heard = seconds_until_the_child_ends(handler)
    assert heard == said and seconds < 5 * (WATCH_SECONDS + GRACE_SECONDS)


def test_another_libc_is_left_as_it_is(monkeypatch, capfd):
    def absent(*arguments: object, **options: object) -> None:
        raise AssertionError("mallopt is glibc's")

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))  # what Python says on macOS
    monkeypatch.setattr(ctypes, "CDLL", absent)
    keep_large_blocks()
    assert capfd.readouterr() == ("", "")


def test_the_hardware_has_a_name_without_proc_and_lists_of_cpus(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "Path", lambda name: tmp_path / name.lstrip("/"))
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert device.hardware(torch.device("cpu")) == f"arm, {os.cpu_count()} cores"


def test_an_apple_gpu_is_not_taken(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.resolve_device("auto") == torch.device("cpu")
