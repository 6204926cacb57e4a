"""Results and plans as tables: Markdown, LaTeX (booktabs) and csv."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from par.config import PAR, Config
from par.reporting.published import Published, Value

DEMO = "demo"  # the preset whose numbers say nothing about the paper's streams
POINT = 0.01  # one percentage point of accuracy

METRICS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "AP": lambda entry: entry["ap"],
    "AF": lambda entry: entry["af"],
    "M": lambda entry: entry["n_params"] / 1e6,
    "state_M": lambda entry: entry["n_state"] / 1e6,
    "experts": lambda entry: entry["n_experts"],
    "seconds": lambda entry: entry["seconds"] + entry["seconds_search"],
    "hours": lambda entry: (entry["seconds"] + entry["seconds_search"]) / 3600,
}
FORMATS = {  # z: no minus before a zero
    "AP": "z.3f",
    "AF": "z.3f",
    "M": ".3f",
    "state_M": ".3f",
    "experts": ".3g",
    "seconds": ",.0f",
    "hours": ".2f",
}
JUDGED = ("AP", "AF")  # what the tolerance of one point is meant for

FORMULAS = (
    "$r_{ij}$: accuracy on the test set of task $j$ after learning task $i$; $T$: number of tasks.",
    "AP $= \\frac{1}{T} \\sum_{j=1}^{T} r_{Tj}$.",
    "AF $= \\frac{1}{T} \\sum_{j=1}^{T} (r_{Tj} - r_{jj})$; negative is forgetting.",
    "M: parameters of all networks and heads at the end of the stream, in millions.",
    "State: other numbers kept for later tasks (importances, masks, memory), in millions.",
    "Seconds: training and search, by the runs that computed the steps.",
    "±: sample standard deviation over seeds. Interval: 95% bootstrap of AP over the test images, its ends averaged "
    "over seeds.",
    "Verdict: reproduced if AP is within max(1 point, 2 standard deviations over seeds) of the published value.",
)

CSV_COLUMNS = "stream learner metric mean std n_seeds low high published difference verdict marks".split()


@dataclass(frozen=True)
class Score:
    """One metric of one learner on one stream: a value per seed (none when not run) and what the paper printed."""

    stream: str
    learner: str
    metric: str
    values: tuple[float, ...]
    interval: tuple[float, float] | None  # 95% bootstrap over test images, only for AP
    published: Value | None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; None with fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus published."""
        return self.mean - self.published.value if self.values and self.published else None

    @property
    def verdict(self) -> str:
        """``reproduced`` within max(1 point, 2 std), else ``above`` or ``below``; ``not run``; empty where the paper
        has no value or the metric is no accuracy."""
        if not self.values:
            return "not run"
        if self.published is None or self.metric not in JUDGED:
            return ""
        if abs(self.difference) <= max(POINT, 2 * (self.std or 0)) + 1e-9:
            return "reproduced"
        return "above" if self.difference > 0 else "below"

    def text(self) -> str:
        """``mean ± std`` with the metric's digits; ``-`` when not run."""
        if not self.values:
            return "-"
        digits = FORMATS[self.metric]
        spread = f" ± {self.std:{digits}}" if self.std else ""
        return f"{self.mean:{digits}}{spread}"

    def row(self) -> dict[str, Any]:
        """The score as a row of :data:`CSV_COLUMNS`."""
        low, high = self.interval or (None, None)
        return {
            "stream": self.stream,
            "learner": self.learner,
            "metric": self.metric,
            "mean": self.mean,
            "std": self.std,
            "n_seeds": len(self.values),
            "low": low,
            "high": high,
            "published": self.published.value if self.published else None,
            "difference": self.difference,
            "verdict": self.verdict,
            "marks": "; ".join(self.published.marks) if self.published else "",
        }


Scores = dict[str, dict[str, Score]]  # learner -> metric -> score, in the order of the table's rows


@dataclass(frozen=True)
class Table:
    """A table of texts. ``name`` is its file name; ``notes`` go below it and may hold ``$formulas$``."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_text_columns: int  # the leading columns that are aligned left
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """The table and its notes as GitHub Markdown."""
        rule = ["---" if position < self.n_text_columns else "---:" for position in range(len(self.columns))]
        lines = [self.columns, rule, *([cell.replace("|", "\\|") for cell in row] for row in self.rows)]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return body + "\n" + "".join(f"\n- {note}" for note in self.notes) + "\n" * bool(self.notes)

    def latex(self) -> str:
        """The table as a LaTeX ``table`` that needs the package booktabs."""
        alignment = "l" * self.n_text_columns + "r" * (len(self.columns) - self.n_text_columns)
        lines = [r"\begin{table*}[t]", r"\centering\footnotesize\setlength{\tabcolsep}{3pt}"]
        lines += [rf"\caption{{{latex_text(self.title)}}}", rf"\label{{tab:{self.name}}}"]
        lines += [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule"]
        lines += [_latex_row(self.columns), r"\midrule", *map(_latex_row, self.rows), r"\bottomrule", r"\end{tabular}"]
        if self.notes:
            lines += ["", r"\smallskip", r"\begin{minipage}{\linewidth}\raggedright"]
            lines += [latex_text(note) + r"\par" for note in self.notes] + [r"\end{minipage}"]
        return "\n".join([*lines, r"\end{table*}"]) + "\n"


def latex_text(text: str) -> str:
    """``text`` with LaTeX's special characters escaped, formulas between dollars left alone."""
    escapes = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    escapes |= {character: "\\" + character for character in "&%#_{}"}
    parts = text.split("$")
    for position in range(0, len(parts), 2):
        parts[position] = re.sub(r"[\\~^±&%#_{}]", lambda match: escapes[match.group()], parts[position])
    return "$".join(parts)


def stream_scores(config: Config, stream: str, result: Mapping[str, Any], published: Published) -> Scores:
    """Every metric of every learner of ``stream``: first those of the configuration, then those that only ``result``
    holds, then those that only the paper has.

    Args:
        result: the content of ``results/<stream>.json``; an empty mapping when the stream was not run.
    """
    learners = result.get("learners", {})
    names = [*config.methods, *config.variants_on(stream), *learners, *published.methods_on(stream)]
    return {
        learner: {metric: _score(stream, learner, metric, learners.get(learner, {}), published) for metric in METRICS}
        for learner in dict.fromkeys(names)
    }


def _score(stream: str, learner: str, metric: str, entries: Mapping[str, Any], published: Published) -> Score:
    by_seed = [entries[seed] for seed in sorted(entries, key=int)]
    interval = None
    if metric == "AP" and by_seed:
        low, high = (statistics.fmean(entry["ap_interval"][end] for entry in by_seed) for end in (0, 1))
        interval = (low, high)
    values = tuple(float(METRICS[metric](entry)) for entry in by_seed)
    return Score(stream, learner, metric, values, interval, published.find(stream, learner, metric))


def stream_table(config: Config, stream: str, scores: Scores, published: Published) -> Table:
    """All learners of one stream: AP with interval, AF, M, state, experts and seconds, beside what the paper printed.

    The columns of published values are there only where the paper has any for this stream.
    """
    in_paper = {metric for row in scores.values() for metric, score in row.items() if score.published}
    columns = ["Method", "AP", "95% interval"]
    columns += ["AP, paper", "Difference", "Verdict"] if "AP" in in_paper else []
    for metric, title in (("AF", "AF"), ("M", "M")):
        columns += [title, f"{title}, paper"] if metric in in_paper else [title]
    columns += ["State (M)", "Experts", "Seconds"]

    letters: dict[str, str] = {}  # remark -> its letter

    def marked(text: str, remarks: Iterable[str]) -> str:
        used = [letters.setdefault(remark, _letter(len(letters))) for remark in remarks]
        return f"{text} [{','.join(used)}]" if used else text

    rows = []
    for learner, row in scores.items():
        n_seeds = len(row["AP"].values)
        partial = [f"{n_seeds} of {len(config.seeds)} seeds"] if 0 < n_seeds < len(config.seeds) else []
        cells = {
            "Method": marked(method_name(learner, published), partial),
            "AP": row["AP"].text() if n_seeds else "not run",
            "95% interval": "[{:.3f}, {:.3f}]".format(*row["AP"].interval) if n_seeds else "-",
            "Difference": "-" if row["AP"].difference is None else f"{row['AP'].difference:+z.3f}",
            "Verdict": row["AP"].verdict or "-",
            "AF": row["AF"].text(),
            "M": row["M"].text(),
            "State (M)": row["state_M"].text(),
            "Experts": row["experts"].text(),
            "Seconds": row["seconds"].text(),
        }
        for metric in ("AP", "AF", "M"):
            printed = row[metric].published
            cells[f"{metric}, paper"] = marked(f"{printed.value:.3f}", printed.marks) if printed else "-"
        rows.append(tuple(cells[column] for column in columns))
    notes = tuple(f"[{letter}] {mark}." for mark, letter in letters.items())
    return Table(stream, stream_title(config, stream, published), tuple(columns), tuple(rows), 1, notes)


def overview_table(config: Config, scores: Mapping[str, Scores], published: Published) -> Table:
    """AP / AF of every method that ran (rows) on every stream (columns)."""
    learners = dict.fromkeys(learner for rows in scores.values() for learner, row in rows.items() if row["AP"].values)
    rows = []
    for learner in learners:
        cells = [of_stream.get(learner) for of_stream in scores.values()]
        texts = (f"{row['AP'].text()} / {row['AF'].text()}" if row and row["AP"].values else "not run" for row in cells)
        rows.append((method_name(learner, published), *texts))
    columns = ("AP / AF", *(stream_title(config, stream, published) for stream in scores))
    return Table("overview", "AP / AF of every method on every stream", columns, tuple(rows), 1)


def plan_table(stream: str, seed: str, decisions: Sequence[Mapping[str, Any]]) -> Table:
    """The plan of one stream and seed in words, one row a task.

    Args:
        decisions: ``plans/<stream>/<variant>.json``["seeds"][seed]["tasks"].
    """
    columns = ("Task", "Name", "Nearest group", "Distance", "Decision", "Group", "Reason")
    rows = tuple(
        (
            str(decision["task"]),
            decision["name"],
            "-" if decision["nearest_group"] is None else str(decision["nearest_group"]),
            "-" if decision["distance"] is None else f"{decision['distance']:.3f}",
            decision_words(decision),
            str(decision["group"]),
            decision["reason"],
        )
        for decision in decisions
    )
    return Table(f"{stream}_plan_{seed}", f"Plan of {stream}, seed {seed}", columns, rows, len(columns))


def decision_words(decision: Mapping[str, Any]) -> str:
    """What a decision does, such as ``join group 0, head only``."""
    if decision["decision"] == "join":
        return f"join group {decision['group']}" + (", head only" if decision["head_only"] else "")
    return f"cell of task {decision['cell_from']}" if decision["decision"] == "reuse_cell" else "search"


def agreement(plan: Mapping[str, Any]) -> str:
    """Whether the seeds of a plan take the same decisions, in one sentence.

    Args:
        plan: the content of ``plans/<stream>/<variant>.json``.
    """
    taken = {
        seed: [decision_words(decision) for decision in of_seed["tasks"]] for seed, of_seed in plan["seeds"].items()
    }
    first, *others = sorted(taken, key=int)
    if not others:
        return f"One seed ({first})."
    differing = {
        seed: [str(task) for task, words in enumerate(taken[seed]) if words != taken[first][task]] for seed in others
    }
    if not any(differing.values()):
        return f"All {len(taken)} seeds take the same decisions."
    return (
        "; ".join(
            f"seed {seed} decides differently from seed {first} on task {', '.join(tasks)}"
            for seed, tasks in differing.items()
            if tasks
        ).capitalize()
        + "."
    )


def dvc_metrics(scores: Mapping[str, Scores]) -> dict[str, dict[str, dict[str, float]]]:
    """The means over seeds for ``dvc metrics``: metric -> stream -> learner, learners that were not run left out."""
    names = {"AP": ("AP", 4), "AF": ("AF", 4), "M": ("params_M", 4), "seconds": ("seconds", 1)}
    return {
        title: {
            stream: {learner: round(row[metric].mean, digits) for learner, row in rows.items() if row[metric].values}
            for stream, rows in scores.items()
        }
        for metric, (title, digits) in names.items()
    }


def stamp(
    config: Config,
    streams: Iterable[str],
    results: Mapping[str, Any],
    plans: Mapping[str, Mapping[str, Any]],
    provenance: Mapping[str, Any],
) -> dict[str, str]:
    """Where the numbers of ``streams`` come from, as name -> words.

    Args:
        results, plans: see :func:`par.reporting.report.render`; the hardware is in the first, the extractor in the
            second.
        provenance: ``commit`` (hash), ``dirty`` (whether the working tree differed from it), ``python`` and ``torch``
            (versions).
    """
    streams = list(streams)
    hardware = dict.fromkeys(results[stream]["hardware"]["device"] for stream in streams if stream in results)
    used = [plans[stream][PAR]["extractor"] for stream in streams if PAR in plans.get(stream, {})]
    extractors = dict.fromkeys(f"{extractor['name']} (sha256 {extractor['digest'][:12]})" for extractor in used)
    return {
        "Preset": f"{config.preset} (DEMO)" if config.preset == DEMO else config.preset,
        "Commit": provenance["commit"] + ("-dirty" if provenance["dirty"] else ""),
        "Seeds": ", ".join(map(str, config.seeds)),
        "Extractor": "; ".join(extractors) or "not run",
        "Hardware": "; ".join(hardware) or "not run",
        "Epochs": _epochs(config, streams),
        "Software": f"Python {provenance['python']}, torch {provenance['torch']}",
    }


def _epochs(config: Config, streams: Iterable[str]) -> str:
    """Epochs a task by the recipes, in as few words as they allow."""
    streams_with: dict[str, list[str]] = {}
    for stream in streams:
        learners_with: dict[int, list[str]] = {}
        for method in config.methods:
            learners_with.setdefault(config.recipe_for(stream, method).epochs, []).append(method)
        for variant in config.variants_on(stream):
            learners_with.setdefault(config.variant(variant).recipe_for(stream, PAR).epochs, []).append(variant)
        if len(learners_with) == 1:
            words = f"{next(iter(learners_with))} a task"
        else:
            words = ", ".join(f"{epochs} a task ({', '.join(names)})" for epochs, names in learners_with.items())
        streams_with.setdefault(words, []).append(stream)
    if len(streams_with) == 1:
        words = next(iter(streams_with))
    else:
        words = "; ".join(f"{', '.join(names)}: {words}" for words, names in streams_with.items())
    return f"{words}; search {config.search.epochs}"


def method_name(learner: str, published: Published) -> str:
    """The name of a method as the paper prints it, the key itself for our own variants."""
    return published.methods.get(learner, learner)


def stream_title(config: Config, stream: str, published: Published) -> str:
    """The name of a stream as the paper prints it, marked when the preset is the demo."""
    title = published.streams.get(stream, stream)
    return f"{title} (DEMO)" if config.preset == DEMO else title


def _letter(number: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[number % 26] * (number // 26 + 1)


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"
