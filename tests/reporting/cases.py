"""Made-up results, plans and distances that the tests of the report share."""

from __future__ import annotations

import numpy as np
import pandas as pd
from PIL import Image

from par import metrics
from par.cells.genotype import random_genotype
from par.config import Ablation, Config, Sweeps, Tables
from par.reporting.comparison import Reference
from par.reporting.report import Inputs
from par.streams.findings import Finding

PROVENANCE = {"commit": "abc1234", "dirty": True, "python": "3.11.7", "torch": "2.14.1"}
TASKS = ["digits", "textures", "digits again"]
METHODS = {"finetune": {}, "independent": {}, "ewc": {"recipe": {"epochs": 9}}, "par": {}}
CHAINS = {"finetune": [[0, 1, 2]], "independent": [[0], [1], [2]], "par": [[0, 2], [1]]}
VARIANTS = {  # name -> overrides and chains
    "fixed": ({"alpha": float("-inf"), "search": {"update": "fixed"}}, [[0], [1], [2]]),
    "alpha_000": ({"alpha": 0.0}, [[0], [1], [2]]),
    "alpha_100": ({"alpha": 1.0, "beta": 1.0}, [[0, 1, 2]]),
    "search_advantage": ({"search": {"update": "advantage"}}, [[0, 2], [1]]),
}
EPOCHS = 5  # of a search
FINDINGS = (
    Finding("left aside", "source digits", "files not read: no image", 3, "train/1/notes.txt"),
    Finding("duplicates", "task 1 (textures)", "2 of 60 test images equal a training or validation image", 2),
)


def demo_config() -> Config:
    """The demo with one stream of its own, one of the paper, and variants on the first."""
    return Config(
        "demo",
        ("demo_minus", "cifar100_10"),
        (0, 1),
        METHODS,
        variants={"fixed": VARIANTS["fixed"][0]},
        sweeps=Sweeps(alpha=(0.0, 1.0)),
        ablation=Ablation(("demo_minus",), ("fixed", "search_advantage")),
        tables=Tables(
            ctrl=("demo_minus", "demo_long"),
            classic=("cifar100_10",),
            ablation="demo_minus",
            alpha="demo_minus",
            groups="demo_minus",
        ),
    )


def result(stream: str, seeds=(0, 1)) -> dict:
    """What ``evaluate`` writes for three methods, and on the demo stream for the variants, right at random."""
    labels = [np.arange(60) % 10] * 3
    learners = {}
    chains_of = CHAINS | ({name: chains for name, (_, chains) in VARIANTS.items()} if stream == "demo_minus" else {})
    for position, (learner, chains) in enumerate(chains_of.items()):
        learners[learner] = {}
        for seed in seeds:
            generator = np.random.default_rng([position, seed])
            predictions = {
                f"{i}/{j}": np.where(generator.random(60) < 0.5 + 0.05 * position, labels[j], 11).astype(np.uint8)
                for chain in chains
                for i in chain
                for j in chain
                if j <= i
            }
            costs = dict.fromkeys(metrics.COSTS, 0) | {"n_params": 607_050 * len(chains), "n_experts": len(chains)}
            costs |= {"seconds": 3_000.0, "seconds_search": 600.0, "epochs": 12}
            costs |= {"steps": [{"task": task, "seconds": 1_000.0} for task in range(3)]}
            learners[learner][str(seed)] = metrics.evaluate_learner(
                predictions, labels, chains, costs, (stream, learner, seed)
            )
    classes = [f"class {label}" for label in range(10)]
    common = {"source": "digits", "n_classes": 10, "class_names": classes, "chance": metrics.chance_level(labels[0])}
    tasks = [{"name": name, **common, "counts": {"train": 90, "valid": 30, "test": 60}} for name in TASKS]
    return {
        "stream": stream,
        "tasks": {str(seed): tasks for seed in seeds},
        "hardware": {"device": "2 cores of a test machine"},
        "learners": learners,
    }


def decision(task, kind, group, nearest, distance, cell_from, head_only=False) -> dict:
    return {
        "task": task,
        "name": TASKS[task],
        "decision": kind,
        "group": group,
        "nearest_group": nearest,
        "distance": distance,
        "cell_from": cell_from,
        "head_only": head_only,
        "reason": "nothing is near" if kind == "search" else "near group 0",
    }


def plan(last_of_seed_1="join") -> dict:
    first = [decision(0, "search", 0, None, None, 0), decision(1, "search", 1, 0, 0.913, 1)]
    joins = decision(2, "join", 0, 0, 0.21, 0, head_only=True)
    other = joins if last_of_seed_1 == "join" else decision(2, "reuse_cell", 2, 0, 0.61, 0)
    return {
        "stream": "demo_minus",
        "extractor": {"name": "resnet18", "digest": "0123456789abcdef" * 4},
        "seeds": {"0": {"tasks": [*first, joins]}, "1": {"tasks": [*first, other]}},
    }


def distances() -> pd.DataFrame:
    pairs = [(1, 0, 0.913), (2, 0, 0.21), (2, 1, 0.8)]
    rows = [
        {"seed": seed, "estimator": name, "split": "valid", "task": i, "other": j, "distance": s, "score": s + shift}
        for seed in (0, 1)
        for name, shift in (("paper", 0.0), ("corrected", -0.1))
        for i, j, s in pairs
    ]
    return pd.DataFrame(rows)


def histories() -> pd.DataFrame:
    return pd.DataFrame({"accuracy": np.linspace(0.3, 0.6, EPOCHS)})


def inputs(seeds=(0, 1)) -> Inputs:
    """What the report of :func:`demo_config` is made from; the paper's stream was not run."""
    cell = {str(task): {"genotype": random_genotype(np.random.default_rng(task)).to_json()} for task in (0, 1)}
    clock = {str(seed): {str(task): {"seconds": 600.0} for task in (0, 1)} for seed in seeds}
    searched = {str(seed): cell for seed in seeds}
    courses = {str(seed): {str(task): histories() for task in (0, 1)} for seed in seeds}
    return Inputs(
        results={"demo_minus": result("demo_minus", seeds)},
        plans={"demo_minus": {"par": plan(), "alpha_000": plan("reuse_cell")}},
        distances={"demo_minus": distances()},
        cells={"demo_minus": {"par": searched}},
        search_seconds={"demo_minus": {"par": clock}},
        histories={"demo_minus": {"par": courses, "search_advantage": courses}},
        sheets={"demo_minus": Image.linear_gradient("L")},
        digests={"demo_minus": {"0": "aa" * 32, "1": "bb" * 32}},
        reference=Reference("no report of this preset (reports/demo) is committed at abc1234"),
        findings={"demo_minus": {str(seed): FINDINGS[: 1 + seed] for seed in seeds}},
        provenance=PROVENANCE,
    )
