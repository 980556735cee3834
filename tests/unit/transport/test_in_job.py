"""Machines of a scheduler's job: their commands, and connections by stand-ins for these commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import BackendError, JobOverError
from orchestrator.protocol.schedulers import SCHEDULERS
from orchestrator.transport import in_job as module
from orchestrator.transport.address import Address
from orchestrator.transport.in_job import StartedInJob, in_job, is_over
from orchestrator.transport.pool import ConnectionPool
from tests.patience import PATIENCE

# It runs the words behind the last option here, as a step on the machine n2 of job 7. Slurm ends what the first process
# of a step leaves behind, and so does this.
SRUN = """\
case "$*" in *--jobid=7*--nodelist=n2*) ;; *) echo "srun: error: Invalid node name" >&2; exit 1 ;; esac
while [ "${1#--}" != "$1" ]; do shift; done
exec %s -c '
import os, subprocess, sys
code = subprocess.run(sys.argv[1:], start_new_session=True).returncode
sys.exit(code)' "$@"
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of PATH, for stand-ins. Job 7 runs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    program(folder, "squeue", "echo RUNNING")
    program(folder, "ssh", "echo 'Permission denied (publickey)' >&2; exit 255")
    program(folder, "srun", SRUN % sys.executable)
    return folder


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def pool() -> Iterator[ConnectionPool]:
    found = ConnectionPool()
    yield found
    found.close()


IN_HOME = ["sh", "-c", 'cd; exec "$0" "$@"']
LINE = """sh -c 'cd; exec "$0" "$@"' python3 -c 'print(1)'"""


@pytest.mark.parametrize(
    ("job", "plain", "terminal"),
    [
        ("sge:7", ["env", "JOB_ID=7", "qrsh", "-inherit", "-V", "n2", LINE],
         ["env", "JOB_ID=7", "qrsh", "-inherit", "-V", "-pty", "yes", "n2", LINE]),
        ("oar:7", ["env", "OAR_JOB_ID=7", "oarsh", "-T", "n2", LINE],
         ["env", "OAR_JOB_ID=7", "oarsh", "-t", "n2", LINE]),
        ("lsf:7", ["env", "LSB_JOBID=7", "blaunch", "n2", LINE], ["env", "LSB_JOBID=7", "blaunch", "n2", LINE]),
    ],
)  # fmt: skip
def test_a_schedulers_command_has_a_shell_read_one_line(job: str, plain: list[str], terminal: list[str]) -> None:
    address = Address("n2", by=("any",), job=job)
    argv = ["python3", "-c", "print(1)"]
    assert in_job(address, argv) == plain
    assert in_job(address, argv, terminal=True) == terminal


def test_srun_takes_words_and_none_of_the_shells_options() -> None:
    address = Address("n2", by=("srun",), job="slurm:7")
    argv = in_job(address, ["python3", "-c", "print(1)"])
    assert argv[:3] == SCHEDULERS["slurm"].hiding(["srun"])[:3]
    assert argv[3:] == [
        "srun", "srun", "--jobid=7", "--overlap", "--export=ALL", "--nodelist=n2", "--nodes=1", "--ntasks=1", "--mem=0",
        "--cpu-bind=none", "--mpi=none", "--quiet", "--unbuffered", *IN_HOME, "python3", "-c", "print(1)",
    ]  # fmt: skip
    assert "--pty" in in_job(address, ["sh"], terminal=True)


def test_grid_engine_starts_nothing_beside_the_jobs_script() -> None:
    here = Address(os.uname().nodename, by=("qrsh",), job="sge:7")
    assert in_job(here, ["python3", "-c", "print(1)"]) == [*IN_HOME, "python3", "-c", "print(1)"]


def test_the_first_way_that_works_is_taken_and_the_others_are_named(
    programs: Path, pool: ConnectionPool, tmp_path: Path
) -> None:
    address = Address("n2", by=("ssh", "srun"), job="slurm:7")
    session = pool.session(address, str(tmp_path / "work"))
    assert session.way.startswith("srun; not by ssh: n2")
    assert session.call("hello", workdir=str(tmp_path / "work"), shared_parent=False)[0]["workdir"]
    assert pool.way(address, "").by == ("srun",)
    program(programs, "ssh", "echo tried >>$HOME/tried; exit 255")
    with pytest.raises(
        BackendError, match=r"^n3: srun ended with code 1: srun: error: Invalid node name\ntry: srun --jobid=7 "
    ):
        pool.session(Address("n3", by=("ssh", "srun"), job="slurm:7"), str(tmp_path / "work"))
    assert not (tmp_path / "tried").exists()  # the way is known


def test_if_no_way_works_each_has_its_reason(programs: Path, pool: ConnectionPool) -> None:
    with pytest.raises(
        BackendError, match=r"^n3: none of ssh, srun starts a program on this host: ssh: .*; srun: srun ended"
    ):
        pool.session(Address("n3", by=("ssh", "srun"), job="slurm:7"), "~/.orch")


def test_an_agent_outlives_the_server_of_its_step(programs: Path, pool: ConnectionPool, tmp_path: Path) -> None:
    work = str(tmp_path / "work")
    session = pool.session(Address("n2", by=("srun",), job="slurm:7"), work)
    session.call("hello", workdir=work, shared_parent=False)
    # The shell ends at once, and its child goes on as an agent does.
    out = session.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], patience=PATIENCE).out
    child = int(out)
    step = session.channel.process  # type: ignore[attr-defined]
    session.close()
    with pytest.raises(subprocess.TimeoutExpired):
        step.wait(1)
    os.kill(child, signal.SIGTERM)
    assert step.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("kind", "name", "said", "code", "ended"),
    [
        ("slurm", "squeue", "RUNNING", 0, False),
        ("slurm", "squeue", "", 0, True),
        ("slurm", "squeue", "COMPLETING", 0, True),
        ("slurm", "squeue", "slurm_load_jobs error: Invalid job id specified", 1, True),
        ("slurm", "squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1, False),
        ("sge", "qstat", "Following jobs do not exist:\n7", 1, True),
        ("sge", "qstat", "job_number: 7", 0, False),
        ("sge", "qstat", "error: commlib error: got select error", 1, False),
        ("pbs", "qstat", "qstat: Unknown Job Id 7.server", 153, True),
        ("pbs", "qstat", "qstat: 7.server Job has finished, use -x or -H", 35, True),
        ("pbs", "qstat", "7.server  run  alice  00:00:01 R workq", 0, False),
        ("oar", "oarstat", "7: Terminated", 0, True),
        ("oar", "oarstat", "7: Running", 0, False),
        ("lsf", "bjobs", "EXIT", 0, True),
        ("lsf", "bjobs", "Job <7> is not found", 255, True),
        ("lsf", "bjobs", "RUN", 0, False),
    ],
)  # fmt: skip
def test_a_job_is_over_only_if_the_scheduler_says_so(
    programs: Path, kind: str, name: str, said: str, code: int, ended: bool
) -> None:
    program(programs, name, f"printf '%s\\n' '{said}'; exit {code}")
    assert is_over(f"{kind}:7") is ended


def test_a_job_whose_scheduler_is_missing_is_not_over(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert not is_over("oar:7")
    assert not is_over("slurm:7")


def test_a_machine_of_a_job_that_has_ended_is_not_used(
    programs: Path, pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_over", lambda job: True)
    with pytest.raises(JobOverError, match=r"^n2: Slurm job 7, which had the machines of the run, has ended$"):
        pool.session(Address("n2", by=("srun",), job="slurm:7"), "~/.orch")


def test_the_way_to_this_machine_of_a_job_is_the_one_that_works(
    programs: Path, pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "is_here", lambda host: True)
    address = Address("n2", by=("ssh", "srun"), job="slurm:7")
    assert pool.way(address, str(tmp_path / "work")).by == ("srun",)


def test_a_connection_ends_although_a_thread_waits_to_send(programs: Path) -> None:
    program(programs, "srun", "exec sleep 300")
    started = StartedInJob(Address("n2", by=("srun",), job="slurm:7"), ["true"])
    began, ended = threading.Event(), list[BaseException]()

    def send() -> None:
        began.set()
        try:
            started.send(b"x" * (64 << 20))
        except OSError as error:
            ended.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    began.wait(PATIENCE)
    started.close()
    sender.join(PATIENCE)
    assert len(ended) == 1
    started.process.kill()


def test_a_start_ends_at_its_limit_also_if_a_child_holds_the_streams(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.2)
    program(programs, "srun", f"sleep 300 & echo $! >{programs}/child; wait")
    started = StartedInJob(Address("n2", by=("srun",), job="slurm:7"), ["true"])
    assert started.stream.readline() == b""
    with pytest.raises(BackendError, match=r"^n2: srun did not start a program within 0\.2 s\n"):
        started.last_words()
    started.close()
    os.kill(int((programs / "child").read_text()), signal.SIGKILL)
