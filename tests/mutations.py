"""Are conditions tested? Inverts or changes conditions, one at a time, and names those that no unit test detects.

`make mutations` draws COUNT of them by SEED, in a copy of the tree. `python -m tests.mutations FILE:LINE ...` tries all
conditions of these lines. A survivor is equivalent to the original, or a test is missing.
"""

from __future__ import annotations

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("protocol", "outcome", "specs", "runs", "looking", "supervisor", "node/agent")
OTHER = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
         ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}  # fmt: skip
MOST_FILES = 8  # of tests for one module, its own first
PATIENCE = 900  # seconds: a condition that makes a test wait for ever is detected


def mutants(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line, the change, the changed source) for each condition of a module."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        before = ast.unparse(node) if isinstance(node, ast.expr) else ""
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            kept, node.ops = node.ops, [OTHER[type(node.ops[0])]()]
            yield node.lineno, f"{before}  ->  {ast.unparse(node)}", ast.unparse(tree)
            node.ops = kept
        elif isinstance(node, ast.BoolOp):
            operator, node.op = node.op, ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node.lineno, f"{before}  ->  {ast.unparse(node)}", ast.unparse(tree)
            node.op = operator
        elif isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Constant | ast.Compare):
            if "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            test, node.test = node.test, ast.UnaryOp(ast.Not(), node.test)
            yield node.lineno, f"if {ast.unparse(test)}  ->  if {ast.unparse(node.test)}", ast.unparse(tree)
            node.test = test


def tests_of(module: Path) -> list[str]:
    """Return the unit tests that import a module, those of its own name and package first."""
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
        return "a test that waits for ever"
    lines = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0] if lines else "" if done.returncode in (0, 5) else "pytest itself"


def survives(copy: Path, module: Path, source: str, sound: dict[str, bool]) -> bool:
    """Tell whether the tests of a module pass with this source. `sound`: whether a test passes with the original."""
    original = (copy / module).read_text()
    while True:
        bad = [f"--{'deselect' if '::' in name else 'ignore'}={name}" for name, passes in sound.items() if not passes]
        (copy / module).write_text(source)
        failed = first_failure(copy, *bad, *tests_of(module))
        (copy / module).write_text(original)
        if not failed or sound.setdefault(failed, " " in failed or not first_failure(copy, failed)):
            return not failed


def main(places: list[str]) -> int:
    """Try the mutations, and print the survivors."""
    if places:
        named = [(Path(place.partition(":")[0]), int(place.partition(":")[2])) for place in places]
        drawn = [(module, *each) for module, line in named for each in mutants(ROOT / module) if each[0] == line]
    else:
        files = [path for package in PACKAGES for path in sorted((ROOT / "orchestrator" / package).rglob("*.py"))]
        modules = [path.relative_to(ROOT) for path in files if tests_of(path.relative_to(ROOT))]
        every = [(module, *each) for module in modules for each in mutants(ROOT / module)]
        seed, count = int(os.environ.get("SEED", "1")), int(os.environ.get("COUNT", "60"))
        drawn = random.Random(seed).sample(every, min(count, len(every)))
    left = 0
    with tempfile.TemporaryDirectory(prefix="orch-mutations-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "build", "__pycache__"))
        sound: dict[str, bool] = {}
        for number, (module, line, change, source) in enumerate(drawn, 1):
            if survives(copy, module, source, sound):
                left += 1
                print(f"{module}:{line}: {change}", flush=True)
            print(f"{number} tried, {left} survived", end="\r", file=sys.stderr, flush=True)
    print(f"{len(drawn) - left} of {len(drawn)} changed conditions were detected")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
