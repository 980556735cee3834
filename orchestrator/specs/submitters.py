"""Detects scripts that submit their training through submitit. If orch started such a script, each rank would submit
a job.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.protocol.reading import read_part

MOST_BYTES: Final = 1 << 18  # how much of each file is read
MOST_IMPORTS: Final = 50
_EXECUTORS: Final = frozenset({"AutoExecutor", "SlurmExecutor", "LocalExecutor", "DebugExecutor"})


@dataclass(frozen=True)
class Submitter:
    """A script that submits jobs, the line that does so, and the training script that it imports (empty if unknown)."""

    script: str
    line: int
    trains: str

    def __str__(self) -> str:
        return f"submitit ({self.script}:{self.line})"


@dataclass(frozen=True)
class _Import:
    module: str
    name: str  # the name in `from module import name`
    called: str  # the script's own name for the imported object


def submitter_in(script: str, code_dir: Path) -> Submitter | None:
    """Return how a script of the code folder submits jobs; None if neither the script nor the files that it imports
    submit jobs.

    A script that imports torch is assumed to do the training itself.
    """
    path = code_dir / script
    tree = _parsed(path, needs="submit")
    if tree is None:
        return None
    imports = list(_imports(tree, path, code_dir))
    if any(each.module.partition(".")[0] == "torch" for each in imports):
        return None
    local = {each: found for each in imports[:MOST_IMPORTS] if (found := _file_of(each.module, path, code_dir))}
    places = [(path, tree)]
    places += [(found, inner) for found in local.values() if (inner := _parsed(found, needs="submitit"))]
    for place, inner in places:
        if line := _executor_in(inner):
            others = {each: found for each, found in local.items() if found != place}
            return Submitter(_relative(place, code_dir), line, _trains(tree, others, code_dir))
    return None


def program_of_python(command: Sequence[str]) -> str:
    """Return the script of a command such as `python script.py`; empty for any other command."""
    is_python = len(command) > 1 and re.fullmatch(r"(.*/)?python[\d.]*", command[0])
    return next((word for word in command[1:] if not word.startswith("-")), "") if is_python else ""


def _parsed(path: Path, needs: str) -> ast.Module | None:
    """Return the syntax tree of a Python file that contains the word `needs`, else None."""
    try:
        data = read_part(path.resolve(), 0, MOST_BYTES + 1)
        return ast.parse(data) if needs.encode() in data and len(data) <= MOST_BYTES else None
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _imports(tree: ast.Module, path: Path, code_dir: Path) -> Iterator[_Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (_Import(each.name, "", each.asname or each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, path, code_dir)
            yield from (_Import(module, each.name, each.asname or each.name) for each in node.names)
            yield from (_Import(f"{module}.{each.name}", "", each.asname or each.name) for each in node.names)


def _absolute(node: ast.ImportFrom, path: Path, code_dir: Path) -> str:
    """Return the full name of the module in `from .module import name`, relative to the code folder."""
    if not node.level:
        return node.module or ""
    package = path.resolve().parents[node.level - 1] if node.level <= len(path.resolve().parents) else code_dir
    inside = package.relative_to(code_dir.resolve()).parts if package.is_relative_to(code_dir.resolve()) else ()
    return ".".join([*inside, *([node.module] if node.module else [])])


def _file_of(module: str, path: Path, code_dir: Path) -> Path | None:
    """Return the file of a module beside the script or in the code folder; None if there is none."""
    for folder in (path.parent, code_dir):
        below = folder.joinpath(*module.split("."))
        for file in (below.with_name(f"{below.name}.py"), below / "__init__.py"):
            if module and file.is_file():
                return file
    return None


def _executor_in(tree: ast.Module) -> int:
    """Return the first line that makes an executor of submitit; 0 if no line does."""
    names = {"submitit"}
    direct = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname for each in node.names if each.name == "submitit" and each.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "submitit":
            direct |= {each.asname or each.name for each in node.names if each.name in _EXECUTORS}
    found = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _makes(node.func, names, direct)]
    return min(found, default=0)


def _makes(called: ast.expr, names: set[str], direct: set[str]) -> bool:
    if isinstance(called, ast.Name):
        return called.id in direct
    if not isinstance(called, ast.Attribute) or called.attr not in _EXECUTORS:
        return False
    return isinstance(called.value, ast.Name) and called.value.id in names


def _trains(tree: ast.Module, local: dict[_Import, Path], code_dir: Path) -> str:
    """Return the script whose `main` the submitted job calls. If no such script is found, return the first of the
    imported scripts.
    """
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    mains = [each for each in local if each.name == "main" or f"{each.called}.main" in calls]
    chosen = next(iter(mains), next(iter(local), None))
    return _relative(_source_of_main(local[chosen], code_dir), code_dir) if chosen is not None else ""


def _source_of_main(file: Path, code_dir: Path) -> Path:
    """Return the file from which a package's __init__.py imports `main`, or the same file if it is not a package."""
    if file.name != "__init__.py" or (tree := _parsed(file, needs="main")) is None:
        return file
    mains = (each for each in _imports(tree, file, code_dir) if each.name == "main")
    return next((found for each in mains if (found := _file_of(each.module, file, code_dir))), file)


def _relative(path: Path, code_dir: Path) -> str:
    resolved, top = path.resolve(), code_dir.resolve()
    return str(resolved.relative_to(top)) if resolved.is_relative_to(top) else str(path)
