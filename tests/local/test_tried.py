"""Programs that do what scripts of public repositories did when they were tried (docs/tried.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .conftest import Orch

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A folder with the data beside the folder of the programs."""
    for folder in ("data", "mnist"):
        (tmp_path / "examples" / folder).mkdir(parents=True)
    (tmp_path / "examples" / "data" / "train.txt").write_text("digits")
    for program in ("data_beside.py", "asks_terminal.py"):
        shutil.copy(PROGRAMS / program, tmp_path / "examples" / "mnist")
    return tmp_path / "examples"


def test_data_beside_the_folder_is_pointed_at_and_found_as_the_hint_says(orch: Orch, examples: Path) -> None:
    one = ("run", "-p", "local", "--nproc-per-node", "1", "--")
    done = orch(*one, "python", "data_beside.py", cwd=examples / "mnist")
    assert done.code == 100, done.err
    hint = " ".join(done.err.split())
    assert f"../data/train.txt is {examples}/data/train.txt on this machine" in hint
    assert f"submit from {examples} " in hint
    done = orch(*one, "bash", "-c", "cd mnist && python3 data_beside.py", cwd=examples)
    assert done.code == 0, done.err
    assert "read digits" in done.out


def test_a_program_that_asks_its_terminal_is_told_that_there_is_none(orch: Orch, examples: Path) -> None:
    one = ("run", "-p", "local", "--nproc-per-node", "1", "--")
    done = orch(*one, "python", "asks_terminal.py", cwd=examples / "mnist")
    assert done.code == 100, done.err
    assert "a rank has no terminal" in " ".join(done.err.split())
    done = orch(*one, "script", "-qec", "python3 asks_terminal.py", "/dev/null", cwd=examples / "mnist")
    assert done.code == 0, done.err
    assert "columns True" in done.out
