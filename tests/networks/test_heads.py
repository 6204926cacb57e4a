"""Many heads in one product."""

from __future__ import annotations

import torch
from torch.nn import functional

from par.networks.heads import Heads, joint_logits


def test_every_head_keeps_its_logits_and_absent_classes_get_no_probability():
    torch.manual_seed(0)
    heads, features = Heads(5), torch.randn(4, 5)
    for task, n_classes in ((3, 2), (0, 4), (7, 3)):
        heads.add(task, n_classes)
    logits = joint_logits(heads, features, [3, 0, 7])
    assert logits.shape == (4, 3, 4)
    for position, (task, n_classes) in enumerate(((3, 2), (0, 4), (7, 3))):
        torch.testing.assert_close(logits[:, position, :n_classes], heads(features, task))
        probabilities = functional.softmax(logits[:, position] / 2, dim=1)
        assert torch.all(probabilities[:, n_classes:] == 0)


def test_gradients_are_those_of_the_single_heads():
    torch.manual_seed(0)
    heads, features = Heads(5), torch.randn(4, 5)
    for task, n_classes in ((0, 2), (1, 3)):
        heads.add(task, n_classes)
    labels = torch.tensor([0, 1, 1, 0])
    parameters = list(heads.parameters())
    logits = joint_logits(heads, features, [0, 1])
    joint = sum(functional.cross_entropy(logits[:, position], labels) for position in (0, 1))
    single = sum(functional.cross_entropy(heads(features, task), labels) for task in (0, 1))
    for ours, theirs in zip(
        torch.autograd.grad(joint, parameters), torch.autograd.grad(single, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
