"""A missing module that lies above the code folder is pointed at, and no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.outcome.verdict import Cause, Outcome, Verdict
from orchestrator.runs.missing_files import explained
from orchestrator.runs.record import RunRecord


def hint(code: Path, module: str = "pkg.data", kind: str = "ModuleNotFoundError") -> str:
    error = {"type": kind, "message": f"No module named '{module}'"}
    return hint_of(code, Verdict(Outcome.FAILED, Cause.USER_ERROR, rank=0, error=error, hint="install it"))


def hint_of(code: Path, verdict: Verdict) -> str:
    run: Any = SimpleNamespace(record=lambda: RunRecord("r", code_dir=str(code)), code_files=dict)
    return explained(run, verdict).hint


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the packages pkg and src/inner, a module one.py, a folder of data, and code in a/tools."""
    top = tmp_path / "repo"
    for folder in (".git", "pkg", "src/inner", "data", "a/tools"):
        (top / folder).mkdir(parents=True)
    for file in ("pkg/__init__.py", "src/inner/x.py", "one.py", "data/x.txt", "../outside.py"):
        (top / file).touch()
    return top


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            "pkg",
            [
                "pkg is in {top}, outside the code folder {top}/a/tools, so it was not sent: start from {top}",
                "(cd ../..; orch run -- env PYTHONPATH=. torchrun a/tools/SCRIPT)",
                "code.dir: ../..",
                "PYTHONPATH: .",
            ],
        ),
        ("one", ["one is in {top}, "]),
        ("inner.x", ["inner is in {top}/src, ", "PYTHONPATH: src"]),
    ],
)
def test_a_module_above_the_code_is_pointed_at(repository: Path, module: str, words: list[str]) -> None:
    said = hint(repository / "a" / "tools", module)
    for word in words:
        assert word.format(top=repository) in said


@pytest.mark.parametrize(
    "line", ["/bin/python: No module named pkg", "python: Error (ModuleNotFoundError: No module named 'pkg')"]
)
def test_a_module_that_python_m_lacks_is_pointed_at(repository: Path, line: str) -> None:
    verdict = Verdict(Outcome.FAILED, Cause.USER_ERROR, rank=0, tail=("x", line), hint="install it")
    assert f"pkg is in {repository}" in hint_of(repository / "a/tools", verdict)


@pytest.mark.parametrize("module", ["torch", "data", "outside"])
def test_what_is_no_module_of_the_repository_is_not(repository: Path, module: str) -> None:
    assert hint(repository / "a" / "tools", module) == "install it"


def test_other_errors_and_a_code_folder_that_is_the_repository_keep_their_hint(repository: Path) -> None:
    assert hint(repository / "a" / "tools", kind="ValueError") == "install it"
    assert hint(repository, "outside") == "install it"
    assert hint(repository / "gone", "nothing") == "install it"
