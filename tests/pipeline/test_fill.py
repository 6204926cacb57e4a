"""The store filled at once, then assembled by `dvc repro`."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from par.steps.store import Store, read_entry
from tests.project import PARAMS, REPOSITORY, commit, make_project, run, stages_run

FILL = (sys.executable, "-m", "pipeline.fill")
VARIANTS = "ablation:\n  streams:\n    - tiny\n  variants:\n    - fixed\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A git repository with DVC in which nothing has run."""
    params = PARAMS.replace("workers: 1", "workers: auto").replace(
        "ablation:\n  streams: []\n  variants: []\n", VARIANTS
    )
    folder = make_project(tmp_path_factory.mktemp("fill"), params=params)
    for name in (".gitignore", ".dvcignore", "cluster.example.yaml"):
        shutil.copy(REPOSITORY / name, folder)
    commit(folder)
    return folder


@pytest.mark.slow
def test_filled_then_assembled(project):
    plan = run(project, *FILL, "--plan").stdout
    assert re.search(r"^tiny +par +3 +256 +\d\.\d\d +\d\.\d +table$", plan, re.MULTILINE), plan
    assert "Not built" in plan and "every task of PAR is taken to be searched" in plan
    assert not (project / "data").exists(), "a plan builds nothing"

    filled = run(project, *FILL)
    n_steps = int(re.search(r"(\d+) of \1 steps to compute", filled.stdout)[1])
    computed, reused = map(int, re.search(r"steps computed: (\d+), from the store: (\d+)", filled.stdout).groups())
    assert computed + reused == n_steps and "waiting" in filled.stderr and "failed" in filled.stderr
    assert f"nothing to do: all {n_steps} steps are in" in run(project, *FILL).stdout

    done = run(project, "dvc", "repro")
    assert stages_run(done) == {"fingerprints", "search@tiny", "train@tiny", "evaluate@tiny", "tables"}
    counts = re.findall(r"steps computed: (\d+), from the store: (\d+)", done.stdout)
    assert [count[0] for count in counts] == ["0", "0"], done.stdout

    next(path for path in Store(project / ".par/store").entries() if "info" in read_entry(path)).unlink()
    plan = run(project, *FILL, "--plan").stdout
    assert re.search(r"^all +all +\d+ +\d+ +\d\.\d\d +\d\.\d +measured$", plan, re.MULTILINE), plan


@pytest.mark.slow
def test_mistakes_are_one_sentence(project):
    def sentence(*options: str) -> str:
        done = run(project, *FILL, *options, check=False)
        (line,) = done.stderr.strip().splitlines()
        assert done.returncode == 1
        return line

    assert "cluster.yaml does not exist" in sentence("--executor", "slurm")
    shutil.copy(project / "cluster.example.yaml", project / "cluster.yaml")
    with (project / "cluster.yaml").open("a") as file:
        file.write("gpu: 1\n")
    assert "gpu = 1 is not a known key" in sentence("--executor", "slurm")
    (project / "cluster.yaml").write_text("gpus: 1\n")
    (project / "auto.yaml").write_text((project / "params.yaml").read_text().replace("device: cpu", "device: auto"))
    assert "precision = 'auto' cannot be known" in sentence("--executor", "slurm", "--plan", "--params", "auto.yaml")
    (project / "cluster.yaml").unlink()
    refused = run(project, *FILL, "--params", "auto.yaml", check=False)
    assert refused.returncode == 2 and "--params is for --plan alone" in refused.stderr
