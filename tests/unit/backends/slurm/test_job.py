"""What brings a command to a node of a Slurm job."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from orchestrator.backends.slurm.scheduler import Slurm

ODD = ["sh", "-c", 'echo "$1"', "it's; rm -rf ~", "a b"]


def test_in_slurm_it_is_a_step_beside_the_agents_on_that_node() -> None:
    words = ("--jobid=17", "--overlap", "--export=ALL", "--nodelist=n3", "--nodes=1", "--ntasks=1", "--mem=0")
    found = Slurm().step("17", 2, "n3", ODD, terminal=True)[4:]
    assert found == ["srun", *words, "--cpu-bind=none", "--mpi=none", "--pty", *ODD]
    assert "--pty" not in Slurm().step("17", 0, "n1", ["true"], terminal=False)


def test_variables_of_the_shell_do_not_change_the_step(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\nenv\n")
    srun.chmod(0o755)
    told = {"SLURM_NTASKS": "9", "SRUN_CPUS_PER_TASK": "3", "SLURM_JOB_ID": "18"}
    kept = {"SLURM_CONF": "/etc/slurm.conf", "WORDS": "SLURM_CONF=x y", "LINES_OF": "a\nPATH"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        Slurm().step("17", 0, "n1", ["true"], terminal=False), env={"PATH": path, **told, **kept},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name, value in {**kept, "PATH": path}.items():
        assert f"{name}={value}\n" in done.stdout
    assert not [name for name in told if f"{name}=" in done.stdout]
