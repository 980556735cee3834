"""Are conditions tested? Inverts or changes conditions, one at a time, and names those that no unit test detects.

`make mutations` draws COUNT of them by SEED, in a copy of the tree. `python -m tests.mutations FILE:LINE ...` tries all
conditions of these lines. A survivor is equivalent to the original, or a test is missing.
"""

from __future__ import annotations

import ast
import functools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("protocol", "outcome", "specs", "runs", "looking", "supervisor", "node/agent")
OTHER = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
         ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}  # fmt: skip
MOST_FILES = 8  # of tests for one module, its own first
PATIENCE = 900  # seconds: a condition that makes a test wait for ever is detected
HANGS = "a test that waits for ever"
NOT_RUN = "pytest itself"  # also if the name of a test has " - ", which ends the name in pytest's summary


def sites(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.AST, str, Any]]:
    """Yield (condition, node, field of the node, the field's other value) for each condition of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield node, node, "ops", [OTHER[type(node.ops[0])]()]
        elif isinstance(node, ast.BoolOp):
            yield node, node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue  # only a type checker reads what follows
        elif isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Constant | ast.Compare):
            yield node.test, node, "test", ast.UnaryOp(ast.Not(), node.test)


def mutant(module: Path, number: int) -> tuple[str, str]:
    """Return (the change of a module's condition of this number, the changed source)."""
    tree = ast.parse((ROOT / module).read_text())
    condition, node, field, other = list(sites(tree))[number]
    before = ast.unparse(condition)
    setattr(node, field, other)
    after = ast.unparse(other if field == "test" else condition)
    return f"{module}:{condition.lineno}: {before}  ->  {after}", ast.unparse(tree)


def numbered(module: Path) -> list[tuple[int, int]]:
    """Return (number, line) of each condition of a module."""
    return [(number, site[0].lineno) for number, site in enumerate(sites(ast.parse((ROOT / module).read_text())))]


@functools.cache
def tests_of(module: Path) -> list[str]:
    """Return the unit tests that import a module, those of its own name and package first. Other tests run later."""
    name = ".".join(module.with_suffix("").parts)
    parent, _, last = name.rpartition(".")
    found = [
        path
        for path in sorted(ROOT.glob("tests/unit/**/test_*.py"))
        if name in (text := path.read_text()) or f"from {parent} import {last}\n" in text
    ]
    found.sort(key=lambda path: (path.stem != f"test_{last}", path.parent.name != module.parent.name))
    return [str(path.relative_to(ROOT)) for path in found[:MOST_FILES]]


def first_failure(copy: Path, *words: str) -> str:
    """Run pytest in a copy of the tree, and return the first test or file that fails; empty if all pass."""
    argv = ["nice", "-n", "10", sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:xdist", *words]
    try:
        done = subprocess.run(argv, cwd=copy, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return HANGS
    lines = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0].partition(" - ")[0] if lines else "" if done.returncode in (0, 5) else NOT_RUN


def survives(copy: Path, module: Path, source: str, sound: dict[str, bool]) -> bool:
    """Tell whether the tests of a module pass with this source. `sound`: whether a test passes with the original."""
    original = (copy / module).read_text()
    while True:
        bad = [f"--{'deselect' if '::' in name else 'ignore'}={name}" for name, passes in sound.items() if not passes]
        (copy / module).write_text(source)
        failed = first_failure(copy, *bad, *tests_of(module)) or first_failure(copy, *bad, "tests/unit", "tests/golden")
        (copy / module).write_text(original)
        if not failed or sound.setdefault(failed, failed == HANGS or first_failure(copy, failed) in ("", NOT_RUN)):
            return not failed


def main(places: list[str]) -> int:
    """Try the mutations, and print the survivors."""
    if places:
        named = [(Path(place.partition(":")[0]), int(place.partition(":")[2])) for place in places]
        drawn = [(module, number) for module, line in named for number, at in numbered(module) if at == line]
    else:
        files = [path for package in PACKAGES for path in sorted((ROOT / "orchestrator" / package).rglob("*.py"))]
        modules = [path.relative_to(ROOT) for path in files if tests_of(path.relative_to(ROOT))]
        every = [(module, number) for module in modules for number, _ in numbered(module)]
        seed, count = int(os.environ.get("SEED", "1")), int(os.environ.get("COUNT", "60"))
        drawn = random.Random(seed).sample(every, min(count, len(every)))
    left = 0
    with tempfile.TemporaryDirectory(prefix="orch-mutations-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "build", "__pycache__"))
        sound: dict[str, bool] = {}
        for tried, (module, number) in enumerate(drawn, 1):
            change, source = mutant(module, number)
            if survives(copy, module, source, sound):
                left += 1
                print(change, flush=True)
            print(f"{tried} tried, {left} survived", end="\r", file=sys.stderr, flush=True)
    print(f"{len(drawn) - left} of {len(drawn)} changed conditions were detected")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
