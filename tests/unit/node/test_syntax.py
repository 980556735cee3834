"""What runs on a node meets whatever python3 the node has: 3.9 or newer, and no library."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TypeGuard

import pytest

from tests.patience import PATIENCE

PACKAGE = Path(__file__).parents[3] / "orchestrator"


def names_of_the_node(package: Path) -> list[str]:
    """Every file that a node's own python3 loads; training is loaded by the one that has torch."""
    inside = [path for folder in ("protocol", "outcome", "node") for path in sorted((package / folder).rglob("*.py"))]
    return ["__init__.py", "version.py", "training/call.py", *(str(path.relative_to(package)) for path in inside)]


NAMES = names_of_the_node(PACKAGE)

# (module, attribute) of the standard library from 3.10 on, as far as somebody might reach for them here.
NEWER = {
    ("asyncio", "timeout"), ("asyncio", "timeout_at"), ("asyncio", "TaskGroup"), ("asyncio", "Runner"),
    ("asyncio", "Barrier"), ("itertools", "pairwise"), ("itertools", "batched"), ("datetime", "UTC"),
    ("contextlib", "aclosing"), ("contextlib", "chdir"), ("hashlib", "file_digest"), ("types", "NoneType"),
    ("types", "UnionType"), ("types", "EllipsisType"), ("enum", "StrEnum"), ("sys", "orig_argv"),
    ("sys", "stdlib_module_names"), ("sys", "exception"), ("inspect", "get_annotations"),
    ("typing", "Self"), ("typing", "TypeAlias"), ("typing", "ParamSpec"), ("typing", "assert_never"),
    ("typing", "Never"), ("typing", "override"), ("operator", "call"),
}  # fmt: skip
WITH = {  # what a file may import where an interpreter has it
    "node/launcher/launcher.py": "torch", "training/call.py": "torch",
    "node/launcher/rank/debugger.py": "debugpy", "node/debug/adapter.py": "debugpy",
    "protocol/checkpoints/checksum.py": "blake3", "node/system/macos.py": "psutil",
}  # fmt: skip
NEWER_MODULES = {"tomllib"}
NEWER_BUILTINS = {"aiter", "anext", "ExceptionGroup", "BaseExceptionGroup", "EncodingWarning"}
NEWER_METHODS = {"bit_count", "add_note"}


def complaints(source: str) -> list[str]:
    """Where a file uses what Python 3.9 lacks."""
    tree = ast.parse(source, feature_version=(3, 9))
    found = []
    lazy = any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" and node.names[0].name == "annotations"
        for node in tree.body
    )
    annotations = {id(sub) for node in ast.walk(tree) for part in _annotations(node) for sub in ast.walk(part)}
    for node in ast.walk(tree):
        line = f"line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Attribute):
            value = node.value.id if isinstance(node.value, ast.Name) else ""
            if (value, node.attr) in NEWER or node.attr in NEWER_METHODS:
                found.append(f"{line}: {value}.{node.attr}")
        if isinstance(node, ast.ImportFrom):
            found += [f"{line}: {node.module}.{a.name}" for a in node.names if (node.module, a.name) in NEWER]
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [f"{line}: {module}" for module in modules if module in NEWER_MODULES]
        if isinstance(node, ast.Name) and node.id in NEWER_BUILTINS:
            found.append(f"{line}: {node.id}")
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            keywords = {keyword.arg for keyword in node.keywords}
            if (called == "zip" and "strict" in keywords) or (
                called.endswith("dataclass") and keywords & {"slots", "kw_only"}
            ):
                found.append(f"{line}: {called}({', '.join(filter(None, keywords))})")
        union = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
        if union and not (lazy and id(node) in annotations) and _is_type(node.left) and _is_type(node.right):
            found.append(f"{line}: {ast.unparse(node)} is evaluated")
    return found


def _annotations(node: ast.AST) -> list[ast.expr]:
    parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [part for part in parts if part is not None]


def _is_for_type_checkers(node: ast.stmt) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_type(node: ast.expr) -> bool:
    names = {"int", "str", "float", "bytes", "dict", "list", "tuple", "set", "bool", "None", "Any"}
    return ast.unparse(node).partition("[")[0] in names or ast.unparse(node)[:1].isupper()


@pytest.mark.parametrize("name", NAMES)
def test_files_of_the_node_keep_to_python_3_9(name: str) -> None:
    assert complaints((PACKAGE / name).read_text()) == []


@pytest.mark.parametrize("name", NAMES)
def test_files_of_the_node_load_only_the_standard_library_and_each_other(name: str) -> None:
    tree = ast.parse((PACKAGE / name).read_text())
    parts = [each for part in tree.body for each in (part.orelse if _is_for_type_checkers(part) else [part])]
    for node in (found for part in parts for found in ast.walk(part)):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        for module in modules:
            top = module.partition(".")[0]
            allowed = top in sys.stdlib_module_names or top == WITH.get(name)
            ours = ("orchestrator.node", "orchestrator.outcome", "orchestrator.protocol", "orchestrator.version")
            assert allowed or module.startswith(ours), (name, module)


@pytest.mark.parametrize(
    "source",
    [
        "zip(a, b, strict=True)",
        "isinstance(x, int | str)",
        "X = dict[str, int] | None",
        "def f(x: int | None): ...",
        "import asyncio\nasyncio.timeout(1)",
        "from contextlib import chdir",
        "import tomllib",
        "@dataclass(frozen=True, slots=True)\nclass A: ...",
        "raise ExceptionGroup('', [])",
    ],
)
def test_the_check_itself_finds_what_it_looks_for(source: str) -> None:
    assert complaints(source)


@pytest.mark.parametrize("line", ["import tomllib", "match x:\n  case 1: ..."])
def test_the_check_reaches_the_deepest_file_that_travels(tmp_path: Path, line: str) -> None:
    package = tmp_path / "orchestrator"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    deepest = max(names_of_the_node(package), key=lambda name: (name.count("/"), name))
    assert deepest.count("/") >= 2
    with open(package / deepest, "a") as file:
        file.write(f"\n{line}\n")
    failing = []
    for name in names_of_the_node(package):
        try:
            failing += [name] if complaints((package / name).read_text()) else []
        except SyntaxError:
            failing.append(name)
    assert failing == [deepest]


@pytest.mark.parametrize("source", ["match x:\n  case 1: ...", "try: ...\nexcept* E: ..."])
def test_newer_syntax_is_refused_by_the_parser(source: str) -> None:
    with pytest.raises(SyntaxError):
        complaints(source)


def test_unions_in_annotations_are_text_under_the_future_import() -> None:
    assert (
        complaints("from __future__ import annotations\ndef f(x: int | None) -> str | None: ...\nx: int | None = 1")
        == []
    )
    assert complaints("flags = os.O_CREAT | os.O_WRONLY\nours = seen | found") == []


def test_an_old_interpreter_takes_them_where_there_is_one() -> None:
    """The check above is only our own reading; a real old interpreter has the last word, if this machine has one."""
    for name in ("python3.9", "python3.10"):
        try:
            probe = subprocess.run([name, "-c", ""], capture_output=True, timeout=PATIENCE, check=False)
        except FileNotFoundError:
            continue
        if probe.returncode == 0:
            break
    else:
        pytest.skip("no older Python here")
    loads = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "import orchestrator.node.agent.agent, orchestrator.node.launcher.launcher"
    )
    done = subprocess.run(
        [name, "-I", "-S", "-c", loads, str(PACKAGE.parent)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
