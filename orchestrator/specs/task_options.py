"""Detects from a task's source code which options it reads, because a misspelt option would have no effect."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

LOOKED_UP: Final = ("get", "pop", "setdefault")  # methods that look up one name in options.extra
GIVEN_OPTIONS: Final = ("data", "model", "optimizer")  # functions of a task whose last argument is the options
ALSO_OURS: Final = "orchestrator"
MOST_FILES: Final = 50


def words_of_task(task: Path) -> frozenset[str] | None:
    """Return all words in a task and in the files of its folder that it imports.

    An option whose name is not among the words is never read. Return None if the task may read any option, because it
    passes on all options, or if its source can't be read.
    """
    trees: dict[Path, ast.Module] = {}
    waiting = [task]
    while waiting and len(trees) < MOST_FILES:
        path = waiting.pop()
        if path in trees:
            continue
        try:
            trees[path] = ast.parse(path.read_bytes())
        except (OSError, ValueError, SyntaxError, RecursionError):
            return None
        waiting += _neighbours(trees[path], task.parent)
    own = {path.relative_to(task.parent).parts[0].removesuffix(".py") for path in trees}
    if waiting or any(_passes_all_on(tree, own) for tree in trees.values()):
        return None
    return frozenset(word for tree in trees.values() for word in _words(tree))


def _neighbours(tree: ast.Module, folder: Path) -> Iterator[Path]:
    """Yield the files of this folder that a module imports."""
    for name in _imported(tree):
        path = folder.joinpath(*name.split("."))
        yield from (found for found in (path.with_suffix(".py"), path / "__init__.py") if found.is_file())


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _words(tree: ast.Module) -> Iterator[str]:
    """Yield the strings and names in a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.Name(id=str(name)) | ast.arg(arg=str(name)) | ast.keyword(arg=str(name)):
                yield name
            case ast.Attribute(attr=str(name)):
                yield name


def _passes_all_on(tree: ast.Module, neighbours: set[str]) -> bool:
    """Return True if a module uses the options as a whole, and not only single options by their names."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    known = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    known |= {name for name, module in _origins(tree) if module in (ALSO_OURS, *neighbours)}
    given = {node.args.args[-1].arg for node in _functions(tree, GIVEN_OPTIONS) if node.args.args}
    for node in ast.walk(tree):
        parent = parents.get(node)
        if isinstance(node, ast.Attribute) and node.attr == "extra" and not _is_looked_into(node, parent, parents):
            return True
        if isinstance(node, ast.Name) and node.id in given and isinstance(node.ctx, ast.Load):
            if not isinstance(parent, ast.Attribute | ast.Call | ast.keyword):
                return True
            call = parents.get(parent) if isinstance(parent, ast.keyword) else parent
            if isinstance(call, ast.Call) and _first_name(call.func) not in known:
                return True
    return False


def _is_looked_into(extra: ast.Attribute, parent: ast.AST | None, parents: dict[ast.AST, ast.AST]) -> bool:
    """Return True if this use of the mapping `options.extra` looks up one name by `[...]`, `.get(...)` or `... in`."""
    match parent:
        case ast.Subscript(value=value):
            return value is extra
        case ast.Compare(ops=[ast.In() | ast.NotIn()]):
            return True
        case ast.Attribute(attr=str(name)):
            return name in LOOKED_UP and isinstance(parents.get(parent), ast.Call)
    return False


def _functions(tree: ast.Module, names: Iterable[str]) -> Iterator[ast.FunctionDef]:
    return (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names)


def _origins(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (name in this module, top-level package) for each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.partition(".")[0], alias.name.partition(".")[0])
                        for alias in node.names)  # fmt: skip
        elif isinstance(node, ast.ImportFrom):
            package = (node.module or "").partition(".")[0]
            yield from ((alias.asname or alias.name, package) for alias in node.names)


def _first_name(function: ast.expr) -> str:
    """Return `a` of `a.b.c`."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return function.id if isinstance(function, ast.Name) else ""
