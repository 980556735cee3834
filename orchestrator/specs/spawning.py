"""Detects Python programs that start their ranks themselves, as PyTorch's tutorial on mp.spawn does.

Such a program must be started once per node. If orch started it for every rank, each rank would start all ranks again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_SPAWNS: Final = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
_OF_A_LAUNCHER: Final = frozenset({"LOCAL_RANK"})
_OF_A_NODE: Final = frozenset(
    {"RANK", "WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "SLURM_NODEID", "SLURM_PROCID", "ORCH_NODE_RANK"}
)
_NEEDED: Final = re.compile(
    rb"environ\s*\[\s*['\"](RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)['\"]\s*\](?!\s*=[^=])"
)
_OPTIONS: Final = ("--local_rank", "--local-rank")


@dataclass(frozen=True)
class Spawning:
    """The call by which a program starts its ranks, and whether the program can do so on several nodes. `line` is 0,
    and `call` is a module, if the program is a console script.
    """

    script: str
    line: int
    call: str
    knows_nodes: bool

    def __str__(self) -> str:
        where = f"{self.script}:{self.line}" if self.line else self.script
        return f"{where} starts its own processes ({self.call})"


def needs_variables(text: bytes) -> bool:
    """Return whether a program with this source text reads a launcher's variable without a default."""
    return _NEEDED.search(text) is not None


def spawning_in(text: bytes, script: str) -> Spawning | None:
    """Return the call with which a program with this source text starts its ranks; None if orch may start the program
    for every rank.
    """
    try:
        tree = ast.parse(text)
        return _spawning_in(tree, script)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the ranks' interpreter reports the error
        return None


def _spawning_in(tree: ast.AST, script: str) -> Spawning | None:
    """Return the call by which a parsed program starts its ranks.

    A `Process` counts only if the program itself passes a rank to init_process_group.
    """
    names = dict(_imported(tree))
    calls = [(_full_name(each.func, names), each) for each in ast.walk(tree) if isinstance(each, ast.Call)]
    read = set(_variables_read(tree))
    options = {each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and each.value in _OPTIONS}
    if options or read & _OF_A_LAUNCHER:
        return None
    found = [(call, node.lineno) for call, node in calls if call in _SPAWNS]
    if not found and not read & _OF_A_NODE and any(_joins_with_rank(call, node) for call, node in calls):
        found = [(call, node.lineno) for call, node in calls if call.rpartition(".")[2] == "Process"]
    if not found:
        return None
    call, line = min(found, key=lambda each: each[1])
    return Spawning(script, line, call, bool(read & _OF_A_NODE))


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each imported name, and the full name of the object that it refers to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.asname, each.name) for each in node.names if each.asname)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)


def _full_name(node: ast.expr, names: dict[str, str]) -> str:
    """Return the dotted name of a called function, with its module if it was imported; "" for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    first = [names.get(node.id, node.id)] if isinstance(node, ast.Name) else []
    return ".".join([*first, *reversed(parts)])


def _joins_with_rank(call: str, node: ast.Call) -> bool:
    """Return True if the program itself passes its rank to init_process_group."""
    return call.rpartition(".")[2] == "init_process_group" and any(each.arg == "rank" for each in node.keywords)


def _variables_read(tree: ast.AST) -> Iterator[str]:
    """Yield the strings that the program looks up by an index, by get(), pop() or getenv(), or by `in`."""
    for node in ast.walk(tree):
        asked: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            asked = node.slice
        elif (
            isinstance(node, ast.Call) and node.args and _full_name(node.func, {}).endswith((".get", "getenv", ".pop"))
        ):
            asked = node.args[0]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            asked = node.left
        if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
            yield asked.value
