"""Slurm's own programs, asked as seldom as will do: one squeue for all runs, and more only of a job that has ended."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from orchestrator.backends.slurm_state import (
    SACCT_FIELDS,
    SQUEUE_FORMAT,
    JobLine,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    wait_seconds,
)
from orchestrator.errors import BackendError

LOOK_SECONDS: Final = 2.0  # sites limit a user to about two calls a second
PATIENCE: Final = 30.0
AFTER_REQUEUE: Final = 5
ACCOUNTING_LAG: Final = 3.0


@dataclass(frozen=True)
class Answer:
    """What one of Slurm's programs printed, and how it ended."""

    code: int
    out: str
    err: str


@dataclass
class Look:
    """The last look at the queue; `jobs` is None where Slurm could not be asked, and `problem` says why."""

    at: float = float("-inf")
    jobs: dict[str, JobLine] | None = None
    problem: str = ""
    ended: dict[str, JobLine] = field(default_factory=dict)  # what was asked of jobs that are over


_look = Look()


def call(*argv: str) -> Answer:
    """Run one of Slurm's programs; BackendError where it isn't there or doesn't answer."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SACCT_"))}
    environment |= {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=PATIENCE, env=environment, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise BackendError(f"there is no {argv[0]} on this machine", NO_SLURM) from error
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"{argv[0]} did not answer for {PATIENCE:g} s", transient=True) from error
    return Answer(done.returncode, done.stdout, done.stderr)


NO_SLURM: Final = "submit from a login node, where sbatch is on PATH, or try the job on this machine with --rehearse"


def queue(*, fresh: bool = False) -> Look:
    """This user's jobs by their number, those that ended some minutes ago included; asked at most every two seconds."""
    if fresh or time.monotonic() - _look.at > LOOK_SECONDS:
        try:
            answer = call(
                "squeue", "--noheader", "--states=all", f"--user={os.getuid()}", f"--format={SQUEUE_FORMAT}"
            )  # fmt: skip
            known = answer.code == 0
            _look.jobs = {job.job_id: job for job in parse_squeue(answer.out)} if known else None
            _look.problem = "" if known else first_line(answer.err)
        except BackendError as error:
            _look.jobs, _look.problem = None, error.message
        _look.at = time.monotonic()
    return _look


def find(job_id: str | None, name: str) -> JobLine | None:
    """The run's job in the queue: by its number, or, where its submit's answer was lost, by its name."""
    jobs = queue().jobs or {}
    if job_id is not None:
        found = jobs.get(job_id)
        return found if found is not None and found.name == name else None
    return max((job for job in jobs.values() if job.name == name), key=lambda job: int(job.job_id), default=None)


def ended(job_id: str, name: str, seen: JobLine | None) -> JobLine | None:
    """A job that is over, with what scontrol and sacct know more of it than squeue; None where none of them knows it.

    A number may have been given to another job since: one with another name is not this one.
    """
    if job_id in _look.ended:
        return _look.ended[job_id]
    found = seen
    shown = _ask("scontrol", "show", "job", "-o", job_id)
    if shown is not None and (job := parse_scontrol(shown)) is not None and job.name == name:
        found = job
    if found is None:
        found = _in_accounting(job_id, name)
    elif found.state == "CANCELLED":
        found = replace(found, by=_cancelled_by(job_id, name))
    if found is not None and found.phase == "ended":
        _look.ended[job_id] = found
    return found


def _in_accounting(job_id: str, name: str) -> JobLine | None:
    """The job as sacct has it; None where it has none, or there is no accounting."""
    listed = _ask("sacct", "-n", "-X", "-P", "-j", job_id, "-o", SACCT_FIELDS)
    return next((job for job in reversed(parse_sacct(listed or "")) if job.name == name), None)


def _cancelled_by(job_id: str, name: str) -> str:
    """The number of the user who cancelled a job, which only the accounting knows, and some moments late."""
    end = time.monotonic() + ACCOUNTING_LAG
    while shutil.which("sacct") is not None:
        listed = _in_accounting(job_id, name)
        if (listed is not None and listed.by) or time.monotonic() >= end:
            return listed.by if listed is not None else ""
        time.sleep(ACCOUNTING_LAG / 10)  # sacct can only be asked again
    return ""


def _ask(*argv: str) -> str | None:
    """What the program printed; None where it isn't there, refuses, or (sacct) there is no accounting."""
    try:
        answer = call(*argv)
    except BackendError:
        return None
    return answer.out if answer.code == 0 else None


def scancel(job_id: str, *options: str) -> None:
    """End a job, or signal it; that it is over already is no error."""
    answer = call("scancel", *options, job_id)
    if answer.code != 0 and "Invalid job id" not in answer.err and "already completing" not in answer.err:
        raise BackendError(f"scancel can't end Slurm job {job_id}: {first_line(answer.err)}", transient=True)


def hurry(job: JobLine) -> None:
    """Let a requeued job start soon: Slurm holds it back for two minutes, so that its last start is gone everywhere.

    A node refuses a start of the very second in which it ended the one before, and Slurm then ends the job for good.
    """
    if wait_seconds(job.start, time.time()) > 2 * AFTER_REQUEUE:
        _ask("scontrol", "update", f"jobid={job.job_id}", f"starttime=now+{AFTER_REQUEUE}")


def user_name(number: str) -> str:
    """The name of the user with this number; the empty text where it is unknown here."""
    try:
        return pwd.getpwuid(int(number)).pw_name if number else ""
    except (KeyError, ValueError):
        return ""


def first_line(text: str) -> str:
    """The first line that says something, without the program's name in front."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line.partition("error: ")[2] or line for line in lines]
    return said[0] if said else "it did not say why"


def programs(names: Sequence[str]) -> str:
    """The names of those that are not on PATH, joined."""
    return ", ".join(name for name in names if shutil.which(name) is None)
