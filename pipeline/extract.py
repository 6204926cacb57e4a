"""Stage ``extract``: features of every image that distances are measured on, by the frozen extractor.

Those of test images, which tell how often a task is identified, go to a file of their own: no stage that decides or
learns anything reads it.
"""

from __future__ import annotations

import numpy as np
from tqdm import tqdm

from par.config import Config
from par.device import resolve_device
from par.files import canonical_json, write_npz
from par.relatedness.extractor import extract_stream, load_extractor
from par.steps.slots import physical_cores
from par.streams import load_stream
from pipeline.stage import FEATURES, STREAMS, TEST_FEATURES, run_stage
from pipeline.tracking import Run


def main(config: Config, stream: str, run: Run) -> None:
    """Write ``data/features/<stream>.npz``: ``<seed>/<task>/<split>/features`` and ``labels``, and ``meta``; and
    ``data/test_features/<stream>.npz``, the same of the test split (nothing but ``meta`` without ``identify``)."""
    device = resolve_device(config.device)
    extractor = load_extractor(config.extractor, device)
    n_threads = physical_cores() if device.type == "cpu" else 1
    streams = {seed: load_stream(STREAMS / stream / str(seed)) for seed in config.seeds}
    files = {FEATURES: config.extractor.splits, TEST_FEATURES: ("test",) if config.extractor.identify else ()}
    total = sum(
        task.counts[split]
        for splits in files.values()
        for built in streams.values()
        for task in built.tasks
        for split in splits
    )
    meta = extractor.describe()
    with tqdm(total=total, desc=f"extract {stream} with {extractor.name}", unit="img") as bar:
        for folder, splits in files.items():
            arrays = {"meta": np.array(canonical_json(meta))}
            for seed, built in streams.items():
                for name, array in extract_stream(built, extractor, splits, bar.update, n_threads).items():
                    arrays[f"{seed}/{name}"] = array
            write_npz(folder / f"{stream}.npz", arrays)
    run.params({f"extractor.{name}": value for name, value in meta.items()})
    run.metrics({"images": total})


if __name__ == "__main__":
    run_stage("extract", main)
