"""The report of a preset: everything under ``reports/<preset>/``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from par.cells.genotype import from_json
from par.config import PAPER_ALPHA, PAPER_BETA, PAR, Config, DistanceSettings
from par.files import canonical_json, write_csv, write_json, write_text
from par.reporting import cell_figures, comparison, figures, page, tables
from par.reporting.comparison import Comparison, Record, Reference, compare
from par.reporting.provenance import DEMO, bits_of_both, effective_settings, stamp
from par.reporting.published import load_published
from par.reporting.reading import Reading
from par.reporting.scores import (
    CSV_COLUMNS,
    Score,
    Scores,
    chance,
    dvc_metrics,
    headline,
    identified,
    stream_scores,
    without_identity,
)
from par.reporting.style import save, save_png
from par.schema import parse, read_yaml, to_plain
from par.streams.findings import Finding

DEMO_WARNING = (
    "Small streams made of data sets that come with Python packages, trained for a few epochs. The numbers "
    "show that the pipeline works; they are not those of the paper's streams and say nothing about them."
)
DIFFERENCES = Path(__file__).with_name("differences.yaml")
PAPER_TABLES = (*tables.TABLE_METRICS, "supplementary")
WHOLE_MATRIX = 20  # tasks up to which the report keeps whole accuracy matrices, above only what AP and AF need
COMMON = ("preset", "streams", "seeds", "device", "predict", "extractor", "ablation", "tables")  # settings shown once
# columns of curves/*.csv that dvc.yaml plots: `dvc plots diff` leaves out a state whose file lacks one
PLOTTED = ("finetune", "independent", PAR)
ON_PAGE = 0.7  # width of a figure on the page by that of its bitmap: letters as large as those of the tables
MAX_CELLS = 8  # cells drawn a stream


@dataclass(frozen=True)
class Inputs:
    """What a report is made from. Streams that were not run are absent.

    Args:
        results: stream -> content of ``results/<stream>.json``, :func:`par.reporting.scores.with_seconds`.
        plans: stream -> variant -> content of ``plans/<stream>/<variant>.json``.
        distances: stream -> ``distances/<stream>.csv``.
        cells: stream -> variant -> seed -> task -> content of ``cells/<stream>/<variant>/<seed>/<task>.json``.
        search_seconds: stream -> content of ``seconds/search/<stream>.json``.
        histories: stream -> variant -> seed -> task -> the ``.csv`` beside its cell, where there is one.
        sheets: stream -> contact sheet of the first seed's tasks.
        digests: stream -> seed -> digest of the built stream.
        findings: stream -> seed -> what was left aside and found in the data.
        provenance: ``commit`` (hash), ``dirty`` (whether the working tree differed from it), ``python`` and ``torch``
            (versions).
        paper: the paper's own settings, whose epochs and widths stand beside those of this preset.
        reading: what people read out of an earlier rendering; None: nobody wrote it down.
        reference: the report to compare this one with.
    """

    results: Mapping[str, Any]
    plans: Mapping[str, Mapping[str, Any]]
    distances: Mapping[str, pd.DataFrame]
    cells: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]
    search_seconds: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]
    histories: Mapping[str, Mapping[str, Mapping[str, Mapping[str, pd.DataFrame]]]]
    sheets: Mapping[str, Image.Image]
    digests: Mapping[str, Mapping[str, str]]
    findings: Mapping[str, Mapping[str, Sequence[Finding]]]
    provenance: Mapping[str, Any]
    reference: Reference
    paper: Config | None = None
    reading: Reading | None = None

    @property
    def record(self) -> Record:
        """What this report holds to be compared."""
        return Record(self.results, comparison.digests(self.digests, self.plans, self.cells))

    def compared(self) -> Comparison | None:
        """This report beside the reference, where there is one."""
        return compare(self.record, self.reference.record) if self.reference.record else None


def render(folder: Path, config: Config, inputs: Inputs) -> dict[str, float]:
    """Write the whole report into ``folder``, file by file, each atomically; returns the headline numbers by name.

    README.md and index.html show all of it in order; index.html alone is enough. ``results/<stream>.json`` keep what
    every number is computed from and ``digests.json`` what :mod:`par.reporting.comparison` needs beside it;
    ``metrics.json`` and ``curves/<stream>.csv`` are for DVC.
    """
    report = _Report(folder, config, inputs)
    report.write()
    return headline(list(config.methods), report.own_scores)


def score_matrix(distances: pd.DataFrame, measure: DistanceSettings, seed: int, n_tasks: int) -> np.ndarray:
    """The scores s_ij [T, T] of one seed, measured by an estimator on a split; NaN where there is no pair.

    Args:
        distances: columns ``seed, estimator, split, task, other, score``, one row a pair ``other < task``.
    """
    wanted = (
        (distances["seed"] == seed)
        & (distances["estimator"] == measure.estimator)
        & (distances["split"] == measure.split)
    )
    pairs = distances[wanted]
    scores = np.full((n_tasks, n_tasks), np.nan)
    scores[pairs["task"], pairs["other"]] = pairs["score"]
    return scores


class _Report:
    """One rendering: every method writes files and returns what the page shows of them."""

    def __init__(self, folder: Path, config: Config, inputs: Inputs):
        self.folder, self.config, self.inputs = folder, config, inputs
        self.published = load_published(settings=inputs.paper)
        shown = (stream for name in PAPER_TABLES for stream in config.tables.of(name))
        self.scores = {
            stream: stream_scores(config, stream, inputs.results.get(stream, {}), self.published)
            for stream in dict.fromkeys((*config.streams, *shown))
        }
        self.own_scores = {stream: self.scores[stream] for stream in config.streams}
        self.chance = {stream: chance(stream, inputs.results.get(stream, {})) for stream in self.scores}

    def write(self) -> None:
        config, inputs = self.config, self.inputs
        write_json(self.folder / "metrics.json", dvc_metrics(list(config.methods), self.own_scores))
        write_json(self.folder / comparison.FILE, inputs.record.digests)
        for stream in config.streams:
            if stream in inputs.results:
                _write_results(self.folder / "results" / f"{stream}.json", inputs.results[stream])
                self._write_curves(stream)
        reading = inputs.reading
        sections = [
            *([reading.section(inputs.provenance["commit"])] if reading else []),
            *(self._paper_table(name) for name in PAPER_TABLES if config.tables.of(name)),
            *([self._ours()] if config.methods else []),
            *self._identification(),
            *self._sweeps(),
            *self._coloured_groups(),
            *map(self._stream, config.streams),
            self._comparison(),
            self._definitions(),
            _differences(),
            self._configuration(),
        ]
        title = f"Report of the preset `{config.preset}`"
        warning = DEMO_WARNING if config.preset == DEMO else ""
        stamped = self._stamp(config.streams)
        write_text(self.folder / "README.md", page.markdown(title, warning, stamped, sections))
        html = page.render_html(title.replace("`", ""), warning, stamped, sections, self.folder / "figures")
        write_text(self.folder / "index.html", html)

    def _paper_table(self, name: str) -> page.Section:
        streams = self.config.tables.of(name)
        table = tables.paper_table(self.config, name, self.scores, self.published)
        table = tables.with_chance(table, {f"{self._title(stream)}\nAP": self.chance[stream] for stream in streams})
        shown = tables.paper_scores(self.config, name, self.scores, self.published)
        rows = [score.row() for row in shown.values() for score in row]
        ran = [any(score.values for score in row) for row in shown.values()]
        return page.Section(table.title, (*_folding(table, ran), self._write_table(table, rows, streams)))

    def _ours(self) -> page.Section:
        table = tables.ours_table(self.config, self.own_scores, self.published)
        table = tables.with_chance(table, {self._title(stream): self.chance[stream] for stream in self.own_scores})
        rows = [
            score.row()
            for scores in self.own_scores.values()
            for method in self.config.methods
            for score in scores[method].values()
        ]
        return page.Section(table.title, (table, self._write_table(table, rows, self.config.streams)))

    def _identification(self) -> list[page.Section]:
        """AP where nobody says the task, of the streams whose test images were looked up."""
        results = {
            stream: self.inputs.results[stream]
            for stream in self.config.streams
            if "identification" in self.inputs.results.get(stream, {})
        }
        if not results:
            return []
        found = {stream: identified(stream, result) for stream, result in results.items()}
        scores: dict[str, dict[str, Score]] = {stream: {} for stream in results}
        for stream, result in results.items():
            for method in self.config.methods:
                scores[stream][method] = self.scores[stream][method]["AP"]
                scores[stream][f"{method}, not told"] = without_identity(stream, method, result)
        n_tasks = {stream: len(next(iter(result["tasks"].values()))) for stream, result in results.items()}
        table = tables.identification_table(self.config, found, n_tasks, scores, self.published)
        rows = [score.row() for stream in results for score in (found[stream], *scores[stream].values())]
        return [page.Section(table.title, (table, self._write_table(table, rows, list(results))))]

    def _sweeps(self) -> list[page.Section]:
        """The figures over alpha and beta, of the streams that have them."""
        items: list[page.Item] = []
        for name, symbol, structure in (("alpha", "α", "experts"), ("beta", "β", "cells")):
            for stream in self.config.tables.of(name):
                points = [
                    (getattr(self.config.routing(learner), name), self.scores[stream][learner])
                    for learner in self._swept(name)
                    if self.scores[stream].get(learner) and self.scores[stream][learner]["AP"].values
                ]
                if len(points) > 1:
                    own = getattr(self.config, name)
                    figure = figures.sweep(points, own, symbol, structure, f"{symbol} on {self._title(stream)}")
                    words = f"What {name} does on {self._title(stream)}: AP, M, {structure} and time, over {name}"
                    items.append(self._picture(figure, f"{stream}_{name}", words))
        return [page.Section("Sweeps of alpha and beta", tuple(items))] if items else []

    def _swept(self, name: str) -> list[str]:
        """The variants that sweep ``name``, and PAR itself where it has the same other threshold and the same seeds."""
        points = self.config.sweeps.points(name)
        of_sweep = {"alpha": self.config.beta == PAPER_BETA, "beta": self.config.alpha == PAPER_ALPHA}[name]
        same_seeds = all(self.config.seeds_of(PAR) == self.config.seeds_of(point) for point in points)
        return [*([PAR] if of_sweep and same_seeds else []), *points]

    def _coloured_groups(self) -> list[page.Section]:
        items: list[page.Item] = []
        for stream in self.config.tables.of("groups"):
            plan = self.inputs.plans.get(stream, {}).get(PAR)
            if plan is not None:
                seed = self.config.seeds[0]
                tasks = plan["seeds"][str(seed)]["tasks"]
                title = f"Experts of {self._title(stream)}, seed {seed}"
                words = f"Tasks of {self._title(stream)} by the expert that PAR gives them, seed {seed}"
                items.append(self._picture(figures.coloured_groups(tasks, title), f"{stream}_experts", words))
        return [page.Section("Task groups", tuple(items))] if items else []

    def _stream(self, stream: str) -> page.Section:
        """Everything about one stream."""
        config, scores = self.config, self.scores[stream]
        methods = {learner: row for learner, row in scores.items() if learner not in config.known_variants}
        of_chance = {"AP": self.chance[stream]}
        table = tables.with_chance(tables.stream_table(config, stream, methods, self.published), of_chance)
        rows = [score.row() for row in methods.values() for score in row.values()]
        ran = [bool(row["AP"].values) for row in methods.values()]
        items: list[page.Item] = [*_folding(table, ran), self._write_table(table, rows, [stream])]
        if config.variants_on(stream):
            plans = self.inputs.plans.get(stream, {})
            variants = tables.variant_table(config, stream, scores, plans, self.published)
            variants = tables.with_chance(variants, of_chance)
            rows = [score.row() for learner in (PAR, *config.variants_on(stream)) for score in scores[learner].values()]
            items += [variants, self._write_table(variants, rows, [stream])]
        items += self._data(stream)
        items += self._plan(stream)
        items += self._outcome(stream, methods)
        items += self._search(stream)
        if stream in self.inputs.sheets:
            save_png(self.inputs.sheets[stream], self.folder / "figures" / f"{stream}_images.png")
            words = f"Training images of the tasks of {self._title(stream)}, seed {config.seeds[0]}"
            items.append(
                page.Folded(
                    "Images",
                    (page.Picture(f"{stream}_images", words, self.inputs.sheets[stream].width, has_svg=False),),
                )
            )
        return page.Section(table.title, tuple(items))

    def _data(self, stream: str) -> list[page.Item]:
        """The tasks and their classes, and what was left aside and found in the data."""
        items: list[page.Item] = []
        seed = str(self.config.seeds[0])
        if stream in self.inputs.results:
            table = tables.tasks_table(stream, seed, self.inputs.results[stream]["tasks"][seed])
            items.append(page.Folded(f"Tasks and their classes, seed {seed}", (table,)))
        findings = tables.findings_table(stream, self.inputs.findings.get(stream, {}))
        if findings is not None:
            items.append(page.Folded("What was left aside and found in the data", (findings,)))
        return items

    def _plan(self, stream: str) -> list[page.Item]:
        """PAR's plan in words, the distances behind it and the groups it makes."""
        plan, config = self.inputs.plans.get(stream, {}).get(PAR), self.config
        if plan is None:
            return []
        sections, title, seed = [], self._title(stream), config.seeds[0]
        for of_seed in sorted(plan["seeds"], key=int):
            table = tables.plan_table(stream, of_seed, plan["seeds"][of_seed]["tasks"])
            sections.append(f"## Seed {of_seed}\n\n{table.markdown()}")
        origin = f"## Where it comes from\n\n{page.stamp_table(self._stamp([stream]))}"
        path = f"tables/{stream}_plan.md"
        text = "\n".join([f"# Plan of {stream}\n", tables.agreement(plan) + "\n", *sections, origin])
        write_text(self.folder / path, text)
        tasks = plan["seeds"][str(seed)]["tasks"]
        scores = score_matrix(self.inputs.distances[stream], config.distance, seed, len(tasks))
        heading = f"Task distances, {title}, seed {seed}"
        heatmap = figures.distance_heatmap(scores, tasks, config.alpha, config.beta, heading)
        rule = f"A task joins a group up to alpha = {config.alpha:g} and takes its cell up to beta = {config.beta:g}."
        return [
            page.Text(f"Plan of PAR. {rule} {tables.agreement(plan)}"),
            self._picture(
                heatmap,
                f"{stream}_distance",
                "Distance of every task from the earlier ones; on the diagonal its group, at the right the decision "
                "and, in brackets, the distance of the nearest group",
            ),
            self._picture(
                figures.task_groups(tasks, f"Task groups, {title}, seed {seed}"),
                f"{stream}_groups",
                "The groups that share an expert",
            ),
            page.Folded(f"Plan in words, seed {seed}", (tables.plan_table(stream, str(seed), tasks),)),
            page.Files("Plans of all seeds", (path,)),
            *self._other_distances(stream),
        ]

    def _other_distances(self, stream: str) -> list[page.Item]:
        """The distances of the variants that measure them in another way, and what those decide."""
        pictures, seed = [], self.config.seeds[0]
        for variant in self.config.variants_on(stream):
            routing = self.config.routing(variant)
            if routing.distance != self.config.distance:
                tasks = self.inputs.plans[stream][variant]["seeds"][str(seed)]["tasks"]
                scores = score_matrix(self.inputs.distances[stream], routing.distance, seed, len(tasks))
                heading = f"Task distances, {self._title(stream)}, {variant}, seed {seed}"
                heatmap = figures.distance_heatmap(scores, tasks, routing.alpha, routing.beta, heading)
                how = f"{routing.distance.estimator} estimator on {routing.distance.split} features"
                pictures.append(
                    self._picture(heatmap, f"{stream}_{variant}", f"Distances and plan of {variant}: {how}")
                )
        return [page.Folded("Distances by other estimators", tuple(pictures))] if pictures else []

    def _outcome(self, stream: str, methods: Scores) -> list[page.Item]:
        """Accuracy over the stream, AP against size, and the accuracy matrix of every method that ran."""
        learners = self.inputs.results.get(stream, {}).get("learners", {})
        ran = [method for method in methods if method in learners]
        if not ran:
            return []
        title, names = self._title(stream), {method: tables.method_name(method, self.published) for method in methods}
        matrices = {method: _matrices(learners[method]) for method in ran}
        shown = {method: row for method, row in methods.items() if method in ran or row["AP"].comparable}
        in_paper = any(row["AP"].published and row["AP"].comparable for row in shown.values())
        items: list[page.Item] = [
            self._picture(
                figures.stream_curves(matrices, names, f"Accuracy over the stream, {title}"),
                f"{stream}_curves",
                "Mean accuracy on the tasks learned so far; bands are one standard deviation over seeds",
            ),
            self._picture(
                figures.size_scatter(shown, names, f"AP against size, {title}"),
                f"{stream}_size",
                "AP against the number of parameters" + ("; hollow marks are published values" if in_paper else ""),
            ),
        ]
        seed = str(self.config.seeds[0])
        tasks = [task["name"] for task in self.inputs.results[stream]["tasks"][seed]]
        firsts = {
            names[method]: np.array(learners[method][seed]["accuracy"], float)
            for method in ran
            if seed in learners[method]
        }
        if firsts:
            figure = figures.accuracy_heatmaps(firsts, tasks, f"Accuracy matrices, {title}, seed {seed}")
            words = f"Accuracy on every task after every step, seed {seed}"
            items.append(self._picture(figure, f"{stream}_accuracy", words))
        return items

    def _search(self, stream: str) -> list[page.Item]:
        """The cells of PAR's experts and the course of the searches."""
        items: list[page.Item] = []
        title, seed = self._title(stream), str(self.config.seeds[0])
        found = self.inputs.cells.get(stream, {}).get(PAR, {}).get(seed, {})
        if found:
            tasks = self.inputs.plans[stream][PAR]["seeds"][seed]["tasks"]
            rows = []
            for task in sorted(found, key=int)[:MAX_CELLS]:
                users = {one["group"] for one in tasks if one["cell_from"] == int(task)}
                experts = f"expert{'s' if len(users) > 1 else ''} {', '.join(map(str, sorted(users)))}"
                rows.append((f"{experts}, from task {task}", from_json(found[task]["genotype"])))
            words = f"Cells of PAR's experts, seed {seed}"
            if len(found) > MAX_CELLS:
                words += f" (the first {MAX_CELLS} of {len(found)})"
            figure = cell_figures.cells(rows, f"Cells, {title}, seed {seed}")
            items.append(page.Folded("Cells", (self._picture(figure, f"{stream}_cells", words),)))
        histories = self._histories(stream)
        if histories:
            names = {learner: self.config.effective("search", learner).update for learner in histories}
            figure = cell_figures.search_histories(histories, names, f"Architecture search, {title}")
            words = (
                "Accuracy of the paths that the search draws, on the half of the training images that it does not "
                "train on; bands are one standard deviation over searches"
            )
            items.append(page.Folded("Course of the search", (self._picture(figure, f"{stream}_search", words),)))
        return items

    def _histories(self, stream: str) -> dict[str, np.ndarray]:
        """Accuracies [searches, epochs] of PAR and of the variants that change nothing but the search's update."""
        found = {}
        for variant, by_seed in self.inputs.histories.get(stream, {}).items():
            changed = self.config.overrides(variant)
            if variant == PAR or (set(changed) == {"search"} and set(changed["search"]) == {"update"}):
                courses = [table["accuracy"].to_numpy() for of_seed in by_seed.values() for table in of_seed.values()]
                if courses:
                    found[variant] = np.stack(courses)
        return found

    def _comparison(self) -> page.Section:
        """This run beside the committed report."""
        reference, compared = self.inputs.reference, self.inputs.compared()
        title = "Does this run agree with the committed report?"
        if compared is None or reference.record is None:
            return page.Section(title, (page.Text(f"There is nothing to compare with: {reference.name}."),))
        table = comparison.table(compared)
        write_text(self.folder / "tables" / f"{table.name}.md", f"# {table.title}\n\n{table.markdown()}")
        return page.Section(
            title,
            (
                page.Text(f"Compared with {reference.name}: {compared.summary()}"),
                page.Points(bits_of_both(self.inputs.results, reference.record.results)),
                page.Folded(table.title, (table,)),
                page.Files("This table", (f"tables/{table.name}.md",)),
            ),
        )

    def _definitions(self) -> page.Section:
        return page.Section(
            "Definitions",
            (
                page.Points(tables.FORMULAS),
                page.Text("Further definitions of forgetting, in `results/<stream>.json` beside AP and AF:"),
                page.Points(tables.FURTHER_FORMULAS),
            ),
        )

    def _configuration(self) -> page.Section:
        common = {name: to_plain(getattr(self.config, name)) for name in COMMON}
        effective = "\n".join(f"{who}:\n  {json.dumps(shown)}" for who, shown in effective_settings(self.config))
        return page.Section(
            "Configuration",
            (
                page.Folded("What all learners have in common", (page.Block(json.dumps(common, indent=1)),)),
                page.Folded(
                    "What each learner learned with, after all overrides; of PAR's variants what is not as PAR's",
                    (page.Block(effective),),
                ),
            ),
        )

    def _title(self, stream: str) -> str:
        return tables.stream_title(self.config, stream, self.published)

    def _stamp(self, streams: Sequence[str]) -> dict[str, str]:
        inputs = self.inputs
        return stamp(
            self.config,
            streams,
            inputs.results,
            inputs.plans,
            inputs.search_seconds,
            inputs.digests,
            inputs.provenance,
        )

    def _picture(self, figure: Figure, name: str, words: str) -> page.Picture:
        path = self.folder / "figures" / name
        save(figure, path)
        with Image.open(path.with_name(f"{name}.png")) as bitmap:
            return page.Picture(name, words, round(ON_PAGE * bitmap.width))

    def _write_table(
        self, table: tables.Table, rows: Sequence[Mapping[str, Any]], streams: Sequence[str]
    ) -> page.Files:
        """The table as md, tex and csv; md and tex carry the definitions and the stamp."""
        origin = "; ".join(f"{name}: {words}" for name, words in self._stamp(streams).items()) + "."
        whole = replace(table, notes=(*table.notes, *tables.FORMULAS, origin))
        base = self.folder / "tables" / table.name
        write_text(base.with_suffix(".md"), f"# {table.title}\n\n{whole.markdown()}")
        write_text(base.with_suffix(".tex"), whole.latex())
        write_csv(base.with_suffix(".csv"), CSV_COLUMNS, rows)
        return page.Files("This table", tuple(f"tables/{table.name}.{suffix}" for suffix in ("md", "tex", "csv")))

    def _write_curves(self, stream: str) -> None:
        """Mean accuracy on the tasks seen so far, by step: a column a method, for ``dvc plots``.

        A method that did not run has an empty column if dvc.yaml plots it.
        """
        learners = self.inputs.results[stream]["learners"]
        seen = {method: figures.seen_accuracy(_matrices(learners[method])).mean(axis=0) for method in learners
                if method in self.config.methods}  # fmt: skip
        n_tasks = len(next(iter(seen.values()))) if seen else 0
        rows = []
        for step in range(n_tasks):
            values = {method: float(line[step]) for method, line in seen.items() if np.isfinite(line[step])}
            rows.append({"tasks": step + 1} | {method: round(value, 6) for method, value in values.items()})
        columns = dict.fromkeys(("tasks", *seen, *(PLOTTED if seen else ())))
        write_csv(self.folder / "curves" / f"{stream}.csv", list(columns), rows)


def _folding(table: tables.Table, ran: Sequence[bool]) -> list[page.Item]:
    """The table with the rows that nobody ran behind a line that opens them; ``ran`` tells it of the leading rows."""
    hidden = tuple(row for row, has_run in zip(table.rows, ran) if not has_run)
    if not hidden:
        return [table]
    shown = tuple(row for row in table.rows if row not in hidden)
    folded = page.Folded(
        f"Not run here: {', '.join(row[0] for row in hidden)}",
        (replace(table, name=f"{table.name}_not_run", rows=hidden, notes=()),),
    )
    return [replace(table, rows=shown), folded]


def _differences() -> page.Section:
    entries = parse(_Differences, read_yaml(DIFFERENCES), DIFFERENCES.name).differences
    rows = tuple((entry.what, entry.paper, entry.here, entry.why) for entry in entries)
    title = "What differs from the paper and why"
    table = tables.Table("differences", title, ("What", "Paper or its code", "Here", "Why"), rows, 4)
    return page.Section(title, (table,))


@dataclass(frozen=True)
class _Difference:
    what: str
    paper: str
    here: str
    why: str


@dataclass(frozen=True)
class _Differences:
    differences: tuple[_Difference, ...]


def _matrices(by_seed: Mapping[str, Any]) -> np.ndarray:
    """Accuracy matrices float64 [S, T, T] of a learner's seeds in their order; NaN where nothing is known."""
    return np.array([by_seed[seed]["accuracy"] for seed in sorted(by_seed, key=int)], float)


def _write_results(path: Path, result: Mapping[str, Any]) -> None:
    """``evaluate``'s result, from which every number of the report follows, one learner and seed a line.

    Without the costs of single steps, and above :data:`WHOLE_MATRIX` tasks without the inside of the matrices.
    """

    def line(entry: Mapping[str, Any]) -> str:
        kept = {key: value for key, value in entry.items() if key != "steps"}
        last = len(kept["accuracy"]) - 1
        if last >= WHOLE_MATRIX:
            kept["accuracy"] = [
                [value if i in (j, last) else None for j, value in enumerate(row)]
                for i, row in enumerate(kept["accuracy"])
            ]
        return canonical_json(kept)

    learners = ",\n".join(
        f'"{learner}": {{\n' + ",\n".join(f'"{seed}": {line(by_seed[seed])}' for seed in sorted(by_seed, key=int)) + "}"
        for learner, by_seed in sorted(result["learners"].items())
    )
    others = "".join(f'"{key}": {canonical_json(result[key])},\n' for key in sorted(set(result) - {"learners"}))
    write_text(path, f'{{{others}"learners": {{\n{learners}}}}}\n')
