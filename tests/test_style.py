"""What the linters do not check."""

from __future__ import annotations

import ast

from par.steps.code_digest import PACKAGES, ROOT

MAX_LINES = 60  # of a function, from its ``def`` to its last line


def test_no_function_is_long():
    too_long = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    n_lines = node.end_lineno - node.lineno + 1
                    if n_lines > MAX_LINES:
                        too_long.append(f"{path.relative_to(ROOT)}: {node.name} has {n_lines} lines")
    assert not too_long, too_long
