"""Stage ``prototypes``: the mean feature of every class of every task, with the number of samples behind it."""

from __future__ import annotations

import numpy as np
from tqdm import tqdm

from par.config import Config
from par.files import write_npz
from par.relatedness.prototypes import class_prototypes
from pipeline.stage import FEATURES, PROTOTYPES, run_stage
from pipeline.tracking import Run


def main(config: Config, stream: str, run: Run) -> None:
    """Write ``data/prototypes/<stream>.npz``: ``<seed>/<task>/<split>/means`` and ``counts``."""
    arrays: dict[str, np.ndarray] = {}
    with np.load(FEATURES / f"{stream}.npz") as features:
        names = [name.removesuffix("/features") for name in features.files if name.endswith("/features")]
        for name in tqdm(names, desc=f"prototypes {stream}", unit="split"):
            labels = features[f"{name}/labels"]
            found = class_prototypes(features[f"{name}/features"], labels, int(labels.max()) + 1)
            arrays |= {f"{name}/means": found.means, f"{name}/counts": found.counts}
    write_npz(PROTOTYPES / f"{stream}.npz", arrays)
    run.metrics({"prototypes": sum(len(array) for name, array in arrays.items() if name.endswith("counts"))})


if __name__ == "__main__":
    run_stage("prototypes", main)
