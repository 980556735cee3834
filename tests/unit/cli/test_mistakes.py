"""What orch answers to mistakes that people make, compared with tests/golden/mistakes.txt.

After a change that is meant: UPDATE_GOLDEN=1 pytest tests/unit/cli/test_mistakes.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import orchestrator.cli
from orchestrator.outcome.verdict import Verdict
from orchestrator.runs.store import state_root
from tests.unit.cli.test_cli import make_run

GOLDEN = Path(__file__).parents[2] / "golden" / "mistakes.txt"
LAB = 'kind: ssh\nhosts: ["n[1-3]"]\n'
JOB = "script: train.py\n"

# What is done, the files that differ from JOB and LAB, and what is typed.
MISTAKES: list[tuple[str, dict[str, str], str]] = [
    ("a misspelt command", {}, "statsu"),
    ("another tool's command", {}, "clean"),
    ("no command of anything's", {}, "frobnicate"),
    ("a misspelt option", {}, "status --jsno"),
    ("another tool's option", {}, "submit train.yaml -p lab --gpus 4"),
    ("an option of the script without --", {}, "submit train.yaml -p lab --lr 0.1"),
    ("an option of the script before it", {}, "run --lr 0.1 train.py"),
    ("a profile without -p", {}, "submit train.yaml lab"),
    ("an argument that is missing", {}, "why"),
    ("an option that is missing", {}, "debug train.yaml"),
    ("a number that is none", {}, "logs last --rank q"),
    ("one argument too many", {}, "status one two"),
    ("no job", {}, "submit -p lab"),
    ("a script for a job file", {}, "submit train.py -p lab"),
    ("a misspelt job", {}, "submit tran.yaml -p lab"),
    ("a misspelt profile", {}, "submit train.yaml -p lob"),
    ("an empty file", {"train.yaml": ""}, "submit train.yaml -p lab"),
    ("a tab in YAML", {"train.yaml": "script: train.py\nenv:\n\tA: b\n"}, "submit train.yaml -p lab"),
    ("a misspelt field", {"train.yaml": f"{JOB}arg: [--lr, 1]\n"}, "submit train.yaml -p lab"),
    ("args as text", {"train.yaml": f"{JOB}args: --lr 1\n"}, "submit train.yaml -p lab"),
    ("command as text", {"train.yaml": "command: bash run.sh\n"}, "submit train.yaml -p lab"),
    ("a misspelt script", {"train.yaml": "script: trian.py\n"}, "submit train.yaml -p lab"),
    ("a script with its arguments", {"train.yaml": "script: train.py --epochs 1\n"}, "submit train.yaml -p lab"),
    ("a script that can't be run", {"train.yaml": "command: [./run.sh]\n", "run.sh": "#!/bin/sh\n"},
     "submit train.yaml -p lab"),
    ("a field of the profile in the job", {"train.yaml": f"{JOB}nodes: 2\n"}, "submit train.yaml -p lab"),
    ("a field of the job in the profile", {"cluster_profiles/lab.yaml": f"{LAB}args: [x]\n"},
     "submit train.yaml -p lab"),
    ("a time that is ambiguous", {"cluster_profiles/lab.yaml": "kind: slurm\nnodes: 1\ntime: 1:30\n"},
     "submit train.yaml -p lab"),
    ("hosts without quotes", {"cluster_profiles/lab.yaml": "kind: ssh\nhosts: [n[1-3]]\n"},
     "submit train.yaml -p lab"),
    ("host for hosts", {"cluster_profiles/lab.yaml": "kind: ssh\nhost: n1\n"}, "submit train.yaml -p lab"),
    ("a kind that there is not", {"cluster_profiles/lab.yaml": "kind: k8s\n"}, "submit train.yaml -p lab"),
    ("gpus in a profile", {"cluster_profiles/lab.yaml": f"{LAB}gpus: 4\n"}, "submit train.yaml -p lab"),
    ("gpus in a slurm profile", {"cluster_profiles/lab.yaml": "kind: slurm\nnodes: 1\ngpus: 4\n"},
     "submit train.yaml -p lab"),
    ("a password in a profile", {"cluster_profiles/lab.yaml": f"{LAB}password: x\n"}, "submit train.yaml -p lab"),
    ("ssh's name for the key", {"cluster_profiles/lab.yaml": f"{LAB}identity_file: x\n"}, "submit train.yaml -p lab"),
    ("modules in a profile", {"cluster_profiles/lab.yaml": "kind: slurm\nnodes: 1\nmodules: [cuda]\n"},
     "submit train.yaml -p lab"),
    ("sbatch's options as text", {"cluster_profiles/lab.yaml": 'kind: slurm\nsbatch: "--reservation=x --qos=y"\n'},
     "submit train.yaml -p lab"),
    ("another cluster of Slurm's",
     {"cluster_profiles/lab.yaml": "kind: slurm\nnodes: 1\nsbatch: {clusters: east}\n"}, "submit train.yaml -p lab"),
    ("more nodes than hosts", {"cluster_profiles/lab.yaml": "kind: ssh\nhosts: [n1]\nnodes: 3\n"},
     "submit train.yaml -p lab"),
    ("variables as a list", {"train.yaml": f"{JOB}env: [A=1]\n"}, "submit train.yaml -p lab"),
    ("a number of retries", {"train.yaml": f"{JOB}retry: 3\n"}, "submit train.yaml -p lab"),
    ("another launcher", {"train.yaml": f"{JOB}launcher: deepspeed\n"}, "submit train.yaml -p lab"),
    ("nodes by --set", {}, "submit train.yaml -p lab --set nodes=2"),
    ("a field that there is not", {}, "submit train.yaml -p lab --set job.foo=1"),
    ("a name with a slash", {}, "submit train.yaml -p lab --name a/b"),
    ("a state of a run to start after", {}, "submit train.yaml -p lab --after bad-111111:failed"),
    ("a time that is none", {}, "wait bad-111111 --timeout soon"),
    ("a host twice", {"cluster_profiles/lab.yaml": "kind: ssh\nhosts: [n1, n1]\n"}, "submit train.yaml -p lab"),
    ("a secret that is not set", {"train.yaml": f"{JOB}secrets: [WANDB_TEST_KEY]\n"}, "submit train.yaml -p lab"),
    ("a variable that is not set", {}, "submit train.yaml -p lab --env WANDB_TEST_KEY"),
    ("ranks that don't divide the batch", {"train.yaml": "training: {task: train.py}\n"},
     "submit train.yaml -p local --nproc-per-node 5"),
    ("a value of another type", {"train.yaml": "training: {task: train.py}\n"},
     "submit train.yaml -p local --set lr=abc"),
    ("a field by another name", {"train.yaml": "training: {task: train.py}\n"},
     "submit train.yaml -p local --set learning_rate=0.1"),
    ("too much in the code folder", {"train.yaml": f"{JOB}code: {{max_size: 1kB}}\n", "data.bin": "x" * 5000},
     "submit train.yaml -p local"),
    ("lines that are no patterns of git's", {".gitignore": "*.pt\n!\n[z-a]\n", ".orchignore": "data\\\n"},
     "submit train.yaml -p local"),
    ("after a run that has failed", {}, "submit train.yaml -p local --after bad-111111"),
    ("an ambiguous run", {}, "why ba"),
    ("a run that there is not", {}, "why nobody"),
    ("a sweep of no metric", {}, "best -m accuracy"),
]  # fmt: skip


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in {"train.py": "", "train.yaml": JOB, "cluster_profiles/lab.yaml": LAB, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def answer(folder: Path, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What is seen after the line, in the folder, with the exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["orch", *line.split()])
    with pytest.raises(SystemExit) as ended:
        orchestrator.cli.main()
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return f"$ orch {line}\n{out}{err}".replace(f"{folder}/", "").replace(str(folder), ".") + f"[{ended.value.code}]\n"


def test_mistakes_have_good_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORCH_PROFILE", raising=False)
    for name in ("bad-111111", "bad-222222"):
        make_run(name, Verdict("failed", "infra", "lost"))
    before = sorted(path.name for path in (state_root() / "runs").iterdir())
    answers = []
    for number, (what, files, line) in enumerate(MISTAKES):
        folder = tmp_path / str(number)
        write(folder, files)
        text = answer(folder, line, capsys, monkeypatch)
        assert text.splitlines()[-1] in ("[2]", "[102]"), text
        answers.append(f"# {what}\n{text}")
    assert sorted(path.name for path in (state_root() / "runs").iterdir()) == before  # nothing was started
    found = "\n".join(answers)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text(), "see the module's docstring"
