"""What EWC, MAS, LwF, ER and A-GEM have in common: resume, plain state, untouched buffers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.methods import tasks

SHORT = replace(tasks.RECIPE, epochs=2)
LEARNERS = (
    ("ewc", {}),
    ("ewc", {"fisher": "minibatch", "merge": "sum"}),
    ("mas", {"merge": "online"}),
    ("lwf", {}),
    ("er", {}),
    ("er", {"mode": "reservoir"}),
    ("agem", {}),
)


@pytest.mark.parametrize("name, hyper", LEARNERS)
def test_two_tasks_straight_equal_one_saved_restored_and_the_second(name, hyper):
    straight = tasks.learner(name, **hyper)
    straight.learn(tasks.task(0), tasks.step(0, SHORT))
    saved = tasks.through_a_file(straight.save())
    straight.learn(tasks.task(1), tasks.step(1, SHORT))

    resumed = tasks.learner(name, **hyper)
    resumed.restore(saved)
    log = resumed.learn(tasks.task(1), tasks.step(1, SHORT))
    ours, theirs = resumed.save(), straight.save()
    assert ours["tasks"] == theirs["tasks"] and ours["tensors"].keys() == theirs["tensors"].keys()
    assert all(torch.equal(value, theirs["tensors"][key]) for key, value in ours["tensors"].items())
    assert len(log) == SHORT.epochs and ours["tensors"]["trunk.stem.0.weight"].abs().sum() > 0


@pytest.mark.parametrize("name, hyper", LEARNERS)
def test_the_end_of_a_task_leaves_the_network_alone(name, hyper):
    class Observed(type(tasks.learner(name))):
        def end_task(self, task, step):
            parts = {"trunk": self.trunk, "heads": self.heads}
            before = {
                part: {key: value.clone() for key, value in module.state_dict().items()}
                for part, module in parts.items()
            }
            super().end_task(task, step)
            for part, module in parts.items():
                after = module.state_dict()
                assert all(torch.equal(value, after[key]) for key, value in before[part].items())
                assert not any(module.training for module in module.modules())
            self.observed = len(before["trunk"])

    learner = Observed(tasks.learner(name, **hyper).settings)
    learner.learn(tasks.task(0), tasks.step(0, SHORT))
    assert learner.observed > 60
    assert not any(parameter.requires_grad for parameter in learner.parameters())
