"""The schedulers' own commands that start a program on a machine of a job and connect the program's standard streams.

The scheduler authenticates the user to the machine. It kills all processes that such a command has started as soon as
the first of them ends. So the first process is `node.pyz stay`, which ends last.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.errors import BackendError
from orchestrator.protocol.layout import TITLES
from orchestrator.transport.address import Address
from orchestrator.transport.carrier import Carrier

START_SECONDS: Final = 30.0  # for a scheduler to start a program
SLURMS_OWN: Final = (
    "SBATCH_", "SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCONTROL_", "SACCT_", "SCANCEL_",
)  # fmt: skip
"""The prefixes of the variables that Slurm's programs read as options."""
SLURM_NEEDS: Final = ("SLURM_CONF", "SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_JWKS")
"""The variables that are kept although they have a prefix in SLURMS_OWN, because they name the cluster or authenticate
the user.
"""
_HIDING: Final = (
    f"for orch_each in $(env|sed -n 's/^\\([A-Z_a-z0-9]*\\)=.*/\\1/p'); do case $orch_each in {'|'.join(SLURM_NEEDS)})"
    f' ;; {"|".join(f"{prefix}*" for prefix in SLURMS_OWN)}) unset $orch_each;; esac; done; exec "$@"'
)


def hiding(argv: Sequence[str]) -> list[str]:
    """Return the argv that runs a program of Slurm without the environment variables that would change its
    behaviour.
    """
    return ["sh", "-c", _HIDING, argv[0], *argv]


@dataclass(frozen=True)
class Starter:
    """A scheduler's command that starts a program on a machine. `{host}` and `{job}` in its words are replaced by the
    machine and the job's number.

    plain: the options for a program without a terminal. terminal: the options for a program that gets this terminal.
    end: the words after the options.
    """

    words: tuple[str, ...]
    plain: tuple[str, ...] = ()
    terminal: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    is_slurms: bool = False  # the program is passed as separate words, and Slurm's own variables are hidden from srun
    skips_first: bool = False  # a program on this machine is started without the command


STARTERS: Final[Mapping[str, Starter]] = {
    # --overlap shares the machine with the job's other steps. Without --unbuffered, Slurm holds a program's bytes back
    # until a line is complete.
    "srun": Starter(
        ("srun", "--jobid={job}", "--overlap", "--export=ALL", "--nodelist={host}", "--nodes=1", "--ntasks=1",
         "--mem=0", "--cpu-bind=none", "--mpi=none"),
        plain=("--quiet", "--unbuffered"), terminal=("--pty",), is_slurms=True,
    ),
    # The job's script has a slot of the first machine, in which Grid Engine may start nothing else.
    "qrsh": Starter(
        ("env", "JOB_ID={job}", "qrsh", "-inherit", "-V"), terminal=("-pty", "yes"), end=("{host}",), skips_first=True
    ),
    "oarsh": Starter(("env", "OAR_JOB_ID={job}", "oarsh"), plain=("-T",), terminal=("-t",), end=("{host}",)),
    "blaunch": Starter(("env", "LSB_JOBID={job}", "blaunch"), end=("{host}",)),
}  # fmt: skip
"""The commands by their names in a profile's `start_by`. All commands except srun pass their last word to a shell."""


def in_job(address: Address, argv: Sequence[str], *, terminal: bool = False) -> list[str]:
    """Return the argv that runs a program on a machine of a job, by the first command that the machine's address lists.

    As over SSH, the program starts in the home folder.
    """
    starter = STARTERS[address.by[0]]
    argv = ["sh", "-c", 'cd; exec "$0" "$@"', *argv] if argv else []
    if starter.skips_first and is_here(address.host):
        return argv
    words = _words(address, starter.terminal if terminal else starter.plain)
    return hiding([*words, *argv]) if starter.is_slurms else [*words, *([shlex.join(argv)] if argv else [])]


def by_hand(address: Address) -> str:
    """Return the command line to which a person can append a program to run it on the machine."""
    return shlex.join(_words(address, ()))


def _words(address: Address, view: tuple[str, ...]) -> list[str]:
    starter, number = STARTERS[address.by[0]], address.job.partition(":")[2]
    return [word.format(host=address.host, job=number) for word in (*starter.words, *view, *starter.end)]


# For each kind of scheduler: the command that shows a job, and its output for a job that has ended. A job that waits
# again has lost its machines.
_JOB_STATES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "slurm": (("squeue", "--noheader", "--format=%T", "--jobs={job}"), r"|PENDING|COMPLETING|.*Invalid job id.*"),
    "sge": (("qstat", "-j", "{job}"), r".*do(es)? not exist.*"),
    "pbs": (("qstat", "{job}"), r".*(Unknown Job Id|has finished).*"),
    "oar": (("oarstat", "-s", "-j", "{job}"), r"\d+: (Terminated|Error).*"),
    "lsf": (("bjobs", "-noheader", "-o", "stat", "{job}"), r"(DONE|EXIT|PEND).*|.*is not found.*"),
}
LOOK_SECONDS: Final = 10.0


def is_over(job: str) -> bool:
    """Return True if the scheduler answers that a job has ended; False otherwise, also if the scheduler can't be
    queried.
    """
    kind, _, number = job.partition(":")
    words, pattern = _JOB_STATES[kind]
    argv = [word.format(job=number) for word in words]
    try:
        done = subprocess.run(
            hiding(argv) if kind == "slurm" else argv, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, timeout=LOOK_SECONDS, errors="replace", env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    said = f"{done.stdout}{done.stderr}".strip()
    return bool(said or done.returncode == 0) and re.fullmatch(pattern, said, re.DOTALL) is not None


def ended(job: str) -> str:
    """Return the error message about a job that has ended."""
    kind, _, number = job.partition(":")
    return f"{TITLES[kind]} job {number}, which had the machines of the run, has ended"


def is_here(host: str) -> bool:
    """Return True if a job's host is this machine, compared by full or short name."""
    own = os.uname().nodename
    return own == host or own.startswith(f"{host}.") or host.startswith(f"{own}.")


class StartedInJob(Carrier):
    """A program on a machine of a job, with its standard streams."""

    def __init__(self, address: Address, argv: list[str]) -> None:
        super().__init__(address, in_job(address, argv), START_SECONDS)

    def last_words(self) -> tuple[int, str]:
        """Raise BackendError with the reason why the program did not start, from the command's exit code and error
        output.
        """
        code, said = self.end()
        said = " ".join(said.split())[-600:]
        how = f"ended with code {code}" if code >= 0 else f"did not start a program within {START_SECONDS:g} s"
        raise BackendError(
            f"{self.address.host}: {self.address.by[0]} {how}{f': {said}' if said else ''}",
            f"try: {self.address.ssh_command} hostname", transient=True,
        )  # fmt: skip
