"""Slurm's own programs, asked as seldom as will do: one squeue for all runs, and more only of a job that has ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from orchestrator.backends.slurm.environment import is_strange
from orchestrator.backends.slurm.errors import is_unreachable
from orchestrator.backends.slurm.parse import (
    FORGOTTEN,
    SACCT_FIELDS,
    SQUEUE_FORMAT,
    USE_FIELDS,
    JobLine,
    controller_trouble,
    number_of,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    parse_use,
    wait_seconds,
)
from orchestrator.errors import BackendError
from orchestrator.runs.job_use import JobUse

NO_SLURM: Final = "submit from a login node, where sbatch is on PATH, or through one: set login: in the profile"
SNAPSHOT_SECONDS: Final = 2.0  # sites limit a user to about two calls a second
NO_TLS: Final = "can't speak TLS 1.3, by which the nodes of a run prove themselves to one another"
PATIENCE: Final = 30.0
QUICK_SECONDS: Final = 1.0  # after which a controller that has not answered yet is asked whether it is up at all
UNKNOWN_JOB: Final = "Invalid job id"
AFTER_REQUEUE: Final = 5
ACCOUNTING_LAG: Final = 3.0
PLAIN: Final = {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}


@dataclass(frozen=True)
class Answer:
    """What one of Slurm's programs printed, and how it ended."""

    code: int
    out: str
    err: str


@dataclass
class QueueSnapshot:
    """The queue as it was asked for last; `jobs` is None where Slurm could not be asked, and `problem` says why."""

    at: float = float("-inf")  # by the monotonic clock, when the answer was here
    asked: float = float("-inf")  # by the wall clock, when it was asked for
    jobs: dict[str, JobLine] | None = None
    problem: str = ""
    ended: dict[str, JobLine] = field(default_factory=dict)  # what was asked of jobs that are over


class CommandRunner(Protocol):
    """Runs Slurm's programs: on this machine, or on a login node."""

    where: str  # `this machine`, or the login node's name

    def run(self, argv: Sequence[str], stdin: str, timeout: float) -> Answer:
        """Return what the program printed; BackendError where it isn't there, or takes longer than so many seconds."""

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return those of these programs that are not there."""

    def user(self) -> int:
        """Return the number of the user whose jobs they are."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables of the shell in which sbatch runs; at least the variables that begin with SBATCH_."""


class LocalRunner:
    """Slurm's programs on this machine."""

    where = "this machine"

    def run(self, argv: Sequence[str], stdin: str, timeout: float) -> Answer:
        """See CommandRunner."""
        environment = {name: value for name, value in os.environ.items() if not is_strange(name)}
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, errors="replace", timeout=timeout, check=False, input=stdin,
                env=environment | PLAIN,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BackendError(f"{argv[0]} did not answer for {timeout:g} s", transient=True) from error
        except OSError as error:  # it isn't there, or is no program
            raise BackendError(f"there is no {argv[0]} on this machine", NO_SLURM) from error
        return Answer(done.returncode, done.stdout, done.stderr)

    def missing(self, names: Sequence[str]) -> list[str]:
        """See CommandRunner."""
        return [name for name in names if shutil.which(name) is None]

    def user(self) -> int:
        """See CommandRunner."""
        return os.getuid()

    def environment(self) -> Mapping[str, str]:
        """See CommandRunner."""
        return os.environ


class Client:
    """One Slurm, and its queue as it was asked for last."""

    def __init__(self, runner: CommandRunner) -> None:
        self.runner, self.snapshot, self._asking = runner, QueueSnapshot(), threading.Lock()
        self.is_slow = False
        self.arrays: dict[Path, str] = {}  # the number of the array that was submitted from a sweep's folder

    def call(self, *argv: str, stdin: str = "", timeout: float = PATIENCE) -> Answer:
        """Run one of Slurm's programs; BackendError where it isn't there or doesn't answer."""
        return self.runner.run(argv, stdin, timeout)

    def need(self, *names: str, hint: str = NO_SLURM) -> None:
        """Raise BackendError where one of these programs isn't there."""
        if missing := self.runner.missing(names):
            raise BackendError(f"there is no {', '.join(missing)} on {self.runner.where}", hint)

    def queue(self, *, fresh: bool = False, since: float = 0.0) -> QueueSnapshot:
        """Return this user's jobs by their number, those that ended lately included; asked every two seconds.

        since: a time before which Slurm must not have been asked.
        """
        with self._asking:  # each run has a thread of its own, and one look is enough for all
            is_old = self.snapshot.asked < since or time.monotonic() - self.snapshot.at > SNAPSHOT_SECONDS
            if fresh or is_old:
                self._ask_queue()
        return self.snapshot

    def _ask_queue(self) -> None:
        self.snapshot.asked = time.time()
        try:
            answer = self._call_soon(
                "squeue",
                "--noheader",
                "--states=all",
                "--array",
                f"--user={self.runner.user()}",
                f"--format={SQUEUE_FORMAT}",
            )
            known = answer.code == 0
            self.snapshot.jobs = {job.job_id: job for job in parse_squeue(answer.out)} if known else None
            self.snapshot.problem = "" if known else first_line(answer.err)
        except BackendError as error:
            self.snapshot.jobs, self.snapshot.problem = None, error.message
        self.snapshot.at = time.monotonic()

    def _call_soon(self, *argv: str) -> Answer:
        """Run one of Slurm's programs as `call`, but without its many tries where no controller is up."""
        if not self.is_slow:
            try:
                return self.call(*argv, timeout=QUICK_SECONDS)
            except BackendError as error:
                if not error.transient:
                    raise
                if trouble := controller_trouble(self.call("scontrol", "ping", timeout=QUICK_SECONDS).out):
                    raise BackendError(trouble, transient=True) from error
        begun = time.monotonic()
        answer = self.call(*argv)
        self.is_slow = time.monotonic() - begun > QUICK_SECONDS
        return answer

    def find(self, job_id: str | None, name: str, task: str = "") -> JobLine | None:
        """Find the run's job in the queue: by its number, or by its name if the answer of its submit was lost.

        `task` is the run's number in the array of that name; empty if the run belongs to no array.
        """
        jobs = self.queue().jobs or {}
        if job_id is not None:
            found = jobs.get(job_id)
            return found if found is not None and found.is_named(name) else None
        named = (job for job in jobs.values() if job.is_named(name) and job.job_id.partition("_")[2] == task)
        return max(named, key=lambda job: number_of(job.job_id), default=None)

    def ended(self, job_id: str, name: str, seen: JobLine | None) -> JobLine | None:
        """Return a job that is over, with the details of scontrol and sacct. None if neither knows the job.

        Slurm may have given the number to another job since then. That job does not have this run's name. A job that
        the controller does not know is over, whatever the accounting says. Raises BackendError if the controller
        does not answer.
        """
        if job_id in self.snapshot.ended:
            return self.snapshot.ended[job_id]
        found, is_known = seen, True
        shown = self._answer("scontrol", "show", "job", "-o", job_id)
        if shown is not None and shown.code == 0 and (job := parse_scontrol(shown.out)) is not None:
            is_known = job.is_named(name)
            found = job if is_known else seen
        elif shown is not None and UNKNOWN_JOB in shown.err:
            is_known = False
        elif seen is None and shown is not None and is_unreachable(shown.err):
            raise BackendError(first_line(shown.err), transient=True)
        if found is None:
            found = self._in_accounting(job_id, name)
            if not is_known and not _has_end(found):
                found = JobLine(job_id, FORGOTTEN, name)
        elif found.state == "CANCELLED":
            found = replace(found, by=self._cancelled_by(job_id, name))
        if found is not None and found.phase == "ended":
            self.snapshot.ended[job_id] = found
        return found

    def _in_accounting(self, job_id: str, name: str) -> JobLine | None:
        """Return the job as sacct has it; None where it has none, or there is no accounting."""
        listed = self._ask("sacct", "-n", "-X", "-P", "-j", job_id, "-o", SACCT_FIELDS)
        return next((job for job in reversed(parse_sacct(listed or "")) if job.is_named(name)), None)

    def used(self, job_id: str, name: str) -> JobUse | None:
        """Return what the accounting says that a job of this user has used; None if it knows none, or BackendError."""
        self.need("sacct")
        answer = self.call("sacct", "-n", "-P", "-u", str(self.runner.user()), "-j", job_id, "-o", USE_FIELDS)
        if answer.code != 0:
            raise BackendError(f"sacct can't tell what Slurm job {job_id} has used: {first_line(answer.err)}")
        return parse_use(answer.out, name)

    def _cancelled_by(self, job_id: str, name: str) -> str:
        """Return the number of the user who cancelled a job, which only the accounting knows, and some moments late."""
        end = time.monotonic() + ACCOUNTING_LAG
        while not self.runner.missing(["sacct"]):
            listed = self._in_accounting(job_id, name)
            if (listed is not None and listed.by) or time.monotonic() >= end:
                return listed.by if listed is not None else ""
            time.sleep(ACCOUNTING_LAG / 10)  # sacct can only be asked again
        return ""

    def _ask(self, *argv: str) -> str | None:
        """Return what the program printed; None where it isn't there, refuses, or (sacct) there is no accounting."""
        answer = self._answer(*argv)
        return answer.out if answer is not None and answer.code == 0 else None

    def _answer(self, *argv: str) -> Answer | None:
        try:
            return self.call(*argv)
        except BackendError:
            return None

    def scancel(self, job_id: str, *options: str) -> None:
        """End a job, or signal it; that it is over already is no error."""
        answer = self.call("scancel", *options, job_id)
        if answer.code != 0 and "Invalid job id" not in answer.err and "already completing" not in answer.err:
            raise BackendError(f"scancel can't end Slurm job {job_id}: {first_line(answer.err)}", transient=True)

    def release_requeued(self, job: JobLine) -> None:
        """Let a requeued job start soon: Slurm holds it back for two minutes, so that its last start is gone.

        A node refuses a start in the second in which it ended the one before, and Slurm then ends the job for good.
        """
        if wait_seconds(job.start, time.time()) > 2 * AFTER_REQUEUE:
            self._ask("scontrol", "update", f"jobid={job.job_id}", f"starttime=now+{AFTER_REQUEUE}")

    def user_name(self, number: str) -> str:
        """Return the name of the user with this number; empty where it is unknown there."""
        return (self._ask("id", "-nu", number) or "").strip() if number.isdecimal() else ""


def _has_end(listed: JobLine | None) -> bool:
    """Tell whether the accounting has the end of a job; one that the controller lost is in time cancelled by nobody."""
    return listed is not None and listed.phase == "ended" and (listed.state != "CANCELLED" or listed.by != "")


def first_line(text: str) -> str:
    """Return the first line that says something, without the program's name in front."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line.partition("error: ")[2] or line for line in lines]
    return said[0] if said else "it did not say why"
