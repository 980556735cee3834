"""Prints the files that run on macOS: everything outside of node/ and training/, and what that imports from node/.

`make lint` lets mypy check these files as on macOS.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "orchestrator"
NOT_HERE = (f"{PACKAGE}.node", f"{PACKAGE}.training")
ON_MACOS_ONLY = f"{PACKAGE}.node.system.macos"


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module of orch."""
    files = sorted((ROOT / PACKAGE).rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imported(module: str, *, lazily: bool) -> Iterator[str]:
    """Yield the modules of orch that a module imports; with `lazily`, also within functions."""
    front: list[ast.AST] = [ast.parse(modules()[module].read_text())]
    while front:
        node = front.pop()
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for each in node.names:
                inner = f"{node.module}.{each.name}"
                yield inner if inner in modules() else node.module
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if lazily or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            front += ast.iter_child_nodes(node)


def on_macos() -> list[str]:
    """Return the modules that orch's commands and its supervisor load on macOS."""
    found = {name for name in modules() if not name.startswith(NOT_HERE)}
    front = [each for name in found for each in imported(name, lazily=True)]
    while front:
        if (name := front.pop()).startswith(NOT_HERE[0]) and name not in found:
            found.add(name)
            front += imported(name, lazily=False)
    return sorted({*found, ON_MACOS_ONLY})


if __name__ == "__main__":
    print(*(modules()[name].relative_to(ROOT) for name in on_macos()), sep="\n")
