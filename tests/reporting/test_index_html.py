"""index.html: alone, and as headless Chromium sees it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from par.reporting.page import rich
from par.reporting.report import render
from tests.reporting.cases import demo_config, inputs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking".split()
QUIET += "--disable-component-update --disable-sync --disable-extensions --virtual-time-budget=5000".split()
QUIET += ["--host-resolver-rules=MAP * ~NOTFOUND"]  # nor does the browser itself ask anybody
COLLECT = """<script>
  window.problems = [];
  addEventListener("error", event => problems.push(event.message ?? "an element does not load"), true);
  addEventListener("securitypolicyviolation", event => problems.push(`blocked: ${event.blockedURI}`));
</script>"""
# Clicks heads of columns: AP of a stream twice, Method, then its intervals twice; and the distances of its plan.
CLICK = """<script>
  const table = document.getElementById("table-demo_minus"), seen = [], firsts = [0, 1];
  const rows = () => [...table.tBodies[0].rows].map(row => firsts.map(i => row.cells[i].firstChild.textContent));
  seen.push(rows());
  for (const column of [1, 1, 0]) {
    table.tHead.rows[0].cells[column].querySelector("button").click();
    seen.push(rows());
  }
  const sortedBy = (table, column) => {
    table.tHead.rows[0].cells[column].querySelector("button").click();
    return [...table.tBodies[0].rows].map(row => row.cells[column].firstChild.textContent);
  };
  const intervals = sortedBy(table, 2), raised = sortedBy(table, 2);
  const distances = sortedBy(document.getElementById("table-demo_minus_plan_0"), 3);
  const images = [...document.images], broken = images.filter(image => !image.complete || !image.naturalWidth);
  const loaded = performance.getEntriesByType("resource").map(entry => entry.name).filter(url => !/^data:/.test(url));
  const out = document.createElement("pre");
  out.id = "seen";
  const counts = { images: images.length, broken: broken.length };
  out.textContent = JSON.stringify({ seen, intervals, raised, distances, problems, loaded, ...counts });
  document.body.append(out);
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("html")
    render(folder, demo_config(), inputs())
    return folder / "index.html"


def test_it_needs_nothing_from_elsewhere(page):
    text = page.read_text(encoding="utf-8")
    assert len(text) < 15e6
    sources = re.findall(r'\bsrc="([^"]{1,40})', text)
    assert len(sources) > 5 and all(source.startswith("data:image/png;base64,") for source in sources)
    for link in re.findall(r'\bhref="([^"]*)"', text):
        assert link == "data:," or link.startswith("#") or (page.parent / link).is_file(), link
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|<iframe|<link(?! rel=.icon)", text)


def test_every_section_can_be_reached(page):
    text = page.read_text(encoding="utf-8")
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    anchors = re.findall(r'href="#([^"]+)"', text)
    assert len(anchors) > 8 and set(anchors) <= set(identifiers)


def test_it_says_where_numbers_come_from_and_what_differs(page):
    text = html.unescape(page.read_text(encoding="utf-8"))
    for words in ("DEMO.", "abc1234-dirty", "2 cores of a test machine", "resnet18 (sha256 0123456789ab)"):
        assert words in text
    for words in ("not run", "paper 0.706", "Heads in M", "GTSRB instead of SVHN", '"estimator": "paper"'):
        assert words in text
    assert "<i>= 1/T Σ<sub>j=1</sub><sup>T</sup> r<sub>Tj</sub></i>" in re.sub(r"\s+", " ", text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a < b & `x<y`", "a &lt; b &amp; <code>x&lt;y</code>"),
        (r"$\frac{1}{T-1} \sum_{j<T} r_{Tj}$", "<i>1/(T-1) Σ<sub>j&lt;T</sub> r<sub>Tj</sub></i>"),
        (r"$\max_{j \leq i<T} r_{ij}$", "<i>max<sub>j ≤ i&lt;T</sub> r<sub>ij</sub></i>"),
    ],
)
def test_formulas_and_code_as_html(text, shown):
    assert rich(text) == shown


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
def test_in_chromium_tables_sort_without_errors_or_network(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    tested = tmp_path / "index.html"
    tested.write_text(
        text.replace("<head>", f"<head>{COLLECT}").replace("</body>", f"{CLICK}</body>"), encoding="utf-8"
    )
    command = [CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    dom = subprocess.run([*command, tested.as_uri()], capture_output=True, text=True, timeout=120, check=True).stdout
    outcome = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)[1]))
    assert outcome["problems"] == [] and outcome["images"] > 5 and outcome["broken"] == 0
    before, down, up, by_name = outcome["seen"]
    numbers = [float(ap.split()[0]) for _, ap in before]
    assert len(set(numbers)) >= 4 and "EWC" not in [name for name, _ in before], "what was not run is folded away"
    for rows, descending in ((down, True), (up, False)):
        assert [float(ap.split()[0]) for _, ap in rows] == sorted(numbers, reverse=descending)
    assert [name for name, _ in by_name] == sorted(name for name, _ in before)
    for intervals, descending in ((outcome["intervals"], True), (outcome["raised"], False)):
        lows = [float(text[1:].split(",")[0]) for text in intervals[:-1]]
        assert len(lows) >= 3 and lows == sorted(lows, reverse=descending)
        assert intervals[-1] == "-", "what has no number stays last"
    assert outcome["distances"] == ["0.913", "0.210", "-"]
    assert outcome["loaded"] == [], "nothing was asked for beside the page itself"
