"""The version is read from its own module: the root package offers what is high, and what is low must not load it."""

from __future__ import annotations

import ast
from pathlib import Path

import orchestrator
from orchestrator.version import __version__

PACKAGE = Path(orchestrator.__file__).parent


def imports_of_the_root(source: str) -> list[int]:
    """The lines that import the root package itself, rather than a module in it."""
    found = [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.ImportFrom) and node.module == "orchestrator" and node.level == 0)
        or (isinstance(node, ast.Import) and any(alias.name == "orchestrator" for alias in node.names))
    ]
    return sorted(found)


def test_no_module_imports_the_root_package() -> None:
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted({*PACKAGE.rglob("*.py")} - {PACKAGE / "__init__.py"})
        if (lines := imports_of_the_root(path.read_text()))
    }
    assert found == {}


def test_the_check_itself_finds_what_it_looks_for() -> None:
    source = "def f():\n    from orchestrator import __version__\nimport orchestrator\nimport orchestrator.node"
    assert imports_of_the_root(source) == [2, 3]


def test_the_public_version_is_that_one() -> None:
    assert orchestrator.__version__ == __version__
