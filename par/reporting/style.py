"""How the report's figures look: matplotlib without its global state, readable in print and by the colour-blind.

Colours are Okabe and Ito's and matplotlib's cividis, whose lightness rises steadily.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

from par.config import PAR
from par.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

STYLE: dict[RcKeyType, Any] = {
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
    "text.parse_math": False,  # a dollar in the name of a task is a dollar
    "savefig.dpi": 150,
}
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, BROWN, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C6D31", "#7F7F7F"
LEARNER_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, BLACK, BROWN, GREY)
LEARNER_MARKERS = "sD^vPX*"


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Let ``draw`` run under :data:`STYLE` and leave matplotlib's settings as they were."""

    @wraps(draw)
    def wrapper(*args: Any, **kwargs: Any) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapper


def save(figure: Figure, path: Path) -> None:
    """Write ``<path>.png`` and ``<path>.svg``; neither holds a date, a version or a random identifier."""
    used = _used(figure)
    options: dict[str, Any] = {"bbox_inches": used, "metadata": {"Date": None, "Creator": None}}
    with matplotlib.rc_context(STYLE):
        svg = path.with_name(f"{path.name}.svg")
        write_atomically(svg, lambda draft: figure.savefig(draft, **options))
    write_png(figure, path.with_name(f"{path.name}.png"), used)


def write_png(figure: Figure, path: Path, used: Bbox | None = None) -> None:
    """Write a figure as a bitmap alone; ``used``: the part of it to show, in inches."""
    bitmap = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(bitmap, format="png", bbox_inches=used or _used(figure))
    save_png(Image.open(bitmap), path)


def _used(figure: Figure) -> Bbox:
    """The part of a figure that is not empty, in inches.

    What ``bbox_inches="tight"`` takes too, but draws the whole figure to find, for each file again.
    """
    with matplotlib.rc_context(STYLE):
        return figure.get_tightbbox().padded(matplotlib.rcParams["savefig.pad_inches"])


def save_png(image: Image.Image, path: Path) -> None:
    """Write a picture of 256 colours: a third of the bytes of all colours.

    Maximum coverage keeps every colour within 6 of 255 on heat maps and 27 on photos; median cut, the default, spends
    its colours on large areas and was off by 92 on the colour bar of an accuracy matrix.
    """
    small = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    write_atomically(path, lambda draft: small.save(draft, format="PNG"))


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


def empty_figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches, attached to the Agg canvas and to no window."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def inches(
    figure: Figure, left: float, bottom: float, width: float, height: float
) -> tuple[float, float, float, float]:
    """A rectangle given in inches as the fractions that ``add_axes`` wants."""
    whole_width, whole_height = figure.get_size_inches()
    return left / whole_width, bottom / whole_height, width / whole_width, height / whole_height


def chart(n_legend_lines: int) -> tuple[Figure, Any]:
    """A figure with one plot and room at its right for a legend of that many lines."""
    height = max(2.2, 0.165 * n_legend_lines)
    figure = empty_figure(6.4, height + 0.8)
    return figure, figure.add_axes(inches(figure, 0.6, 0.5, 4.1, height))


def lower_limit(lowest: float) -> float:
    """The tenth below the lowest accuracy shown."""
    return max(0.0, np.floor(10 * lowest - 0.2) / 10)
