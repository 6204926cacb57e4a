"""MNTDP-D: the best of all paths that start with an earlier task's blocks (Veniat et al. 2021, sources.md#mntdp-d)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from par.config import Recipe
from par.methods.bases.method import LearningTask, Step
from par.methods.bases.mntdp import FRESH, SOURCE, Connections, Mntdp, owners, paths, source_head_fits
from par.methods.bases.modular import Candidate
from par.schema import Count, NonNegative, Positive


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of MNTDP-D (sources.md#mntdp-d)."""

    k: Count = 15  # neighbours in the choice of the source; the authors' s_long configuration: 5
    connections: Connections = "fw"  # the authors' S_out configuration: bw, S_in: fw and bw
    # the authors' grid, per candidate and with Adam, is (1e-2, 1e-3) x (0, 1e-4, 1e-5): six times the cost; empty: the
    # recipe's value
    learning_rates: tuple[Positive, ...] = ()
    weight_decays: tuple[NonNegative, ...] = ()


class MntdpD(Mntdp):
    """Modular networks with task-driven priors, deterministic search (arXiv:2012.12631; sources.md#mntdp-d).

    1. Source: the earlier task whose features give the best k-NN accuracy on this task's validation images.
    2. Candidates: the first c blocks from the source (frozen), the other 7 - c fresh, for c = 0..7; c = 7 takes the
       source's head too, trains nothing, and is tried where the numbers of classes agree. With ``fw_bw`` all paths but
       those where one fresh block alone stands between two source blocks, which the authors' graphs have not: 65.
    3. Each is trained on its own, over the grid of learning rates and weight decays; the best validation accuracy
       decides, on a tie the path with more source blocks. Only its fresh blocks enter the library.
    """

    Hyper = Hyper
    capturable = True

    def learn(self, task: LearningTask, step: Step) -> list[dict[str, float]]:
        return self.learn_best(task, step, self.candidates(task, step))

    def candidates(self, task: LearningTask, step: Step) -> Iterator[Candidate]:
        """All paths and, for those with something to train, all recipes of the grid."""
        source = self.choose_source(task, step.key, self.hyper.k)
        choices = [(FRESH,) * self.depth]
        if source is not None:
            found = paths(self.hyper.connections, source_head_fits(source, task), self.depth)
            choices = [path for path in found if not _bridges(path)]
        recipes = self._grid(step.recipe)
        for path in choices:
            record = {"path": owners(path, task.id, source)}
            letters = "".join("sf"[choice] for choice in path)
            for number, recipe in enumerate(recipes if FRESH in path else recipes[:1]):
                yield Candidate(f"{letters}/{number}", record, recipe)

    def _grid(self, recipe: Recipe) -> list[Recipe]:
        rates = self.hyper.learning_rates or (recipe.learning_rate,)
        decays = self.hyper.weight_decays or (recipe.weight_decay,)
        return [
            dataclasses.replace(recipe, learning_rate=rate, weight_decay=decay)
            for rate, decay in itertools.product(rates, decays)
        ]


def _bridges(path: tuple[int, ...]) -> bool:
    """Whether somewhere one fresh block alone stands between two source blocks."""
    return (SOURCE, FRESH, SOURCE) in zip(path, path[1:], path[2:], strict=False)
