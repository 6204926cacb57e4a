"""Convolutions on every kind of CPU: in processes of their own, because what they guard against ends a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from par.networks.convolution import StridedConv
from par.networks.resnet import LightResNet

# An older CPU than this one, and a heap that ends the process at the first block written beyond its end.
OLD_CPU = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
CHECKED_HEAP = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3", "GLIBC_TUNABLES": "glibc.malloc.check=3"}
TRAIN = """
import torch
from torch import nn
from par.methods.learn_to_grow import MixedConv, SharedConv
from par.networks.convolution import StridedConv
from par.networks.resnet import LightResNet

def train(module, channels):
    for _ in range(2):
        images = torch.randn(16, channels, 8, 8).contiguous(memory_format=torch.channels_last)
        module.to(memory_format=torch.channels_last)(images.requires_grad_()).square().sum().backward()

torch.set_num_threads(1)
for width in range(1, 9):
    conv = StridedConv(width, width, 1, 2)
    for module in (conv, SharedConv(conv, conv.weight, adapt=True), MixedConv(conv, [conv.weight])):
        train(module, width)
    train(LightResNet(width), 3)
print("ours is done", flush=True)
train(nn.Conv2d(4, 4, 1, 2, bias=False), 4)
print("torch's is done")
"""


@pytest.fixture(scope="module")
def done() -> str:
    """What training prints on an older CPU, first with our convolutions, then with torch's."""
    command = [sys.executable, "-c", TRAIN]
    return subprocess.run(command, env=os.environ | OLD_CPU | CHECKED_HEAP, capture_output=True, text=True).stdout


def test_training_narrow_networks_writes_within_its_memory_on_a_cpu_without_avx512(done):
    assert "ours is done" in done


def test_the_heap_check_sees_what_torchs_convolution_does(done):
    if "torch's is done" in done:
        pytest.skip("no harm done here: no heap check, or a torch that needs par/networks/convolution.py no more")


@pytest.mark.parametrize("width", [3, 4, 7, 16, 32, 64])
@pytest.mark.parametrize("size", [8, 13])
def test_a_strided_convolution_equals_torchs(width, size):
    ours = StridedConv(width, width, 1, 2).double()
    plain = nn.Conv2d(width, width, 1, 2, bias=False).double()
    plain.load_state_dict(ours.state_dict())
    images = torch.randn(5, width, size, size, dtype=torch.float64)
    outputs = ours(images), plain(images)
    torch.testing.assert_close(*outputs)
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_wide_ones_keep_torchs_bits(width):
    """Trained numbers are compared with those of earlier versions."""
    ours = StridedConv(width, width, 1, 2)
    images = torch.randn(32, width, 16, 16).contiguous(memory_format=torch.channels_last)
    plain = torch.nn.functional.conv2d(images, ours.weight, stride=2)
    gradient = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, ours.weight, gradient)[0]
    outputs = ours(images)
    assert torch.equal(outputs, plain)
    assert torch.equal(torch.autograd.grad(outputs, ours.weight, gradient)[0], expected)


def test_no_strided_convolution_of_a_trunk_goes_past_ours():
    strided = [m for m in LightResNet(4).modules() if isinstance(m, nn.Conv2d) and max(m.stride) > 1]
    assert len(strided) == 6 and all(isinstance(module, StridedConv) for module in strided)
