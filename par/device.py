"""The device that computes, and its name."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from par.numerics import Numerics, switches_in_force
from par.schema import ConfigError


def resolve_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is a device, else the CPU.

    Raises:
        ConfigError: CUDA is asked for where there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        built = "sees no CUDA device" if torch.backends.cuda.is_built() else "is built without CUDA"
        raise ConfigError(
            f"device = 'cuda', but torch {torch.__version__} {built} here; allowed here are auto and cpu."
        )
    return torch.device(name)


def hardware(device: torch.device) -> str:
    """The device's model in words, of a CPU with the number of cores that this process may use, for reports.

    A machine without a GPU can assemble what the GPUs of a cluster have computed.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device) if torch.cuda.is_available() else "a GPU of the cluster"
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor() or platform.machine()
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {n_cores} cores"


def deciding_bits(precision: str, numerics: Numerics) -> dict[str, Any]:
    """What decides, beside the device's model, the last bits of what this process computes; for reports, as JSON.

    ``cpu_capability`` names the kernels that torch takes (``AVX2``, ``AVX512``, ...), ``switches`` are the variables of
    the environment by which libraries choose theirs. A step computes on one thread, wherever it runs.
    """
    return {
        "numerics": numerics,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "switches": switches_in_force(),
        "torch": torch.__version__,
        "precision": precision,
        "threads": 1,
    }
