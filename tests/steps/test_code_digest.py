"""Import closures and code digests."""

from __future__ import annotations

import pytest

from par.methods import METHODS
from par.steps import code_digest


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of nothing: three modules of a project of its own."""

    def write(name: str, text: str) -> None:
        path = tmp_path / "par" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        code_digest.imports.cache_clear()
        code_digest._tree_digest.cache_clear()

    monkeypatch.setattr(code_digest, "ROOT", tmp_path)
    write("__init__", "")
    write("top", "import torch\nfrom par import middle\n\ndef f():\n    from par.lazy import g\n    return g()\n")
    write("middle", "from par.bottom import value\n")
    write("bottom", "value = 1\n")
    write("lazy", "def g():\n    return 2\n")
    yield write
    code_digest.imports.cache_clear()
    code_digest._tree_digest.cache_clear()


def test_the_closure_follows_imports_wherever_they_stand(project):
    assert code_digest.import_closure(["par.top"]) == {"par", "par.top", "par.middle", "par.bottom", "par.lazy"}
    assert code_digest.import_closure(["par.top"], stop=["par", "par.middle"]) == {"par.top", "par.lazy"}


def test_the_digest_sees_code_not_comments_or_docstrings(project):
    before = code_digest.code_digest(["par.top"])
    project("bottom", '"""A docstring."""\n\n# and a comment\nvalue = 1\n')
    documented = code_digest.code_digest(["par.top"])
    project("bottom", '"""Another docstring."""\nvalue = 1\n')
    assert code_digest.code_digest(["par.top"]) == documented
    project("bottom", "value = 2\n")
    assert code_digest.code_digest(["par.top"]) != before


@pytest.mark.parametrize("method", METHODS)
def test_a_method_depends_on_no_other_but_the_one_it_extends(method):
    module = METHODS[method].split(":")[0]
    closure = code_digest.import_closure([module], stop=["par.methods"])
    assert "par.training.trainer" in closure
    others = {name for name, path in METHODS.items() if path.split(":")[0] in closure - {module}}
    assert others == {"cat": {"hat"}}.get(method, set())
    assert any(name.startswith("par.cells") for name in closure) == (method == "par")
