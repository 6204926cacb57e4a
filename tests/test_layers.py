"""Who may import whom: downwards only, and never in a circle."""

from __future__ import annotations

from graphlib import TopologicalSorter

from par.steps.code_digest import PACKAGES, ROOT, imports

# From the bottom. What stands in one line does not import each other; a package is one entry with all in it.
LAYERS = (
    ("par.schema", "par.files", "par.text", "par.seeding", "par.operating_system"),
    ("par.numerics",),
    ("par.config", "par.device"),
    ("par.streams", "par.networks", "par.training", "par.metrics"),
    ("par.cells", "par.relatedness"),
    ("par.methods",),
    ("par.settings",),
    ("par.steps",),
    ("par.reporting",),
    ("par.use",),
    ("pipeline",),
)


def modules() -> dict[str, set[str]]:
    """Every module of par and pipeline with the modules that it imports anywhere, its packages' ``__init__`` left out:
    that a module lies in a package is no import."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = set(imports(name)) - {name}
    return found


def place(module: str) -> tuple[int, str]:
    """Layer and entry of a module."""
    for layer, entries in enumerate(LAYERS):
        for entry in entries:
            if module == entry or module.startswith(f"{entry}."):
                return layer, entry
    raise AssertionError(f"{module} stands in no layer; give it a place in LAYERS.")


def test_imports_point_downwards_only():
    upwards = []
    for module, imported in modules().items():
        for other in imported - {"par"}:
            if module != "par" and place(module)[1] != place(other)[1] and place(module)[0] <= place(other)[0]:
                upwards.append(f"{module} -> {other}")
    assert not upwards, upwards


def test_there_is_no_circle():
    graph = modules()
    TopologicalSorter({module: imported & graph.keys() for module, imported in graph.items()}).prepare()
