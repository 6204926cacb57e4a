"""Figures: what they show, and that their bytes depend on nothing else."""

from __future__ import annotations

import matplotlib
import numpy as np
from PIL import Image

from par.cells.genotype import DARTS_V1, DARTS_V2
from par.reporting import cell_figures, figures, style
from par.reporting.published import Value
from par.reporting.scores import Score

SHORT = ("sep", "dil", "max", "avg", "skip")  # operations as cells' arcs name them
NAMES = {"finetune": "Finetune", "ewc": "EWC", "par": "PAR"}


def decisions(n_tasks: int) -> list[dict]:
    """Tasks 0, 1, 2 make groups, the others join group 0 in turn with starting groups from task 2's cell."""
    made = []
    for task in range(n_tasks):
        kind = "search" if task < 3 else ("join", "reuse_cell")[task % 2 == 0]
        made.append(
            {
                "task": task,
                "name": f"name {task}",
                "decision": kind,
                "group": {"search": task, "join": 0, "reuse_cell": 1 + task // 2}[kind],
                "nearest_group": 0 if task else None,
                "distance": 0.3 if task else None,
                "cell_from": {"search": task, "join": 0, "reuse_cell": 2}[kind],
                "head_only": task == 3,
            }
        )
    return made


def scores(n_tasks: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.2, 1, (n_tasks, n_tasks))


def texts(figure) -> list[str]:
    return [item.get_text() for axes in figure.axes for item in axes.texts]


def accuracy(n_tasks: int) -> np.ndarray:
    return np.where(np.tri(n_tasks, dtype=bool), np.linspace(0.5, 0.9, n_tasks), np.nan)


def score(learner: str, ap: tuple[float, ...], size: tuple[float, ...]) -> dict[str, Score]:
    return {
        "AP": Score("demo_minus", learner, "AP", ap, None, None),
        "M": Score("demo_minus", learner, "M", size, None, None),
    }


def test_distance_heatmap_says_scores_groups_decisions_and_thresholds():
    matrix = scores(5)
    matrix[4, 1] = -0.25
    figure = figures.distance_heatmap(matrix, decisions(5), 0.4, 0.8, "a title")
    written = texts(figure)
    for i in range(5):
        for j in range(i):
            assert f"{matrix[i, j]:.2f}".replace("0.", ".", 1) in written
    assert {"G0", "G1", "G2", "join group 0, head only (0.30)", "cell of task 2 (0.30)", "search"} <= set(written)
    assert {"α = 0.4", "β = 0.8"} <= set(written)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [f"{task}  name {task}" for task in range(5)]


def test_distance_heatmap_shows_only_earlier_tasks():
    image = figures.distance_heatmap(scores(4), decisions(4), 0.5, 0.75, "").axes[0].images[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(image), ~np.tri(4, k=-1, dtype=bool))


def test_a_hundred_tasks_fit_a_page_without_numbers():
    heatmap = figures.distance_heatmap(scores(100), decisions(100), 0.5, 0.75, "")
    assert {text for text in texts(heatmap)} == {"α = 0.5", "β = 0.75"}
    grid = figures.accuracy_heatmaps(dict.fromkeys("abcd", accuracy(100)), list("x" * 100), "")
    assert not texts(grid)
    for figure in (heatmap, grid):
        assert max(figure.get_size_inches()) < 11


def test_a_single_task_can_be_drawn(tmp_path):
    one = np.array([[np.nan]])
    style.save(figures.distance_heatmap(one, decisions(1), 0.5, 0.5, "one"), tmp_path / "distance")
    style.save(figures.task_groups(decisions(1), "one"), tmp_path / "groups")
    style.save(figures.stream_curves({"par": np.array([[[0.7]]])}, NAMES, "one"), tmp_path / "curves")
    assert len(list(tmp_path.iterdir())) == 6


def test_accuracy_heatmaps_tell_unknown_from_zero():
    matrix = accuracy(4)
    matrix[2, 0], matrix[3, 0] = np.nan, 0.0
    figure = figures.accuracy_heatmaps({"PAR": matrix, "EWC": accuracy(4)}, list("abcd"), "")
    assert [axes.get_title("left") for axes in figure.axes[:2]] == ["PAR", "EWC"]
    assert ".00" in texts(figure) and len(texts(figure)) == 9 + 10
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["not predicted"]
    assert not figures.accuracy_heatmaps({"EWC": accuracy(4)}, list("abcd"), "").legends


def test_task_groups_put_tasks_on_the_row_of_their_group():
    axes = figures.task_groups(decisions(7), "").axes[0]
    points = {tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() != "None"}
    assert points == {(decision["task"], decision["group"]) for decision in decisions(7)}


def test_stream_curves_average_tasks_and_seeds_and_leave_gaps():
    full = np.stack([accuracy(3), accuracy(3) - 0.1])
    ends = full.copy()
    ends[:, 1, 0] = np.nan
    finetune, par = figures.stream_curves({"finetune": full, "par": ends}, NAMES, "").axes[0].lines
    expected = [np.mean(full[:, step, : step + 1]) for step in range(3)]
    np.testing.assert_allclose(finetune.get_ydata(), expected)
    np.testing.assert_allclose(par.get_ydata(), [expected[0], np.nan, expected[2]])


def test_size_scatter_places_means_and_skips_what_was_not_run():
    values = {"finetune": ((0.4, 0.6), (0.6, 0.6)), "ewc": ((), ()), "par": ((0.8,), (9.0,))}
    rows = {learner: score(learner, ap, size) for learner, (ap, size) in values.items()}
    axes = figures.size_scatter(rows, NAMES, "").axes[0]
    points = [tuple(line.get_xydata()[0]) for line in axes.lines if line.get_label() in NAMES.values()]
    assert points == [(0.6, 0.5), (9.0, 0.8)] and axes.get_xscale() == "log"


def test_size_scatter_shows_published_values_hollow():
    row = {}
    for metric, value in (("AP", 0.85), ("M", 1.4)):
        printed = Value("size", "par", "cifar100_10", metric, value, (), superseded=False)
        row[metric] = Score("cifar100_10", "par", metric, (), None, printed)
    point = figures.size_scatter({"par": row}, NAMES, "").axes[0].lines[0]
    assert tuple(point.get_xydata()[0]) == (1.4, 0.85) and point.get_markerfacecolor() == "none"


def test_size_scatter_leaves_out_values_of_other_images():
    row = {}
    for metric, value in (("AP", 0.7), ("M", 1.4)):
        printed = Value("size", "par", "ctrl_minus", metric, value, (), superseded=False)
        row[metric] = Score("demo_minus", "par", metric, (0.5,), None, printed, comparable=False)
    assert all(
        line.get_markerfacecolor() != "none" for line in figures.size_scatter({"par": row}, NAMES, "").axes[0].lines
    )


def test_sweep_shows_every_seed_and_the_means():
    def row(ap, hours):
        values = {
            "AP": ap,
            "M": (1.0, 2.0),
            "experts": (2, 3),
            "hours": hours,
            "seconds": tuple(3600 * h for h in hours),
        }
        return {metric: Score("s", "v", metric, of_seeds, None, None) for metric, of_seeds in values.items()}

    points = [(1.0, row((0.4, 0.6), (0.1, 0.1))), (0.0, row((0.7, 0.9), (0.02, 0.04)))]
    panels = figures.sweep(points, 0.5, "α", "experts", "").axes
    assert len(panels) == 4 and [axes.get_xlabel() for axes in panels] == ["", "", "α", "α"]
    means = [line for line in panels[0].lines if line.get_linestyle() == "-"]
    np.testing.assert_allclose(means[0].get_xydata(), [[0.0, 0.8], [1.0, 0.5]])
    assert "seconds" in panels[3].get_ylabel(), "a demo's hours would all be 0.0"
    longer = [(value, row((0.5,), (2.0,))) for value in (0.0, 1.0)]
    assert "hours" in figures.sweep(longer, 0.5, "α", "experts", "").axes[3].get_ylabel()


def test_coloured_groups_name_every_task_beside_its_expert():
    written = texts(figures.coloured_groups(decisions(8), ""))
    assert {"expert 0", "expert 1", "expert 2"} <= set(written) and {f"name {task}" for task in range(8)} <= set(
        written
    )


def test_cells_show_every_operation_of_both_cells():
    figure = cell_figures.cells([("first", DARTS_V1), ("second", DARTS_V2)], "a title")
    assert [axes.get_title("left") for axes in figure.axes[::2]] == ["first: normal cell", "second: normal cell"]
    for axes, nodes in zip(figure.axes, (DARTS_V1.normal, DARTS_V1.reduce, DARTS_V2.normal, DARTS_V2.reduce)):
        written = [text.get_text() for text in axes.texts]
        drawn = [text for text in written if text in SHORT]
        assert sorted(drawn) == sorted(operation.split("_")[0] for node in nodes for operation, _ in node)


def test_search_histories_average_the_searches():
    rows = np.array([[0.2, 0.4], [0.4, 0.6]])
    axes = cell_figures.search_histories({"par": rows}, {"par": "mdl"}, "").axes[0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.3, 0.5])
    assert axes.get_legend().get_texts()[0].get_text() == "mdl (2 searches)"


def test_learners_look_different():
    styles = style.learner_styles([f"method_{number}" for number in range(16)] + ["par"])
    assert len({(style["color"], style["marker"]) for style in styles.values()}) == 17
    assert len({(style["color"], style["linestyle"]) for style in styles.values()}) == 17


def test_equal_figures_give_equal_bytes(tmp_path):
    for name in ("a", "b"):
        style.save(figures.distance_heatmap(scores(4), decisions(4), 0.5, 0.75, "x"), tmp_path / name)
    for suffix in ("png", "svg"):
        first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("a", "b"))
        assert first == second and b"dc:date" not in first and b"atplotlib version" not in first
    assert Image.open(tmp_path / "a.png").size[0] > 600


def test_a_saved_picture_keeps_the_colours_of_small_areas(tmp_path):
    """A colour bar beside large plain areas, as beside accuracy matrices."""
    picture = np.full((600, 800, 3), 255, np.uint8)
    picture[:400, :400] = 200
    picture[100:356, 700:710] = (255 * matplotlib.colormaps["cividis"](np.arange(256))[:, None, :3]).astype(np.uint8)
    style.save_png(Image.fromarray(picture), tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as saved:
        found = np.asarray(saved.convert("RGB")).astype(int)
    assert np.abs(found - picture).max() <= 8


def test_drawing_leaves_matplotlib_as_it_was(tmp_path):
    before = dict(matplotlib.rcParams)
    style.save(figures.task_groups(decisions(4), "x"), tmp_path / "groups")
    assert dict(matplotlib.rcParams) == before
