"""The device that computes, its name, and which of several cards a job takes."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")


def resolve_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is a device, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def hardware(device: torch.device) -> str:
    """The device's model in words, of a CPU with the number of cores that this process may use, for reports."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor() or platform.machine()
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {n_cores} cores"


def in_turn(jobs: Sequence[T], n_cards: int) -> list[T]:
    """Jobs (frozen dataclasses with a ``device``), each of those on ``cuda`` on one card: ``cuda:0``, ``cuda:1``, ...

    A card's number decides nothing that is learned, so it is no part of a step's key.
    """
    return [replace(job, device=card_of(job.device, number, n_cards)) for number, job in enumerate(jobs)]


def card_of(device: torch.device, number: int, n_cards: int) -> torch.device:
    """The device of job ``number`` (from 0): a card, where ``device`` is ``cuda`` and names none."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", number % max(1, n_cards))
