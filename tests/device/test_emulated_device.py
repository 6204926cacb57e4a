"""The emulated device in a process of its own (its backend cannot be taken back), on one thread."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from par.methods import METHODS
from tests.project import REPOSITORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.__version__.startswith("2.14."),
        reason=f"tests/device/emulated.py is written against torch 2.14, this is {torch.__version__}",
    ),
]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)


def test_everything_trains_saves_restores_and_predicts_on_one_device():
    done = python("-m", "tests.device.exercise")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = {line[:25].strip() for line in done.stdout.splitlines() if line[26:28] == "ok"}
    assert passed >= {*METHODS, "search mdl", "search advantage", "extractor", "chain"}
    assert passed >= {f"captured {name}" for name in METHODS}


@pytest.mark.exhaustive
def test_planted_bugs_are_found():
    """Five of them, of five kinds, and what is none; `python -m tests.device.plant_bugs` plants all."""
    bugs = "memory indices", "generator", "saved bases", "number copied in a step", "rate in a graph"
    done = python("-m", "tests.device.plant_bugs", *bugs, "legal index")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("found") == 5 and done.stdout.count("passes") == 1, done.stdout


COUNTED = """
from par.cells.expert import Expert
from par.cells.genotype import DARTS_V1
from par.networks.resnet import LightResNet
from par.training.precision import policy
from tests.device.count import count_method, count_step
from tests.device.emulated import GPU
with policy(GPU, "bf16"):
    for network in (lambda: Expert(DARTS_V1, 4, 64), lambda: LightResNet(64)):
        counted = count_step(network, 64)
        print(counted.launches, f"{counted.bytes / 1e9:.1f}")
for name in ("finetune", "er", "agem", "mntdp_s"):
    print(*count_method(name)[:3])
"""


@pytest.mark.exhaustive
def test_docs_have_the_counts_of_a_step():
    done = python("-c", COUNTED)
    assert done.returncode == 0, done.stdout + done.stderr
    expert, resnet, *methods = (line.split() for line in done.stdout.splitlines())
    text = (REPOSITORY / "docs" / "gpu.md").read_text()
    for name, (n_launches, gigabytes) in {"expert DARTS_V1": expert, "light ResNet18": resnet}.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {name} | bf16 |"))
        assert line.split(" | ")[3:5] == [n_launches, gigabytes], (line, n_launches, gigabytes)
    assert methods == [["0", "0", "0"]] * 4, "docs/gpu.md says that no step copies or waits"


MIXED = """
import torch
from tests.device.emulated import GPU, DeviceError, emulated_gpu
for wrong in {wrong}:
    try:
        with emulated_gpu():
            wrong()
    except DeviceError as error:
        print(error)
    else:
        raise SystemExit("not refused")
with emulated_gpu() as mode:
    for legal in {legal}:
        legal()
    print(dict(mode.copies), dict(mode.reads))
"""


def test_it_refuses_what_cuda_refuses_and_counts_what_costs():
    there, here = "torch.ones(2, 3, device=GPU)", "torch.ones(2, 3)"
    pooled = "torch.nn.functional.adaptive_avg_pool2d(torch.ones(1, 1, 3, 3, device=GPU).requires_grad_(), 2)"
    wrong = (
        f"lambda: {there} + {here}",
        f"lambda: {here}[torch.zeros(1, dtype=torch.int64, device=GPU)]",
        "lambda: torch.rand(3, device=GPU, generator=torch.Generator())",
        f"lambda: torch.cat([{there}, {here}])",
        f"lambda: {pooled}.sum().backward()",
    )
    legal = (
        f"lambda: {there} * torch.tensor(2.0)",
        f"lambda: {there}.cpu() + {here}",
        f"lambda: {there}[torch.zeros(1, dtype=torch.int64)]",
        f"lambda: float({there}.sum())",
    )
    done = python("-c", MIXED.format(wrong=f"[{', '.join(wrong)}]", legal=f"[{', '.join(legal)}]"))
    assert done.returncode == 0, done.stdout + done.stderr
    *refused, counts = done.stdout.splitlines()
    assert len(refused) == 5 and "a generator on cpu cannot fill a tensor on gpu" in refused[2]
    assert "no deterministic kernel on CUDA" in refused[4]
    assert counts == "{'gpu->cpu': 1, 'cpu->gpu': 1} {'aten::_local_scalar_dense': 1}"
