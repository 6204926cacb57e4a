"""Chains whose cell is not searched yet, what a job lacks, and estimates from what was learned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from par.cells.genotype import from_json
from par.config import SearchSettings
from par.settings import resolve
from par.steps.estimate import SEARCH, kind_of_job, measure
from par.steps.routed_chain import Lacking, RoutedChainJob, awaited, lacking
from par.steps.search_job import SearchJob
from par.steps.store import Store
from par.streams import load_stream
from tests.steps.streams import built
from tests.steps.test_chain_job import CONFIG, DEFINITION, job, run


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return built(tmp_path_factory.mktemp("streams"), DEFINITION)


@pytest.fixture(scope="module")
def routed(directory) -> RoutedChainJob:
    config = replace(CONFIG, search=SearchSettings(epochs=1))
    settings = resolve(config, "tiny", "par")
    chain = job(directory, chain=(0, 2), method="par", config=config)
    search = SearchJob(settings, directory, 0, 0, 36, chain.device)
    return RoutedChainJob(
        search, replace(chain, chain=tuple(replace(t, genotype=awaited(search)) for t in chain.chain))
    )


@pytest.fixture(scope="module")
def filled(routed, tmp_path_factory) -> Store:
    store = Store(tmp_path_factory.mktemp("store"))
    outcome = run(routed, store=store)
    assert (outcome.steps_computed, outcome.steps_reused) == (3, 0), "the search was nowhere, so it was done too"
    return store


def test_it_computes_the_steps_that_the_stage_asks_for(routed, filled):
    genotype = from_json(filled.existing(routed.search.key)["genotype"]).to_json()
    known = replace(routed.chain, chain=tuple(replace(task, genotype=genotype) for task in routed.chain.chain))
    outcome = run(known, store=filled)
    assert (outcome.steps_computed, outcome.steps_reused) == (0, 2)
    assert routed.resolved(filled) == known and known.step_keys()[-1] != routed.key


def test_its_name_is_the_same_before_and_after_its_search(routed, filled, tmp_path):
    assert routed.key == routed.chain.step_keys()[-1]
    other = replace(routed.search, seed=1)
    assert awaited(other) != awaited(routed.search)
    assert routed.resolved(Store(tmp_path)) is None


def test_what_is_lacking(routed, filled, tmp_path):
    present = {path.stem for path in filled.entries()}
    assert lacking(routed, filled, present) == Lacking(2, 0, 0, 0)
    assert lacking(routed.search, filled, present) == Lacking(1, 0, 0, 0)
    cost = routed.chain.settings.recipe.epochs * 36
    assert lacking(routed, filled, present - {routed.search.key}) == Lacking(2, 2, 2 * cost, 2)
    chain = routed.resolved(filled)
    last = chain.step_keys()[-1]
    assert lacking(routed, filled, present - {last}) == Lacking(2, 1, cost, 1)
    prediction = next(key for key in present if filled.get(key).__class__.__name__ == "Tensor")
    assert lacking(chain, filled, present - {prediction}) == Lacking(2, 0, 0, 1), "a prediction alone trains nothing"
    assert lacking(routed, Store(tmp_path), set()) == Lacking(2, 2, 2 * cost, 2)


def test_estimates_are_what_steps_alike_took(routed, filled):
    present = {path.stem for path in filled.entries()}
    chain, epochs = routed.resolved(filled), routed.chain.settings.recipe.epochs
    seconds = sum(filled.existing(key)["info"]["seconds"] for key in chain.step_keys())
    measured, table = measure([routed, routed.search], filled, present), measure([routed], filled, set())
    kind = kind_of_job(routed)
    assert kind == kind_of_job(chain) and kind.size == max(load_stream(chain.directory).tasks[0].image_size)
    assert measured.basis(kind) == "measured" and measured.seconds(kind, 2 * epochs * 36) == pytest.approx(seconds)
    searching = kind_of_job(routed.search)
    assert searching.method == SEARCH and measured.basis(searching) == "measured"
    assert measured.seconds(searching, 18) == pytest.approx(filled.existing(routed.search.key)["seconds"])
    assert table.basis(kind) == "table" and table.seconds(kind, 100) > 0
    kind = replace(kind, size=32, width=64)  # large enough for the operations' work to count, and not their number
    assert table.seconds(replace(kind, size=2 * kind.size), 100) == pytest.approx(4 * table.seconds(kind, 100))
    assert table.seconds(replace(kind, device="cuda"), 100) < table.seconds(kind, 100) / 50
    growing = replace(kind, method="cat")
    assert table.seconds(growing, 100, 20) > 2 * table.seconds(growing, 100, 1)
    assert table.basis(replace(kind, method="novel")) == "table of finetune"


def test_other_settings_are_not_alike(directory, routed, filled):
    present = {path.stem for path in filled.entries()}
    measured = measure([routed], filled, present)
    wider = replace(CONFIG, expert=replace(CONFIG.expert, channels=8))
    for other in (job(directory), job(directory, method="par", config=wider)):
        assert measured.basis(kind_of_job(other)) == "table"
