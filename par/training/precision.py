"""In which precision networks compute, and what is asked of a GPU so that equal runs give equal bits.

``precision`` of params.yaml has two meanings on a device: ``float32`` everywhere, or ``bf16``, where the forward passes
of training and prediction run under autocast and weights, gradients, optimisers and statistics stay in float32. Either
way a GPU computes float32 without TF32 and by deterministic algorithms; docs/gpu.md says what that promises.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import deterministic

from par.schema import ConfigError

Precision = Literal["float32", "bf16"]

# Of the job at hand. Entered by :func:`policy` and left with it, like torch's own flags and its default generator.
_precision: ContextVar[Precision] = ContextVar("precision", default="float32")


def resolve_precision(name: Literal["auto", "float32", "bf16"], device: torch.device) -> Precision:
    """``auto`` is bf16 on a GPU with native bfloat16, else float32.

    Raises:
        ConfigError: bf16 is asked of a GPU that only emulates it, or of a CPU. There it measured 0.68-0.78 of float32's
            speed (sources.md#cpu), and torch 2.14.1 takes weight gradients of a strided 3x3 convolution on a map of one
            pixel (the ResNet on 8-pixel images) from memory that nobody wrote: other losses every time, or NaN.
    """
    if device.type != "cuda":
        if name == "bf16":
            raise ConfigError(
                "precision = 'bf16' needs a GPU, on a CPU its gradients are not safe; choose auto or float32."
            )
        return "float32"
    is_native = torch.cuda.is_bf16_supported(including_emulation=False)
    if name == "bf16" and not is_native:
        raise ConfigError(
            f"precision = 'bf16' is not native on {torch.cuda.get_device_name(device)}; choose auto or float32."
        )
    return "bf16" if is_native and name != "float32" else "float32"


@contextmanager
def policy(device: torch.device, precision: Precision) -> Iterator[None]:
    """Within the block :func:`autocast` follows ``precision``, and a GPU computes deterministically; a CPU does anyway.

    What has no deterministic algorithm on CUDA warns and computes.
    """
    token = _precision.set(precision)
    try:
        with ExitStack() as stack:
            if device.type == "cuda":
                stack.enter_context(_deterministic_cuda())
            yield
    finally:
        _precision.reset(token)


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 where the policy in force says so; float32 outside of every policy."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=_precision.get() == "bf16")


@contextmanager
def _deterministic_cuda() -> Iterator[None]:
    """torch's process-wide flags for CUDA, put back afterwards.

    Of the attention kernels only the plain one has a backward pass without atomics. TF32 keeps 10 bits of a float32's
    23: enough to move a task across alpha or beta.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may reorder sums; read at its start
    matmul = torch.backends.cuda.matmul
    before = (
        matmul.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )
    with (
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
        sdpa_kernel(SDPBackend.MATH),
    ):
        matmul.allow_tf32 = False
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            matmul.allow_tf32 = before[0]
            deterministic.fill_uninitialized_memory = before[3]  # type: ignore[attr-defined]
            torch.use_deterministic_algorithms(before[1], warn_only=before[2])
