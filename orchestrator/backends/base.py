"""The interface of a backend, which starts, watches and ends runs on the machines of one kind of profile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.errors import UsageError
from orchestrator.protocol.frozen import Value

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from orchestrator.backends.mirror.watching import Source
    from orchestrator.outcome.restart import Relaunch
    from orchestrator.outcome.scheduler import SchedulerStatus
    from orchestrator.outcome.verdict import Unreachable
    from orchestrator.protocol.task import NodeTask
    from orchestrator.runs.job_use import JobUse
    from orchestrator.runs.restarts.recovery import Reserves
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.plan import LaunchPlan, RunPaths
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.transport.machine import Machine
    from orchestrator.transport.pool import ConnectionPool


class NodeProof(Value):
    """The result of cleaning up one node: how many processes were ended, and the processes that still exist."""

    node: int
    host: str
    ended: int
    survivors: tuple[str, ...] = ()
    is_unreachable: bool = False  # its machine could not be checked
    why: str = ""  # why the machine could not be checked, if the machine is not the cause

    @property
    def is_clean(self) -> bool:
        """Return True if the node was reached and no process of the run is left on it."""
        return not self.survivors and not self.is_unreachable


class Level(StrEnum):
    """The outcome of one check of a machine or a scheduler."""

    OK = "ok"
    """The check passed."""
    WARN = "warn"
    """A run may start, but the user should know about the result."""
    FAIL = "fail"
    """A run could not start, or could not train."""
    UNKNOWN = "-"
    """The check could not be made."""


class CheckResult(NamedTuple):
    """The outcome and value of one check, and a hint on what to do."""

    level: Level
    value: str = ""
    hint: str = ""


def connected(machine: Machine) -> CheckResult:
    """Return the result of a check that has connected to a machine: how it is connected, and why. Start files that
    delay each command are a warning.
    """
    how = f"connected by {machine.connection}" if machine.connection else "connected"
    if not machine.slow:
        return CheckResult(Level.OK, how)
    return CheckResult(Level.WARN, f"{how}; {machine.slow}", "end these files early if the shell is not interactive")


def room(folder: str, free: int) -> CheckResult:
    """Check that the disk of orch's folder has room. A submit refuses a machine with less than LEAST_FREE."""
    from orchestrator.backends.settings import LEAST_FREE
    from orchestrator.protocol.quantities import size

    found = f"{folder}, {size(free)} free"
    if free >= 1 << 30:
        return CheckResult(Level.OK, found)
    return CheckResult(Level.FAIL if free < LEAST_FREE else Level.WARN, found, "make room on that disk")


class Check(Value):
    """One check of one node."""

    node: int
    host: str
    what: str
    level: Level
    value: str = ""
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON types."""
        return asdict(self)


class Finding(Value):
    """The remains of an ended or crashed run on a machine. `done` says what was done about them."""

    kind: str  # process | container | run | mark | folder | file | host
    what: str
    done: str  # ended | removed | kept | would be ended | would be removed
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        return asdict(self)


class Ruling(Value):
    """The decision whether all remains of one run are removed, and the reason for it."""

    ends: bool
    why: str
    run: RunDir | None = None  # a run of this state folder, whose outputs may be nowhere else


Judge = Callable[[str, bool], Ruling | None]
"""A function that decides whether the remains of a run are removed. It gets the run's id, and True if one of the run's
agents is alive. It returns None if the run may still be live.
"""


class Sight(Value):
    """The facts that a backend knows about a run at one moment."""

    alive: Mapping[int, bool | None] = field(default_factory=dict)
    """Whether each node's agent lives; None if that is unknown at the moment. A node is missing until its agent is
    started.
    """
    hosts: tuple[str, ...] = ()
    """The names of the nodes' machines in the current start; empty if they are the plan's machines."""
    unreachable: Mapping[int, Unreachable] = field(default_factory=dict)
    """The nodes whose machines were unreachable at the last observation, with the time at which that began, and the
    reason.
    """
    other_machine: str = ""
    """The machine on which the run was started, if it is not this machine and this machine can't see the run's
    processes.
    """
    job: str | None = None
    """The number of the scheduler's job; None if the run has no job yet."""
    scheduler: SchedulerStatus | None = None
    """The scheduler's report on the job; None if the backend has no scheduler."""


class Advice:
    """The answers of a scheduler to questions about plans and runs. A backend without a scheduler uses this class."""

    def completed(self, launch: LaunchPlan, *, by_shell: bool = False) -> LaunchPlan:
        """Return the plan, completed with the values that only the scheduler knows about its machines.

        by_shell: also add the options of sbatch or qsub that environment variables of this shell set.
        """
        return launch

    def script(self, launch: LaunchPlan) -> str:
        """Return the batch script that orch would pass to the scheduler for this plan; "" without a scheduler."""
        return ""

    def would_take(self, launch: LaunchPlan) -> CheckResult:
        """Check whether the scheduler would accept the plan, without submitting it. Raises UsageError if there is no
        scheduler.
        """
        name, kind = launch.profile.name, launch.profile.kind
        raise UsageError(f"--check needs a scheduler, and profile {name} is of kind {kind}, which has no scheduler")

    def waiting_for(self, launch: LaunchPlan, runs: Sequence[RunDir], *, succeeds: bool) -> LaunchPlan | None:
        """Return the plan, changed so that its job waits for these runs; None if the scheduler can't wait for all of
        them.
        """
        return None

    def check_alike(self, launches: Sequence[LaunchPlan]) -> None:
        """Raise UsageError if the plans, which have no dependencies yet, request different resources, so that their
        jobs can't be one array.
        """

    def used(self, run: RunDir) -> JobUse | None:
        """Return the resources that the run's job was allocated and those that it used; None if they are unknown."""
        return None

    def said(self, run: RunDir) -> str:
        """Return what the scheduler printed when it took the run's job, as a sentence; "" if it printed nothing."""
        return ""

    def unsaid(self, run: RunDir) -> str:
        """Return a sentence about a setting that the run's profile should have but lacks; "" if it lacks none."""
        return ""

    def excess(self, run: RunDir) -> str:
        """Return, in numbers, the resources that the run requests beyond its queue's limits; "" if the request is
        within them.
        """
        return ""


class Backend(ABC):
    """Starts, watches and ends runs. A new backend implements the abstract methods; every other method has a default.

    One instance serves all runs of a kind in this process, from any thread. Everything that a backend knows about a run
    is stored in the run's folder, because the process that watches a run is seldom the process that started it.

    - **Repeats.** Every method may be called again, by this process or another, after a call that was killed half way.
      A start must not start an agent twice, and a method that ends something must accept that it has already ended.
    - **Recorded before it is done.** `submit` writes `handle.json` (state: intent) before anything can be started, and
      again (state: submitted) when everything has started. Without a handle, nothing of the run is on any machine.
    - **Gone.** An agent counts as gone (`False`) only if its end was observed, and all files that it wrote are in the
      run's folder. If its machine does not answer, the agent is unknown (`None`), never gone.
    - **Blocking.** `look` and `paths` are quick: commands such as `orch status` call `look` for hundreds of runs.
      `wait` blocks for at most its time-out. All other methods may take as long as the machines take.
    - **Errors.** A method raises BackendError (transient if the same call may succeed later) if a machine or scheduler
      refuses or can't be reached, and UsageError if the profile requests what the backend can't do.
    """

    pool: ConnectionPool | None = None
    """The connections to other machines; None if the backend needs no connections. Only a process that has these
    connections can watch the runs.
    """
    is_remote: bool = False
    """True if the run's folder is on other machines, so that its files must be copied to this machine."""
    relaunches: bool = False
    """True if the supervisor starts the agents again after the loss of a machine."""
    advice: Advice = Advice()
    """The scheduler's answers about plans and runs."""

    # -- starting

    @abstractmethod
    def paths(self, run: RunDir, workdir: str | None, python: str | None) -> RunPaths:
        """Return the paths of the run's folders and interpreters on the nodes. `workdir` and `python` are the
        profile's, or None. Raises UsageError if the folder can't be used. No machine is contacted.
        """

    @abstractmethod
    def submit(
        self, plans: Sequence[LaunchPlan], tasks: Sequence[tuple[NodeTask, ...]], runs: Sequence[RunDir]
    ) -> None:
        """Start one agent for each task of a run, and return without waiting for the agents.

        There is one run if the profile's `Kind` names no scheduler. Otherwise there may be several runs, which are the
        points of a sweep and become one array. The tasks have the start's credentials and secrets, which the plans
        lack. Raises BackendError, which names the node, if an agent can't be started, UsageError if the runs can't be
        one array, and PlacesTakenError if the run was queued for GPUs or slots on its hosts.
        """

    def relaunch(self, run: RunDir, again: Relaunch) -> None:
        """Complete, in a background thread, the new start that was recorded for the run. Finished parts of that start
        are not repeated.
        """
        raise NotImplementedError  # called only if `relaunches`

    def reserves(self, run: RunDir) -> Reserves | None:
        """Return the machines that can replace a lost machine; None if the supervisor does not start agents again."""
        return None

    # -- looking

    @abstractmethod
    def look(self, run: RunDir, *, recorded: bool = False) -> Sight:
        """Return the facts about the run at this moment.

        recorded: the run has ended, so return only the recorded hosts and job, and contact no machine or scheduler.
        """

    @abstractmethod
    def wait(self, run: RunDir, timeout: float) -> None:
        """Wait until the run's files or agents have changed, for `timeout` seconds at most."""

    def let_go(self, run: RunDir) -> None:
        """Stop to watch the run, because another machine looks after it from now on."""

    def sources(self, run: RunDir, *, present: bool = False) -> list[Source]:
        """Return the machines that have files of the run's nodes. The list is empty if the nodes write into the run's
        folder on this machine, or if nothing has been started yet.

        present: return one source for each node. It uses the machine that the node has at the moment of a request,
        because a relaunch may move the node to another machine.
        """
        return []

    @abstractmethod
    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the local command that runs `argv` on a node. `terminal`: connect this terminal to the command.

        Raises BackendError if the node no longer belongs to the run.
        """

    def with_python(self, run: RunDir, node: int, argv: Sequence[str]) -> list[str]:
        """Return a command for `reach`, in which the interpreter that runs orch itself on the node replaces the first
        word, the interpreter of the plan.
        """
        return list(argv)

    # -- ending

    @abstractmethod
    def cancel(self, runs: Sequence[RunDir]) -> None:
        """Pass the recorded cancel of each run on to every agent. If a run's job still waits, remove it from the
        scheduler's queue.
        """

    @abstractmethod
    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """End all remaining processes of the run on its nodes, agents included. Return the result for each node as a
        NodeProof.
        """

    def collect(self, run: RunDir) -> None:
        """Copy all files of an ended run from its nodes to this machine, then remove the run's folders on the nodes."""

    # -- a profile's machines

    def doctor(self, profile: AnyProfile, *, on_node: bool) -> list[Check]:
        """Check every machine of a profile, or its scheduler. With `on_node`, also submit a short job that checks a
        node.
        """
        raise UsageError(f"doctor has no checks for profiles of kind {profile.kind}")

    def holdings(self, profile: AnyProfile) -> list[dict[str, Any]]:
        """List the resources of a profile's machines and the runs that hold them. For a scheduler, list its
        partitions.
        """
        raise UsageError(
            "orch nodes needs a profile of other machines",
            f"this profile is of kind {profile.kind}: name another with -p PROFILE",
        )

    def collect_garbage(self, profile: AnyProfile, judge: Judge, *, dry_run: bool) -> list[Finding]:
        """List the remains of ended runs on a profile's machines. Unless `dry_run` is True, remove a run's remains if
        `judge` permits it.
        """
        raise UsageError(
            "gc --profile needs an ssh profile", f"this profile is of kind {profile.kind}: leave --profile out"
        )
