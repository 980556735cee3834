"""What `orch run` makes of the words after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.operations.submission.run import read_line
from orchestrator.specs.documents.loader import load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "proj/scripts").mkdir(parents=True)
    for name in ("proj/train.py", "proj/scripts/eval.py", "else.py"):
        (tmp_path / name).touch()
    return tmp_path / "proj"


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("train.py --lr 0.1 --set x", {"name": "train", "script": "train.py", "args": ("--lr", "0.1", "--set", "x")}),
        ("./train.py", {"script": "train.py"}),
        ("scripts/eval.py", {"name": "eval", "script": "scripts/eval.py"}),
        ("python -u train.py", {"script": "train.py"}),
        ("python -m pkg.train -x", {"name": "train", "module": "pkg.train", "args": ("-x",)}),
        ("torchrun --nnodes 3 --nproc_per_node 4 train.py", {"script": "train.py", "nodes": 3, "nproc_per_node": 4}),
        ("torchrun --nnodes 3 train.py", {"nodes": 3, "nproc_per_node": 2}),
        ("srun -N 2 --ntasks-per-node=2 python train.py", {"nodes": 2, "nproc_per_node": 2}),
        ("LR=0.1 bash -c 'echo $LR'", {"name": "bash", "command": ("bash", "-c", "echo $LR"), "env": {"LR": "0.1"}}),
    ],
)
def test_a_line_becomes_a_job_that_loads(folder: Path, line: str, fields: dict[str, Any]) -> None:
    import shlex

    typed = read_line(shlex.split(line), folder)
    flags = {"profile.nodes": typed.nodes, "profile.nproc_per_node": typed.nproc_per_node}
    loaded = load(typed.job, "local", flags=flags, cwd=folder)
    found = {**loaded.job.model_dump(), "nodes": loaded.profile.nodes, "nproc_per_node": loaded.profile.nproc_per_node}
    assert {name: found[name] for name in fields} == fields
    assert loaded.code_dir == folder


def test_the_code_of_a_script_elsewhere_is_its_own_folder(folder: Path) -> None:
    for name in ("../else.py", str(folder.parent / "else.py")):
        loaded = load(read_line([name], folder).job, "local", cwd=folder)
        assert (loaded.code_dir, loaded.job.script) == (folder.parent, "else.py")


def test_an_interpreter_of_this_folder_is_the_profile_s(folder: Path) -> None:
    assert read_line([".venv/bin/python", "train.py"], folder).python == f"{folder}/.venv/bin/python"
    assert read_line(["python3.12", "train.py"], folder).python is None


def test_what_is_not_taken_over_is_said(folder: Path) -> None:
    assert any(
        "srun's options" in note for note in read_line(["srun", "--gres=gpu:2", "python", "train.py"], folder).notes
    )
    with pytest.raises(UsageError, match="NUL"):
        read_line(["train.py", "a\0b"], folder)
