"""The tests that CONTRIBUTING.md names for each promise are there, and `make test` has one of each promise."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEVELS = {"cluster": "testbed"}  # a folder of tests/ whose level has another name
BACKENDS = {  # the last column of docs/failures.md, and the tests that it stands for
    "local": "tests/local/",
    "ssh": "tests/cluster/test_ssh",
    "slurm": "tests/cluster/test_slurm",
    "unit": "tests/unit/",
}


def promises(title: str = "") -> dict[str, list[tuple[str, str]]]:
    """Each promise of a section, or of all, and its tests: level and name."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## What is proved, and where\n")[2].partition("\n## ")[0]
    if title:
        text = text.partition(f"### {title}\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (.*?) \| (\w+: `tests/.*) \|$", text, re.MULTILINE)
    return {promise: re.findall(r"(\w+): `(.*?)`", tests) for promise, tests in rows}


NAMED = sorted({each for tests in promises().values() for each in tests})


@cache
def functions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def marks(path: str, name: str) -> list[ast.expr]:
    """The marker `full` of a test and of its file."""
    own = functions(path)[name].decorator_list
    tree = ast.parse((ROOT / path).read_text())
    whole = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    of_file = [each for value in whole for each in (value.elts if isinstance(value, ast.List) else [value])]
    return [mark for mark in (*own, *of_file) if ast.unparse(mark).startswith("pytest.mark.full")]


def is_full(test: str) -> bool:
    path, _, name = test.partition("::")
    return bool(marks(path, name))


def problem_of(test: str) -> str:
    """The reason why a name is no test of `make test`; empty if it is a test, or a file of tests."""
    path, _, name = test.partition("::")
    name = name.partition("[")[0]
    if not (ROOT / path).is_file() or (name and name not in functions(path)):
        return "is not there"
    return "is in `make test-all` alone, too" if name and is_full(f"{path}::{name}") else ""


def test_the_rows_of_the_failures_page_are_promises_and_say_where_they_were_tried() -> None:
    table = (ROOT / "docs" / "failures.md").read_text().partition("\n\nEverything but success")[0]
    lines = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    rows = [(cells[0].strip(), re.sub(r" [0-9.]+ s", "", cells[-1]).strip()) for cells in lines]
    expected = [
        (what, ", ".join(kind for kind, path in BACKENDS.items() if any(test.startswith(path) for _, test in tests)))
        for what, tests in promises("Failures").items()
    ]
    assert [what for what, _ in rows] == [what for what, _ in expected], "both tables have the same rows in one order"
    assert rows == expected, "the last column names the folders of the row's tests in CONTRIBUTING.md"


def test_each_section_of_the_security_page_has_promises_in_its_order() -> None:
    sections = re.findall(r"^## (.+)$", (ROOT / "docs" / "security.md").read_text(), re.MULTILINE)
    assert list(dict.fromkeys(what.partition(":")[0] for what in promises("Security"))) == sections


@pytest.mark.parametrize(("level", "test"), NAMED, ids=[test for _, test in NAMED])
def test_a_test_that_is_named_is_there_and_at_that_level(level: str, test: str) -> None:
    path, _, name = test.partition("::")
    assert name in functions(path), f"{path} has no {name}"
    folder = path.split("/")[1]
    assert level == LEVELS.get(folder, folder)


def test_each_promise_has_a_test_in_make_test() -> None:
    assert [what for what, tests in promises().items() if all(is_full(test) for _, test in tests)] == []


def full_tests() -> list[tuple[str, ast.Call]]:
    """The tests and files with the marker `full`, and the marker."""
    found = []
    for path in sorted((ROOT / "tests").glob("**/test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.full":
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node))
    return found


@pytest.mark.parametrize(("place", "mark"), full_tests(), ids=[place for place, _ in full_tests()])
def test_a_test_of_test_all_alone_names_what_shows_the_same_in_make_test(place: str, mark: ast.Call) -> None:
    covers = [ast.literal_eval(each) for each in mark.args]
    reasons = {keyword.arg: ast.literal_eval(keyword.value) for keyword in mark.keywords}
    assert set(reasons) <= {"because"}
    assert covers or reasons.get("because"), f"{place}: name a test of `make test` that shows the same, or say because"
    assert {test: problem for test in covers if (problem := problem_of(test))} == {}, place
