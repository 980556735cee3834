"""The parts that PBS and Grid Engine share: their qsub takes a batch script, whose comments contain options."""

from __future__ import annotations

import re
import signal
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from orchestrator.backends.batch.scheduler import Array, Job, Order, Put, RefusedError, Scheduler
from orchestrator.backends.batch.script import Words, as_comments, as_words, job_script, stays_ended
from orchestrator.errors import BackendError
from orchestrator.outcome.scheduler import JobEnd

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from orchestrator.backends.batch.site import Site
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.transport.machine import Output

_ENDINGS: Final = {
    "done": JobEnd.COMPLETED, "failed": JobEnd.FAILED, "deleted": JobEnd.CANCELLED, "limit": JobEnd.TIMEOUT,
}  # fmt: skip


@dataclass(frozen=True)
class QsubJob(Job):
    """A job with the exit code of its batch script."""

    code: int | None = None

    @property
    @abstractmethod
    def end(self) -> str:
        """Return how the job ended: done, failed, deleted, limit, or a word for which JobEnd has no member."""

    @property
    def ending(self) -> JobEnd:
        return _ENDINGS.get(self.end, JobEnd.OTHER)


def by_signal(code: int | None, base: int) -> str:
    """Return the signal that ended a batch script, as ` by SIGKILL`, if its recorded code is `base` and the signal's
    number; "" otherwise.
    """
    number = (code or 0) - base
    return f" by {signal.Signals(number).name}" if number in set(signal.Signals) else ""


def says(said: str, words: Sequence[str]) -> bool:
    """Return True if an error message has one of these words."""
    return any(each.lower() in said.lower() for each in words)


class Qsub(Scheduler):
    """A scheduler whose qsub takes a batch script. Each scheduler has its own options and error messages."""

    mark: ClassVar[str]
    """The beginning of the script's comments that contain options."""
    number: ClassVar[str]
    """The shell expression for the job's number."""
    task: ClassVar[str]
    """The shell expression for the number of an array's task, counted from 0."""
    again: ClassVar[Sequence[str]]
    """The lines of the script that ask the scheduler to start the job again."""
    command: ClassVar[Sequence[str]] = ("qsub",)
    """The command that submits a job. The options and the script are appended."""
    always: ClassVar[Sequence[tuple[str, object]]] = (("-j", "oe"),)
    """The options that each job of orch has."""
    places: ClassVar[Mapping[str, str]] = {"-q": "queue", "-A": "account"}
    """The options that say where a job runs, and the profile's fields for them."""
    accepted: ClassVar[str]
    """The pattern of the line with the job's number in the output of `command`."""
    up_hint: ClassVar[str]
    """A hint on how to check that the server is up."""
    refusals: ClassVar[Sequence[tuple[str, str, str]]]
    """The known error messages of qsub: words of a message, their meaning, and a hint. `{name}` in a meaning is
    replaced by the profile's field of that name.
    """
    unreachable: ClassVar[Sequence[str]]
    """The words of an error message if the server could not be reached."""
    unanswered: ClassVar[Sequence[str]]
    """The words of an error message if the server may have queued the job."""

    @abstractmethod
    def requests(self, launch: LaunchPlan, array: Array | None) -> list[tuple[str, object]]:
        """Return the options of qsub that only this scheduler has, with their values as `as_words` reads them."""

    def options(self, launch: LaunchPlan, array: Array | None = None) -> list[str]:
        """Return all options of qsub for a plan."""
        from orchestrator.specs.profile import QsubProfile, as_profile

        pairs: list[tuple[str, object]] = [
            ("-V", True),
            ("-N", self.job_name(array.sweep if array else launch.run_id)),
            ("-S", "/bin/sh"),
            ("-o", "/dev/null"),  # the script opens a log of its own, which no other start has
            ("-r", "n" if stays_ended(launch) else "y"),
            *([] if launch.job.batch else self.requests(launch, array)),
        ]
        given = as_profile(launch.profile, QsubProfile).qsub
        extra = {f"-{name}": value for name, value in given.items() if value is not False}
        # A batch file has its own options, and the profile's queue and account only if the file sets none.
        if batch := launch.job.batch:
            own = batch.options
            where = [(flag, getattr(launch.profile, field)) for flag, field in self.places.items() if flag not in own]
            return [*as_words([*pairs, *self.always, *where, *extra.items()]), *own]
        return as_words([*pairs, *extra.items()])

    def job_id_of(self, answer: str) -> str | None:
        """Return the job's number in the output of qsub; None if the output has no number.

        A site's own qsub may print other lines first.
        """
        found = [match[1] for line in answer.splitlines() if (match := re.fullmatch(self.accepted, line.strip()))]
        return found[-1] if found else None

    def job_name(self, name: str) -> str:
        """Return the name for the job of a run or sweep."""
        return name

    def text(self, launch: LaunchPlan, array: Array | None = None) -> str:
        """Return the batch script for a plan."""
        options = as_comments(self.mark, self.options(launch, array))
        return job_script(Words(self.facts.name, self.number, self.task, options, self.again), launch, array)

    def is_unreachable(self, said: str) -> bool:
        return says(said, self.unreachable)

    def is_unanswered(self, said: str) -> bool:
        return says(said, self.unanswered)

    def refusal(self, said: str, launch: LaunchPlan, site: Site) -> BackendError:
        """Return the error for the output of qsub. If the output contains no known message, the error has the whole
        output.
        """
        lines = [line.strip() for line in said.splitlines() if line.strip() and line.strip() != "Exiting."]
        last = "; ".join(line.removeprefix("Unable to run job: ").removeprefix("qsub: ") for line in lines)
        last = last or "it did not say why"
        for words, meaning, hint in self.refusals:
            if says(said, (words,)):
                return BackendError(f"{meaning.format(**vars(launch.profile))} (qsub: {last})", hint)
        if self.is_unreachable(said):
            return BackendError(f"{self.title}'s server can't be reached: {last}", self.up_hint, transient=True)
        return BackendError(
            f"qsub refused the job: {last}", "orch submit --dry-run shows the script that qsub was given"
        )

    def submit(self, order: Order, put: Put, call: Callable[[Sequence[str]], Output]) -> str:
        path = f"{order.folder}/{self.folder}/submission.sh"
        put(path, self.text(order.launch, order.array).encode())
        # On the command line, the options override those of the site's or the user's files.
        answer = call((*self.command, *self.options(order.launch, order.array), path))
        if answer.code != 0 or (number := self.job_id_of(answer.out)) is None:
            raise RefusedError(answer.err.strip() or answer.out)
        return number

    def script(self, launch: LaunchPlan) -> str:
        return self.text(launch)

    def asked(self, launch: LaunchPlan) -> Mapping[str, Any]:
        own = self.job_name(launch.run_id)
        return {"options of qsub": [word for word in self.options(launch) if word != own]}
