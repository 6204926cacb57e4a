"""What every preset costs: ``python -m benchmarks.costs`` writes docs/costs.md.

The hours are those of ``python -m pipeline.fill --plan`` with an empty store and no stream built, on a CPU and on an
H100; nothing is computed. A test holds docs/costs.md and the README's table against the presets as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from par.config import Config
from par.schema import read_yaml
from par.settings import load
from par.steps.estimate import SEARCH, TABLE
from par.steps.schedule import Timed, simulate
from par.steps.store import Store
from pipeline.work import Survey, Work, survey

REPOSITORY = Path(__file__).resolve().parent.parent
FILE = REPOSITORY / "docs/costs.md"
PRESETS = ("paper", "cifar", "validation", "demo", "relatedness")
HOUR = 3600.0
HEAD = """# What the presets cost

Written by `python -m benchmarks.costs` from the estimator of `python -m pipeline.fill --plan`. No hour below was
measured.

- **Core-hours are estimates.** A core is one thread of a processor with AVX2; with AVX-512 it would need less. They are
  milliseconds an image of each method, from passes far shorter than the recipes (`par/steps/throughput.yaml` says
  which), times epochs and training images. Another machine may need a third or three times.
- **H100-hours are a guess**: core-hours divided by {cuda}, which is what one H100 is worth by the count of the kernels
  and bytes of `presets/paper.yaml` ([gpu.md](gpu.md)), but at least {cuda_step_ms} ms a step, in which the kernels of a
  small network are launched. No line of this project has run on a card.
- Sizes of streams are by their definitions, as if nothing were built or done. It is the worst case for PAR: every task
  is searched and gets an expert of its own, and variants with other thresholds or distances share no expert. Early
  stops count only where the patience is at most a third of the epochs.
- Not counted: reading data sets, features, distances, predicting test images, tables, and starting jobs.
"""
SMALL = """
**Rougher than those of the paper.** Networks are narrower than {width} channels or images smaller than {image_size}
pixels, so the hours are scaled down from there by pixels and the square of the width, and a step counts as {step_ms} ms
at least (seen: 3 to 32). Of CAT, SG-F and LMC they are too high: their widths are hyper-parameters of their own, which
nothing is scaled by.
"""


@dataclass(frozen=True)
class Cost:
    """A preset and its work."""

    name: str
    config: Config
    found: Survey

    def hours(self, works: Iterable[Work], device: str = "cpu") -> float:
        """Hours of one thread, or with ``cuda`` of one H100."""
        there = (replace(one, kind=replace(one.kind, device=device)) for one in works)
        return sum(one.seconds(self.found.throughput) for one in there) / HOUR


def cost_of(preset: str) -> Cost:
    """The work of ``presets/<preset>.yaml``, all of it to be done."""
    config = replace(load(REPOSITORY / f"presets/{preset}.yaml"), device="cpu")
    return Cost(preset, config, survey(config, Store("/nonexistent"), by_definition=True))


def page(costs: Sequence[Cost]) -> str:
    """docs/costs.md."""
    parts = [HEAD.format(**read_yaml(TABLE)), *summary(costs)]
    for one in costs:
        parts += ["", f"## {one.name}", "", *_section(one)]
    return "\n".join(parts) + "\n"


def summary(costs: Sequence[Cost]) -> list[str]:
    """A table with a line a preset, which stands in the README too."""
    lines = [
        "| preset | training images times epochs | core-hours, estimated | H100-hours, guessed |",
        "|---|---|---|---|",
    ]
    for one in costs:
        work = one.found.work
        images = f"{sum(w.images for w in work):,}" if work else "trains nothing"
        hours = f"{_short(one.hours(work))} | {_short(one.hours(work, 'cuda'))}"
        lines.append(f"| `{one.name}` | {images} | {hours} |")
    return lines


def _section(one: Cost) -> list[str]:
    """A preset by method and stream."""
    work, streams = one.found.work, one.config.streams
    if not work:
        return ["No method is listed: nothing is searched or trained, only features and distances are computed."]
    table = read_yaml(TABLE)
    widths, sizes = {w.kind.width or table["width"] for w in work}, {w.kind.size for w in work}
    is_small = min(widths) < table["width"] or min(sizes) < table["image_size"]
    longest = simulate([Timed(w.key, w.after, w.seconds(one.found.throughput)) for w in work], 1).critical / HOUR
    lines = [
        f"Core-hours by method and stream, {_seeds(one.config)}; the last column and row are H100-hours. The longest",
        f"search and chain take {_short(longest)} core-hours; no number of workers ends sooner.",
        *(SMALL.format(**table).splitlines() if is_small else []),
        "",
        "| method | " + " | ".join((*streams, "all", "all, H100 (guess)")) + " |",
        "|---|" + "---:|" * (len(streams) + 2),
    ]
    for name, works in _rows(one).items():
        lines.append(_row(name, one, works))
    lines.append(_row("all", one, work))
    cells = [_short(one.hours([w for w in work if w.stream == stream], "cuda")) for stream in streams]
    lines.append(f"| all, H100 (guess) | {' | '.join(cells)} | {_short(one.hours(work, 'cuda'))} | |")
    if one.found.unknown:
        lines += ["", f"Unknown before their data sets are read, so not counted: {', '.join(one.found.unknown)}."]
    return lines


def _rows(one: Cost) -> dict[str, list[Work]]:
    """Work by method, with that of all variants of PAR in one row; searches are a row of their own."""
    rows: dict[str, list[Work]] = {name: [] for name in (*one.config.methods, SEARCH)}
    variants = {w.learner for w in one.found.work} - set(rows)
    of_variants = f"{len(variants)} variants of PAR"
    for work in one.found.work:
        rows.setdefault(work.learner if work.learner in rows else of_variants, []).append(work)
    return {name: works for name, works in rows.items() if works}


def _row(name: str, one: Cost, works: Sequence[Work]) -> str:
    """Core-hours on each stream and on all, and H100-hours."""
    by_stream = [[w for w in works if w.stream == stream] for stream in one.config.streams]
    cells = [_short(one.hours(part)) if part else "" for part in (*by_stream, works)]
    return f"| {name} | {' | '.join(cells)} | {_short(one.hours(works, 'cuda'))} |"


def _seeds(config: Config) -> str:
    return f"{len(config.seeds)} seeds" if len(config.seeds) > 1 else "one seed"


def _short(hours: float) -> str:
    """Without digits that no estimate has."""
    if hours >= 10 or not hours:
        return f"{hours:,.0f}"
    if hours < 0.001:
        return "<.001"
    return f"{hours:.1f}" if hours >= 1 else f"{hours:.2g}".removeprefix("0")


def main() -> None:
    """Write the page."""
    FILE.write_text(page([cost_of(preset) for preset in PRESETS]), encoding="utf-8")
    print(f"{FILE.relative_to(REPOSITORY)} is written; its first table stands in README.md, section Scale, too.")


if __name__ == "__main__":
    main()
