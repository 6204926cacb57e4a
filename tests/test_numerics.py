"""The switches of ``numerics: portable``: who sets them, when, and that libraries heed them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from par import numerics
from par.numerics import SWITCHES, prepare, resolve_numerics, switches_in_force
from par.schema import ConfigError
from tests.project import REPOSITORY

on_x86_64 = pytest.mark.skipif(not numerics.has_switches(), reason="the switches are of x86-64")


@pytest.fixture
def x86_64(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def python(code: str, folder, **variables: str) -> list[str]:
    """The lines that a fresh Python prints in a folder."""
    clean = {name: value for name, value in os.environ.items() if name not in (*SWITCHES, "DVC_STAGE")}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        cwd=folder,
        env=clean | {"PYTHONPATH": str(REPOSITORY)} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("text", "expected"), [("numerics: portable", SWITCHES), ("numerics: native", {}), ("a: 1", {})]
)
def test_params_decide_whether_the_switches_are_set(x86_64, tmp_path, text, expected):
    path, environment = tmp_path / "params.yaml", {}
    path.write_text(text)
    prepare(str(path), environment)
    assert environment == expected


def test_a_file_that_cannot_be_read_sets_nothing(x86_64, tmp_path):
    environment: dict[str, str] = {}
    prepare(str(tmp_path / "missing.yaml"), environment)
    (tmp_path / "params.yaml").write_text("numerics: [")
    prepare(str(tmp_path / "params.yaml"), environment)
    assert environment == {}


def test_a_value_set_by_hand_gives_way(x86_64, tmp_path):
    (tmp_path / "params.yaml").write_text("numerics: portable")
    environment = {"MKL_CBWR": "AVX2", "HOME": "/"}
    prepare(str(tmp_path / "params.yaml"), environment)
    assert environment == {**SWITCHES, "HOME": "/"}


def test_other_processors_have_no_switches(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    (tmp_path / "params.yaml").write_text("numerics: portable")
    environment: dict[str, str] = {}
    prepare(str(tmp_path / "params.yaml"), environment)
    assert environment == {} and resolve_numerics("portable", environment) == "native"


def test_portable_is_refused_where_the_switches_are_not_in_force(x86_64):
    assert resolve_numerics("portable", SWITCHES) == "portable"
    assert resolve_numerics("native", SWITCHES) == resolve_numerics("native", {}) == "native"
    with pytest.raises(ConfigError, match="needs MKL_CBWR='COMPATIBLE' in the environment") as refused:
        resolve_numerics("portable", {**SWITCHES, "MKL_CBWR": "AVX2"})
    assert "ONEDNN" not in str(refused.value)


def test_variables_that_others_set_are_recorded_too():
    environment = {"HOME": "/", "ONEDNN_MAX_CPU_ISA": "SSE41", "OMP_NUM_THREADS": "4"}
    assert switches_in_force(environment) == {"OMP_NUM_THREADS": "4", "ONEDNN_MAX_CPU_ISA": "SSE41"}


@on_x86_64
def test_a_stage_has_them_before_numpy_and_torch_are_imported(tmp_path):
    code = "import os, sys; sys.argv[0] = '-m'; import pipeline; print(*sorted(os.environ), *sys.modules)"
    (tmp_path / "params.yaml").write_text("numerics: portable")
    printed = set(python(code, tmp_path))
    assert set(SWITCHES) <= printed and not {"numpy", "torch"} & printed
    (tmp_path / "params.yaml").write_text("numerics: native")
    assert not set(SWITCHES) & set(python(code, tmp_path))


@on_x86_64
def test_torch_numpy_and_openblas_heed_them(tmp_path):
    """Of oneDNN and MKL nobody can ask what they took; docs/bits.md says what was compared."""
    code = (
        "import torch, numpy as np; from numpy._core._multiarray_umath import __cpu_features__ as features;"
        "print(torch.backends.cpu.get_cpu_capability(), *(name for name, has in features.items() if has));"
        "print(np.show_config(mode='dicts')['Build Dependencies']['blas']['name'])"
    )
    capability, *features, blas = python(code, tmp_path, **SWITCHES)
    assert capability in ("AVX2", "DEFAULT")
    assert not {"X86_V4", "AVX512_ICL", "AVX512_SPR"} & set(features)
    assert "openblas" in blas, "OPENBLAS_CORETYPE means nothing to another library"
