"""Results and plans as tables: Markdown, LaTeX (booktabs) and, through :mod:`par.reporting.page`, HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from par.config import PAR, Config
from par.reporting.provenance import DEMO
from par.reporting.published import Published, Value
from par.reporting.scores import Score, Scores, score
from par.streams.findings import Finding
from par.text import listing, one_line

FORMULAS = (
    "$r_{ij}$: accuracy on the test set of task $j$ after learning task $i$; $T$: number of tasks.",
    "AP $= \\frac{1}{T} \\sum_{j=1}^{T} r_{Tj}$.",
    "AF $= \\frac{1}{T} \\sum_{j=1}^{T} (r_{Tj} - r_{jj})$; negative is forgetting.",
    "M: parameters of all networks and heads at the end of the stream, in millions.",
    "State: other numbers kept for later tasks (importances, masks, memory), in millions.",
    "Seconds, hours: training and search, by the runs that computed the steps.",
    "±: sample standard deviation over seeds. Interval: 95% bootstrap of AP over the test images, its ends averaged "
    "over seeds.",
    "Verdict: reproduced if AP (or AF) is within max(1 point, 2 standard deviations over seeds) of the published "
    "value; none where that belongs to other images or another network. A preset that trains less than the paper gets, "
    "in place of a verdict, what it has of the paper's epochs and widths.",
)
FURTHER_FORMULAS = (  # of numbers that stand in results/*.json and in no table
    "bwt $= \\frac{1}{T-1} \\sum_{j<T} (r_{Tj} - r_{jj})$ (GEM, Mammoth); negative is forgetting.",
    "forgetting_max $= \\frac{1}{T-1} \\sum_{j<T} (\\max_{j \\leq i<T} r_{ij} - r_{Tj})$ (RWalk, FACIL); positive is "
    "forgetting.",
    "forgetting_avalanche $= \\frac{1}{T-1} \\sum_{j<T} (r_{jj} - r_{Tj})$ (Avalanche); positive is forgetting.",
    "bwt_continuum $= \\frac{2}{T(T-1)} \\sum_{i>j} (r_{ij} - r_{jj})$ (continuum); negative is forgetting.",
)
TABLE_METRICS = {  # the paper's tables and which metrics they have, ours in the cells that the paper leaves empty
    "ctrl": ("AP", "AF"),
    "mixed": ("AP", "AF"),
    "classic": ("AP", "AF"),
    "size": ("AP", "M"),
    "ablation": ("AP", "AF", "M", "hours"),
}
SUPPLEMENTARY_METRICS: tuple[str, ...] = ("AP", "AF", "M")
TEX_LINES, TEX_COLUMNS = 40, 5  # a LaTeX table of more lines and at most so many columns is tall and narrow
CHANCE = (
    "Chance: the share of the largest class among a task's test images, averaged over the tasks; AP of a learner that "
    "always answers the most frequent class."
)
NAME_WIDTH = 60  # letters of a name
MAX_FINDINGS = 40  # rows
MAX_NAMES = 30  # classes of a task
# What texts of the report may hold beside words: a literal character, a formula, code.
SPECIAL = r"[!#$%&*<>@\[\\\]^_`{}~]"
MARKUP = re.compile(rf"\\({SPECIAL})|\$([^$]+)\$|`([^`]+)`")
TEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    **{character: "\\" + character for character in "&%#_{}$"},
}
TEX_HEIGHT = 0.6  # of the page's text for a LaTeX table; the rest is for its caption and up to 20 lines of notes


@dataclass(frozen=True)
class Table:
    """A table of texts, each of one or more lines. ``name`` is its file name; ``notes`` go below it.

    Cells and notes may hold ``$formulas$``, `` `code` `` and names that went through :func:`literal`.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_text_columns: int  # the leading columns that are aligned left
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """The table and its notes as GitHub Markdown."""
        rule = ["---" if position < self.n_text_columns else "---:" for position in range(len(self.columns))]
        rows = [[cell.replace("|", "\\|").replace("\n", "<br>") for cell in row] for row in (self.columns, *self.rows)]
        lines = [rows[0], rule, *rows[1:]]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return body + "\n" + "".join(f"\n- {note}" for note in self.notes) + "\n" * bool(self.notes)

    def latex(self) -> str:
        """The table as a LaTeX ``table*`` that needs the packages booktabs and graphicx.

        Where it would be tall and narrow, two lines of a cell stand side by side; where it is wider than the text or
        leaves no room for the notes on the page, it is scaled down.
        """
        n_lines = sum(max(cell.count("\n") for cell in row) + 1 for row in self.rows)
        rows: Sequence[Sequence[str]] = self.rows
        if n_lines > TEX_LINES and len(self.columns) <= TEX_COLUMNS:
            rows = [[_paired(cell) for cell in row] for row in rows]
        alignment = "l" * self.n_text_columns + "r" * (len(self.columns) - self.n_text_columns)
        lines = [r"% needs \usepackage{booktabs,graphicx}"]
        lines += [
            r"\begin{table*}[t]",
            r"\centering\scriptsize\setlength{\tabcolsep}{3pt}\setlength{\defaultaddspace}{2pt}",
        ]
        title = re.sub(r"^Table (\d): (.*)", r"\2: the paper's table \1", self.title)  # LaTeX numbers its own
        lines += [rf"\caption{{{latex_text(title)}}}", rf"\label{{tab:{self.name}}}"]
        lines += [rf"\setbox0\hbox{{\begin{{tabular}}{{{alignment}}}", r"\toprule"]
        lines += [*_latex_lines(self.columns), r"\midrule"]
        gap = [r"\addlinespace"] if any("\n" in cell for row in rows for cell in row) else []
        for position, row in enumerate(rows):
            lines += (gap if position else []) + _latex_lines(row)
        lines += [r"\bottomrule", r"\end{tabular}}%"]
        lines += [r"\ifdim\wd0>\linewidth \setbox0\hbox{\resizebox{\linewidth}{!}{\box0}}\fi"]
        lines += [rf"\ifdim\dimexpr\ht0+\dp0\relax>{TEX_HEIGHT}\textheight"]
        lines += [rf"  \setbox0\hbox{{\resizebox*{{!}}{{{TEX_HEIGHT}\textheight}}{{\box0}}}}\fi", r"\leavevmode\box0"]
        if self.notes:
            lines += ["", r"\smallskip", r"\begin{minipage}{\linewidth}\raggedright"]
            lines += [latex_text(note) + r"\par" for note in self.notes] + [r"\end{minipage}"]
        return "\n".join([*lines, r"\end{table*}"]) + "\n"


def literal(text: str, width: int | None = NAME_WIDTH) -> str:
    """What people wrote, a name or a path, as a text of the report: none of it is markup, and too long ones are cut."""
    return re.sub(SPECIAL, r"\\\g<0>", one_line(text, width))


def latex_text(text: str) -> str:
    """``text`` with LaTeX's special characters escaped and minus signs as such, formulas between dollars left alone."""

    def escaped(words: str) -> str:
        words = "".join(TEX_ESCAPES.get(letter, letter) for letter in words)
        return re.sub(r"(?<![\w.\]}])-(?=\d)", "$-$", words)

    parts, end = [], 0
    for found in MARKUP.finditer(text):
        parts.append(escaped(text[end : found.start()]))
        parts.append(found[0] if found[2] else escaped(found[1] or found[0]))
        end = found.end()
    return "".join([*parts, escaped(text[end:])])


def with_chance(table: Table, cells: Mapping[str, Score]) -> Table:
    """The table with a last row of chance levels.

    Args:
        cells: column -> :func:`par.reporting.scores.chance` of its stream; those of streams that were not run say "-".
    """
    row = ("Chance", *(cells[column].text() if column in cells else "-" for column in table.columns[1:]))
    if not any(score.values for score in cells.values()):
        return table
    return replace(table, rows=(*table.rows, row), notes=(*table.notes, CHANCE))


def tasks_table(stream: str, seed: str, tasks: Sequence[Mapping[str, Any]]) -> Table:
    """The tasks of one seed with their classes, images and chance levels.

    Args:
        tasks: ``results/<stream>.json``["tasks"][seed].
    """
    columns = ("Task", "Name", "Source", "Classes", "Train / valid / test", "Chance")
    rows = tuple(
        (
            str(index),
            literal(task["name"]),
            literal(task["source"]),
            f"{task['n_classes']}: {literal(listing(task['class_names'], MAX_NAMES), None)}",
            " / ".join(f"{task['counts'][split]:,}" for split in ("train", "valid", "test")),
            f"{task['chance']:.3f}",
        )
        for index, task in enumerate(tasks)
    )
    return Table(f"{stream}_tasks_{seed}", f"Tasks of {stream}, seed {seed}", columns, rows, 4)


def findings_table(stream: str, by_seed: Mapping[str, Sequence[Finding]]) -> Table | None:
    """What was left aside and found in the data of a stream; None where nothing was."""
    seeds_of: dict[Finding, list[str]] = {}
    for seed in sorted(by_seed, key=int):
        for finding in by_seed[seed]:
            seeds_of.setdefault(finding, []).append(seed)
    if not seeds_of:
        return None
    rows = []
    for finding, seeds in list(seeds_of.items())[:MAX_FINDINGS]:
        example = f" (such as {literal(finding.example, None)})" if finding.example else ""
        details = literal(finding.what, None) + example
        of_seeds = "all" if len(seeds) == len(by_seed) else ", ".join(seeds)
        rows.append((finding.kind, literal(finding.where, None), of_seeds, details, f"{finding.count:,}"))
    further = len(seeds_of) - len(rows)
    notes = (f"{further:,} more are in the stream.json of this stream.",) if further else ()
    columns = ("What", "Where", "Seeds", "Details", "Count")
    return Table(f"{stream}_findings", f"What was left aside and found in the data of {stream}", columns, tuple(rows),
                 4, notes)  # fmt: skip


class Remarks:
    """Remarks of one table, each with the letter that marks it."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def mark(self, text: str, remarks: Iterable[str]) -> str:
        """``text`` with the letters of its remarks, such as ``0.725 [a,c]``."""
        used = [self._letters.setdefault(remark, _letter(len(self._letters))) for remark in remarks]
        return f"{text} [{','.join(used)}]" if used else text

    def notes(self) -> tuple[str, ...]:
        """The remarks by letter, for below the table."""
        return tuple(f"[{letter}] {remark}." for remark, letter in self._letters.items())


def paper_scores(
    config: Config, name: str, scores: Mapping[str, Scores], published: Published
) -> dict[str, list[Score]]:
    """Method -> what one of the paper's tables shows of it: its methods and those that the preset adds, on the streams
    of ``tables.<name>``.

    Args:
        name: a key of :data:`TABLE_METRICS`, or ``supplementary``, which has no counterpart in the paper.
        scores: stream -> scores, at least of the streams listed.
    """
    streams = config.tables.of(name)
    own = [method for method in config.methods if any(scores[stream][method]["AP"].values for stream in streams)]
    if name == "supplementary":
        methods, metrics = own, SUPPLEMENTARY_METRICS
    else:
        methods = [*published.table(name).methods, *([] if name == "ablation" else own)]
        metrics = TABLE_METRICS[name]

    def find(stream: str, method: str, metric: str) -> Score:
        row = scores[stream].get(method)
        return row[metric] if row else score(config, stream, method, metric, {}, published)

    return {
        method: [find(stream, method, metric) for stream in streams for metric in metrics]
        for method in dict.fromkeys(methods)
    }


def paper_table(config: Config, name: str, scores: Mapping[str, Scores], published: Published) -> Table:
    """The table of :func:`paper_scores`.

    A cell has ours (mean ± std, for AP the interval), the paper's value, and, where the images are the paper's, the
    difference and for accuracies the verdict. What nobody ran says so.
    """
    if name == "supplementary":
        file, title = name, "Supplementary: further class splits"
    else:
        printed = published.table(name)
        file, title = f"table_{printed.number}_{name}", f"Table {printed.number}: {printed.title}"
    if config.preset == DEMO:
        title += " (DEMO)"
    streams, metrics = config.tables.of(name), TABLE_METRICS.get(name, SUPPLEMENTARY_METRICS)
    remarks = Remarks()
    rows = tuple(
        (method_name(method, published), *(_paper_cell(config, one, remarks) for one in row))
        for method, row in paper_scores(config, name, scores, published).items()
    )
    heads = (f"{stream_title(config, stream, published)}\n{metric}" for stream in streams for metric in metrics)
    pairs = [
        f"{stream_title(config, stream, published)} for {published.streams[published.paper_stream(stream)]}"
        for stream in streams
        if published.paper_stream(stream) != stream
    ]
    orientation = "the paper's values are there for orientation, without difference and verdict"
    notes = (f"Other images than the paper's: {', '.join(pairs)}; {orientation}.",) if pairs else ()
    return Table(file, title, ("Method", *heads), rows, 1, (*notes, *remarks.notes()))


def _paper_cell(config: Config, score: Score, remarks: Remarks) -> str:
    if not score.values:
        lines = [remarks.mark("not run", _skipped(config, score))]
    else:
        lines = [remarks.mark(score.text(), _partial(config, score))]
        lines += [_interval(score)] if score.interval else []
    if score.published:
        lines.append(remarks.mark(f"paper {_printed(score.published)}", score.published.marks))
    if score.difference is not None:
        difference = f"{score.difference:+z.3f}"
        lines.append(", ".join(filter(None, (difference, score.verdict or score.budget))))
    return "\n".join(lines)


def ours_table(config: Config, scores: Mapping[str, Scores], published: Published) -> Table:
    """Every method of the preset on every stream: AP and AF, M and state, hours."""
    rows = []
    for method in config.methods:
        cells = []
        for of_stream in scores.values():
            row = of_stream[method]
            if row["AP"].values:
                state = f" + {row['state_M'].text()} state" if row["state_M"].mean else ""
                lines = (row["AP"].text(), row["AF"].text(), f"{row['M'].text()} M{state}", f"{row['hours'].text()} h")
                cells.append("\n".join(lines))
            else:
                cells.append("not run")
        rows.append((method_name(method, published), *cells))
    columns = ("Method", *(stream_title(config, stream, published) for stream in scores))
    notes = ("The lines of a cell: AP; AF; M and state (millions of numbers); hours.",)
    return Table("ours", "All methods on all streams", columns, tuple(rows), 1, notes)


def identification_table(
    config: Config,
    identified: Mapping[str, Score],
    n_tasks: Mapping[str, int],
    scores: Mapping[str, Mapping[str, Score]],
    published: Published,
) -> Table:
    """How often an image's task is identified, and every method's AP with and without being told it.

    Args:
        identified: stream -> :func:`par.reporting.scores.identified`.
        n_tasks: stream -> how many tasks it has.
        scores: stream -> ``<method>`` and ``<method>, not told``: AP and :func:`par.reporting.scores.without_identity`.
    """
    rows = [("Task identified", *(score.text() for score in identified.values()))]
    rows.append(("By chance", *(f"{1 / n_tasks[stream]:.3f}" for stream in identified)))
    for method in config.methods:
        for name in (method, f"{method}, not told"):
            words = method_name(method, published) + name.removeprefix(method)
            rows.append((words, *(scores[stream][name].text() for stream in identified)))
    notes = (
        "Task identified: the share of test images whose nearest class prototype, in the frozen extractor's features, "
        "is one of their own task; mean over tasks. Methods have no part in it.",
        "By chance: one over the number of tasks.",
        "Not told: AP where nobody says the task of an image, as pipeline.predict answers with --task auto. Right is "
        "an image whose task and class are found; the line above is AP where the task is said. Tasks that repeat "
        "others cannot be told from them.",
    )
    columns = ("Method", *(stream_title(config, stream, published) for stream in identified))
    return Table("identification", "AP without being told the task", columns, tuple(rows), 1, notes)


def variant_table(config: Config, stream: str, scores: Scores, plans: Mapping[str, Any], published: Published) -> Table:
    """PAR and its variants on one stream: what is changed, what it does to the plan, and the outcome.

    Args:
        plans: variant -> content of ``plans/<stream>/<variant>.json``.
    """
    columns = ("Variant", "Changed", "Decisions unlike PAR's", "AP", "95% interval", "AF", "M", "Experts",
               "Cells searched", "Seconds")  # fmt: skip
    remarks, rows = Remarks(), []
    for learner in (PAR, *config.variants_on(stream)):
        row = scores[learner]
        changed = "" if learner == PAR else ", ".join(_changes(config.overrides(learner)))
        numbers = (row[metric].text() for metric in ("AF", "M", "experts", "cells", "seconds"))
        ap = row["AP"].text() if row["AP"].values else "not run"
        name = remarks.mark(learner, _partial(config, row["AP"]))
        rows.append((name, changed or "-", _unlike(plans, learner), ap, _interval(row["AP"]), *numbers))
    title = f"PAR and its variants on {stream_title(config, stream, published)}"
    return Table(f"{stream}_variants", title, columns, tuple(rows), 2, remarks.notes())


def _changes(block: Mapping[str, Any], prefix: str = "") -> list[str]:
    """A variant's overrides in words, such as ``search.update = random``; a threshold of -.inf is "never"."""
    words = []
    for key, value in block.items():
        if isinstance(value, Mapping):
            words += _changes(value, f"{prefix}{key}.")
        else:
            words.append(f"{prefix}{key} = {'never' if value == float('-inf') else value}")
    return words


def _unlike(plans: Mapping[str, Any], variant: str) -> str:
    """How many decisions of a variant's plans differ from PAR's, over all seeds, as ``3 of 10``."""
    if variant == PAR or variant not in plans or PAR not in plans:
        return "-"
    pairs = [
        (decision_words(own), decision_words(theirs))
        for seed, tasks in plans[PAR]["seeds"].items()
        for own, theirs in zip(tasks["tasks"], plans[variant]["seeds"][seed]["tasks"], strict=True)
    ]
    return f"{sum(own != theirs for own, theirs in pairs)} of {len(pairs)}"


def stream_table(config: Config, stream: str, scores: Scores, published: Published) -> Table:
    """All learners of one stream: AP with interval, AF, M, state, experts and seconds, beside what the paper printed.

    The columns of published values are there only where the paper has any for this stream.
    """
    in_paper = {
        metric for row in scores.values() for metric, score in row.items() if score.published and score.comparable
    }
    columns = ["Method", "AP", "95% interval"]
    columns += ["AP, paper", "Difference", "Verdict"] if "AP" in in_paper else []
    for metric, title in (("AF", "AF"), ("M", "M")):
        columns += [title, f"{title}, paper"] if metric in in_paper else [title]
    columns += ["State (M)", "Experts", "Seconds"]

    remarks, rows = Remarks(), []
    for learner, row in scores.items():
        n_seeds = len(row["AP"].values)
        cells = {
            "Method": remarks.mark(method_name(learner, published), _partial(config, row["AP"])),
            "AP": row["AP"].text() if n_seeds else "not run",
            "95% interval": _interval(row["AP"]),
            "Difference": "-" if row["AP"].difference is None else f"{row['AP'].difference:+z.3f}",
            "Verdict": row["AP"].verdict or row["AP"].budget or "-",
            "AF": row["AF"].text(),
            "M": row["M"].text(),
            "State (M)": row["state_M"].text(),
            "Experts": row["experts"].text(),
            "Seconds": row["seconds"].text(),
        }
        for metric in ("AP", "AF", "M"):
            printed = row[metric].published if metric in in_paper else None
            cells[f"{metric}, paper"] = remarks.mark(_printed(printed), printed.marks) if printed else "-"
        rows.append(tuple(cells[column] for column in columns))
    title = stream_title(config, stream, published)
    return Table(stream, title, tuple(columns), tuple(rows), 1, remarks.notes())


def plan_table(stream: str, seed: str, decisions: Sequence[Mapping[str, Any]]) -> Table:
    """The plan of one stream and seed in words, one row a task.

    Args:
        decisions: ``plans/<stream>/<variant>.json``["seeds"][seed]["tasks"].
    """
    columns = ("Task", "Name", "Nearest group", "Distance", "Decision", "Group", "Reason")
    rows = tuple(
        (
            str(decision["task"]),
            literal(decision["name"]),
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


def method_name(learner: str, published: Published) -> str:
    """The name of a method as the paper prints it, the key itself for our own variants."""
    return published.methods.get(learner, learner)


def stream_title(config: Config, stream: str, published: Published) -> str:
    """The name of a stream as the paper prints it, marked when the preset is the demo."""
    title = published.streams.get(stream, stream)
    return f"{title} (DEMO)" if config.preset == DEMO and "DEMO" not in title else title


def _partial(config: Config, score: Score) -> list[str]:
    """The remark on a learner that lacks some of the seeds."""
    n_seeds = len(score.values)
    return [f"{n_seeds} of {len(config.seeds)} seeds"] if 0 < n_seeds < len(config.seeds) else []


def _skipped(config: Config, score: Score) -> list[str]:
    """The remark on a method that the preset runs, though not on this stream."""
    in_preset = score.learner in config.methods and score.stream in config.streams
    if not in_preset or score.learner in config.learners(score.stream):
        return []
    return ["the preset leaves this stream out for this method" + ("" if score.published else ", as the paper does")]


def _interval(score: Score) -> str:
    return "[{:.3f}, {:.3f}]".format(*score.interval) if score.interval else "-"


def _printed(value: Value) -> str:
    """A published value with at least the three decimals of most of them."""
    digits = max(3, len(f"{value.value:g}".partition(".")[2]))
    return f"{value.value:z.{digits}f}"


def _letter(number: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[number % 26] * (number // 26 + 1)


def _paired(cell: str) -> str:
    """A cell with every other line behind the one before it."""
    lines = cell.split("\n")
    return "\n".join(" ".join(lines[start : start + 2]) for start in range(0, len(lines), 2))


def _latex_lines(cells: Iterable[str]) -> list[str]:
    """The rows of a tabular that show cells of several lines."""
    lines = zip_longest(*(cell.split("\n") for cell in cells), fillvalue="")
    return [" & ".join(map(latex_text, line)) + r" \\" for line in lines]
