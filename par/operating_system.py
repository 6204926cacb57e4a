"""Life and death of processes."""

from __future__ import annotations

import ctypes
import platform
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
ONE_GIBIBYTE = 1 << 30


def die_with_parent() -> None:
    """On Linux, get SIGTERM when the parent dies: ``kill -9`` of dvc would otherwise leave a trainer running."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def keep_large_blocks() -> None:
    """Let glibc reuse blocks of up to 1 GiB instead of mapping and clearing each anew.

    A feature map of 32 MiB and more is such a block. Measured on one thread: Finetune trains 6-9% faster, ER at twice
    the batch in 1.96 instead of 2.23 times Finetune's time (sources.md#cpu).
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for setting in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            libc.mallopt(setting, ONE_GIBIBYTE)
