"""requirements.lock on every system, as far as it can be told without a network; `make lock` asks the index."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.project import REPOSITORY
from tests.resolve_lock import BEGIN, CUDA, END, PYTHONS, SYSTEMS

LINES = [line for line in (REPOSITORY / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
PINS = [Requirement(line) for line in LINES]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
MACHINES = {"Linux x86-64": ("linux", "x86_64"), "Linux arm64": ("linux", "aarch64"), "macOS": ("darwin", "arm64")}


def installed(system: str, python: str) -> dict[str, Requirement]:
    """The pins whose markers hold for CPython there, by canonical name."""
    platform, machine = MACHINES[system]
    values = {
        "sys_platform": platform,
        "platform_machine": machine,
        "platform_system": platform.capitalize(),
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "python_version": python,
        "python_full_version": f"{python}.1",
    }
    pins = [pin for pin in PINS if pin.marker is None or pin.marker.evaluate(values)]
    by_name = {canonicalize_name(pin.name): pin for pin in pins}
    assert len(by_name) == len(pins), "a package has two versions on one system"
    return by_name


def test_every_line_is_one_exact_version():
    for pin in PINS:
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)) and not pin.extras and not pin.url, pin


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("system", MACHINES)
def test_what_the_project_asks_for_is_pinned_on_every_system(system, python):
    assert python in SpecifierSet(PROJECT["requires-python"])
    pins = installed(system, python)
    for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]:
        asked = Requirement(text)
        (version,) = pins[canonicalize_name(asked.name)].specifier
        assert version.version in asked.specifier, f"{text}: run `make lock`"


@pytest.mark.parametrize("python", PYTHONS)
def test_cuda_is_for_linux_alone(python):
    cuda = {system: {name for name in installed(system, python) if name.startswith(CUDA)} for system in MACHINES}
    assert cuda["macOS"] == set()
    assert cuda["Linux x86-64"] == cuda["Linux arm64"]
    assert {"triton", "nvidia-cudnn-cu13", "cuda-bindings"} < cuda["Linux x86-64"]
    others = {system: set(installed(system, python)) - cuda[system] for system in MACHINES}
    assert others["macOS"] == others["Linux x86-64"] == others["Linux arm64"]


def test_a_python_without_wheels_is_refused_by_the_project():
    assert "3.10" not in SpecifierSet(PROJECT["requires-python"])
    assert "3.15" not in SpecifierSet(PROJECT["requires-python"])


def test_the_table_of_the_documentation_is_of_these_systems_and_all_resolve():
    text = (REPOSITORY / "docs/install.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.split(BEGIN)[1].split(END)[0].splitlines()[2:]]
    assert [tuple(row[:2]) for row in rows] == [(system, python) for system in SYSTEMS for python in PYTHONS]
    for system, python, packages, cuda, *_ in rows:
        pins = installed(system if system in MACHINES else "macOS", python)
        assert int(packages) == len(pins) and int(cuda) == sum(name.startswith(CUDA) for name in pins)
