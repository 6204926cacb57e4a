"""Does the emulated device find known bugs? ``python -m tests.device.plant_bugs [BUG ...]``, by hand: some minutes.

Each bug is planted in a copy of the code, and the part of ``tests.device.exercise`` that meets it is run there. A bug
that passes, and a legal change that does not, end the program with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bug:
    """A change of one file, and the part of the exercise that has to fail on it."""

    part: str
    file: str
    before: str
    after: str
    legal: bool = False


BUGS = {
    "masks": Bug("hat", "methods/hat.py", "torch.zeros(size, device=self.device)", "torch.zeros(size)"),
    "embeddings": Bug("hat", "methods/hat.py", "= own.to(self.device)", "= own"),
    "open units": Bug("cat", "methods/cat.py", "torch.ones(size, device=self.device)", "torch.ones(size)"),
    "drawn masks": Bug("cat", "methods/cat.py", "torch.randn(size)).to(self.device)", "torch.randn(size))"),
    "attention": Bug("cat", "methods/cat.py", "= attention.to(self.device)", "= attention"),
    "statistics": Bug(
        "er", "methods/bases/memory.py", "for record in records], device=device)", "for record in records])"
    ),
    "memory labels": Bug("er", "methods/bases/memory.py", "task.train.labels.cpu()", "task.train.labels"),
    "numpy": Bug("er", "methods/bases/memory.py", "memory.labels[slots].cpu().numpy()", "memory.labels[slots].numpy()"),
    "memory": Bug("agem", "methods/bases/memory.py", '"image_size"]).to(self.device)', '"image_size"])'),
    "memory indices": Bug(
        "er", "methods/er.py", "len(self.tasks) - 1), positions]", "len(self.tasks) - 1).cpu(), positions]"
    ),
    "importance": Bug(
        "ewc", "methods/bases/penalty.py", "torch.zeros(n_weights, device=self.device)", "torch.zeros(n_weights)"
    ),
    "new module": Bug("lmc", "methods/lmc.py", "module.to(running.device)", "module"),
    "bases": Bug("gpm", "methods/gpm.py", "name: basis.to(self.device) for", "name: basis for"),
    "saved bases": Bug("gpm", "methods/gpm.py", "basis.cpu().clone()", "basis.clone()"),
    "draws": Bug(
        "finetune",
        "training/step.py",
        "torch.cat([part.reshape(-1) for part in parts]).to(device)",
        "torch.cat([part.reshape(-1) for part in parts])",
    ),
    "generator": Bug(
        "finetune",
        "training/images.py",
        "torch.rand(count, generator=generator) < 0.5",
        "torch.rand(count, generator=generator, device=self.pixels.device) < 0.5",
    ),
    "labels": Bug("finetune", "training/trainer.py", "argmax(dim=1).cpu()", "argmax(dim=1)"),
    "saved tensors": Bug(
        "finetune", "methods/bases/method.py", "value.detach().cpu().clone()", "value.detach().clone()"
    ),
    "trunk": Bug("learn_to_grow", "methods/learn_to_grow.py", "Search(trunk.to(self.device)", "Search(trunk"),
    "drawn paths": Bug(
        "mntdp_s",
        "methods/mntdp_s.py",
        "arange(drawn.shape[1], device=drawn.device)",
        "arange(drawn.shape[1])[None] + 0 * drawn",
    ),
    "modules": Bug("pnn", "methods/bases/modular.py", "self.build(record).to(self.device)", "self.build(record)"),
    "supernet": Bug("search mdl", "cells/search.py", ".to(\n            train.pixels.device\n        )", ""),
    "extractor": Bug("extractor", "relatedness/extractor.py", "torch.tensor(std, device=device)", "torch.tensor(std)"),
    "pooling": Bug("soft_gating", "networks/pooling.py", 'maps.device.type == "cpu"', "True"),
    "legal index": Bug("gpm 48 px", "training/images.py", "[flat.view(-1)]", "[flat.view(-1).cpu()]", legal=True),
    "index copied in a step": Bug("captured gpm", "training/images.py", "[flat.view(-1)]", "[flat.view(-1).cpu()]"),
    "number copied in a step": Bug(
        "captured hat",
        "methods/hat.py",
        'self._loss(batch, batch.drawn["scale"])',
        "self._loss(batch, torch.tensor([1.0]).to(self.device))",
    ),
    "number of the host in a graph": Bug(
        "captured hat",
        "methods/hat.py",
        'self._loss(batch, batch.drawn["scale"])',
        "self._loss(batch, self.__dict__.setdefault('n', []).append(1) or len(self.n))",
    ),
    "branch on a value": Bug("captured agem", "methods/agem.py", 'against.device.type == "cpu" and not', "not"),
    "question to the device": Bug(
        "captured mntdp_s drawing", "methods/mntdp_s.py", 'self.device.type != "cpu" or not', "not"
    ),
    "path looked up in a step": Bug(
        "captured mntdp_s", "methods/mntdp_s.py", "self._follow(batch.images, self._path)", "self.predict(batch.images)"
    ),
    "rate in a graph": Bug(
        "captured finetune",
        "training/trainer.py",
        "if self.in_place:\n                stack",
        "if False:\n                stack",
    ),
    "batch in a graph": Bug("captured finetune", "training/step.py", "tensor.copy_(inputs[name])", "pass"),
}


def planted(bug: Bug, folder: Path) -> Path:
    """A copy of the code in ``folder``, with the bug."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("par", "tests"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)
    file = folder / "par" / bug.file
    text = file.read_text(encoding="utf-8")
    if bug.before not in text:
        sys.exit(f"{bug.file} has no {bug.before!r} any more; plant the bug where it is now.")
    file.write_text(text.replace(bug.before, bug.after), encoding="utf-8")
    return folder


def outcome(bug: Bug) -> tuple[bool, str]:
    """Whether the exercise behaves as it should on the bug, and what it printed."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = planted(bug, Path(scratch))
        environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-P", "-m", "tests.device.exercise", bug.part]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if len(lines) != 1 or lines[0][26:30].strip() not in ("ok", "FAIL"):
        return False, f"no verdict: {(done.stdout + done.stderr)[-200:]}"
    passes = done.returncode == 0
    return passes == bug.legal, f"{'passes' if passes else 'found'}: {lines[0][32:]}"


def main() -> None:
    """Plant the bugs one after another."""
    parser = argparse.ArgumentParser(prog="python -m tests.device.plant_bugs", description=__doc__.split("\n")[0])
    parser.add_argument("bugs", nargs="*", metavar="BUG", help=f"among {', '.join(BUGS)}; all by default")
    wrong = 0
    for name in parser.parse_args().bugs or BUGS:
        right, line = outcome(BUGS[name])
        wrong += not right
        print(f"{'' if right else 'WRONG '}{name:29} {line}", flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
