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
    found = {**vars(loaded.job), "nodes": loaded.profile.nodes, "nproc_per_node": loaded.profile.nproc_per_node}
    assert {name: found[name] for name in fields} == fields
    assert loaded.code_dir == folder


def test_the_code_of_a_script_elsewhere_is_its_own_folder(folder: Path) -> None:
    for name in ("../else.py", str(folder.parent / "else.py")):
        loaded = load(read_line([name], folder).job, "local", cwd=folder)
        assert (loaded.code_dir, loaded.job.script) == (folder.parent, "else.py")


def test_an_interpreter_of_this_folder_is_the_profile_s(folder: Path) -> None:
    assert read_line([".venv/bin/python", "train.py"], folder).python == f"{folder}/.venv/bin/python"
    assert read_line(["python3.12", "train.py"], folder).python is None


@pytest.mark.parametrize(
    ("line", "notes"),
    [
        ("env A=1 nohup time -p stdbuf -oL torchrun train.py", []),
        ("A=1 nice -n 10 torchrun train.py", ["'nice -n 10' was left out"]),
        ("A=1 timeout 3h torchrun train.py", ["'timeout 3h' was left out; set resources.time in the job"]),
        ("uv run --with rich env A=1 torchrun train.py", ["'uv run --with rich' was left out"]),
    ],
)
def test_wrappers_are_left_out_and_named_if_they_matter(folder: Path, line: str, notes: list[str]) -> None:
    typed = read_line(line.split(), folder)
    assert [note[: len(wanted)] for note, wanted in zip(typed.notes, notes, strict=True)] == notes
    job = load(typed.job, "local", flags={}, cwd=folder).job
    assert (job.script, dict(job.env), typed.program) == ("train.py", {"A": "1"}, "torchrun")


def test_conda_run_names_the_interpreter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder.parent / "conda"
    for place in (root / "bin", root / "envs/rl/bin", folder.parent / "listed/bin", folder.parent / "home/.conda"):
        place.mkdir(parents=True)
    for place in (root, root / "envs/rl", folder.parent / "listed"):
        (place / "bin/python").touch(mode=0o755)
    (folder.parent / "home/.conda/environments.txt").write_text(f"{folder.parent}/listed\n/gone\n")
    monkeypatch.setenv("HOME", str(folder.parent / "home"))
    monkeypatch.setenv("CONDA_EXE", f"{root}/bin/conda")
    for option, prefix in (("-n rl", root / "envs/rl"), ("-n listed", folder.parent / "listed"), ("", root),
                           (f"-p {root}/envs/rl", root / "envs/rl")):  # fmt: skip
        typed = read_line(f"conda run {option} torchrun train.py".split(), folder)
        assert typed.program == f"{prefix}/bin/python"
        assert typed.notes[0].startswith("'conda run' was left out: on other machines set `python` in the profile")
    typed = read_line(["conda", "run", "-n", "gone", "torchrun", "train.py"], folder)
    assert typed.program == "torchrun"
    assert "the environment gone was not found here, so set `python` in the profile" in typed.notes[0]


def test_what_is_not_taken_over_is_said(folder: Path) -> None:
    assert any(
        "srun's options" in note for note in read_line(["srun", "--gres=gpu:2", "python", "train.py"], folder).notes
    )
    with pytest.raises(UsageError, match="NUL"):
        read_line(["train.py", "a\0b"], folder)
