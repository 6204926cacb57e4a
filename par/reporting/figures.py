"""The report's figures: matplotlib without its global state, readable in print and by the colour-blind.

Every function returns a :class:`matplotlib.figure.Figure`; :func:`save` writes it as png and svg whose bytes depend on
its content alone. Colours are Okabe and Ito's and matplotlib's cividis, whose lightness rises steadily.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from par.config import PAR
from par.files import write_atomically
from par.reporting.tables import decision_words

MAX_LABELLED = 20  # tasks up to which cells hold numbers and every task its name
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine draws the same
    "font.size": 8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "par",
    "savefig.dpi": 200,
}
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, BROWN, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C6D31", "#7F7F7F"
DECISIONS = {  # words, colour, marker
    "search": ("search a cell", ORANGE, "s"),
    "reuse_cell": ("reuse a cell", SKY, "D"),
    "join": ("join", GREEN, "o"),
}
LEARNER_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, BLACK, BROWN, GREY)
LEARNER_MARKERS = "sD^vPX*"


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Let ``draw`` run under :data:`STYLE` and leave matplotlib's settings as they were."""

    @wraps(draw)
    def wrapper(*args: Any, **kwargs: Any) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapper


def save(figure: Figure, path: Path) -> None:
    """Write ``<path>.png`` and ``<path>.svg``; neither holds a date, a version or a random identifier."""
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    with matplotlib.rc_context(STYLE):
        for suffix, entries in metadata.items():
            write_atomically(
                path.with_name(f"{path.name}.{suffix}"),
                lambda draft, entries=entries: figure.savefig(draft, bbox_inches="tight", metadata=entries),
            )


@_styled
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
    figure = _figure(size + 4.6, size + 1.7)
    axes = figure.add_axes(_inches(figure, 1.2, 1.0, size, size))
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
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3, "borderpad": 0}
    axes.legend(handles=handles, ncols=4, fontsize=7.5, handlelength=1.0, columnspacing=1.2, **place)
    bar_axes = figure.add_axes(_inches(figure, 1.2 + size + (2.6 if labelled else 0.6), 1.0, 0.14, size))
    bar = figure.colorbar(image, cax=bar_axes, extend="min" if np.nanmin(shown, initial=0) < 0 else "neither")
    bar.outline.set_linewidth(0)
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1])
    bar.set_label("distance $s_{ij}$ (small: related)", labelpad=4)
    apart = beta - alpha > 0.06  # else the two labels would overlap
    for symbol, value, side in (("α", alpha, "top"), ("β", beta, "bottom")):
        for colour, width in (("white", 2.4), (BLACK, 1.0)):
            bar_axes.axhline(value, color=colour, linewidth=width)
        bar_axes.annotate(
            f"{symbol} = {value:g}", (0, value), (-3, 0), xycoords=bar_axes.get_yaxis_transform(),
            textcoords="offset points", ha="right", va="center" if apart else side, fontsize=8,
        )  # fmt: skip
    return figure


@_styled
def accuracy_heatmap(matrix: np.ndarray, task_names: Sequence[str], title: str) -> Figure:
    """The accuracy matrix of one learner.

    Args:
        matrix: r_ij [T, T], rows are steps; NaN inside the lower triangle (not predicted) is drawn grey.
    """
    n_tasks = len(task_names)
    size = _cell_inches(n_tasks) * n_tasks
    figure = _figure(size + 2.2, size + 1.5)
    axes = figure.add_axes(_inches(figure, 1.2, 1.0, size, size))
    unknown = np.tri(n_tasks, dtype=bool) & np.isnan(matrix)
    axes.imshow(np.where(unknown, 0.12, np.nan), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
    image = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
    _task_ticks(axes, task_names)
    axes.set_title(title, pad=8)
    axes.set_ylabel("after learning task")
    axes.set_xlabel("accuracy on task")
    if n_tasks <= MAX_LABELLED:
        _write_numbers(axes, matrix, image)
    if unknown.any():
        axes.legend(handles=[Patch(facecolor="0.9", label="not predicted")], loc="upper right", fontsize=7.5)
    bar_axes = figure.add_axes(_inches(figure, 1.2 + size + 0.15, 1.0, 0.14, size))
    bar = figure.colorbar(image, cax=bar_axes)
    bar.outline.set_linewidth(0)
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1])
    bar.set_label("accuracy", labelpad=4)
    return figure


@_styled
def task_groups(decisions: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """The groups that a plan makes: one row a group (an expert), one column a task.

    A solid line joins the tasks of a group, a dashed one leads from the task whose cell a new expert takes.
    """
    n_tasks = len(decisions)
    n_groups = 1 + max(decision["group"] for decision in decisions)
    labelled = n_tasks <= MAX_LABELLED
    width = max(3.4, n_tasks * (0.42 if labelled else 0.065))
    height = max(1.0, n_groups * (0.32 if labelled else 0.085))
    figure = _figure(width + 2.6, height + 1.5)
    axes = figure.add_axes(_inches(figure, 0.7, 1.0, width, height))
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
        if decision["head_only"]:
            look = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 0.2 * marker_size}
        else:
            look = {"markerfacecolor": colour, "markeredgecolor": BLACK, "markeredgewidth": 0.5}
        axes.plot(task, decision["group"], marker=marker, markersize=marker_size, linestyle="", zorder=3, **look)
    axes.set_xlim(-0.6, n_tasks - 0.4)
    axes.set_ylim(n_groups - 0.4, -0.6)
    if labelled:
        names = [f"{task}  {decision['name']}" for task, decision in enumerate(decisions)]
        axes.set_xticks(range(n_tasks), names, rotation=40, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(n_groups), [f"group {group}" for group in range(n_groups)])
    else:
        axes.set_xlabel("task")
        axes.set_ylabel("group")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(axis="both", color="0.93", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, pad=8)
    point = {"linestyle": "", "markersize": 6}
    edge = {"markeredgecolor": BLACK, "markeredgewidth": 0.5}
    handles = [
        Line2D([], [], color=colour, marker=marker, label=words, **edge, **point)
        for words, colour, marker in DECISIONS.values()
    ]
    if any(decision["head_only"] for decision in decisions):
        hollow = {"markerfacecolor": "white", "markeredgecolor": GREEN, "markeredgewidth": 1.6}
        handles.append(Line2D([], [], marker="o", label="join, head only", **hollow, **point))
    handles.append(Line2D([], [], color="0.35", linewidth=1.6, label="one expert"))
    handles.append(Line2D([], [], color=SKY, linewidth=1.1, linestyle=(0, (4, 2)), label="takes the cell"))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.04), fontsize=7.5)
    return figure


@_styled
def stream_curves(matrices: Mapping[str, np.ndarray], names: Mapping[str, str], title: str) -> Figure:
    """Mean accuracy on the tasks seen so far, after every step: the mean over seeds and a band of one std.

    Args:
        matrices: learner -> accuracy matrices [S, T, T] of its seeds. Steps with unknown entries are left out.
        names: learner -> its name in the legend.
    """
    figure, axes = _chart(len(matrices))
    n_tasks, lowest = 1, 1.0
    for learner, style in learner_styles(list(matrices)).items():
        n_tasks = matrices[learner].shape[1]
        seen = np.stack([matrices[learner][:, step, : step + 1].mean(axis=1) for step in range(n_tasks)], axis=1)
        mean, std = seen.mean(axis=0), seen.std(axis=0, ddof=1 if len(seen) > 1 else 0)
        lowest = min(lowest, np.nanmin(mean - std))
        steps = np.arange(1, n_tasks + 1)
        marked = sorted({*range(0, n_tasks, max(1, n_tasks // 10)), n_tasks - 1})
        axes.plot(steps, mean, label=names[learner], markevery=marked, **style)
        if len(seen) > 1:
            axes.fill_between(steps, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_ylim(_lower_limit(lowest), 1.01)
    axes.set_xlim(1 - 0.02 * n_tasks, 1.02 * n_tasks)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("tasks learned")
    axes.set_ylabel("mean accuracy on them")
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_title(title)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), fontsize=7.5, handlelength=2.8)
    return figure


@_styled
def size_scatter(scores: Mapping[str, Mapping[str, Any]], names: Mapping[str, str], title: str) -> Figure:
    """AP against the number of parameters; error bars are one std over seeds, hollow marks the published values.

    Args:
        scores: learner -> {"AP": Score, "M": Score} (see par/reporting/tables.py).
        names: learner -> its name in the legend.
    """
    figure, axes = _chart(len(scores) + 1)
    any_published, sizes, lowest = False, [], 1.0
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
        if ap.published and size.published:
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
    axes.set_ylim(_lower_limit(lowest), 1.01)
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


def learner_styles(learners: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and line of every learner by its position; PAR's is vermilion, thick and in front."""
    styles = {}
    others = [learner for learner in learners if learner != PAR]
    for learner in learners:
        if learner == PAR:
            styles[learner] = {
                "color": VERMILION, "marker": "o", "linestyle": "-", "linewidth": 2.2, "markersize": 5, "zorder": 4,
            }  # fmt: skip
            continue
        position = others.index(learner)
        colours = len(LEARNER_COLOURS)
        styles[learner] = {
            "color": LEARNER_COLOURS[position % colours],
            "marker": LEARNER_MARKERS[position % len(LEARNER_MARKERS)],
            "linestyle": ("-", "--", ":")[position // colours % 3],
            "linewidth": 1.3,
            "markersize": 4.5,
            "zorder": 3,
        }
    return styles


def _decision_text(decision: Mapping[str, Any]) -> str:
    """Such as ``join group 0 (0.41)``: in brackets the distance of the nearest group."""
    distance = "" if decision["distance"] is None else f" ({decision['distance']:.2f})"
    return decision_words(decision) + distance


def _figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches, attached to the Agg canvas and to no window."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def _inches(figure: Figure, left: float, bottom: float, width: float, height: float) -> list[float]:
    """A rectangle given in inches as the fractions that ``add_axes`` wants."""
    whole_width, whole_height = figure.get_size_inches()
    return [left / whole_width, bottom / whole_height, width / whole_width, height / whole_height]


def _chart(n_legend_lines: int) -> tuple[Figure, Any]:
    """A figure with one plot and room at its right for a legend of that many lines."""
    height = max(2.2, 0.165 * n_legend_lines)
    figure = _figure(6.4, height + 0.8)
    return figure, figure.add_axes(_inches(figure, 0.6, 0.5, 4.1, height))


def _lower_limit(lowest: float) -> float:
    """The tenth below the lowest accuracy shown."""
    return max(0.0, np.floor(10 * lowest - 0.2) / 10)


def _cell_inches(n_tasks: int) -> float:
    """Side of a heat map's cell: room for a number up to 20 tasks, then a map of constant size."""
    return max(0.32, min(0.5, 3.2 / n_tasks)) if n_tasks <= MAX_LABELLED else 5.0 / n_tasks


def _task_ticks(axes: Any, names: Sequence[str]) -> None:
    n_tasks = len(names)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if n_tasks <= MAX_LABELLED:
        axes.set_xticks(range(n_tasks), [f"{task}  {name}" for task, name in enumerate(names)], rotation=40, ha="right",
                        rotation_mode="anchor")  # fmt: skip
        axes.set_yticks(range(n_tasks), [f"{task}  {name}" for task, name in enumerate(names)])
    else:
        step = 5 if n_tasks <= 50 else 10
        axes.set_xticks(range(0, n_tasks, step))
        axes.set_yticks(range(0, n_tasks, step))


def _write_numbers(axes: Any, values: np.ndarray, image: Any) -> None:
    """Two decimals into every cell, dark on light and light on dark."""
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            light = np.dot(image.cmap(image.norm(value))[:3], (0.299, 0.587, 0.114)) > 0.5
            text = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=BLACK if light else "white")
