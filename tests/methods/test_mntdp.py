"""MNTDP-S and -D: source choice against brute force, the graph of paths, the sampler, candidates, the library."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from par import seeding
from par.config import Config
from par.methods.bases.mntdp import FRESH, SOURCE, knn_accuracy, paths
from par.methods.mntdp_s import PathSampler
from par.training import trainer
from tests.methods import modular_cases as cases

PAPER = Config(preset="test", streams=(), seeds=(0,), methods={})


@pytest.mark.parametrize("k", [1, 5, 500])
def test_knn_accuracy_equals_brute_force(k):
    generator = torch.Generator().manual_seed(k)
    train, valid = torch.randn(60, 4, generator=generator), torch.randn(40, 4, generator=generator)
    train_labels = (train[:, 0] * 2).long().clamp(-1, 2) + 1
    valid_labels = (valid[:, 0] * 2).long().clamp(-1, 2) + 1
    reference = KNeighborsClassifier(min(k, 60), algorithm="brute").fit(train.numpy(), train_labels.numpy())
    expected = reference.score(valid.numpy(), valid_labels.numpy())
    assert knn_accuracy(train, train_labels, valid, valid_labels, k) == pytest.approx(expected)
    assert 0.2 < expected < 0.99


def test_the_source_is_the_task_with_the_best_knn_accuracy():
    method = cases.grown("mntdp_d", [{"path": [task] * 7} for task in range(4)])
    task, scores = cases.task(9), []
    for record in method.tasks:
        features = []
        for split in (task.train, task.valid):
            rows = torch.arange(len(split))
            with torch.no_grad():
                maps = split.batch(rows)
                for depth in range(6):
                    maps = method.parts[str(record["task"])][str(depth)](maps)
            features.append(maps.mean((2, 3)).numpy())
        reference = KNeighborsClassifier(5, algorithm="brute").fit(features[0], task.train.labels.numpy())
        scores.append(reference.score(features[1], task.valid.labels.numpy()))
    assert len(set(scores)) > 1
    assert method.choose_source(task, "key", 5)["task"] == max(range(4), key=lambda number: (scores[number], number))


def test_the_first_task_has_no_source():
    assert cases.learner("mntdp_d").choose_source(cases.task(0), "key", 5) is None


def test_forward_connections_give_prefixes():
    found = paths("fw", source_head=True, depth=7)
    assert found == [(SOURCE,) * cut + (FRESH,) * (7 - cut) for cut in range(7, -1, -1)]
    assert paths("fw", source_head=False, depth=7) == found[1:]


def test_backward_connections_give_suffixes_and_both_give_all():
    assert set(paths("bw", source_head=True, depth=7)) == {(FRESH,) * cut + (SOURCE,) * (7 - cut) for cut in range(8)}
    assert paths("bw", source_head=False, depth=7) == [(FRESH,) * 7]
    assert (
        len(paths("fw_bw", source_head=True, depth=7)) == 128 and len(paths("fw_bw", source_head=False, depth=7)) == 64
    )


def test_sizes_without_and_with_sharing():
    alone = cases.grown("mntdp_d", [{"path": [task] * 7} for task in range(10)], PAPER)
    assert alone.n_params() == 6_070_500
    shared = cases.grown("mntdp_s", [{"path": [0] * 7}, {"path": [0] * 6 + [1]}, {"path": [0] * 7}], PAPER)
    assert shared.n_params() == 607_050 + 650


def test_a_candidate_that_diverges_is_left_out():
    method = cases.learner("mntdp_d", learning_rates=[1e20, 0.05])
    log = method.learn(cases.task(0), cases.step(0))
    assert {row["learning_rate"] for row in log} <= {0.05, 0.025} and method.tasks[0]["path"] == [0] * 7
    method = cases.learner("mntdp_d", learning_rates=[1e20])
    with pytest.raises(trainer.DivergedError):
        method.learn(cases.task(0), cases.step(0))
    assert method.tasks == [] and not method.parts


def test_no_candidate_bridges_two_source_blocks_by_one_fresh_block():
    method = cases.grown("mntdp_d", [{"path": [0] * 7, "n_classes": 3}], connections="fw_bw")
    method.choose_source = lambda task, key, k: method.tasks[0]
    found = {tuple(candidate.record["path"]) for candidate in method.candidates(cases.task(5), cases.step(5))}
    everything = set(itertools.product((0, 5), repeat=7))
    assert len(found) == 65 and found < everything
    assert all("050" in "".join(map(str, path)) for path in everything - found)
    assert (0, 5, 5, 0, 0, 0, 5) in found and (5, 0, 5, 5, 0, 0, 0) in found


def test_the_later_of_two_equally_good_sources_is_chosen():
    method = cases.grown("mntdp_d", [{"path": [0] * 7}, {"path": [0] * 7}])
    assert method.choose_source(cases.task(2), "test", 5)["task"] == 1


def test_paths_with_more_source_blocks_come_first():
    found = paths("fw_bw", source_head=True, depth=7)
    assert [path.count(FRESH) for path in found] == sorted(path.count(FRESH) for path in found)


def test_a_path_through_other_tasks_blocks_is_followed():
    records = [{"path": path} for path in ([0] * 7, [0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 2, 1])]
    method = cases.grown("mntdp_d", records)
    images = torch.randn(3, 3, 16, 16)
    maps = images
    for depth, owner in enumerate([0, 0, 0, 1, 1, 2]):
        maps = method.parts[str(owner)][str(depth)](maps)
    torch.testing.assert_close(method.logits(images, 2), method.heads[1](maps.mean((2, 3))))
    assert set(method.parts["2"]) == {"5"} and "2" not in method.heads.by_task


# MNTDP-D


def source_of_task_0(name: str, **hyper):
    """A learner that knows task 0 well, and a second task with the same data."""
    method = cases.learner(name, **hyper)
    recipe = cases.Recipe(epochs=30, batch_size=8, optimizer="adam", learning_rate=0.01, weight_decay=0.0)
    method.learn(cases.task(0), cases.step(0, recipe))
    return method, cases.LearningTask(1, 3, cases.task(0).train, cases.task(0).valid)


def test_every_path_and_every_recipe_of_the_grid_is_a_candidate():
    hyper = dict(learning_rates=[0.1, 0.01], weight_decays=[0.0, 0.1, 0.2])
    method = cases.grown("mntdp_d", [{"path": [0] * 7, "n_classes": 3}, {"path": [0, 0, 1, 1, 1, 1, 1]}], **hyper)
    method.choose_source = lambda task, key, k: method.tasks[0]
    candidates = list(method.candidates(cases.task(5), cases.step(5)))
    expected = [[0] * cut + [5] * (7 - cut) for cut in range(7, -1, -1)]
    found = [candidate.record["path"] for candidate in candidates]
    assert found == expected[:1] + [path for path in expected[1:] for _ in range(6)]
    grid = {(candidate.recipe.learning_rate, candidate.recipe.weight_decay) for candidate in candidates[1:]}
    assert grid == set(itertools.product([0.1, 0.01], [0.0, 0.1, 0.2]))
    assert len({candidate.name for candidate in candidates}) == len(candidates)
    method.choose_source = lambda task, key, k: method.tasks[1]  # 10 classes: its head does not fit
    assert [0, 0, 1, 1, 1, 1, 1] not in [c.record["path"] for c in method.candidates(cases.task(5), cases.step(5))]


def test_candidates_come_from_the_store_and_the_best_is_kept():
    memory = cases.Memory()
    for _ in range(2):
        method = cases.learner("mntdp_d")
        method.learn(cases.task(0), cases.step(0))
        method.learn(cases.task(1), cases.step(1, remember=memory))
        assert memory.computed == 8
    best = max(memory.entries.values(), key=lambda entry: entry["accuracy"])
    assert method.tasks[1]["path"] == best["record"]["path"]
    assert cases.accuracy(method, 1) == pytest.approx(best["accuracy"])
    whole = memory.entries["sssssss/0"]
    assert whole["record"]["path"] == [0] * 7 and not whole["tensors"] and len(whole["log"]) == 1


def test_the_same_task_again_is_solved_by_the_source_as_it_is():
    method, same = source_of_task_0("mntdp_d")
    alone, accuracy = method.n_params(), cases.accuracy(method, 0)
    assert accuracy > 0.9
    recipe = cases.Recipe(epochs=1, batch_size=8, learning_rate=1e-6)  # what is fresh stays useless
    method.learn(same, cases.step(1, recipe))
    assert method.tasks[1]["path"] == [0] * 7 and method.n_params() == alone


# MNTDP-S


def random_sampler(connections: str, source_head: bool) -> PathSampler:
    sampler = PathSampler(paths(connections, source_head, depth=7))
    sampler.logits.copy_(torch.randn(sampler.logits.shape, generator=torch.Generator().manual_seed(3)))
    return sampler


@pytest.mark.parametrize("connections, source_head", [("fw", True), ("fw", False), ("bw", True), ("fw_bw", False)])
def test_the_sampler_draws_paths_of_the_graph_by_their_probability(connections, source_head):
    sampler = random_sampler(connections, source_head)
    probabilities = sampler.log_probability(sampler.choices).exp()
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-5)
    drawn = sampler.sample(torch.rand(7, 4000, generator=seeding.torch_generator("test")))
    frequencies = torch.tensor([float((drawn == path).all(1).double().mean()) for path in sampler.choices])
    assert float(frequencies.sum()) == pytest.approx(1)
    assert float((frequencies - probabilities).abs().max()) < 0.03
    assert sampler.best() == tuple(sampler.choices[probabilities.argmax()].tolist())


@pytest.mark.parametrize("connections, source_head, count", [("fw", True, 8), ("bw", True, 8), ("fw_bw", False, 64)])
def test_the_sampler_starts_uniform_over_paths(connections, source_head, count):
    sampler = PathSampler(paths(connections, source_head, depth=7))
    torch.testing.assert_close(sampler.log_probability(sampler.choices).exp(), torch.full((count,), 1 / count))
    assert float(sampler.entropy()) == pytest.approx(math.log(count), rel=1e-5)
    sampler.logits[0, SOURCE] = torch.tensor([0.0, 50.0])  # the first block is fresh
    if connections == "fw":
        assert float(sampler.entropy()) == pytest.approx(0, abs=1e-5)
        assert sampler.best() == (FRESH,) * 7
    assert float(PathSampler([(FRESH,) * 7]).entropy()) == 0


def test_reinforce_prefers_the_paths_with_the_smaller_loss():
    """With fresh blocks that never learn, the source's blocks are the useful ones; the weights stay as they are."""
    method, same = source_of_task_0("mntdp_s", path_learning_rate=0.1, entropy_weight=0.0)
    method.current = same
    method.start_task(same, cases.step(0))
    method._generator = seeding.torch_generator("test")
    method.eval()
    whole = torch.full((1, 7), SOURCE)
    assert float(method.sampler.log_probability(whole).detach().exp()) == pytest.approx(1 / 8)
    rows = torch.arange(24)
    for _ in range(60):
        (drawn,) = method.draw([24])
        method.loss(trainer.Batch(same.train.batch(rows), same.train.labels, rows, drawn))
    assert float(method.sampler.log_probability(whole).detach().exp()) > 0.9
    assert method.sampler.best() == (SOURCE,) * 7


def test_one_path_is_trained_after_half_of_the_epochs():
    method = cases.grown("mntdp_s", [{"path": [0] * 7, "n_classes": 3}], freeze_entropy=0.0)
    method.current = cases.task(1)
    method.start_task(cases.task(1), cases.step(1))
    method._freeze_epoch = 2
    favour(method.sampler, (SOURCE,) * 7)  # nothing to train: sampling goes on
    assert [fixed_after_start(method, epoch) for epoch in range(4)] == [False] * 4
    method.own(1).requires_grad_(True)
    assert method.loss(batch_of(cases.task(1), method)).requires_grad
    favour(method.sampler, (SOURCE,) * 6 + (FRESH,))
    assert [fixed_after_start(method, epoch) for epoch in range(4)] == [False, False, True, True]
    logits = method.sampler.logits.clone()
    method.loss(batch_of(cases.task(1), method))
    assert torch.equal(method.sampler.logits, logits)


def test_a_converged_path_is_fixed_at_once():
    method = cases.grown("mntdp_s", [{"path": [0] * 7, "n_classes": 3}])
    method.current = cases.task(1)
    method.start_task(cases.task(1), cases.step(1))
    method._freeze_epoch = 9
    assert not fixed_after_start(method, 0)
    favour(method.sampler, (SOURCE,) * 3 + (FRESH,) * 4, 50.0)
    assert fixed_after_start(method, 0)


def favour(sampler: PathSampler, path: tuple[int, ...], strength: float = 5.0) -> None:
    origins = (SOURCE, *path[:-1])
    with torch.no_grad():
        sampler.logits.zero_()
        sampler.logits[range(7), origins, path] = strength
    assert sampler.best() == path


def fixed_after_start(method, epoch: int) -> bool:
    method.start_epoch(epoch)
    return method._fixed_path


def batch_of(task, method) -> trainer.Batch:
    rows, (drawn,) = torch.arange(8), method.draw([8])
    return trainer.Batch(task.train.batch(rows), task.train.labels[rows], rows, drawn)


def test_images_follow_their_own_paths():
    method = cases.grown("mntdp_s", [{"path": [0] * 7}, {"path": [1] * 7}])
    method.current, method._source, method._may_be_old = cases.task(1), method.tasks[0], [True] * 7
    images, drawn = torch.randn(8, 3, 16, 16), torch.tensor(paths("fw", source_head=True, depth=7))
    outputs = method._along(images, drawn)
    for row, path in enumerate(drawn.tolist()):
        owners = [0 if choice == SOURCE else 1 for choice in path]
        expected = method.block(6, owners[-1])(method.features(images[row : row + 1], owners))
        torch.testing.assert_close(outputs[row : row + 1], expected)


def test_only_blocks_of_the_chosen_path_stay():
    method = cases.learner("mntdp_s")
    for task_id in range(2):
        method.learn(cases.task(task_id), cases.step(task_id))
    path = method.tasks[1]["path"]
    assert set(method.parts["1"]) == {str(depth) for depth in range(6) if path[depth] == 1}
    assert ("1" in method.heads.by_task) == (path[6] == 1)
    assert not hasattr(method, "sampler") and not any("sampler" in name for name in method.state_dict())
