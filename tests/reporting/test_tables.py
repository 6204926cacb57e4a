"""Tables, from made-up results."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from par.reporting import tables
from par.reporting.published import load_published
from par.reporting.scores import chance, stream_scores
from par.streams.findings import Finding
from tests.reporting.cases import demo_config, plan, result


@pytest.fixture(scope="module")
def published():
    return load_published()


@pytest.fixture(scope="module")
def config():
    return demo_config()


def test_stream_table_of_a_published_stream(config, published):
    scores = stream_scores(config, "cifar100_10", result("cifar100_10"), published)
    table = tables.stream_table(config, "cifar100_10", scores, published)
    rows = {row[0]: dict(zip(table.columns, row)) for row in table.rows}
    assert list(rows)[:4] == ["Finetune", "Independent", "EWC", "PAR"], "the configuration's methods come first"
    assert set(rows) >= {"GPM", "MNTDP-D", "Learn to Grow"}, "what only the paper has is listed too"
    assert rows["Finetune"]["AP, paper"] == "0.280 [a]" and rows["PAR"]["M, paper"] == "1.400"
    assert table.notes[0].startswith("[a] the size table prints .180")
    assert rows["PAR"]["Verdict"] in ("reproduced", "above", "below")
    assert rows["EWC"]["AP"] == rows["EWC"]["Verdict"] == "not run" and rows["EWC"]["AP, paper"] == "0.608"
    ours = float(rows["PAR"]["AP"].split(" ± ")[0])
    assert float(rows["PAR"]["Difference"]) == pytest.approx(ours - 0.853, abs=0.0011)
    letter = next(note[:3] for note in table.notes if "AlexNet backbone" in note)
    assert letter[1] in rows["GPM"]["AP, paper"]


def test_stream_table_without_published_values(config, published):
    scores = stream_scores(config, "demo_minus", result("demo_minus"), published)
    table = tables.stream_table(config, "demo_minus", scores, published)
    assert not any("paper" in column or column == "Verdict" for column in table.columns)
    assert [row[0] for row in table.rows][:4] == ["Finetune", "Independent", "EWC", "PAR"]
    assert "DEMO" in table.title


def test_chance_stands_below_the_methods(config, published):
    content = result("demo_minus")
    content["tasks"]["1"] = [{**task, "chance": 0.4} for task in content["tasks"]["1"]]
    level = chance("demo_minus", content)
    assert level.values == pytest.approx((0.1, 0.4))
    scores = stream_scores(config, "demo_minus", content, published)
    table = tables.with_chance(tables.stream_table(config, "demo_minus", scores, published), {"AP": level})
    row = dict(zip(table.columns, table.rows[-1]))
    assert row.pop("Method") == "Chance" and row.pop("AP") == "0.250 ± 0.212" and set(row.values()) == {"-"}
    assert tables.CHANCE in table.notes
    empty = tables.stream_table(config, "demo_minus", stream_scores(config, "demo_minus", {}, published), published)
    assert tables.with_chance(empty, {"AP": chance("demo_minus", {})}) == empty, "what was not run has no chance level"


def test_findings_of_all_seeds_in_one_table():
    same, other = (Finding("duplicates", "task 0 (x)", f"{n} images", n, "a_b") for n in (1, 2))
    assert tables.findings_table("mine", {"0": (), "1": ()}) is None
    rows = tables.findings_table("mine", {"0": (same,), "1": (same, other), "2": (same, other)}).rows
    assert rows == (
        ("duplicates", "task 0 (x)", "all", r"1 images (such as a\_b)", "1"),
        ("duplicates", "task 0 (x)", "1, 2", r"2 images (such as a\_b)", "2"),
    )
    many = [Finding("note", "source x", str(number), 1) for number in range(tables.MAX_FINDINGS + 7)]
    table = tables.findings_table("mine", {"0": many})
    assert len(table.rows) == tables.MAX_FINDINGS and table.notes[0].startswith("7 more ")


def test_missing_seeds_are_said(config, published):
    scores = stream_scores(config, "demo_minus", result("demo_minus", seeds=(0,)), published)
    table = tables.stream_table(config, "demo_minus", scores, published)
    assert table.notes == ("[a] 1 of 2 seeds.",) and table.rows[0][0] == "Finetune [a]"


def test_markdown_and_latex_of_a_table():
    rows, notes = (("x|y", "1 ± 2"), ("{z}", "#3")), ("AF $= r_{ij}$, 5%.",)
    table = tables.Table("t_1", "50% & more", ("A_b", "n"), rows, 1, notes)
    lines = table.markdown().splitlines()
    assert lines[:4] == ["| A_b | n |", "| --- | ---: |", "| x\\|y | 1 ± 2 |", "| {z} | #3 |"]
    assert lines[-1] == "- AF $= r_{ij}$, 5%."
    latex = table.latex()
    assert r"\begin{tabular}{lr}" in latex and r"\caption{50\% \& more}" in latex and r"\label{tab:t_1}" in latex
    assert r"x\textbar{}y & 1 $\pm$ 2 \\" in latex and r"\{z\} & \#3 \\" in latex and r"A\_b & n \\" in latex
    assert r"AF $= r_{ij}$, 5\%." in latex, "formulas are left alone"
    assert [latex.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == sorted(
        latex.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")
    )


def scores_of(config, contents, published):
    return {stream: stream_scores(config, stream, content, published) for stream, content in contents.items()}


def test_ours_table_has_every_method_on_every_stream(config, published):
    scores = scores_of(config, {"demo_minus": result("demo_minus"), "cifar100_10": {}}, published)
    table = tables.ours_table(config, scores, published)
    assert [row[0] for row in table.rows] == ["Finetune", "Independent", "EWC", "PAR"]
    ran = {row[0]: row[1] for row in table.rows}
    assert ran["EWC"] == "not run" and all(row[2] == "not run" for row in table.rows)
    accuracies = [scores["demo_minus"]["par"][metric].text() for metric in ("AP", "AF")]
    assert ran["PAR"].split("\n") == [*accuracies, "1.214 M", "1.000 h"]


def test_a_table_of_the_paper_has_its_rows_and_ours(config, published):
    contents = {stream: {} for stream in ("demo_minus", "demo_long")} | {"cifar100_10": result("cifar100_10")}
    table = tables.paper_table(config, "classic", scores_of(config, contents, published), published)
    assert (table.name, table.title) == ("table_3_classic", "Table 3: CIFAR100-10 and MiniImageNet-20 (DEMO)")
    assert table.columns == ("Method", "CIFAR100-10 (DEMO)\nAP", "CIFAR100-10 (DEMO)\nAF")
    rows = {row[0]: row[1:] for row in table.rows}
    paper = ["Finetune", "EWC", "MAS", "LwF", "GPM", "A-GEM", "Independent", "PNN", "Learn to Grow", "MNTDP-S"]
    assert list(rows) == [*paper, "MNTDP-D", "PAR"]
    ours, interval, printed, verdict = rows["PAR"][0].split("\n")
    assert re.fullmatch(r"0\.\d{3} ± 0\.\d{3}", ours) and re.fullmatch(r"\[0\.\d{3}, 0\.\d{3}\]", interval)
    assert printed == "paper 0.853" and verdict.startswith("-0.") and verdict.split(", ")[1] in ("below", "reproduced")
    assert rows["GPM"] == ("not run\npaper 0.725 [b,c]", "not run"), "the paper leaves GPM's AF empty, nobody ran it"
    assert table.notes[1:3] == ("[b] AlexNet backbone.", "[c] quoted from GPM [inferred].")


def test_cells_that_the_paper_leaves_empty_are_filled(published):
    config = replace(demo_config(), methods={"er": {}}, streams=("cifar100_10",))
    content = result("cifar100_10")
    content["learners"]["er"] = content["learners"]["finetune"]
    table = tables.paper_table(config, "classic", scores_of(config, {"cifar100_10": content}, published), published)
    name, ap, af = table.rows[-1]
    assert name == "ER" and "±" in ap and "±" in af and "paper" not in ap


def test_a_budget_below_the_papers_stands_beside_the_difference(config, published):
    short = replace(config, recipe=replace(config.recipe, epochs=3))
    scores = scores_of(short, {"cifar100_10": result("cifar100_10")}, replace(published, settings=config))
    row = next(row for row in tables.paper_table(short, "classic", scores, published).rows if row[0] == "PAR")
    assert re.fullmatch(r"-0\.\d{3}, 3 of 100 epochs", row[1].split("\n")[-1])
    table = tables.stream_table(short, "cifar100_10", scores["cifar100_10"], published)
    verdicts = {row[0]: row[table.columns.index("Verdict")] for row in table.rows}
    assert verdicts["PAR"] == "3 of 100 epochs" and verdicts["EWC"] == "not run"


def test_a_stream_that_the_preset_leaves_out_for_a_method_says_so(published):
    config = replace(demo_config(), methods={"pnn": {"skip": ["demo_long"]}, "par": {}}, streams=("demo_long",))
    table = tables.paper_table(
        config, "ctrl", scores_of(config, {"demo_minus": {}, "demo_long": {}}, published), published
    )
    cells = dict(zip(table.columns, next(row for row in table.rows if row[0] == "PNN")))
    letter = next(
        note[1] for note in table.notes if note.endswith("leaves this stream out for this method, as the paper does.")
    )
    assert cells["DEMO S-long, 20 tasks\nAP"] == f"not run [{letter}]"
    assert cells["DEMO S-\nAP"].startswith("not run\npaper"), "this stream is not in the preset at all"


def test_a_stand_in_shows_the_papers_values_without_verdict(config, published):
    scores = scores_of(config, {"demo_minus": result("demo_minus"), "demo_long": {}}, published)
    table = tables.paper_table(config, "ctrl", scores, published)
    assert table.columns[1::2] == ("DEMO S-\nAP", "DEMO S-long, 20 tasks\nAP")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["PAR"][0].endswith("paper 0.706") and "reproduced" not in "".join(map("".join, table.rows))
    assert rows["PAR"][2] == "not run\npaper 0.773"
    assert table.notes[0].startswith(
        "Other images than the paper's: DEMO S- for CTrL S-, DEMO S-long, 20 tasks for CTrL S-long;"
    )


def test_the_ablation_has_the_variants_and_their_hours(config, published):
    scores = scores_of(config, {"demo_minus": result("demo_minus")}, published)
    table = tables.paper_table(config, "ablation", scores, published)
    assert [column.split("\n")[1] for column in table.columns[1:]] == ["AP", "AF", "M", "hours"]
    assert [row[0] for row in table.rows][0::6] == ["PAR, fixed cell, no sharing", "PAR"] and len(table.rows) == 7
    assert table.rows[0][4] == "1.000" and table.rows[1][1] == "not run"


def test_variants_say_what_they_change(config, published):
    scores = scores_of(config, {"demo_minus": result("demo_minus")}, published)["demo_minus"]
    plans = {"par": plan(), "alpha_000": plan("reuse_cell")}
    rows = {row[0]: row[1:] for row in tables.variant_table(config, "demo_minus", scores, plans, published).rows}
    assert list(rows) == ["par", "fixed", "search_advantage", "alpha_000", "alpha_100"]
    assert rows["fixed"][0] == "alpha = never, search.update = fixed" and rows["par"][:2] == ("-", "-")
    assert rows["alpha_000"][1] == "1 of 6" and rows["fixed"][1] == "-", "a variant without a plan says nothing"


def test_latex_has_minus_signs_and_the_papers_number_in_the_caption():
    latex = tables.Table("t", "Table 3: CIFAR100-10", ("AF",), (("-0.020",), ("+0.1",)), 0).latex()
    assert r"\caption{CIFAR100-10: the paper's table 3}" in latex
    assert "$-$0.020" in latex and "+0.1" in latex


def test_a_tall_and_narrow_latex_table_has_two_lines_side_by_side():
    row = ("PAR", "0.5\n[0.4, 0.6]\npaper 0.8\n-0.3, below")
    few, many = (tables.Table("t", "T", ("Method", "AP"), (row,) * n, 1).latex() for n in (3, 20))
    assert r" & 0.5 [0.4, 0.6] \\" in many and r" & paper 0.8 $-$0.3, below \\" in many
    assert r" & 0.5 \\" in few


def test_cells_of_several_lines():
    table = tables.Table("t", "t", ("a\nb", "n"), (("x", "1\n2\n3"), ("y", "4")), 1)
    assert table.markdown().splitlines()[0] == "| a<br>b | n |" and "| x | 1<br>2<br>3 |" in table.markdown()
    body = table.latex().split(r"\toprule")[1]
    assert "a & n \\\\\nb &  \\\\" in body and "x & 1 \\\\\n & 2 \\\\\n & 3 \\\\\n\\addlinespace\ny & 4" in body


def test_plan_in_words():
    rows = tables.plan_table("demo_minus", "0", plan()["seeds"]["0"]["tasks"]).rows
    assert rows[0] == ("0", "digits", "-", "-", "search", "0", "nothing is near")
    assert rows[1] == ("1", "textures", "0", "0.913", "search", "1", "nothing is near")
    assert rows[2] == ("2", "digits again", "0", "0.210", "join group 0, head only", "0", "near group 0")


def test_agreement_of_seeds():
    assert tables.agreement(plan()) == "All 2 seeds take the same decisions."
    assert tables.agreement(plan("reuse_cell")) == "Seed 1 decides differently from seed 0 on task 2."
