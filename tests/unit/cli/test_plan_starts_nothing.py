"""A plan in a hostile repository starts no program, and lists what a submit would run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "os.forkpty", "pty.spawn")
# Runs each command of the first argument in one process, and prints the programs that a command starts.
DRIVER = f"""
import json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
started = []
sys.addaudithook(lambda event, args: started.append([event, repr(args)]) if event in {STARTS} else None)
import orchestrator.cli
for argv in json.loads(sys.argv[1]):
    said, before = StringIO(), len(started)
    sys.argv = ["orch", *argv]
    with redirect_stdout(said), redirect_stderr(said):
        try:
            orchestrator.cli.main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([argv, code or 0, said.getvalue(), started[before:]]))
before = len(started)
os.environ.update(_ORCH_COMPLETE="bash_complete", COMP_WORDS="orch submit train -p l", COMP_CWORD="4")
sys.argv, said = ["orch"], TextIOWrapper(BytesIO())
with redirect_stdout(said):
    try:
        orchestrator.cli.main()
    except SystemExit:
        pass
print(json.dumps([["completion"], 0, said.buffer.getvalue().decode(), started[before:]]))
from orchestrator.mcp import answers
print(json.dumps([["mcp"], 0, json.dumps(answers.list_runs()), started[before:]]))
"""
COMMANDS = [
    ["plan", "train"], ["plan", "train", "-p", "shim"], ["plan", "train", "-p", "local", "-p", "cluster"],
    ["submit", "train", "--dry-run"], ["submit", "train", "-p", "cluster", "--dry-run"],
    ["submit", "train", "--dry-run", "--sweep", "job.checkpoint.keep=1,2"],
    ["run", "-p", "plain", "--dry-run", "--", "./bin/torchrun", "--nproc_per_node", "2", "train.py"],
    ["run", "-p", "plain", "--dry-run", "--", "./bin/python", "train.py"],
    ["run", "--dry-run", "--", "conda", "run", "-n", "bad", "python", "train.py"],
    ["init", "new", "./bin/torchrun", "train.py"], ["schema", "job"], ["completion", "zsh"], ["profiles"],
]  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A downloaded repository in which every program is the attacker's."""
    folder = tmp_path / "downloaded"
    for name in ("bin", "jobs", "cluster_profiles", ".venv/bin", ".git/hooks"):
        (folder / name).mkdir(parents=True)
    for name in ("bin/python", "bin/torchrun", "bin/git", "bin/nvidia-smi", "bin/sbatch", ".venv/bin/python", "notify"):
        (folder / name).write_text(f'#!/bin/sh\necho "$0" >> {tmp_path}/started\nexec {sys.executable} "$@"\n')
        (folder / name).chmod(0o755)
    (folder / ".git/config").write_text(f"[core]\n\tfsmonitor = {folder}/bin/git\n\thooksPath = .git/hooks\n")
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (folder / "train.py").write_text("import multiprocessing\n")
    notify = "notify: [{on: [failed], command: [./notify]}]\n"
    (folder / "jobs/train.yaml").write_text(f"script: train.py\ncode: {{dir: ..}}\n{notify}")
    (folder / "cluster_profiles/local.yaml").write_text("kind: local\npython: ./.venv/bin/python\nsetup: [./notify]\n")
    (folder / "cluster_profiles/plain.yaml").write_text("kind: local\n")
    (folder / "cluster_profiles/shim.yaml").write_text(f"kind: local\npython: {folder}/bin/python\n")
    (folder / "cluster_profiles/cluster.yaml").write_text("kind: slurm\nworkdir: ~/x\npython: ./bin/python\n")
    return folder


def test_a_plan_in_a_hostile_repository_starts_no_program(repository: Path, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "ORCH_HOME": str(tmp_path / "state"), "PATH": os.environ["PATH"]}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", DRIVER, json.dumps(COMMANDS)], cwd=repository, env=environ, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    said = {
        " ".join(argv): (code, text, started)
        for argv, code, text, started in map(json.loads, ended.stdout.splitlines())
    }
    assert {name: started for name, (_, _, started) in said.items() if started} == {}
    assert {name: text for name, (code, text, _) in said.items() if code} == {}
    assert not (tmp_path / "started").exists()
    for name in ("plan train", "submit train --dry-run"):
        text = said[name][1]
        assert "note: cluster_profiles/local.yaml is used, and hides" in text, name
        assert "run on this machine:\n  ./.venv/bin/python, to test whether it starts; a plan does not start it" in text
        assert "  notify on failed: ./notify\n" in text, name
    assert "plain,local\n" in said["completion"][1]
    assert f"{repository}/bin/python, to test whether it starts" in said[" ".join(COMMANDS[6])][1]
