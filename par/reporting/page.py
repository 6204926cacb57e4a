"""A report as pages: the same sections as Markdown (README.md) and as one self-contained HTML file (index.html)."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from par.reporting.tables import MARKUP, Table

TEMPLATES = Path(__file__).with_name("templates")
MATHS = (  # the LaTeX that the report's formulas use -> HTML
    (r"\\frac\{([^{}]+)\}\{([^{}]+)\}", r"\1/(\2)"),
    (r"/\((\w)\)", r"/\1"),
    (r"\\sum", "Σ"),
    (r"\\max", "max"),
    (r"\\leq", "≤"),
    (r"_\{([^{}]+)\}\^\{([^{}]+)\}", r"<sub>\1</sub><sup>\2</sup>"),
    (r"_\{([^{}]+)\}", r"<sub>\1</sub>"),
)


@dataclass(frozen=True)
class Text:
    """A paragraph; may hold ``$formulas$``, `` `code` `` and names that went through ``tables.literal``."""

    text: str


@dataclass(frozen=True)
class Points:
    """A list of such paragraphs."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """Lines to be shown as they are."""

    text: str


@dataclass(frozen=True)
class Files:
    """Links, shown as file name ends, to files relative to the report's folder."""

    words: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """``figures/<name>.png`` with what it shows; ``width`` in the page's pixels."""

    name: str
    words: str
    width: int
    has_svg: bool = True


@dataclass(frozen=True)
class Folded:
    """Content behind a line that opens it."""

    words: str
    items: tuple[Item, ...]


Item = Text | Points | Block | Files | Picture | Folded | Table


@dataclass(frozen=True)
class Section:
    """A heading and what is below it."""

    title: str
    items: tuple[Item, ...]

    @property
    def anchor(self) -> str:
        """The heading's address on the page, as GitHub makes it."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


def markdown(title: str, warning: str, stamp: Mapping[str, str], sections: Sequence[Section]) -> str:
    """The report as GitHub Markdown; pictures and files are linked."""
    parts = [f"# {title}\n"]
    parts += [f"> **DEMO.** {warning}\n"] if warning else []
    parts.append(stamp_table(stamp))
    for section in sections:
        parts += [f"## {section.title}\n", *map(_markdown, section.items)]
    return "\n".join(parts)


def stamp_table(stamp: Mapping[str, str]) -> str:
    """Name and words of a stamp as a Markdown table."""
    return "| | |\n| --- | --- |\n" + "".join(f"| {name} | {words} |\n" for name, words in stamp.items())


def _markdown(item: Item) -> str:
    match item:
        case Text(text):
            return f"{text}\n"
        case Points(items):
            return "".join(f"- {text}\n" for text in items)
        case Block(text):
            return f"```\n{text}\n```\n"
        case Files(words, paths):
            return f"{words}: " + " ".join(f"[{path.rpartition('.')[2]}]({path})" for path in paths) + "\n"
        case Picture(name, words, width, has_svg):
            vector = f" ([svg](figures/{name}.svg))" if has_svg else ""
            return f'<img src="figures/{name}.png" alt="{words}" width="{width}">\n\n*{words}*{vector}\n'
        case Folded(words, items):
            return "\n".join([f"<details><summary>{words}</summary>\n", *map(_markdown, items), "</details>\n"])
        case Table():
            return item.markdown()


def render_html(title: str, warning: str, stamp: Mapping[str, str], sections: Sequence[Section], figures: Path) -> str:
    """The report as one HTML page that needs no network: pictures are part of it.

    Args:
        figures: the folder that holds ``<name>.png`` of every :class:`Picture`.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["rich"] = rich
    environment.filters["lines"] = lambda cell: cell.split("\n")
    environment.filters["kind"] = lambda item: type(item).__name__
    environment.globals["picture"] = lambda name: _data_uri(figures / f"{name}.png")
    template = environment.get_template("index.html")
    return template.render(title=title, warning=warning, stamp=stamp, sections=sections) + "\n"


def rich(text: str) -> Markup:
    """``text`` as HTML: escaped, ``$formulas$`` in italics with their indices, `` `code` `` as code."""
    parts, end = [], 0
    for found in MARKUP.finditer(text):
        character, formula, code = (html.escape(part or "", quote=False) for part in found.groups())
        for pattern, replacement in MATHS if formula else ():
            formula = re.sub(pattern, replacement, formula)
        parts.append(html.escape(text[end : found.start()], quote=False))
        parts.append(f"<i>{formula}</i>" if formula else f"<code>{code}</code>" if code else character)
        end = found.end()
    return Markup("".join([*parts, html.escape(text[end:], quote=False)]))


def _data_uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
