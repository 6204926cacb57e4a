"""Figures of the architecture search: the cells it found and the course it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from par.cells.genotype import KINDS, N_NODES, Genotype
from par.reporting.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILION,
    chart,
    empty_figure,
    inches,
    learner_styles,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.typing import LineStyleType

OPERATIONS: dict[str, tuple[str, str, LineStyleType]] = {  # words, colour, line
    "sep_conv_3x3": ("sep 3×3", BLUE, "-"),
    "dil_conv_3x3": ("dil 3×3", VERMILION, "-"),
    "max_pool_3x3": ("max 3×3", GREEN, (0, (5, 1.5))),
    "avg_pool_3x3": ("avg 3×3", PURPLE, (0, (5, 1.5))),
    "skip_connect": ("skip", ORANGE, (0, (1.2, 1.2))),
}
KIND_TITLES = {"normal": "normal cell", "reduce": "reduction cell"}
SPACING = 0.62  # inches between the states of a cell, which is the unit of its axes
ABOVE, BELOW = 1.4, 1.15  # room for arcs


@styled
def cells(genotypes: Sequence[tuple[str, Genotype]], title: str) -> Figure:
    """Cells as graphs: one row a genotype, its normal cell at the left, its reduction cell at the right.

    States stand on a line: the outputs of the last cell but one and of the last cell, then the four nodes, whose
    outputs together are the cell's. Of a node's two inputs one arc runs above the line and one below.

    Args:
        genotypes: words and genotype, from top to bottom.
    """
    width, height = SPACING * (N_NODES + 3.0), SPACING * (ABOVE + BELOW)
    figure = empty_figure(0.3 + 2 * (width + 0.3), 0.75 + len(genotypes) * (height + 0.3))
    for row, (words, genotype) in enumerate(genotypes):
        for column, kind in enumerate(KINDS):
            bottom = 0.35 + (len(genotypes) - 1 - row) * (height + 0.3)
            axes = figure.add_axes(inches(figure, 0.15 + column * (width + 0.3), bottom, width, height))
            _draw_cell(axes, getattr(genotype, kind))
            axes.set_xlim(-0.6, N_NODES + 2.4)
            axes.set_ylim(-BELOW, ABOVE)
            axes.axis("off")
            heading = f"{words}: {KIND_TITLES[kind]}" if column == 0 else KIND_TITLES[kind]
            axes.set_title(heading, fontsize=8, pad=1)
    figure.text(0.15 / figure.get_figwidth(), 1 - 0.2 / figure.get_figheight(), title, weight="bold", fontsize=9.5)
    handles = [
        Line2D([], [], color=colour, linestyle=line, linewidth=1.8, label=label)
        for label, colour, line in OPERATIONS.values()
    ]
    figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.01, 0.0), ncols=5, fontsize=7.5)
    return figure


def _draw_cell(axes: Any, nodes: Sequence[Sequence[tuple[str, int]]]) -> None:
    axes.add_patch(
        FancyBboxPatch((1.62, -0.3), N_NODES - 0.24, 0.6, boxstyle="round,pad=0.06", fc="0.94", ec="none", zorder=0)
    )
    arrow = {"arrowstyle": "<|-,head_length=0.25,head_width=0.12", "linewidth": 0.7, "shrinkB": 0}
    axes.annotate("out", (N_NODES + 1.45, 0), (N_NODES + 1.95, 0), va="center", fontsize=7, arrowprops=arrow)
    for state, label in enumerate(("k-2", "k-1", *map(str, range(N_NODES)))):
        shape = "round,pad=0.25" if state < 2 else "circle,pad=0.25"
        axes.text(state, 0, label, ha="center", va="center", fontsize=7, zorder=4,
                  bbox={"boxstyle": shape, "fc": "white", "ec": BLACK, "linewidth": 0.7})  # fmt: skip
    for index, node in enumerate(nodes):
        for (operation, predecessor), side in zip(node, (1, -1)):
            label, colour, line = OPERATIONS[operation]
            target, span = 2 + index, 2 + index - predecessor
            arc = FancyArrowPatch(
                (predecessor, 0.2 * side), (target, 0.2 * side), connectionstyle=f"arc3,rad={-0.42 * side}",
                arrowstyle="-|>,head_length=3,head_width=1.6", color=colour, linestyle=line, linewidth=1.4, zorder=2,
            )  # fmt: skip
            axes.add_patch(arc)
            place = ((predecessor + target) / 2, side * (0.2 + 0.21 * span))
            box = {"boxstyle": "square,pad=0.08", "fc": "white", "ec": "none"}
            axes.text(*place, label.split()[0], ha="center", va="center", fontsize=6, color=colour, zorder=3, bbox=box)


@styled
def search_histories(histories: Mapping[str, np.ndarray], names: Mapping[str, str], title: str) -> Figure:
    """Accuracy of the paths that a search draws, by epoch: the mean over searches and a band of one std.

    Args:
        histories: learner -> accuracies [searches, epochs].
        names: learner -> its name in the legend.
    """
    figure, axes = chart(len(histories))
    for learner, style in learner_styles(list(histories)).items():
        rows = histories[learner]
        epochs, mean, std = np.arange(1, rows.shape[1] + 1), rows.mean(axis=0), rows.std(axis=0)
        marked = max(1, rows.shape[1] // 10)
        axes.plot(epochs, mean, label=f"{names[learner]} ({len(rows)} searches)", markevery=marked, **style)
        axes.fill_between(epochs, mean - std, mean + std, color=style["color"], alpha=0.12, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch of the search")
    axes.set_ylabel("accuracy of the drawn path")
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_title(title)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=7.5, handlelength=2.8)
    return figure
