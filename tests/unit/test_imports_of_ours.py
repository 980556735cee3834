"""What programs import that no test here runs and no checker reads, benchmarks and checks on GPUs, is there."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path for folder in ("bench", "jobs", "tests") for path in (ROOT / folder).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Each name that a program imports of ours, with the module; "" for the module itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "orchestrator":
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "orchestrator")


@functools.cache
def names_of(path: Path) -> set[str]:
    """All that a module binds anywhere outside of its functions and classes."""
    found: set[str] = set()
    left: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        else:
            left.extend(ast.iter_child_nodes(node))
    return found


def is_there(module: str, name: str) -> bool:
    place = ROOT / module.replace(".", "/")
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    submodules = (place / f"{name}.py", place / name / "__init__.py")
    return source.exists() and (not name or any(path.exists() for path in submodules) or name in names_of(source))


@pytest.mark.parametrize("folder", ["bench", "jobs", "tests"])
def test_what_is_imported_is_there(folder: str) -> None:
    programs = [path for path in PROGRAMS if path.is_relative_to(ROOT / folder)]
    wanted = {(module, name, str(path.relative_to(ROOT))) for path in programs for module, name in imported(path)}
    assert wanted
    assert sorted(each for each in wanted if not is_there(*each[:2])) == []
