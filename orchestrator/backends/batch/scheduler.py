"""The interface of a batch scheduler: its commands, each with a parser for the command's output.

The design follows PSI/J's `pbs_base.py`. `Batch` runs the commands, caches the queue, finds jobs whose number was lost,
verifies that a run has ended, and copies files.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from orchestrator.backends.base import CheckResult
from orchestrator.errors import BackendError, UsageError
from orchestrator.outcome.scheduler import JobEnd
from orchestrator.protocol.hostlist import expand
from orchestrator.protocol.schedulers import SCHEDULERS, SchedulerFacts

if TYPE_CHECKING:  # `orch status` must wait neither for pydantic nor for a submit
    from orchestrator.backends.base import Check
    from orchestrator.backends.batch.backend import Batch
    from orchestrator.backends.batch.site import Site
    from orchestrator.runs.job_use import JobUse
    from orchestrator.runs.record import RunRecord
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.transport.machine import Output

T = TypeVar("T")
ByShell = dict[str, dict[str, str]]
"""The options that environment variables of the shell have set: the `value` of each, and the variable (`by`)."""


@dataclass(frozen=True)
class Query(Generic[T]):
    """A command, and the parser of its output."""

    argv: Sequence[str]
    parse: Callable[[str], T]


@dataclass(frozen=True)
class Job(ABC):
    """A job as one of the scheduler's programs prints it. A field that the program does not print is empty."""

    job_id: str  # 17, or 17_3: task 3 of array 17
    state: str  # the scheduler's own word
    name: str = ""
    reason: str = ""  # the scheduler's own word for why the job waits
    start: str = ""  # when the job began, or may begin
    nodes: str = ""
    by: str = ""  # the number of the user who cancelled the job
    limit: int | None = field(default=None, kw_only=True)  # the job's time limit in seconds, if it is known

    @property
    @abstractmethod
    def phase(self) -> str:
        """Return the phase of the job: waiting, active or ended. An unknown state counts as active."""

    @property
    def is_stuck(self) -> bool:
        """Return True if the job may wait forever unless a person changes the job or the cluster."""
        return False

    @property
    def is_suspended(self) -> bool:
        """Return True if the job has its nodes, but the scheduler has suspended its processes."""
        return False

    @property
    def takes_signals(self) -> bool:
        """Return True if the scheduler can send a signal to the job's processes, and they can act on it."""
        return self.phase == "active" and not self.is_suspended

    @property
    def is_deferred(self) -> bool:
        """Return True if the job waits for a start time. A requeued job waits in this way."""
        return False

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the job's machines in the order of its nodes; empty if `nodes` does not list all of them."""
        try:
            return tuple(expand(self.nodes))
        except ValueError:
            return ()

    @property
    def ending(self) -> JobEnd:
        """Return how the job ended. The phase of the job must be `ended`."""
        return JobEnd.OTHER

    def is_named(self, name: str) -> bool:
        """Return True if the job belongs to the run or sweep of this name, and is not a later job with the same
        number.
        """
        return self.name == name

    @abstractmethod
    def why_it_waits(self, *, has_run: bool = False) -> str:
        """Return a sentence about the reason why the job waits. has_run: the job was started before, and was
        requeued.
        """

    @abstractmethod
    def how_it_ended(self, user: str = "") -> str:
        """Return a sentence about the job's end. user: the name of the user who cancelled the job, if known."""


@dataclass(frozen=True)
class Folder:
    """The folder of all runs, on the machine that submits the jobs."""

    path: str
    top: str  # the nearest folder above it that exists
    free: int  # bytes
    is_writable: bool = True


@dataclass(frozen=True)
class Trial:
    """A plan whose job does nothing. The checks of `orch doctor` use it."""

    site: Site
    launch: LaunchPlan
    python: Callable[[], str]  # the interpreter that starts agents; raises BackendError if the site has no usable one
    folder: Callable[[], Folder]  # raises BackendError if the site can't be reached
    on_node: bool = False  # also check a node with a short job


@dataclass(frozen=True)
class Array:
    """Runs that are the tasks of one array. All of them request the same resources from the scheduler."""

    sweep: str
    folder: str  # the folder of the files that the runs share: script, pickle, agent
    count: int
    parallel: int | None = None  # the most tasks at a time; None if the scheduler decides


@dataclass(frozen=True)
class Order:
    """A job to submit: one run, or the runs of an array. For an array, `launch` is the plan of any of its runs."""

    launch: LaunchPlan
    array: Array | None = None

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.array.sweep if self.array else self.launch.run_id

    @property
    def folder(self) -> str:
        """Return the folder with the files that all tasks of the job share."""
        return self.array.folder if self.array else self.launch.tasks[0].run_dir


def with_option(launch: LaunchPlan, field: str, option: str, values: Sequence[str]) -> LaunchPlan:
    """Return the plan with more values appended, after a comma, to an option in the profile's `field`."""
    given = dict(getattr(launch.profile, field))
    before = given.get(option)
    given[option] = ",".join([*([str(before)] if before else []), *values])
    own: dict[str, Any] = {field: given}
    return replace(launch, profile=replace(launch.profile, **own))


def in_words(by_shell: ByShell) -> str:
    """Return a sentence about the options that environment variables have set; "" if there are none."""
    said = [f"{option} {each.get('value')} by {each.get('by')}" for option, each in by_shell.items()]
    return f"the profile leaves open what the shell gives: {', '.join(said)}" if said else ""


Put = Callable[[str, bytes], object]
"""A function that writes a file with this path and content on the machine that submits a job. It raises BackendError if
that fails.
"""


class RefusedError(BackendError):
    """The scheduler has refused a job. The message is the output of its program."""


class Scheduler(ABC):
    """Describes one batch scheduler. A new scheduler implements the abstract methods; the others have a default.

    An object has no state, and any thread may use it.

    - **Queries.** `queue`, `details`, `accounting`, `use` and `ping` return a command with the parser of its output. A
      parser has no side effects. It leaves out lines in an unknown form, and raises BackendError if it can parse
      nothing. The commands run without the environment variables that `hide` names, and with the variables of `plain`,
      so that their output does not depend on the user's shell.
    - **Unknown is not ended.** A job counts as ended only if the scheduler reports its end, or if the scheduler answers
      that it does not know the job (`is_unknown`). Otherwise the state is unknown, and nothing is concluded from it.
    - **Repeats.** `submit` is called once for a job. If the answer is lost, orch searches for the job by its name, so
      the run's name must be where `Job.is_named` finds it. It is no error to cancel a job that has ended (`is_over`).
    - **The job.** It starts one task on each node. Each task becomes the agent (`launch.commands`). The job's logs are
      in the subfolder `folder` of the run's folder, and their names are `batch.JOB.START.log` and
      `agent.JOB.START.NODE.log`, in which START counts the starts of the job from 0.
    - **Requeue.** If an agent has written `again.START` into `folder`, the job requests at its end that the scheduler
      starts it again.
    """

    def __init_subclass__(cls, kind: str = "", **more: Any) -> None:
        """Take the class variables from the facts about the scheduler whose profiles have this kind."""
        super().__init_subclass__(**more)
        if kind:
            cls.facts = SCHEDULERS[kind]
            cls.title, cls.folder = cls.facts.title, cls.facts.folder
            cls.hide, cls.keep = cls.facts.hidden, cls.facts.kept

    @classmethod
    def here(cls) -> Batch:
        """Return the backend for jobs that are submitted on this machine."""
        from orchestrator.backends.batch.backend import Batch

        return Batch(cls(), is_remote=False)

    @classmethod
    def through_login(cls) -> Batch:
        """Return the backend that submits the jobs on a login node, which it reaches over SSH."""
        from orchestrator.backends.batch.backend import Batch

        return Batch(cls(), is_remote=True)

    facts: ClassVar[SchedulerFacts]
    """The facts that the nodes need too."""
    title: ClassVar[str]
    """The scheduler's name in messages."""
    folder: ClassVar[str]
    """The folder of the job's script and logs in the folder of a run; also the name of the file with the recorded
    status.
    """
    programs: ClassVar[tuple[str, ...]]
    """The programs that a submit needs; the first submits a job."""
    door: ClassVar[str] = "login node"
    """The scheduler's own name for a machine on which jobs are submitted."""
    needs_python: ClassVar[tuple[str, int, int]] = ("orch", 3, 9)
    """The program that starts the tasks of a job, and the lowest version of Python that this program needs."""
    hide: ClassVar[tuple[str, ...]] = ()
    """The prefixes of environment variables that the programs would read as options."""
    keep: ClassVar[tuple[str, ...]] = ()
    """The environment variables that are kept although they have a prefix in `hide`, because they name the cluster or
    authenticate the user.
    """
    plain: ClassVar[Mapping[str, str]] = {"LC_ALL": "C"}
    """The environment variables that make the programs' output the same for every user."""
    chatter: ClassVar[tuple[str, ...]] = ()
    """The beginnings of log lines that do not explain the end of a job."""
    shell: ClassVar[Sequence[str]] = ("true",)
    """The command that prints those environment variables of a login node's shell that `filled` reads."""
    looks_on_nodes: ClassVar[bool] = False
    """True if `doctor` can submit a short job that checks a node."""
    end_seconds: ClassVar[float] = 40.0
    """The number of seconds that a job may take to end after its cancel."""
    accounting_lag: ClassVar[float] = 0.0
    """The number of seconds for which the accounting may lack a job that has ended and has left the queue."""

    def hint(self, *, by_login: bool) -> str:
        """Return a hint for the user if the scheduler's programs are missing on this machine or the login node."""
        if by_login:
            return (
                f"if a command such as `module load` makes {self.programs[0]} available there, add it to your login "
                "shell's start file there (~/.bash_profile, ~/.zprofile or ~/.login); otherwise set `login` in the "
                "profile to another machine"
            )
        where = f"a {self.door}, where {self.programs[0]} is on PATH"
        return f"submit from {where}, or set `login` in the profile to such a machine"

    # -- queries

    @abstractmethod
    def queue(self, user: int) -> Query[Sequence[Job]]:
        """Return the query that lists the jobs of a user, including those that ended a short time ago. Each task of an
        array is a job of its own.
        """

    def details(self, job_id: str) -> Query[Job | None] | None:
        """Return a query that shows one job in more detail than the queue, with the parser of its output. The parser
        returns None if the output has no job.

        A scheduler whose queue shows all details returns None instead.
        """
        return None

    def reason(self, job_id: str) -> Query[str] | None:
        """Return the query that shows, as a sentence, why a job waits; None if the queue shows the reason already."""
        return None

    @abstractmethod
    def accounting(self, job_id: str) -> Query[Sequence[Job]]:
        """Return the query that lists all jobs in the accounting with this number, the newest last."""

    @abstractmethod
    def use(self, user: int, job_id: str, name: str) -> Query[JobUse | None]:
        """Return the query that shows the resources that a job was allocated and those that it used. The parser returns
        None if the accounting lacks the job.
        """

    def ping(self) -> Query[str] | None:
        """Return the query that checks quickly whether the scheduler's server is up. The parser returns the problem, or
        "" if there is none. Return None if the scheduler has no such command.
        """
        return None

    @abstractmethod
    def lost(self, job_id: str, name: str) -> Job:
        """Return a placeholder for a job that neither the server nor the accounting knows. It counts as ended."""

    # -- what an error message means

    @abstractmethod
    def is_unknown(self, said: str) -> bool:
        """Return True if this error message says that the server does not know the job."""

    @abstractmethod
    def is_unreachable(self, said: str) -> bool:
        """Return True if this error message says that the server could not be reached."""

    @abstractmethod
    def is_unanswered(self, said: str) -> bool:
        """Return True if the server may have queued the job, although the submit failed."""

    @abstractmethod
    def is_over(self, said: str) -> bool:
        """Return True if a cancel failed only because the job has ended."""

    def refusal(self, said: str, launch: LaunchPlan, site: Site) -> BackendError:
        """Return the error for a job that the scheduler refused with the message `said`. The error names the field to
        change.
        """
        return BackendError(f"{self.programs[0]} refused the job: {said.strip()}")

    # -- commands

    @abstractmethod
    def submit(self, order: Order, put: Put, call: Callable[[Sequence[str]], Output]) -> str:
        """Write the job's files, queue the job, and return its number. Raises RefusedError if the scheduler refuses
        the job.
        """

    @abstractmethod
    def script(self, launch: LaunchPlan) -> str:
        """Return the batch script that orch would pass to the scheduler for a plan. The scheduler is not contacted."""

    @abstractmethod
    def cancel(self, job_id: str, signal: str = "") -> Sequence[str]:
        """Return the command that ends a job. With a signal (TERM, KILL), return the command that only sends the
        signal.

        Return () if no command can send the signal. The job then has to look for the recorded cancel itself.
        """

    @abstractmethod
    def cancel_waiting(self, job_id: str) -> Sequence[str]:
        """Return the command that removes from the queue those tasks of a job that have not begun."""

    def hasten(self, job: Job) -> Sequence[str] | None:
        """Return the command that makes a requeued job start soon; None if no command is needed."""
        return None

    def step(self, job_id: str, node: int, host: str, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the argv that runs a command on this node of an active job. The default uses ssh to the node's
        host.
        """
        view = ("-tt",) if terminal else ("-T",)
        return ["ssh", "-o", "BatchMode=yes", *view, host, shlex.join(argv)]

    @abstractmethod
    def after(self, launch: LaunchPlan, job_ids: Sequence[str], *, succeeds: bool) -> LaunchPlan | None:
        """Return the plan, changed so that its job waits for these jobs; None if the scheduler can't express that.

        A number such as `17[]` means a whole array. If None is returned, the supervisor waits instead.
        """

    # -- what a plan asks for

    def asked(self, launch: LaunchPlan) -> Mapping[str, Any]:
        """Return the settings that must be equal for all tasks of an array."""
        return {}

    def filled(self, launch: LaunchPlan, environ: Mapping[str, str]) -> tuple[LaunchPlan, ByShell]:
        """Return the plan, in which environment variables of the shell have set options that the profile leaves empty,
        and these options.
        """
        return launch, {}

    def completed(self, launch: LaunchPlan, site: Callable[[], Site]) -> LaunchPlan:
        """Return the plan, completed with the values that only the scheduler knows. Raises BackendError if the
        scheduler can't be queried.
        """
        return launch

    def check_folder(self, folder: str) -> None:
        """Raise UsageError if the scheduler can't use this folder for a job's files."""

    def begins_later(self, profile: AnyProfile) -> bool:
        """Return True if the profile's own options delay the start of its jobs."""
        return False

    # -- advice

    def would_take(self, launch: LaunchPlan, site: Site) -> CheckResult:
        """Check whether the scheduler would accept the plan, without submitting it."""
        raise UsageError(f"orch can't check whether {self.title} would accept a job")

    def unsaid(self, record: RunRecord, by_shell: ByShell) -> str:
        """Return a sentence about a setting that the profile should have but lacks; "" if it lacks none."""
        return ""

    def excess(self, record: RunRecord, by_shell: ByShell, site: Site) -> str:
        """Return, in numbers, what a run requests beyond its queue's limits; "" if the request is within the limits, or
        if they are unknown.
        """
        return ""

    def doctor(self, trial: Trial) -> list[Check]:
        """Check whether a run with the trial's profile could be submitted."""
        raise UsageError(f"doctor has no checks for {self.title}")

    def holdings(self, site: Site) -> list[dict[str, Any]]:
        """List the scheduler's queues or partitions."""
        raise UsageError(f"orch can't list the queues of {self.title}")
