"""A file that a run lacked beside or above the code folder is pointed at, and no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.outcome.verdict import Cause, Outcome, Verdict
from orchestrator.runs.missing_files import explained
from orchestrator.runs.record import PlanRecord, RunRecord

DOWNLOAD = {
    "type": "RuntimeError",
    "message": "Error downloading train-images-idx3-ubyte.gz:",
    "traceback": "  File \"main.py\", line 120, in main\n    dataset1 = datasets.MNIST('../data', train=True)\n",
}


def hint(
    code: Path | None, error: dict[str, Any] | None, tail: tuple[str, ...] = (), outcome: Outcome = Outcome.FAILED
) -> str:
    run: Any = SimpleNamespace(
        record=lambda: RunRecord("r", code_dir=str(code) if code else None), plan=PlanRecord, code_files=dict
    )
    verdict = Verdict(outcome, Cause.USER_ERROR, rank=0, error=error, tail=tail, hint="the usual one")
    return explained(run, verdict).hint


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The folder of a script in a repository, which has its data beside the folder and two levels above."""
    for folder in ("data", "mnist/own", "../datasets/mnist"):
        (tmp_path / "examples" / folder).mkdir(parents=True)
    return tmp_path / "examples" / "mnist"


def test_a_download_of_what_is_beside_the_folder(code: Path) -> None:
    top = code.parent
    assert hint(code, DOWNLOAD) == (
        f"../data is {top}/data on this machine, but only {code} was sent to the nodes: submit from {top} with a "
        "command that changes the folder, as in: orch run -- bash -c 'cd mnist && python SCRIPT'"
    )


@pytest.mark.parametrize(
    ("path", "top", "below"),
    [
        ("../data", "examples", "mnist"),
        ("../../datasets/mnist", "", "examples/mnist"),
        ("./../data", "examples", "mnist"),
    ],
)
def test_a_file_that_is_not_found(code: Path, tmp_path: Path, path: str, top: str, below: str) -> None:
    words = f"[Errno 2] No such file or directory: '{path}'"
    for said in (
        hint(code, {"type": "FileNotFoundError", "message": words}),
        hint(code, None, (f"FileNotFoundError: {words}",)),
    ):
        assert said.startswith(f"{path} is ")
        assert f"submit from {tmp_path / top} " in said
        assert f"'cd {below} && " in said


@pytest.mark.parametrize(
    "path", ["../nothing", "own", "../mnist/own", "../../../../../../../..", "../\0", "../" + "x" * 300]
)
def test_what_is_not_there_or_inside_keeps_its_hint(code: Path, path: str) -> None:
    assert (
        hint(code, {"type": "FileNotFoundError", "message": f"No such file or directory: '{path}'"}) == "the usual one"
    )


def test_other_errors_and_other_ends_keep_their_hint(code: Path) -> None:
    assert hint(code, {"type": "ValueError", "message": "bad shape", "traceback": "open('../data')"}) == "the usual one"
    assert hint(code, DOWNLOAD, outcome=Outcome.CANCELLED) == "the usual one"
    assert hint(None, DOWNLOAD) == "the usual one"


def test_a_traceback_that_names_a_download_is_no_missing_file(code: Path) -> None:
    error = {**DOWNLOAD, "type": "OutOfMemoryError", "message": "CUDA out of memory"}
    error["traceback"] += "    get('../data', download=True)\n"
    assert hint(code, error, ("Downloading to '../data'",)) == "the usual one"


def test_a_hint_that_names_the_rule_is_kept(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.runs.missing_files._why_not_there", lambda *_: "named by .gitignore:1")
    error = {"type": "FileNotFoundError", "message": "No such file or directory: 'a.txt', nor '../data'"}
    verdict = Verdict(Outcome.FAILED, Cause.USER_ERROR, error=error, rank=0, hint="the usual one")
    run: Any = SimpleNamespace(record=lambda: RunRecord("r", code_dir=str(code)), plan=PlanRecord, code_files=dict)
    assert explained(run, verdict).hint == "named by .gitignore:1"
