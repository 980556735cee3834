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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("protocol", "outcome", "specs", "runs", "looking", "supervisor", "node/agent")
OTHER = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
         ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}  # fmt: skip
MOST_FILES = 12  # of tests for one module, its own first
PATIENCE = 1800  # seconds: a condition that makes a test wait for ever is detected


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


def run(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a copy of the tree."""
    argv = ["nice", "-n", "10", sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:xdist", *words]
    return subprocess.run(argv, cwd=copy, capture_output=True, text=True, timeout=PATIENCE, check=False)


def failing(copy: Path, files: Iterable[str]) -> list[str]:
    """Return pytest's words that leave out the tests that fail in the copy without any change."""
    said = run(copy, "--continue-on-collection-errors", *sorted(set(files))).stdout.splitlines()
    named = [line.split()[1] for line in said if line.startswith(("FAILED", "ERROR"))]
    return [f"--deselect={name}" if "::" in name else f"--ignore={name}" for name in named]


def survives(copy: Path, module: Path, source: str, left_out: Sequence[str]) -> bool:
    """Tell whether the tests of a module pass with this source."""
    original = (copy / module).read_text()
    (copy / module).write_text(source)
    try:
        return run(copy, "-x", *left_out, *tests_of(module)).returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        (copy / module).write_text(original)


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
        left_out = failing(copy, [name for module, *_ in drawn for name in tests_of(module)])
        for number, (module, line, change, source) in enumerate(drawn, 1):
            if survives(copy, module, source, left_out):
                left += 1
                print(f"{module}:{line}: {change}", flush=True)
            print(f"{number} tried, {left} survived", end="\r", file=sys.stderr, flush=True)
    print(f"{len(drawn) - left} of {len(drawn)} changed conditions were detected")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
