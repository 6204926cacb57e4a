"""Equal bits on unequal processors: which instructions the libraries that compute may use.

Each of them picks, when it is loaded, the kernels of the newest instructions that it finds, and other kernels add in
another order. ``numerics: portable`` of params.yaml holds all of them to the same ones, those of a processor with AVX2,
by the libraries' own switches in the environment. docs/bits.md says what was compared, and what it costs.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, MutableMapping
from typing import Literal

from par.schema import ConfigError, read_yaml

Numerics = Literal["native", "portable"]

# Read once, by libraries that are loaded already when a stage knows its configuration: see :func:`prepare`.
SWITCHES = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # its convolutions
    "MKL_CBWR": "COMPATIBLE",  # its matrix products; MKL's mode AVX2 means nothing on processors of another maker
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",  # numpy's exp and log
    "OPENBLAS_CORETYPE": "Haswell",  # its matrix products
    "OPENBLAS_NUM_THREADS": "1",  # their sums depend on it
}
OTHERS = ("MKL_ENABLE_INSTRUCTIONS", "OMP_NUM_THREADS", "DNNL_MAX_CPU_ISA")  # which decide bits too, set by hand


def prepare(params: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the switches where ``params``, a params file, says so; before numpy and torch are imported.

    A file that cannot be read is none of this function's business: whoever loads it says what is wrong.
    """
    try:
        wanted = read_yaml(params).get("numerics")
    except ConfigError:
        return
    if wanted == "portable" and has_switches():
        environment.update(SWITCHES)


def resolve_numerics(name: Numerics, environment: Mapping[str, str] = os.environ) -> Numerics:
    """What this process computes by: ``portable`` is ``native`` on processors that are no x86-64.

    Raises:
        ConfigError: portable is asked for, but the switches are not set.
    """
    if name == "native" or not has_switches():
        return "native"
    missing = [f"{name}={value!r}" for name, value in SWITCHES.items() if environment.get(name) != value]
    if missing:
        raise ConfigError(
            f"numerics = 'portable' needs {', '.join(missing)} in the environment before torch is imported; run the "
            "stage as python -m pipeline.<stage> in the folder of params.yaml, which sets them, or choose native."
        )
    return "portable"


def switches_in_force(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of the environment that decide bits, whoever set them."""
    return {name: environment[name] for name in sorted((*SWITCHES, *OTHERS)) if name in environment}


def has_switches() -> bool:
    """Whether this processor is an x86-64, which the switches are for."""
    return platform.machine().lower() in ("x86_64", "amd64")
