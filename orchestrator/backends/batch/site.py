"""Runs a scheduler's programs on one machine, as rarely as possible. One query of the queue serves all runs."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orchestrator.errors import BackendError
from orchestrator.outcome.scheduler import JobEnd
from orchestrator.transport.address import HERE

if TYPE_CHECKING:  # a look at recorded runs runs no program
    from orchestrator.backends.batch.job import Ident
    from orchestrator.backends.batch.scheduler import Job, Query, Scheduler
    from orchestrator.runs.job_use import JobUse
    from orchestrator.transport.machine import Machine, Output

T = TypeVar("T")
SNAPSHOT_SECONDS: Final = 2.0  # sites limit a user to about two calls a second
PATIENCE: Final = 30.0
SUBMIT_SECONDS: Final = 120.0
QUICK_SECONDS: Final = 1.0  # after this time without an answer, the server is pinged
ACCOUNTING_LAG: Final = 3.0
REASON_SECONDS: Final = 20.0  # one query for each job that waits, so it is repeated less often than that of the queue


@dataclass
class QueueSnapshot:
    """The queue at one time. If the scheduler could not be queried, `jobs` is None and `problem` is the reason."""

    at: float = float("-inf")  # monotonic clock, when the answer arrived
    asked: float = float("-inf")  # wall clock, when the query was sent
    jobs: dict[str, Job] | None = None
    problem: str = ""
    ended: dict[str, Job] = field(default_factory=dict)  # details of jobs that have ended
    reasons: dict[str, tuple[float, str]] = field(default_factory=dict)  # why a job waits, and when that was read


class Site:
    """One scheduler on one machine, with a cached snapshot of its queue.

    workdir: orch's folder on a login node; "" for this machine. shared_parent: trust the other users who may write into
    the parent folders of workdir.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        machine: Callable[[], Machine],
        where: str = HERE,
        workdir: str = "",
        *,
        shared_parent: bool = False,
    ) -> None:
        self.scheduler, self.machine, self.where, self.workdir = scheduler, machine, where, workdir
        self.shared_parent = shared_parent
        self.snapshot, self._asking, self.is_slow = QueueSnapshot(), threading.Lock(), False
        self._missed: dict[str, float] = {}  # when a job was first missed in the accounting; monotonic clock
        self.arrays: dict[str, Ident] = {}  # the array that was submitted from a sweep's folder
        self._user = None if workdir else os.getuid()

    @property
    def hint(self) -> str:
        """Return a hint for the user if the scheduler's programs are missing."""
        return self.scheduler.hint(by_login=bool(self.workdir))

    def hello(self) -> dict[str, Any]:
        """Return the login node's home, workdir and free space. Raises BackendError if workdir is unsafe."""
        return self.machine().hello(self.workdir, shared_parent=self.shared_parent)

    def user(self) -> int:
        """Return the numeric id of the user who submits jobs on this machine."""
        if self._user is None:
            self._user = int(self.hello()["uid"])
        return self._user

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables of the shell that submits jobs. For a login node, return only the variables
        that set options of the scheduler's programs.
        """
        if not self.workdir:
            return os.environ
        lines = self.machine().run(self.scheduler.shell, patience=PATIENCE).out.splitlines()
        return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}

    # -- programs

    def call(self, *argv: str, stdin: str = "", timeout: float = PATIENCE) -> Output:
        """Run one of the scheduler's programs. Raises BackendError if the program is missing or does not answer."""
        kind = self.scheduler
        try:
            return self.machine().run(
                argv, stdin.encode(), patience=timeout, env=kind.plain, hide=kind.hide, keep=kind.keep
            )
        except BackendError as error:
            if error.transient or error.hint:
                raise
            raise BackendError(error.message, self.hint) from error  # the program is missing

    def need(self, *names: str) -> None:
        """Raise BackendError if one of these programs is missing."""
        if missing := self.missing(names):
            raise BackendError(f"there is no {', '.join(missing)} on {self.where}", self.hint)

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the names of the programs that the machine lacks."""
        return list(self.machine().call("missing_programs", names=list(names))[0]["missing"])

    def run_submit(self, argv: Sequence[str], hidden: Sequence[str]) -> Output:
        """Run the command that submits a job, with the user's environment variables except those that `hidden`
        names.
        """
        hide = (*self.scheduler.hide, "ORCH_", *(f"{name}=" for name in hidden))
        return self.machine().run(argv, patience=SUBMIT_SECONDS, hide=hide, keep=self.scheduler.keep)

    def _ask(self, query: Query[T]) -> T | None:
        """Run a query and return its parsed output; None if the program is missing, fails or does not answer."""
        answer = self._answer(query.argv)
        return query.parse(answer.out) if answer is not None and answer.code == 0 else None

    def _answer(self, argv: Sequence[str]) -> Output | None:
        try:
            return self.call(*argv)
        except BackendError:
            return None

    # -- the queue

    def queue(self, *, fresh: bool = False, since: float = 0.0) -> QueueSnapshot:
        """Return a snapshot of this user's jobs that is two seconds old at most. If `fresh` is True, query the
        scheduler now.

        since: the snapshot must have been taken after this time.
        """
        with self._asking:  # each run has a thread of its own, and one query serves all runs
            is_old = self.snapshot.asked < since or time.monotonic() - self.snapshot.at > SNAPSHOT_SECONDS
            if fresh or is_old:
                self._ask_queue()
        return self.snapshot

    def _ask_queue(self) -> None:
        self.snapshot.asked = time.time()
        try:
            query = self.scheduler.queue(self.user())
            answer = self._call_soon(query.argv)
            known = answer.code == 0
            self.snapshot.jobs = {job.job_id: job for job in query.parse(answer.out)} if known else None
            self.snapshot.problem = "" if known else first_line(answer.err)
        except BackendError as error:
            self.snapshot.jobs, self.snapshot.problem = None, error.message
        self.snapshot.at = time.monotonic()

    def _call_soon(self, argv: Sequence[str]) -> Output:
        """Run a program as `call` does. Raises BackendError after QUICK_SECONDS if the program does not answer and a
        ping shows that the server is down.
        """
        ping = self.scheduler.ping()
        if ping is not None and not self.is_slow:
            try:
                return self.call(*argv, timeout=QUICK_SECONDS)
            except BackendError as error:
                if not error.transient:
                    raise
                if trouble := ping.parse(self.call(*ping.argv, timeout=QUICK_SECONDS).out):
                    raise BackendError(trouble, transient=True) from error
        begun = time.monotonic()
        answer = self.call(*argv)
        self.is_slow = time.monotonic() - begun > QUICK_SECONDS
        return answer

    # -- one job

    def find(self, job_id: str | None, name: str, task: str = "") -> Job | None:
        """Find the run's job in the queue by its number, or by its name if the scheduler's answer with the number was
        lost.

        `task` is the run's number in the array of that name; empty if the run belongs to no array.
        """
        jobs = self.queue().jobs or {}
        if job_id is not None:
            if (found := jobs.get(job_id)) is None or not found.is_named(name):
                return None
            self._missed.pop(job_id, None)
            return found
        named = (job for job in jobs.values() if job.is_named(name) and job.job_id.partition("_")[2] == task)
        return max(named, key=lambda job: int(array_of(job.job_id)), default=None)

    def ended(
        self, job_id: str, name: str, seen: Job | None, left: Callable[[], float] = lambda: math.inf
    ) -> Job | None:
        """Return an ended job with all known details; None if neither the server nor the accounting knows it.

        The scheduler may have given the number to a later job, whose name then differs from the run's name. If the
        server does not know a job, the job has ended, even if the accounting lists it as running. The function `left`
        returns the time at which the run's agents ended, if it is known. Raises BackendError if the server does not
        answer.
        """
        if job_id in self.snapshot.ended:
            return self.snapshot.ended[job_id]
        query = self.scheduler.details(job_id)
        found, is_known = seen, query is not None
        shown = self._answer(query.argv) if query is not None else None
        if query is not None and shown is not None and shown.code == 0 and (job := query.parse(shown.out)) is not None:
            is_known = job.is_named(name)
            found = job if is_known else seen
        elif shown is not None and self.scheduler.is_unknown(f"{shown.err}\n{shown.out}"):
            is_known = False
        elif seen is None and shown is not None and self.scheduler.is_unreachable(shown.err):
            raise BackendError(first_line(shown.err), transient=True)
        elif query is not None and seen is None and shown is None:
            self.need(query.argv[0])  # a missing program is an error of its own
            raise BackendError(f"{query.argv[0]} does not answer", transient=True)
        if found is None:
            found = self._in_accounting(job_id, name)
            if not is_known and not _has_end(found):
                self._wait_for_record(job_id, left())
                found = self.scheduler.lost(job_id, name)
        elif found.ending is JobEnd.CANCELLED:
            found = replace(found, by=self._cancelled_by(job_id, name))
        if found is not None and found.phase == "ended":
            self.snapshot.ended[job_id] = found
        return found

    def _wait_for_record(self, job_id: str, left: float) -> None:
        """Raise a transient BackendError as long as the accounting may still get the missing record of an ended job.

        The waiting time is measured from `left`, the end of the run's agents, if that is known, so that all processes
        stop waiting at the same moment.
        """
        missed = self._missed.setdefault(job_id, time.monotonic())
        waited = max(time.monotonic() - missed, time.time() - left)
        if waited < self.scheduler.accounting_lag:
            raise BackendError(
                f"job {job_id} has ended, but the accounting of {self.scheduler.title} does not show its end yet",
                transient=True,
            )

    def with_reason(self, job: Job) -> Job:
        """Return a waiting job with the reason for its wait. If the queue does not show the reason, another of the
        scheduler's programs is run.
        """
        number = array_of(job.job_id)
        query = self.scheduler.reason(number)
        if query is None:
            return job
        now, (at, reason) = time.monotonic(), self.snapshot.reasons.get(number, (float("-inf"), ""))
        if now - at > REASON_SECONDS:
            reason = self._ask(query) or ""
            self.snapshot.reasons[number] = now, reason
        return replace(job, reason=reason)

    def _in_accounting(self, job_id: str, name: str) -> Job | None:
        """Return the job's record in the accounting; None if there is no record, or no accounting."""
        listed = self._ask(self.scheduler.accounting(job_id))
        return next((job for job in reversed(listed or ()) if job.is_named(name)), None)

    def used(self, job_id: str, name: str) -> JobUse | None:
        """Return the accounting's report on a job's use of resources; None if the accounting lacks the job. Raises
        BackendError if the accounting can't be queried.
        """
        query = self.scheduler.use(self.user(), job_id, name)
        self.need(query.argv[0])
        answer = self.call(*query.argv)
        if answer.code != 0:
            what = f"{query.argv[0]} can't tell what {self.scheduler.title} job {job_id} has used"
            raise BackendError(f"{what}: {first_line(answer.err)}")
        return query.parse(answer.out)

    def _cancelled_by(self, job_id: str, name: str) -> str:
        """Return the id of the user who cancelled a job. Only the accounting records this user, some seconds after the
        job's end.
        """
        end = time.monotonic() + ACCOUNTING_LAG
        while not self.missing(self.scheduler.accounting(job_id).argv[:1]):
            listed = self._in_accounting(job_id, name)
            if (listed is not None and listed.by) or time.monotonic() >= end:
                return listed.by if listed is not None else ""
            time.sleep(ACCOUNTING_LAG / 10)  # the accounting sends no message, so it is polled
        return ""

    def cancel(self, argv: Sequence[str], job_id: str) -> None:
        """Run a command that ends or signals a job. An empty command does nothing. If the job has already ended, no
        error is raised.
        """
        if not argv:
            return
        answer = self.call(*argv)
        said = f"{answer.err}\n{answer.out}"  # Grid Engine's qdel reports errors on the standard output
        # A negative code means that a signal ended the command itself, so its output proves nothing.
        if answer.code < 0 or (answer.code > 0 and not self.scheduler.is_over(said)):
            what = f"{argv[0]} can't end {self.scheduler.title} job {job_id}"
            raise BackendError(f"{what}: {first_line(said)}", transient=True)

    def hasten(self, job: Job) -> None:
        """Make a requeued job start soon, if the scheduler delays requeued jobs."""
        if (argv := self.scheduler.hasten(job)) is not None:
            self._answer(argv)

    def user_name(self, number: str) -> str:
        """Return the name of the user with this id; "" if the machine does not know the user."""
        answer = self._answer(("id", "-nu", number)) if number.isdecimal() else None
        return answer.out.strip() if answer is not None and answer.code == 0 else ""


def array_of(job_id: str) -> str:
    """Return a job's number without its task number. For a task of an array, this is the array's number."""
    return job_id.partition("_")[0]


def _has_end(listed: Job | None) -> bool:
    """Return True if the accounting has the final record of a job. For a cancelled job, the record must also name the
    user who cancelled it.
    """
    return listed is not None and listed.phase == "ended" and (listed.ending is not JobEnd.CANCELLED or listed.by != "")


def first_line(text: str) -> str:
    """Return the first line that is not empty, without the program's name at its beginning."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line.partition("error: ")[2] or line for line in lines]
    return said[0] if said else "it did not say why"
