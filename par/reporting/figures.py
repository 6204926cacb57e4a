"""Figures of streams and their results: distances, groups, accuracies, sizes, sweeps of a threshold.

Every function returns a :class:`matplotlib.figure.Figure` for :func:`par.reporting.style.save`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from par.reporting.style import (
    BLACK,
    BLUE,
    GREEN,
    LEARNER_COLOURS,
    ORANGE,
    SKY,
    VERMILION,
    chart,
    empty_figure,
    inches,
    learner_styles,
    lower_limit,
    styled,
)
from par.reporting.tables import decision_words
from par.text import one_line

MAX_NUMBERED = 10  # tasks up to which small heat maps hold numbers
NAME_WIDTH = 32  # letters of a task's name
MAX_LABELLED = 20  # tasks up to which cells hold numbers and every task its name
DECISIONS = {  # words, colour, marker
    "search": ("search a cell", ORANGE, "s"),
    "reuse_cell": ("reuse a cell", SKY, "D"),
    "join": ("join", GREEN, "o"),
}


@styled
def distance_heatmap(
    scores: np.ndarray, decisions: Sequence[Mapping[str, Any]], alpha: float, beta: float, title: str
) -> Figure:
    """How far every task is from the tasks before it, and what was decided.

    Args:
        scores: s_ij [T, T] of the pairs j < i, other entries are ignored.
        decisions: the plan's tasks in order; pairs inside a group are framed, decisions are named at the right.
        alpha, beta: the thresholds, marked on the colour bar.
    """
    n_tasks = len(decisions)
    labelled = n_tasks <= MAX_LABELLED
    shown = np.where(np.tri(n_tasks, k=-1, dtype=bool), scores, np.nan)
    size = _cell_inches(n_tasks) * n_tasks
    figure = empty_figure(size + 4.6, size + 1.7)
    axes = figure.add_axes(inches(figure, 1.2, 1.0, size, size))
    image = axes.imshow(shown, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
    _task_ticks(axes, [decision["name"] for decision in decisions])
    axes.set_title(title, pad=24)
    axes.set_ylabel("new task")
    axes.set_xlabel("earlier task")
    groups = np.array([decision["group"] for decision in decisions])
    if labelled:
        _write_numbers(axes, shown, image)
    for task, decision in enumerate(decisions):
        _, colour, _ = DECISIONS[decision["decision"]]
        axes.add_patch(Rectangle((task - 0.5, task - 0.5), 1, 1, facecolor=colour, linewidth=0))
        if labelled:
            axes.text(task, task, f"G{decision['group']}", ha="center", va="center", weight="bold", fontsize=7)
            axes.text(n_tasks - 0.3, task, _decision_text(decision), va="center", fontsize=7.5)
    frames = [Rectangle((j - 0.5, i - 0.5), 1, 1) for i in range(n_tasks) for j in range(i) if groups[i] == groups[j]]
    axes.add_collection(
        PatchCollection(frames, facecolor="none", edgecolor=VERMILION, linewidth=1.6 if labelled else 0.6, zorder=3)
    )
    handles = [Patch(facecolor=colour, label=words) for words, colour, _ in DECISIONS.values()]
    handles += [Patch(facecolor="none", edgecolor=VERMILION, linewidth=1.4, label="same group")]
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3, "borderpad": 0}
    axes.legend(handles=handles, ncols=4, fontsize=7.5, handlelength=1.0, columnspacing=1.2, **place)
    bar_axes = figure.add_axes(inches(figure, 1.2 + size + (2.6 if labelled else 0.6), 1.0, 0.14, size))
    bar = figure.colorbar(image, cax=bar_axes, extend="min" if np.nanmin(shown, initial=0) < 0 else "neither")
    bar.outline.set_linewidth(0)
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1])
    bar.set_label("distance $s_{ij}$ (small: related)", labelpad=4, parse_math=True)
    apart = beta - alpha > 0.06  # else the two labels would overlap
    for symbol, value, side in (("α", alpha, "top"), ("β", beta, "bottom")):
        for colour, width in (("white", 2.4), (BLACK, 1.0)):
            bar_axes.axhline(value, color=colour, linewidth=width)
        bar_axes.annotate(
            f"{symbol} = {value:g}", (0, value), (-3, 0), xycoords=bar_axes.get_yaxis_transform(),
            textcoords="offset points", ha="right", va="center" if apart else side, fontsize=8,
        )  # fmt: skip
    return figure


@styled
def accuracy_heatmaps(matrices: Mapping[str, np.ndarray], task_names: Sequence[str], title: str) -> Figure:
    """Accuracy matrices, one panel a learner, four in a row.

    Args:
        matrices: name of the learner -> r_ij [T, T], rows are steps; NaN inside the lower triangle (not predicted) is
            drawn grey.
    """
    n_tasks, n_columns = len(task_names), min(4, len(matrices))
    n_rows = -(-len(matrices) // n_columns)
    with_numbers = n_tasks <= MAX_NUMBERED
    side, left = max(1.5, 0.23 * n_tasks if with_numbers else 2.2), 1.25 if with_numbers else 0.55
    bottom, right, top, gap = 1.05 if with_numbers else 0.5, 0.75, 0.7, (0.15, 0.35)
    figure = empty_figure(
        left + n_columns * side + (n_columns - 1) * gap[0] + right, bottom + n_rows * side + (n_rows - 1) * gap[1] + top
    )
    any_unknown = False
    for position, (name, matrix) in enumerate(matrices.items()):
        row, column = divmod(position, n_columns)
        x, y = left + column * (side + gap[0]), bottom + (n_rows - 1 - row) * (side + gap[1])
        axes = figure.add_axes(inches(figure, x, y, side, side))
        axes.patch.set_visible(False)  # it would cover the names below the panel above
        unknown = np.tri(n_tasks, dtype=bool) & np.isnan(matrix)
        any_unknown |= bool(unknown.any())
        axes.imshow(np.where(unknown, 0.12, np.nan), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        image = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
        _task_ticks(axes, task_names, MAX_NUMBERED)
        is_lowest = position + n_columns >= len(matrices)
        axes.tick_params(labelleft=column == 0, labelbottom=is_lowest, labelsize=6.5)
        if column == 0:
            axes.set_ylabel("after learning task")
        if is_lowest:
            axes.set_xlabel("accuracy on task")
        axes.set_title(name, fontsize=8, pad=3)
        if with_numbers:
            _write_numbers(axes, matrix, image, 5.5)
    bar_axes = figure.add_axes(
        inches(figure, left + n_columns * side + (n_columns - 1) * gap[0] + 0.12, bottom, 0.12, side)
    )
    bar = figure.colorbar(image, cax=bar_axes)
    bar.outline.set_linewidth(0)
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1])
    bar.set_label("accuracy", labelpad=4)
    height = figure.get_figheight()
    figure.text(left / figure.get_figwidth(), 1 - 0.3 / height, title, weight="bold", fontsize=9.5)
    if any_unknown:
        patch = Patch(facecolor="0.9", label="not predicted")
        figure.legend(handles=[patch], loc="upper right", bbox_to_anchor=(1, 1), fontsize=7.5)
    return figure


@styled
def task_groups(decisions: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """The groups that a plan makes: one row a group (an expert), one column a task.

    A solid line joins the tasks of a group, a dashed one leads from the task whose cell a new expert takes.
    """
    n_tasks = len(decisions)
    n_groups = 1 + max(decision["group"] for decision in decisions)
    labelled = n_tasks <= MAX_LABELLED
    width = max(3.4, n_tasks * (0.42 if labelled else 0.065))
    height = max(1.0, n_groups * (0.32 if labelled else 0.085))
    figure = empty_figure(width + 2.6, height + 1.5)
    axes = figure.add_axes(inches(figure, 0.7, 1.0, width, height))
    group_of = [decision["group"] for decision in decisions]
    marker_size = 7.5 if labelled else 3.2
    for group in range(n_groups):
        members = [task for task in range(n_tasks) if group_of[task] == group]
        axes.plot(members, [group] * len(members), color="0.35", linewidth=1.6 if labelled else 0.8, zorder=2)
    for task, decision in enumerate(decisions):
        if decision["decision"] == "reuse_cell":
            source = decision["cell_from"]
            axes.plot(
                [source, task], [group_of[source], group_of[task]], color=SKY, linewidth=1.1 if labelled else 0.5,
                linestyle=(0, (4, 2)), zorder=1,
            )  # fmt: skip
        _, colour, marker = DECISIONS[decision["decision"]]
        look: dict[str, Any]
        if decision["head_only"]:
            look = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 0.2 * marker_size}
        else:
            look = {"markerfacecolor": colour, "markeredgecolor": BLACK, "markeredgewidth": 0.5}
        axes.plot(task, decision["group"], marker=marker, markersize=marker_size, linestyle="", zorder=3, **look)
    axes.set_xlim(-0.6, n_tasks - 0.4)
    axes.set_ylim(n_groups - 0.4, -0.6)
    if labelled:
        names = _numbered([decision["name"] for decision in decisions])
        axes.set_xticks(range(n_tasks), names, rotation=40, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(n_groups), [f"group {group}" for group in range(n_groups)])
    else:
        axes.set_xlabel("task")
        axes.set_ylabel("group")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(axis="both", color="0.93", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, pad=8)
    point: dict[str, Any] = {"linestyle": "", "markersize": 6}
    edge: dict[str, Any] = {"markeredgecolor": BLACK, "markeredgewidth": 0.5}
    handles = [
        Line2D([], [], color=colour, marker=marker, label=words, **edge, **point)
        for words, colour, marker in DECISIONS.values()
    ]
    if any(decision["head_only"] for decision in decisions):
        hollow: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": GREEN, "markeredgewidth": 1.6}
        handles.append(Line2D([], [], marker="o", label="join, head only", **hollow, **point))
    handles.append(Line2D([], [], color="0.35", linewidth=1.6, label="one expert"))
    handles.append(Line2D([], [], color=SKY, linewidth=1.1, linestyle=(0, (4, 2)), label="takes the cell"))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.04), fontsize=7.5)
    return figure


@styled
def stream_curves(matrices: Mapping[str, np.ndarray], names: Mapping[str, str], title: str) -> Figure:
    """Mean accuracy on the tasks seen so far, after every step: the mean over seeds and a band of one std.

    Args:
        matrices: learner -> accuracy matrices [S, T, T] of its seeds. Steps with unknown entries are left out.
        names: learner -> its name in the legend.
    """
    figure, axes = chart(len(matrices))
    n_tasks, lowest = 1, 1.0
    for learner, style in learner_styles(list(matrices)).items():
        n_tasks = matrices[learner].shape[1]
        seen = seen_accuracy(matrices[learner])
        mean, std = seen.mean(axis=0), seen.std(axis=0, ddof=1 if len(seen) > 1 else 0)
        lowest = min(lowest, np.nanmin(mean - std))
        steps = np.arange(1, n_tasks + 1)
        marked = sorted({*range(0, n_tasks, max(1, n_tasks // 10)), n_tasks - 1})
        axes.plot(steps, mean, label=names[learner], markevery=marked, **style)
        if len(seen) > 1:
            axes.fill_between(steps, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_ylim(lower_limit(lowest), 1.01)
    axes.set_xlim(1 - 0.02 * n_tasks, 1.02 * n_tasks)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("tasks learned")
    axes.set_ylabel("mean accuracy on them")
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_title(title)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=7.5, handlelength=2.8)
    return figure


def seen_accuracy(matrices: np.ndarray) -> np.ndarray:
    """Mean accuracy on the tasks learned so far, float64 [S, T]: row means of the lower triangles of [S, T, T].

    A step with an unknown entry is NaN.
    """
    return np.stack([matrices[:, step, : step + 1].mean(axis=1) for step in range(matrices.shape[1])], axis=1)


@styled
def size_scatter(scores: Mapping[str, Mapping[str, Any]], names: Mapping[str, str], title: str) -> Figure:
    """AP against the number of parameters; error bars are one std over seeds, hollow marks the published values.

    Args:
        scores: learner -> {"AP": Score, "M": Score} (see par/reporting/tables.py).
        names: learner -> its name in the legend.
    """
    figure, axes = chart(len(scores) + 1)
    any_published, sizes, lowest = False, [], 1.0
    hollow: dict[str, Any]
    for learner, style in learner_styles(list(scores)).items():
        ap, size = scores[learner]["AP"], scores[learner]["M"]
        style = {"color": style["color"], "marker": style["marker"], "zorder": style["zorder"], "linestyle": ""}
        if ap.values:
            spread = {"xerr": size.std, "yerr": ap.std, "elinewidth": 0.8, "capsize": 2}
            axes.errorbar(size.mean, ap.mean, color=style["color"], zorder=style["zorder"], linestyle="", **spread)
            edge = {"markeredgecolor": "white", "markeredgewidth": 0.5}
            axes.plot(size.mean, ap.mean, markersize=7, label=names[learner], **edge, **style)
            sizes.append(size.mean)
            lowest = min(lowest, ap.mean - (ap.std or 0))
        if ap.published and size.published and ap.comparable:
            any_published = True
            label = None if ap.values else names[learner]
            hollow = {"markerfacecolor": "none", "markeredgewidth": 1.2}
            axes.plot(size.published.value, ap.published.value, markersize=6.5, label=label, **hollow, **style)
            sizes.append(size.published.value)
            lowest = min(lowest, ap.published.value)
    if sizes and max(sizes) > 8 * min(sizes):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, 1.1 * max(sizes, default=1))
    axes.set_ylim(lower_limit(lowest), 1.01)
    axes.set_xlabel("M: parameters at the end of the stream, millions")
    axes.set_ylabel("AP")
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title)
    handles, _ = axes.get_legend_handles_labels()
    if any_published:
        hollow = {"markerfacecolor": "none", "markeredgecolor": "0.3"}
        handles.append(Line2D([], [], linestyle="", marker="o", label="hollow: published", **hollow))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=7.5)
    return figure


@styled
def sweep(
    points: Sequence[tuple[float, Mapping[str, Any]]], own: float, symbol: str, structure: str, title: str
) -> Figure:
    """A threshold's effect in four panels: AP, M, what it changes in the plan, and time.

    Args:
        points: value of the threshold and the scores there (metric -> Score, see par/reporting/scores.py), every one
            with at least one seed; dots are seeds, the line their mean.
        own: the preset's value of the threshold, marked.
        symbol: of the threshold, for the axes.
        structure: the metric of the third panel, ``experts`` or ``cells``.
    """
    points = sorted(points, key=lambda point: point[0])
    values = [value for value, _ in points]
    time = "hours" if max(row["hours"].mean for _, row in points) >= 0.2 else "seconds"
    panels = {
        "AP": "AP",
        "M": "M: millions of parameters",
        structure: {"experts": "experts", "cells": "cells searched"}[structure],
        time: f"{time} of training and search",
    }
    figure = empty_figure(6.6, 4.5)
    for position, (metric, label) in enumerate(panels.items()):
        left, bottom = 0.65 + 3.3 * (position % 2), 2.55 - 2.05 * (position // 2)
        axes = figure.add_axes(inches(figure, left, bottom, 2.55, 1.5))
        axes.axvline(own, color="0.75", linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        for value, row in points:
            seeds = row[metric].values
            axes.plot([value] * len(seeds), seeds, ".", color=SKY, markersize=5, zorder=2)
        means = [row[metric].mean for _, row in points]
        axes.plot(values, means, "o-", color=BLUE, linewidth=1.5, markersize=4, zorder=3)
        axes.set_ylabel(label)
        if metric == "AP":
            axes.margins(y=0.15)
        else:
            axes.set_ylim(0, 1.12 * max(max(row[metric].values) for _, row in points))
        if metric == structure:
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if position >= 2:
            axes.set_xlabel(symbol)
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
    figure.axes[0].set_title(title, pad=8)
    handles = [
        Line2D([], [], color=BLUE, marker="o", markersize=4, label="mean over seeds"),
        Line2D([], [], color=SKY, marker=".", linestyle="", markersize=6, label="one seed"),
        Line2D([], [], color="0.75", linestyle=(0, (4, 2)), label=f"the preset's {symbol}"),
    ]
    figure.axes[1].legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1.0), fontsize=7, ncols=3,
                          columnspacing=0.9, handlelength=1.5, handletextpad=0.4, borderpad=0)  # fmt: skip
    return figure


@styled
def coloured_groups(decisions: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Which tasks share an expert, by name: one colour and one row (or more, when it is full) an expert."""
    groups: dict[int, list[str]] = {}
    for decision in decisions:
        groups.setdefault(decision["group"], []).append(decision["name"])
    per_row, width, height = 6, 1.12, 0.42
    rows = [
        (group, start, names[start : start + per_row])
        for group, names in groups.items()
        for start in range(0, len(names), per_row)
    ]
    columns = max(len(names) for _, _, names in rows)
    figure = empty_figure(0.8 + columns * width, 0.4 + len(rows) * height)
    axes = figure.add_axes(inches(figure, 0.7, 0.05, columns * width, len(rows) * height))
    for row, (group, start, names) in enumerate(rows):
        colour = LEARNER_COLOURS[group % len(LEARNER_COLOURS)]
        if start == 0:
            axes.text(-0.05, row + 0.5, f"expert {group}", ha="right", va="center", weight="bold")
        for column, name in enumerate(names):
            shape: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.08", "mutation_aspect": width / height}
            for fill, edge in (((colour, 0.3), "none"), ("none", colour)):
                axes.add_patch(
                    FancyBboxPatch((column + 0.03, row + 0.08), 0.94, 0.84, fc=fill, ec=edge, linewidth=1.2, **shape)
                )
            words = textwrap.fill(one_line(name, 34), 17)
            axes.text(column + 0.5, row + 0.5, words, ha="center", va="center", fontsize=7, linespacing=0.95)
    axes.set_xlim(0, columns)
    axes.set_ylim(len(rows), 0)
    axes.axis("off")
    axes.set_title(title, pad=4, x=-0.65 / (columns * width))
    return figure


def _decision_text(decision: Mapping[str, Any]) -> str:
    """Such as ``join group 0 (0.41)``: in brackets the distance of the nearest group."""
    distance = "" if decision["distance"] is None else f" ({decision['distance']:.2f})"
    return decision_words(decision) + distance


def _cell_inches(n_tasks: int) -> float:
    """Side of a heat map's cell: room for a number up to 20 tasks, then a map of constant size."""
    return max(0.32, min(0.5, 3.2 / n_tasks)) if n_tasks <= MAX_LABELLED else 5.0 / n_tasks


def _task_ticks(axes: Any, names: Sequence[str], max_labelled: int = MAX_LABELLED) -> None:
    n_tasks = len(names)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if n_tasks <= max_labelled:
        axes.set_xticks(range(n_tasks), _numbered(names), rotation=40, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(n_tasks), _numbered(names))
    else:
        step = 5 if n_tasks <= 50 else 10
        axes.set_xticks(range(0, n_tasks, step))
        axes.set_yticks(range(0, n_tasks, step))


def _numbered(names: Sequence[str]) -> list[str]:
    """Number and name of every task, short enough for an axis."""
    return [f"{task}  {one_line(name, NAME_WIDTH)}" for task, name in enumerate(names)]


def _write_numbers(axes: Any, values: np.ndarray, image: Any, size: float = 7) -> None:
    """Two decimals into every cell, dark on light and light on dark."""
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            light = np.dot(image.cmap(image.norm(value))[:3], (0.299, 0.587, 0.114)) > 0.5
            text = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=size, color=BLACK if light else "white")
