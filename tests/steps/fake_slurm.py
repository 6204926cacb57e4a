"""A scheduler of its own in a folder: ``sbatch``, ``squeue``, ``scancel`` and ``srun`` that count their calls.

It knows what par.steps.slurm uses: arrays, ``aftercorr``, ``kill-on-invalid-dep``. Jobs run one after another in a
process of their own once ``start`` is called. For what a real cluster does there is tests/slurm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SBATCH = """
import json, os, re, sys
from pathlib import Path
folder = Path(os.environ["FAKE_SLURM"])
script = Path(sys.argv[1])
options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script.read_text(), re.MULTILINE))
number = 1 + len(list(folder.glob("*.array")))
record = {"options": options, "script": script.read_text(), "folder": str(script.parent)}
(folder / f"{number}.array").write_text(json.dumps(record))
print(f"Submitted batch job {number}")
"""
SQUEUE = """
import json, os
from pathlib import Path
folder = Path(os.environ["FAKE_SLURM"])
for path in sorted(folder.glob("*.array")):
    options = json.loads(path.read_text())["options"]
    array = options.get("array")
    for index in range(int(array.strip("'").split("%")[0].split("-")[1]) + 1 if array else 1):
        if not (folder / f"{path.stem}_{index}.ended").exists():
            state = "RUNNING" if (folder / f"{path.stem}_{index}.started").exists() else "PENDING"
            print(f"{options['job-name']}|{index if array else 'N/A'}|{path.stem}|{state}")
"""
SCANCEL = """
import os, re, sys
from pathlib import Path
for argument in sys.argv[1:]:
    number, indices = re.fullmatch(r"(\\d+)_\\[(.*)\\]", argument).groups()
    for index in indices.split(","):
        Path(os.environ["FAKE_SLURM"], f"{number}_{index}.ended").write_text("cancelled")
"""
COMMANDS = {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL, "srun": ""}


class FakeSlurm:
    """The scheduler in ``folder``, first on this process's PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name, code in COMMANDS.items():
            (folder / f"{name}.py").write_text(code)
            command = folder / "bin" / name
            run = f"exec {sys.executable} -S -E {folder}/{name}.py"
            command.write_text(f'#!/bin/sh\necho {name} >> {folder}/calls\n{run} "$@"\n')
            command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_SLURM", str(folder))

    def calls(self, name: str) -> int:
        """How often a command was called."""
        calls = self.folder / "calls"
        return calls.read_text().split().count(name) if calls.exists() else 0

    def arrays(self) -> list[dict[str, str]]:
        """Options of everything submitted, in order."""
        files = sorted(self.folder.glob("*.array"), key=lambda path: int(path.stem))
        return [json.loads(path.read_text())["options"] for path in files]

    def start(self) -> subprocess.Popen:
        """Run what is in the queue, now and later, until the process that is returned is killed."""
        return subprocess.Popen([sys.executable, "-m", "tests.steps.fake_slurm", str(self.folder)])


def _run(folder: Path) -> None:
    """Run the oldest job that waits for none, again and again."""
    import contextlib
    import time

    from submitit.core.submission import process_job

    while True:
        time.sleep(0.02)
        for path in sorted(folder.glob("*.array"), key=lambda path: int(path.stem)):
            record = json.loads(path.read_text())
            array = record["options"].get("array")
            for index in range(int(array.strip("'").split("%")[0].split("-")[1]) + 1 if array else 1):
                ended = folder / f"{path.stem}_{index}.ended"
                if ended.exists():
                    continue
                kind, _, before = record["options"].get("dependency", "").strip("'").partition(":")
                if kind == "aftercorr":
                    first = folder / f"{before}_{index}.ended"
                    if not first.exists():
                        continue
                    if first.read_text() != "0":
                        ended.write_text("never")
                        continue
                (folder / f"{path.stem}_{index}.started").touch()
                os.environ |= {"SLURM_JOB_ID": path.stem, "SUBMITIT_EXECUTOR": "slurm"}
                if array:
                    os.environ |= {"SLURM_ARRAY_JOB_ID": path.stem, "SLURM_ARRAY_TASK_ID": str(index)}
                else:
                    os.environ.pop("SLURM_ARRAY_JOB_ID", None)
                code = 1
                with contextlib.suppress(Exception, SystemExit):
                    process_job(record["folder"])
                    code = 0
                ended.write_text(str(code))


if __name__ == "__main__":
    _run(Path(sys.argv[1]))
