"""The schedulers' own commands that start a program on a machine of a job and connect the program's standard streams.

The scheduler authenticates the user to the machine. It kills all processes that such a command has started as soon as
the first of them ends. So the first process is `node.pyz stay`, which ends last.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from typing import Final

from orchestrator.errors import BackendError
from orchestrator.protocol.schedulers import SCHEDULERS, STARTERS
from orchestrator.transport.address import Address
from orchestrator.transport.carrier import Carrier

START_SECONDS: Final = 30.0  # for a scheduler to start a program
LOOK_SECONDS: Final = 10.0  # seconds that a scheduler may take to show a job


def in_job(address: Address, argv: Sequence[str], *, terminal: bool = False) -> list[str]:
    """Return the argv that runs a program on a machine of a job, with the command of the job's scheduler.

    As over SSH, the program starts in the home folder.
    """
    kind, _, job = address.job.partition(":")
    facts = SCHEDULERS[kind]
    argv = ["sh", "-c", 'cd; exec "$0" "$@"', *argv] if argv else []
    if facts.starter is not None and facts.starter.skips_first and is_here(address.host):
        return argv
    return facts.step(address.host, job, argv, terminal=terminal)


def by_hand(address: Address) -> str:
    """Return the command line to which a person can append a program to run it on the machine."""
    return shlex.join(STARTERS[address.by[0]].argv(address.host, address.job.partition(":")[2]))


def is_over(job: str) -> bool:
    """Return True if the scheduler answers that a job has ended; False otherwise, also if the scheduler can't be
    queried.
    """
    kind, _, number = job.partition(":")
    facts = SCHEDULERS[kind]
    argv = facts.hiding([word.format(job=number) for word in facts.state])
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, timeout=LOOK_SECONDS, errors="replace", env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    said = f"{done.stdout}{done.stderr}".strip()
    return bool(said or done.returncode == 0) and re.fullmatch(facts.over, said, re.DOTALL) is not None


def ended(job: str) -> str:
    """Return the error message about a job that has ended."""
    kind, _, number = job.partition(":")
    return f"{SCHEDULERS[kind].title} job {number}, which had the machines of the run, has ended"


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
