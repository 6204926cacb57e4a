"""docs/costs.md and the README's table of costs against the presets as they are."""

from __future__ import annotations

import pytest

from benchmarks.costs import FILE, PRESETS, REPOSITORY, cost_of, page, summary
from par.steps.estimate import Kind, Throughput

COMMAND = "python -m benchmarks.costs"


@pytest.fixture(scope="module")
def costs():
    return [cost_of(preset) for preset in PRESETS]


def test_the_page_is_what_the_command_writes(costs):
    same = FILE.read_text(encoding="utf-8") == page(costs)
    assert same, f"a preset, a stream or the estimator has changed; write docs/costs.md anew: {COMMAND}"


def test_the_readme_has_the_same_table(costs):
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    lacking = [line for line in summary(costs) if line not in readme]
    assert not lacking, f"copy the first table of docs/costs.md to README.md, section Scale, after {COMMAND}: {lacking}"


def test_every_preset_has_its_costs():
    assert set(PRESETS) == {path.stem for path in (REPOSITORY / "presets").glob("*.yaml")}


def test_rows_add_up_to_all_and_an_h100_is_never_slower(costs):
    for one in costs[:-1]:
        work = one.found.work
        parts = [one.hours([w for w in work if w.stream == stream]) for stream in one.config.streams]
        assert sum(parts) == pytest.approx(one.hours(work)) and 0 < one.hours(work, "cuda") < one.hours(work)
    assert not costs[-1].found.work and not costs[-1].config.methods


@pytest.mark.parametrize(("device", "batch", "ms"), [("cpu", 16, 10), ("cpu", 64, 10), ("cuda", 16, 2.5)])
def test_a_step_of_a_small_network_takes_its_least_time(device, batch, ms):
    kind = Kind("finetune", "", width=8, size=8, device=device, stops=False, batch=batch)
    assert Throughput({}).seconds(kind, 100 * batch) == pytest.approx(100 * ms / 1000)


def test_what_a_paper_sized_step_takes_is_scaled_by_pixels():
    kind = Kind("finetune", "", width=64, size=64, device="cpu", stops=False, batch=64)
    assert Throughput({}).seconds(kind, 1000) == pytest.approx(7.4 * 4)
