"""SG-F: gates, the five expansions, freezing."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from par.methods.soft_gating import Gate
from par.networks.modules import ConvModule, flatten
from tests.methods import modular_cases as cases

ALL = [0, 1, 2, 3]


def test_a_module_has_the_authors_size():
    assert sum(parameter.numel() for parameter in ConvModule(64, 64).parameters()) == 37_056


@pytest.mark.parametrize("size", [8, 16, 28, 32, 84])
def test_four_modules_and_the_head_pass_any_image_size(size):
    maps = torch.zeros(2, 4, size, size)
    for _ in range(4):
        maps = ConvModule(4, 4)(maps)
    assert flatten(maps).shape == (2, 16)
    if size == 32:
        assert torch.equal(flatten(maps), maps.flatten(1))


@pytest.mark.parametrize("layer", range(4))
def test_gates_sum_to_one_per_image(layer):
    gate, sizes = Gate(4, [2, 3, 4, 5]), [2, 3, 4, 5]
    weights = gate(torch.randn(6, 4, 32 >> layer, 32 >> layer), layer)
    assert weights.shape == (6, sizes[layer]) and (weights > 0).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(6))
    assert weights.std(0).min() > 0


def test_a_pool_of_one_module_needs_no_gate():
    assert not list(Gate(4, [1, 1, 1, 1]).parameters())
    gate = Gate(4, [1, 1, 2, 2])
    assert set(gate.outputs) == {"2", "3"} and len(gate.blocks) == 2


def test_the_output_is_the_gated_sum_of_the_pools():
    method = cases.grown("soft_gating", [{"fresh": ALL}, {"fresh": [2, 3]}, {"fresh": [3]}])
    images = torch.randn(5, 3, 16, 16)
    state = torch.cat([images, torch.zeros(5, 1, 16, 16)], 1)
    pools, gate = [[0], [0], [0, 1], [0, 1, 2]], method.parts["2"].gate
    for layer, pool in enumerate(pools):
        weights = gate(state, layer) if len(pool) > 1 else torch.ones(5, 1)
        outputs = [method.parts[str(owner)].blocks[str(layer)](state) for owner in pool]
        state = sum(weights[:, m, None, None, None] * output for m, output in enumerate(outputs))
    torch.testing.assert_close(method.logits(images, 2), method.heads[2](flatten(state)))
    before = method.logits(images, 1)
    method.grow({"task": 3, "n_classes": 10, "fresh": ALL})
    assert torch.equal(method.eval().logits(images, 1), before)


def test_five_expansions_top_down_and_only_one_for_the_first_task():
    method = cases.learner("soft_gating")
    assert [candidate.record["fresh"] for candidate in method.candidates()] == [ALL]
    method = cases.grown("soft_gating", [{"fresh": ALL}])
    assert [c.record["fresh"] for c in method.candidates()] == [[], [3], [2, 3], [1, 2, 3], ALL]


def test_candidates_come_from_the_store_and_the_best_is_kept():
    memory = cases.Memory()
    for _ in range(2):
        method = cases.learner("soft_gating")
        method.learn(cases.task(0), cases.step(0))
        method.learn(cases.task(1), cases.step(1, remember=memory))
        assert memory.computed == 5
    best = max(memory.entries.values(), key=lambda entry: entry["accuracy"])  # the first of the best
    assert method.tasks[1]["fresh"] == best["record"]["fresh"]
    loss = functional.cross_entropy(cases.logits(method, 1), cases.task(1).valid.labels)
    assert torch.isfinite(loss)


def test_a_killed_search_goes_on_with_the_candidate_it_was_at():
    memory, method = cases.Memory(), cases.learner("soft_gating")
    method.learn(cases.task(0), cases.step(0))
    saved, calls = method.save(), []

    def dying(part, compute):
        calls.append(part)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return memory(part, compute)

    with pytest.raises(KeyboardInterrupt):
        method.learn(cases.task(1), cases.step(1, remember=dying))
    assert memory.computed == 2
    resumed = cases.learner("soft_gating")
    resumed.restore(saved)
    resumed.learn(cases.task(1), cases.step(1, remember=memory))
    assert memory.computed == 5
    straight = cases.learner("soft_gating")
    straight.restore(saved)
    straight.learn(cases.task(1), cases.step(1))
    assert straight.tasks == resumed.tasks
    assert torch.equal(cases.logits(straight, 1), cases.logits(resumed, 1))
