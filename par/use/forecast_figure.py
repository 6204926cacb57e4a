"""The distances of a new task as a picture, with images of it and of the task that it is nearest to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from par.reporting.figures import DECISIONS
from par.reporting.style import GREY, empty_figure, inches, styled
from par.streams import Stream
from par.streams.show import examples
from par.text import listing, one_line
from par.use.forecast import Forecast

BAR, TILE, LEFT, WIDTH = 0.3, 0.5, 2.2, 7.4  # inches


@styled
def forecast_figure(found: Forecast, stream: Stream, new: Stream, alpha: float, beta: float) -> Figure:
    """Bars of the distances to every group with the thresholds; below, ten images of the new task and ten of the
    nearest one."""
    words, colour, _ = DECISIONS[found.new.decision]
    height = BAR * len(found.groups)
    figure = empty_figure(WIDTH, height + 2 * TILE + 1.25)
    axes = figure.add_axes(inches(figure, LEFT, 2 * TILE + 0.75, WIDTH - LEFT - 0.2, height))
    nearest = int(np.argmin(found.scores))
    rows = range(len(found.groups))
    axes.barh(rows, found.scores, color=[colour if row == nearest else "0.8" for row in rows], height=0.7)
    for row, score in enumerate(found.scores):
        axes.text(max(score, 0) + 0.01, row, f"{score:.3f}", va="center", fontsize=7)
    names = [listing([stream.tasks[task].name for task in members], 2) for members in found.groups]
    axes.set_yticks(list(rows), [f"group {row}: {one_line(name, 28)}" for row, name in enumerate(names)])
    axes.invert_yaxis()
    axes.set_xlim(min(0.0, *found.scores), 1.12)
    axes.set_xlabel("distance s")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if np.isfinite(value):
            axes.axvline(value, color=GREY, linestyle="--", linewidth=0.9)
            axes.text(value, -0.62, f" {name}", color=GREY, fontsize=7, va="bottom", ha="center")
    title = f"{one_line(new.tasks[0].name, 40)} after {stream.name}: {words}"
    figure.text(0.1 / WIDTH, 1 - 0.2 / figure.get_size_inches()[1], title, fontsize=9.5, fontweight="bold", va="top")
    neighbour = stream.tasks[found.nearest_task]
    shown = ((new.tasks[0], "new"), (neighbour, f"nearest task, {neighbour.index}"))
    for row, (task, role) in enumerate(shown):
        bottom = 0.1 + (1 - row) * (TILE + 0.06)
        y = (bottom + TILE / 2) / figure.get_size_inches()[1]
        label = f"{one_line(task.name, 26)}\n({role})"
        figure.text((LEFT - 0.1) / WIDTH, y, label, ha="right", va="center", fontsize=8)
        _images(figure, examples(task), bottom)
    return figure


def _images(figure: Figure, images: Sequence[np.ndarray], bottom: float) -> None:
    for column, image in enumerate(images):
        axes = figure.add_axes(inches(figure, LEFT + column * (TILE + 0.01), bottom, TILE, TILE))
        axes.imshow(image, interpolation="nearest")
        axes.axis("off")
