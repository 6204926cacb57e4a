"""MNTDP-S: paths through old and fresh blocks, sampled by REINFORCE (Veniat et al. 2021, sources.md#mntdp-s)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from par import seeding
from par.methods.bases.method import LearningTask, Step
from par.methods.bases.mntdp import FRESH, SOURCE, Connections, Mntdp, owners, paths, source_head_fits
from par.schema import Count, Fraction, NonNegative, Positive
from par.training import trainer
from par.training.losses import cross_entropy


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of MNTDP-S (sources.md#mntdp-s)."""

    k: Count = 15  # neighbours in the choice of the source; the authors' s_long configuration: 5
    connections: Connections = "fw"  # as in MNTDP-D
    path_learning_rate: Positive = 0.01  # Adam on the edges' logits; the authors' grid: 1e-2, 1e-3
    entropy_weight: NonNegative = 1.0  # the authors' s_long configuration; others: 0, 5
    freeze_entropy: NonNegative = 0.001  # nats; below it the path is fixed
    freeze_after: Fraction = 0.5  # share of the epochs after which it is fixed at the latest


class PathSampler(nn.Module):
    """A distribution over paths: a softmax over the outgoing edges of every node, at first uniform over the paths.

    Equal edges instead would give half of the probability to the path of fresh blocks alone, which branches only once.

    ``logits`` [depth, from, to] is a buffer: the best epoch's are kept with its weights, yet the recipe's optimiser
    leaves them alone. Who trains them lets them require a gradient.
    """

    choices: Tensor
    closed: Tensor
    logits: Tensor

    def __init__(self, choices: Sequence[Sequence[int]]):
        super().__init__()
        self.register_buffer("choices", torch.tensor(choices), persistent=False)  # int64 [paths, depth]
        n_blocks = self.choices.shape[1]
        depth = torch.arange(n_blocks).expand(self.choices.shape)
        edges = depth, _origins(self.choices), self.choices
        count = torch.zeros(n_blocks, 2, 2).index_put_(edges, torch.ones(()), accumulate=True)  # paths through an edge
        reached = count.sum(dim=2, keepdim=True) > 0
        self.register_buffer("closed", torch.zeros_like(count).masked_fill((count == 0) & reached, -torch.inf))
        self.register_buffer("logits", count.clamp_min(1).log())

    def log_probabilities(self) -> Tensor:
        """Float [depth, from, to]; edges that are not in the graph have -inf."""
        return functional.log_softmax(self.logits + self.closed, dim=2)

    def sample(self, uniform: Tensor) -> Tensor:
        """Uniform numbers in [0, 1) [depth, n] -> a path for each of n images, int64 [n, depth]."""
        fresh = self.log_probabilities()[:, :, FRESH].detach().exp()
        nodes = [torch.full_like(uniform[0], SOURCE, dtype=torch.int64)]
        for depth in range(len(uniform)):
            nodes.append((uniform[depth] < fresh[depth][nodes[-1]]).long())
        return torch.stack(nodes[1:], dim=1)

    def log_probability(self, drawn: Tensor) -> Tensor:
        """Log-probability [n] of paths int64 [n, depth]."""
        depth = torch.arange(drawn.shape[1], device=drawn.device).expand(drawn.shape)
        return self.log_probabilities()[depth, _origins(drawn), drawn].sum(dim=1)

    def entropy(self) -> Tensor:
        """Entropy (nats) of the distribution over paths."""
        log_p = self.log_probability(self.choices)
        return -(log_p.exp() * log_p).sum()

    def objective(self, losses: Tensor, drawn: Tensor, entropy_weight: float) -> Tensor:
        """What is maximised, from the losses [n] of images along their paths int64 [n, depth] (:class:`MntdpS`)."""
        reward = losses.detach().mean() - losses.detach()
        return (reward * self.log_probability(drawn)).mean() + entropy_weight * self.entropy()

    def best(self) -> tuple[int, ...]:
        """The most probable path, on a tie the one with most source blocks at the bottom."""
        return tuple(self.choices[int(self.log_probability(self.choices).argmax())].tolist())


def _origins(drawn: Tensor) -> Tensor:
    """The node before each of the path's nodes; the image itself counts as a source block."""
    return functional.pad(drawn[:, :-1], (1, 0), value=SOURCE)


class MntdpS(Mntdp):
    """Modular networks with task-driven priors, stochastic search (arXiv:2012.12631; sources.md#mntdp-s).

    Source and graph are those of MNTDP-D. Every image of a batch takes a path a ~ p of its own (so does the authors'
    code, where the baseline below is the mean over the batch). Fresh blocks are trained by the recipe on the
    cross-entropy l_a, the logits of p by Adam on

        -mean_n [(mean(l_a) - l_a,n) * log p(a_n)] - entropy_weight * H(p)

    until H falls below ``freeze_entropy`` or ``freeze_after`` of the epochs have passed; from then on only the most
    probable path is trained (one of source blocks alone has nothing to train: then sampling goes on). Validation uses
    the most probable path, and the kept epoch's path and weights belong together. Unused fresh blocks are dropped.
    BatchNorm of fresh blocks sees the whole batch. The authors take the mean entropy of the branchings for H and start
    from equal edges, see :class:`PathSampler`.
    """

    Hyper = Hyper

    sampler: PathSampler  # while a task is learned
    _source: dict[str, Any] | None

    def start_task(self, task: LearningTask, step: Step) -> None:
        self._source = self.choose_source(task, step.key, self.hyper.k)
        self._generator = seeding.torch_generator(step.key, "paths")
        self._freeze_epoch = self.hyper.freeze_after * step.recipe.epochs
        self.grow(self.record(task) | {"path": [task.id] * self.depth})
        choices = [(FRESH,) * self.depth]
        if self._source is not None:
            choices = paths(self.hyper.connections, source_head_fits(self._source, task), self.depth)
        self.sampler = PathSampler(choices).to(self.device)
        self._path_optimizer = torch.optim.Adam([self.sampler.logits.requires_grad_()], self.hyper.path_learning_rate)
        self._fixed_path = len(choices) == 1
        self._may_be_old = [any(path[depth] == SOURCE for path in choices) for depth in range(self.depth)]

    def modules_to_train(self) -> list[nn.Module]:
        return [*super().modules_to_train(), self.sampler]

    def start_epoch(self, epoch: int) -> None:
        ripe = epoch >= self._freeze_epoch or float(self.sampler.entropy().detach()) < self.hyper.freeze_entropy
        self._fixed_path = self._fixed_path or (ripe and FRESH in self.sampler.best())
        self._path = owners(self.sampler.best(), self.current.id, self._source)  # that a step takes once it is fixed

    @property
    def capturable(self) -> bool:
        """Not while paths are drawn: a step is another one from the epoch on in which the path is fixed."""
        return self._fixed_path

    def draw(self, sizes: Sequence[int]) -> Sequence[Mapping[str, Tensor]]:
        if self._fixed_path:
            return super().draw(sizes)
        return [{"uniform": torch.rand(self.depth, size, generator=self._generator)} for size in sizes]

    def loss(self, batch: trainer.Batch) -> Tensor:
        if self._fixed_path:
            return cross_entropy(self._follow(batch.images, self._path), batch.labels)
        drawn = self.sampler.sample(batch.drawn["uniform"])
        logits = self._along(batch.images, drawn)
        losses = functional.cross_entropy(logits.float(), batch.labels, reduction="none")
        objective = self.sampler.objective(losses, drawn, self.hyper.entropy_weight)
        (gradient,) = torch.autograd.grad(-objective, [self.sampler.logits])
        self.sampler.logits.grad = gradient
        self._path_optimizer.step()
        return losses.mean()

    def step_state(self) -> dict[str, Any]:
        """Without whether the path is fixed, which :meth:`start_epoch` finds anew: its logits stay as they were."""
        return {"optimizer": self._path_optimizer.state_dict(), "generator": self._generator.get_state()}

    def load_step_state(self, state: Mapping[str, Any]) -> None:
        self._path_optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])

    def predict(self, images: Tensor) -> Tensor:
        return self._follow(images, owners(self.sampler.best(), self.current.id, self._source))

    def _along(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Logits [n, K] of images that each take their own path (int64 [n, depth])."""
        state = images
        for depth in range(self.depth):
            if depth == self.depth - 1:
                state = state.mean(dim=(2, 3))
            fresh = drawn[:, depth] == FRESH
            outputs = self.block(depth, self.current.id)(state)
            # A CPU can be asked whether any image takes the source's block; a GPU would keep the host waiting.
            if self._may_be_old[depth] and (self.device.type != "cpu" or not bool(fresh.all())):
                assert self._source is not None
                other = self.block(depth, self._source["path"][depth])(state)
                outputs = torch.where(fresh.view(-1, *[1] * (outputs.dim() - 1)), outputs, other)
            state = outputs
        return state

    def end_task(self, task: LearningTask, step: Step) -> None:
        record, own = self.tasks[-1], self.part(task.id, nn.ModuleDict)
        record["path"] = owners(self.sampler.best(), task.id, self._source)
        for depth, owner in enumerate(record["path"][:-1]):
            if owner != task.id:
                del own[str(depth)]
        if record["path"][-1] != task.id:
            del self.heads.by_task[str(task.id)]
        del self.sampler, self._source, self._generator, self._path_optimizer
