"""What a shell completes: runs, sweeps, profiles and jobs, by names alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from orchestrator.cli import orch
from orchestrator.runs.run_id import point_id
from orchestrator.runs.store import append_lines, create_run, state_root
from tests.patience import PATIENCE

from .test_imports import HEAVY

SWEEP = "digits-qpcqr9"
RUNS = ["train-aaaaaa", *(point_id(SWEEP, index) for index in range(3)), "train-bbbbbb"]
SHIPPED = ["local", "local-2x2", "slurm-3x4", "ssh-3x4"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job and a profile of its own, and a state folder with two runs and a sweep of three."""
    for name in RUNS:
        create_run(state_root(), name, {"kind": "local"}, indexed=False)
    append_lines(state_root() / "index", RUNS)
    here = tmp_path / "project"
    for name in ("mine.yaml", "jobs/hand.yml", "cluster_profiles/lab.yaml"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("{}")
    monkeypatch.chdir(here)
    return here


def completed(*words: str) -> list[str]:
    """What the last word may become; `(file)` where the shell is to complete files."""
    found = ShellComplete(orch, {}, "orch", "_ORCH_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return ["(file)" if item.type == "file" else item.value for item in found]


@pytest.mark.parametrize("command", ["why", "bundle", "checkpoints", "replay", "shell", "diff"])
def test_a_run(command: str) -> None:
    assert completed(command, "") == ["last", *reversed(RUNS)]
    assert completed(command, "train-b") == ["train-bbbbbb"]
    assert completed(command, "nobody") == []


@pytest.mark.parametrize("command", ["status", "logs", "cancel", "wait", "rm", "pull", "best", "plot"])
def test_a_run_or_a_sweep(command: str) -> None:
    assert completed(command, "") == ["last", "train-bbbbbb", SWEEP, "train-aaaaaa"]
    assert completed(command, "dig") == [SWEEP]
    assert completed(command, f"{SWEEP}.") == [point_id(SWEEP, index) for index in (2, 1, 0)]


def test_several_runs_and_options_that_take_one() -> None:
    assert completed("diff", "train-aaaaaa", "train-b") == ["train-bbbbbb"]
    assert completed("rm", "train-aaaaaa", "train-b") == ["train-bbbbbb"]
    assert completed("export", "torchrun", "tr") == ["train-bbbbbb", "train-aaaaaa"]
    for option in ("--resume", "--from"):
        assert completed("submit", option, "train-a") == ["train-aaaaaa"]
    assert completed("submit", "hello", "--after", "dig") == [SWEEP]


@pytest.mark.parametrize("command", ["submit", "plan", "doctor", "nodes", "gc"])
def test_a_profile(command: str) -> None:
    assert completed(command, "--profile", "") == ["lab", *SHIPPED]
    assert completed(command, "-p", "lo") == ["local", "local-2x2"]
    assert completed(command, "-p", "./cluster") == ["(file)"]


@pytest.mark.parametrize("command", ["submit", "plan"])
def test_a_job(command: str) -> None:
    assert completed(command, "m") == ["mine.yaml", "mnist_ddp"]
    assert completed(command, "h") == ["hand", "hello", "hf_trainer"]
    assert completed(command, "../") == ["(file)"]


def test_a_state_folder_that_can_not_be_read_completes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "file"))
    assert completed("status", "") == []
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "none"))
    assert completed("status", "") == ["last"]


def test_runs_that_another_machine_looks_after() -> None:
    pointer = {"run_id": "far-cccccc", "host": "me@box", "orch": "orch", "time": 1.0}
    (state_root() / "elsewhere").mkdir()
    (state_root() / "elsewhere" / "far-cccccc.json").write_text(json.dumps(pointer))
    assert completed("status", "far") == ["far-cccccc"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("orch status di", [SWEEP]),
        ("orch logs -f tr", ["train-bbbbbb", "train-aaaaaa"]),
        ("orch submit hello -p loc", ["local", "local-2x2"]),
        ("orch submit mi", ["mine.yaml"]),
        ("orch exp", ["export"]),
    ],
)
def test_in_bash(tmp_path: Path, line: str, words: list[str]) -> None:
    program = tmp_path / "bin" / "orch"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom orchestrator.cli import main\ntry:\n    main()\nfinally:\n"
        f"    if len(sys.argv) == 1: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    program.chmod(0o755)
    typed = line.split()
    script = (
        "source <(orch completion bash)\ncomplete -p orch >/dev/null || exit 9\n"
        f'COMP_WORDS=({line})\nCOMP_CWORD={len(typed) - 1}\n_orch_completion orch\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment
    )
    assert (done.returncode, done.stdout.split()) == (0, words), done.stderr
    assert done.stderr.strip() == "[]"  # nothing heavy was loaded for it


@pytest.mark.parametrize("odd", ["zz$(touch x)", "zz;id", "zz`id`", "zz*", "zz id", "zz'", "zz\\", "zz\n", "zzä"])
def test_a_name_that_the_shell_would_read_as_code_is_not_offered(folder: Path, odd: str) -> None:
    for name in ("cluster_profiles", "jobs", "."):
        (folder / name / f"{odd}.yaml").write_text("{}")
        (folder / name / "zz-1.2@x:y+z_.yaml").write_text("{}")
    assert completed("submit", "job.yaml", "-p", "zz") == ["zz-1.2@x:y+z_"]
    assert completed("submit", "zz") == ["zz-1.2@x:y+z_.yaml", "zz-1.2@x:y+z_"]
