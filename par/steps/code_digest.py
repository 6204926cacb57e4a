"""Which modules a module is made of, and a digest of their code."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from par import files

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("par", "pipeline")

# Modules whose code does not decide what is learned: settings, tasks and files enter a step's key by their content.
PLUMBING = (
    "par",
    "par.config",
    "par.device",
    "par.files",
    "par.methods",  # the registry alone; a method's own module counts
    "par.numerics",
    "par.operating_system",
    "par.schema",
    "par.settings",
    "par.steps",
    "par.steps.archive",
    "par.steps.checkpoint",
    "par.steps.cluster",
    "par.steps.code_digest",
    "par.steps.jobs",
    "par.steps.lease",
    "par.steps.routed_chain",
    "par.steps.slots",
    "par.steps.slurm",
    "par.steps.store",
    "par.steps.worker",
    "par.steps.workers",
    "par.streams",
    "pipeline",
    "pipeline.address",
    "pipeline.journal",
    "pipeline.models",
    "pipeline.stage",
    "pipeline.sync",
    "pipeline.tracking",
)


def import_closure(modules: Iterable[str], stop: Iterable[str] = ()) -> set[str]:
    """Names of all modules of this project that ``modules`` import, directly or not, themselves included.

    Imports inside functions count. Modules in ``stop`` are neither listed nor followed. The registry of methods holds
    text, so it leads to no method.
    """
    stop, seen, waiting = set(stop), set(), list(modules)
    while waiting:
        module = waiting.pop()
        if module in seen or module in stop or module_file(module) is None:
            continue
        seen.add(module)
        waiting.extend(imports(module))
        if "." in module:
            waiting.append(module.rpartition(".")[0])
    return seen


def code_digest(modules: Iterable[str], stop: Iterable[str] = ()) -> str:
    """SHA-256 over the syntax trees of the import closure; comments, docstrings and layout do not count."""
    names = sorted(import_closure(modules, stop))
    return files.sha256_bytes("\n".join(f"{name} {_tree_digest(name)}" for name in names).encode())


def module_file(module: str) -> Path | None:
    """The source file of a module of this project, or None where there is no such module."""
    base = ROOT.joinpath(*module.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if module.split(".")[0] in PACKAGES and candidate.is_file():
            return candidate
    return None


def _source(module: str) -> Path:
    path = module_file(module)
    assert path is not None, f"{module} is no module of this project"
    return path


@cache
def imports(module: str) -> tuple[str, ...]:
    """Modules of this project that ``module`` names in its import statements."""
    path, found = _source(module), []
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            found += [base] + [f"{base}.{alias.name}" for alias in node.names]
    return tuple(name for name in found if module_file(name) is not None)


@cache
def _tree_digest(module: str) -> str:
    tree = ast.parse(_source(module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        match body:
            case [ast.Expr(value=ast.Constant(value=str())), *_]:
                body[0].value.value = ""
    return files.sha256_bytes(ast.dump(tree).encode())
