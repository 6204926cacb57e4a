"""The policy of precision and determinism."""

from __future__ import annotations

import pytest
import torch

from par.methods.bases.method import Step
from par.schema import ConfigError
from par.training import precision
from par.training.precision import autocast, policy, resolve_precision
from tests.methods import tasks

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def flags() -> tuple:
    """Everything that the policy sets on CUDA; torch knows these flags without a GPU."""
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    return (
        cudnn.deterministic,
        cudnn.benchmark,
        cudnn.allow_tf32,
        cuda.matmul.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled(),
    )


def product(device: torch.device = CPU) -> torch.Tensor:
    with autocast(device):
        return torch.ones(2, 2) @ torch.ones(2, 2)


def test_bf16_only_within_its_policy():
    assert product().dtype == torch.float32
    with policy(CPU, "bf16"):
        assert product().dtype == torch.bfloat16
        with policy(CPU, "float32"):
            assert product().dtype == torch.float32
        assert product().dtype == torch.bfloat16
    assert product().dtype == torch.float32


def test_it_leaves_with_the_block_whatever_ends_it():
    before = flags()
    with pytest.raises(ZeroDivisionError), policy(CUDA, "bf16"):
        assert flags() == (True, False, False, False, True, True, False)
        raise ZeroDivisionError
    assert flags() == before and product().dtype == torch.float32


def test_a_cpu_keeps_its_flags():
    before = flags()
    with policy(CPU, "float32"):
        assert flags() == before


@pytest.mark.parametrize(
    "native, name, expected",
    [(True, "auto", "bf16"), (True, "float32", "float32"), (True, "bf16", "bf16"), (False, "auto", "float32")],
)
def test_on_a_gpu_bf16_where_it_is_native(native, name, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native and not including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "An Old Card")
    assert resolve_precision(name, CUDA) == expected
    if not native:
        with pytest.raises(ConfigError, match="'bf16' is not native on An Old Card; choose auto or float32"):
            resolve_precision("bf16", CUDA)


def test_on_a_cpu_float32():
    assert [resolve_precision(name, CPU) for name in ("auto", "float32")] == ["float32", "float32"]
    with pytest.raises(ConfigError, match="precision = 'bf16' needs a GPU"):
        resolve_precision("bf16", CPU)


def test_in_bf16_weights_and_optimiser_stay_float32_and_learn():
    learner = tasks.learner("finetune")
    with policy(CPU, "bf16"):
        log = learner.learn(tasks.task(0), Step(tasks.RECIPE, "test"))
    in_float32 = tasks.learner("finetune").learn(tasks.task(0), Step(tasks.RECIPE, "test"))
    assert log[-1]["valid_accuracy"] > 0.6
    assert [row["loss"] for row in log] != [row["loss"] for row in in_float32]
    assert log[0]["loss"] == pytest.approx(in_float32[0]["loss"], rel=0.05)
    assert {value.dtype for value in learner.state_dict().values()} == {torch.float32, torch.int64}


def test_the_code_digest_counts_the_policy():
    from par.steps import code_digest

    assert precision.__name__ in code_digest.import_closure(["par.steps.chain_job"], code_digest.PLUMBING)
