"""The contract of a backend: it starts, watches and ends runs on the machines of one kind of profile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from orchestrator.errors import UsageError
from orchestrator.protocol.frozen import Value

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from pathlib import Path

    from orchestrator.backends.replay_stage import Order
    from orchestrator.outcome.restart import Relaunch
    from orchestrator.protocol.task import NodeTask
    from orchestrator.runs.files.logs import Selection
    from orchestrator.runs.job_use import JobUse
    from orchestrator.runs.restarts.recovery import Reserves
    from orchestrator.runs.scheduler_status import SchedulerStatus
    from orchestrator.runs.state import Unreachable
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.plan import LaunchPlan, Place
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.transport.pool import ConnectionPool


class NodeProof(Value):
    """The result of cleaning up one node: the number of processes that were ended, and those that are still there."""

    node: int
    host: str
    ended: int
    survivors: tuple[str, ...] = ()
    is_unreachable: bool = False  # its machine could not be looked at
    why: str = ""  # why it could not, if the node is not the cause

    @property
    def is_clean(self) -> bool:
        """Was the node looked at, and nothing left there?"""
        return not self.survivors and not self.is_unreachable


class Level(StrEnum):
    """The outcome of one check of a machine or a scheduler."""

    OK = "ok"
    """Nothing stands in the way."""
    WARN = "warn"
    """A run may start, and somebody should know of this."""
    FAIL = "fail"
    """A run would not start, or not train."""
    UNKNOWN = "-"
    """The check could not be made."""


class CheckResult(NamedTuple):
    """The outcome and value of one check, and a hint on what to do."""

    level: Level
    value: str = ""
    hint: str = ""


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
    """Something that ended or crashed runs have left behind; `done` says what became of it."""

    kind: str  # process | container | run | mark | folder | file | host
    what: str
    done: str  # ended | removed | kept | would be ended | would be removed
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        return asdict(self)


class Ruling(Value):
    """The decision whether everything that is left of one run is removed, and the reason."""

    ends: bool
    why: str
    run: RunDir | None = None  # a run of this state folder, whose outputs may be nowhere else


Judge = Callable[[str, bool], Ruling | None]
"""The ruling on a run, by its id and whether one of its agents lives; None for a run that may be going on."""


class Sight(Value):
    """All that a backend sees of a run at one moment."""

    alive: Mapping[int, bool | None] = field(default_factory=dict)
    """Whether each node's agent lives; None if that is unknown now. A node is missing before its agent was started."""
    hosts: tuple[str, ...] = ()
    """The names of the nodes' machines in the present start; empty if they are those of the plan."""
    unreachable: Mapping[int, Unreachable] = field(default_factory=dict)
    """The nodes whose machines could not be reached at the last look, since when, and why."""
    other_machine: str = ""
    """The machine on which the run was started, if it is not this one and its processes can't be seen from here."""
    job: str | None = None
    """The number of the run's job, if a scheduler has given it one."""
    scheduler: SchedulerStatus | None = None
    """The scheduler's report on the job; None if the backend has no scheduler."""


class Turn(Protocol):
    """A run's place in a queue of orch's own. Every method raises BackendError if a machine is out of reach."""

    def join(self) -> bool:
        """Enter the queue, or keep the place there; return True if the run's turn has come."""

    def renew(self) -> None:
        """Report that the run still waits."""

    def leave(self) -> None:
        """Give the place up."""


class Backend(ABC):
    """Starts, watches and ends runs. A new backend implements the abstract methods; every other method has a default.

    One instance serves all runs of a kind in this process, from any thread. What a backend knows of a run is in the
    run's folder, because the process that watches a run is seldom the process that started it.

    - **Repeats.** Every method may be called again, by this process or another, after a call that was killed half way.
      A start must not start an agent twice, and whatever ends something must accept that it has ended.
    - **Recorded before it is done.** `submit` writes `handle.json` (state: intent) before anything can be started, and
      again (state: submitted) when everything was. Without a handle, nothing of the run exists on any machine.
    - **Gone.** An agent counts as gone (`False`) only if somebody has seen that it is gone and all that it wrote is in
      the run's folder. A machine that does not answer makes it unknown (`None`), never gone.
    - **Blocking.** `look` and `place` are quick: commands such as `orch status` call `look` for hundreds of runs.
      `wait` blocks for at most its time-out. All other methods may take as long as the machines take.
    - **Errors.** A method raises BackendError (transient if the same call may succeed later) if a machine or scheduler
      refuses or can't be reached, and UsageError if the profile asks for what the backend can't do.
    """

    pool: ConnectionPool | None = None
    """The connections to other machines; None if the backend needs none. A process that has them follows its runs."""
    is_remote: bool = False
    """True if the run's folder lies on other machines, so that its files are copied here and fetched after the end."""
    relaunches: bool = False
    """True if the supervisor starts the agents again after a machine was lost."""
    takes_sweeps: ClassVar[bool] = False
    """True if `submit_all` submits all points of a sweep at once."""

    # -- starting

    @abstractmethod
    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """Return where the run's files will be. Raises UsageError if that folder can't be used."""

    def completed(self, launch: LaunchPlan, *, by_shell: bool = False) -> LaunchPlan:
        """Return the plan with the values that only the scheduler knows of its machines.

        by_shell: also with the options that variables of this shell set for a submit.
        """
        return launch

    @abstractmethod
    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Start one agent for each node, by the plan's own commands, and return.

        Raises BackendError, which names the node, if an agent can't be started; PlacesTakenError if the run has been
        put into a queue of orch's own.
        """

    def submit_all(
        self,
        plans: Sequence[LaunchPlan],
        tasks: Sequence[tuple[NodeTask, ...]],
        runs: Sequence[RunDir],
        folder: Path,
        parallel: int | None,
    ) -> None:
        """Submit all points of a sweep at once, of which at most `parallel` run at a time.

        `folder` holds the files that the runs share, and is named after the sweep.
        """
        raise NotImplementedError  # called only if `takes_sweeps`

    def check_alike(self, plans: Sequence[LaunchPlan]) -> None:
        """Raise UsageError if these plans can't be one submission."""

    def relaunch(self, run: RunDir, again: Relaunch) -> None:
        """Complete, in the background, the start that has been decided on. Finished steps are not repeated."""
        raise NotImplementedError  # called only if `relaunches`

    def reserves(self, run: RunDir) -> Reserves | None:
        """Return the profile's reserves for the loss of a machine; None if the supervisor starts no agents again."""
        return None

    def turn(self, run: RunDir) -> Turn | None:
        """Return the run's place in a queue of orch's own; None if it has none."""
        return None

    # -- looking

    @abstractmethod
    def look(self, run: RunDir, *, recorded: bool = False) -> Sight:
        """Return what can be seen of the run now.

        recorded: the run has ended, so return only the recorded hosts and job, and contact no machine or scheduler.
        """

    @abstractmethod
    def wait(self, run: RunDir, timeout: float) -> None:
        """Return when something of the run has changed, or after `timeout` seconds."""

    def bringing_logs(self, run: RunDir, selection: Selection) -> AbstractContextManager[None]:
        """While the context lasts, copy the chosen logs here as they grow. The default copies nothing."""
        return nullcontext()

    @abstractmethod
    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the argv that, started here, runs a command on a node; `terminal` gives the command this terminal.

        Raises BackendError if the node does not belong to the run any more.
        """

    @abstractmethod
    def stage_replay(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """Put the files of a replay into a folder of this name on the node; return the argv to start there."""

    # -- ending

    @abstractmethod
    def cancel(self, run: RunDir) -> None:
        """Pass the recorded cancel on to every agent, or take the run's job out of its queue."""

    def cancel_waiting(self, runs: Sequence[RunDir]) -> None:
        """Take the runs that have not begun out of the scheduler's queue, with as few calls as possible."""

    @abstractmethod
    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """End whatever is left of the run on its nodes, agents included, and return a proof for each node."""

    def collect(self, run: RunDir) -> None:
        """Fetch what is still on the nodes of a run that has ended, then remove its folders there."""

    def bring_outputs(self, run: RunDir) -> None:
        """Fetch the outputs that are still on the nodes, whatever their size. Of an ended run nothing stays there.

        Raises BackendError if a machine is out of reach.
        """

    # -- a scheduler's own

    def script(self, launch: LaunchPlan) -> str:
        """Return the batch script that a submit of this plan hands to the scheduler; "" without a scheduler."""
        return ""

    def would_take(self, launch: LaunchPlan) -> CheckResult:
        """Ask the scheduler, without a submit, if it would take the plan. Raises UsageError without a scheduler."""
        name, kind = launch.profile["name"], launch.profile["kind"]
        raise UsageError(f"--check asks a scheduler, and {name} is a profile of kind {kind}, which has none")

    def waiting_for(self, launch: LaunchPlan, runs: Sequence[RunDir], *, succeeds: bool) -> LaunchPlan | None:
        """Return the plan of a job that waits for these runs; None if the scheduler can't wait for all of them."""
        return None

    def used(self, run: RunDir) -> JobUse | None:
        """Return the resources that the run's job was given and those that it used; None if they are unknown."""
        return None

    def unsaid(self, run: RunDir) -> str:
        """Return a sentence about a setting that the run's profile lacks and should have; "" if it lacks none."""
        return ""

    def excess(self, run: RunDir) -> str:
        """Return, in numbers, the resources that the run requests and its queue never gives; "" if there are none."""
        return ""

    # -- a profile's machines

    def doctor(self, profile: AnyProfile, *, on_node: bool) -> list[Check]:
        """Check every machine of a profile, or its scheduler; with `on_node`, also by a short job on a node."""
        raise UsageError(f"doctor has no checks for profiles of kind {profile.kind}")

    def holdings(self, profile: AnyProfile) -> list[dict[str, Any]]:
        """List what a profile's machines have, and who holds it; of a scheduler, its partitions."""
        raise UsageError("nodes needs a profile of other machines", f"this one is of kind {profile.kind}: -p PROFILE")

    def collect_garbage(self, profile: AnyProfile, judge: Judge, *, dry_run: bool) -> list[Finding]:
        """List the leftovers of runs on a profile's machines, and remove those that the judge rules."""
        raise UsageError(
            "gc --profile needs an ssh profile", f"this one is of kind {profile.kind}: leave --profile out"
        )
