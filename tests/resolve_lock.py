"""Does requirements.lock install on every system? ``python -m tests.resolve_lock``, run by ``make lock``; needs PyPI.

For each system of :data:`SYSTEMS` and each Python uv resolves the lock as it stands: every pin must have a wheel there,
and the pins must satisfy each other. One package has no wheel anywhere (:data:`FROM_SOURCE`): pip builds it from Python
files alone. Nothing is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

LOCK = Path("requirements.lock")
FROM_SOURCE = "antlr4-python3-runtime"
CUDA = ("cuda-", "nvidia-", "triton")
SYSTEMS = {
    "Linux x86-64": "x86_64-manylinux_2_28",
    "Linux arm64": "aarch64-manylinux_2_28",
    "macOS 14, Apple silicon": "aarch64-apple-darwin",
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACOS = {"MACOSX_DEPLOYMENT_TARGET": "14.0"}  # uv otherwise asks for wheels of macOS 13, for which torch has none
HEADS = ("system", "Python", "packages", "of them CUDA", "MB at most", "of them CUDA")
BEGIN, END = "<!-- resolved -->\n", "<!-- end of resolved -->"


def resolve(platform: str, python: str, lock: Path = LOCK) -> list[dict[str, Any]]:
    """The packages that the lock has for that system, with the wheels that would do.

    Raises:
        RuntimeError: a pin has no wheel for it, or the pins do not fit together; the message is uv's.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pylock.toml"
        command = ["uv", "pip", "compile", "--quiet", str(lock), "--python-platform", platform]
        command += ["--python-version", python, "--only-binary", ":all:", "--no-binary", FROM_SOURCE]
        command += ["--format", "pylock.toml", "--output-file", str(out)]
        done = subprocess.run(command, env=os.environ | MACOS, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(" ".join(done.stderr.split()))
        return tomllib.loads(out.read_text(encoding="utf-8"))["packages"]


def megabytes(packages: list[dict[str, Any]]) -> float:
    """What has to be downloaded, at most: of several wheels that would do the largest."""
    return sum(max(file["size"] for file in package.get("wheels") or [package["sdist"]]) for package in packages) / 1e6


def table(lines: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    rows = [HEADS, ("---",) * 2 + ("---:",) * 4, *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    """Command line; exits with 1 where the lock does not resolve."""
    parser = argparse.ArgumentParser(prog="python -m tests.resolve_lock", description=__doc__.split("?")[0] + "?")
    parser.add_argument("--write", type=Path, help="replace the table between the marks of this Markdown file")
    options = parser.parse_args()
    lines, failed = [], False
    for system, platform in SYSTEMS.items():
        for python in PYTHONS:
            try:
                packages = resolve(platform, python)
            except RuntimeError as error:
                print(f"{system}, Python {python}: {error}", file=sys.stderr)
                lines, failed = [*lines, (system, python, "does not resolve", "", "", "")], True
                continue
            cuda = [package for package in packages if package["name"].startswith(CUDA)]
            counts = (len(packages), len(cuda), megabytes(packages), megabytes(cuda))
            lines.append((system, python, *(f"{count:.0f}" for count in counts)))
    print(table(lines))
    if options.write:
        text = options.write.read_text(encoding="utf-8")
        head, tail = text.split(BEGIN)[0], text.split(END)[1]
        options.write.write_text(f"{head}{BEGIN}{table(lines)}{END}{tail}", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
