"""What a backend does: a base class with what most of them don't do, and what only some can do besides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from orchestrator.errors import BackendError, UsageError

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from pathlib import Path

    from orchestrator.backends.replay_stage import Order
    from orchestrator.protocol.task import NodeTask
    from orchestrator.runs.files.logs import Selection
    from orchestrator.runs.job_use import JobUse
    from orchestrator.runs.restarts.recovery import Reserves
    from orchestrator.runs.restarts.relaunch import Relaunch
    from orchestrator.runs.scheduler_status import SchedulerStatus
    from orchestrator.runs.state import Unreachable
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.plan import LaunchPlan, Place
    from orchestrator.specs.profile import AnyProfile


class HandleState(StrEnum):
    """How far a start has come, in a run's `handle.json`; the words are on disk."""

    INTENT = "intent"
    """Agents may have been started; not all of them are known."""
    SUBMITTED = "submitted"
    """Every agent was started, or the job was taken by its scheduler."""


@dataclass(frozen=True)
class NodeProof:
    """What cleaning up one node found of a run: how many processes were ended, and who is still there."""

    node: int
    host: str
    ended: int
    survivors: tuple[str, ...] = ()
    is_unreachable: bool = False  # it could not be looked at
    why: str = ""  # why it could not, if the node is not the cause

    @property
    def is_clean(self) -> bool:
        """Was the node looked at, and nothing left there?"""
        return not self.survivors and not self.is_unreachable


class Level(StrEnum):
    """What came of one check of a machine or a scheduler."""

    OK = "ok"
    """Nothing stands in the way."""
    WARN = "warn"
    """A run may start, and somebody should know of this."""
    FAIL = "fail"
    """A run would not start, or not train."""
    UNKNOWN = "-"
    """The check could not be made."""


class CheckResult(NamedTuple):
    """What one check found, and what to do about it."""

    level: Level
    value: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Check:
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


@dataclass(frozen=True)
class Finding:
    """Something that ended or crashed runs have left behind; `done` says what became of it."""

    kind: str  # process | container | run | mark | folder | file | host
    what: str
    done: str  # ended | removed | kept | would be ended | would be removed
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Ruling:
    """What is to become of all that is left of one run, and why."""

    ends: bool
    why: str
    run: RunDir | None = None  # one of this state folder: what it has written may be nowhere else


Judge = Callable[[str, bool], Ruling | None]
"""The ruling on a run, by its id and whether one of its agents lives; None for a run that may be going on."""


class Backend(ABC):
    """Starts a plan's agents, tells which live, ends them, and proves that nothing is left."""

    collects: ClassVar[bool] = False
    """Is there something to bring back, before a run that has ended gets its verdict?"""

    def awaited(self) -> list[str]:
        """Return the machines whose first answer is awaited at this moment."""
        return []

    # -- starting

    @abstractmethod
    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """Return where the run will live; UsageError when that folder can't be used."""

    def shared_folder(self, launch: LaunchPlan) -> str | None:
        """Return where the run directory itself has to lie, because a job's nodes write to it; None: it may stay."""
        return None

    def filled_in(self, launch: LaunchPlan) -> LaunchPlan:
        """Return the plan with the options that the caller's shell sets for a submit. No other machine is contacted."""
        return launch

    def completed(self, launch: LaunchPlan) -> LaunchPlan:
        """Return the plan with what only the scheduler knows of its machines; itself where that is nothing."""
        return launch

    @abstractmethod
    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Start one agent per node by the plan's own commands, and return; BackendError names the node."""

    def would_take(self, launch: LaunchPlan) -> CheckResult:
        """Ask the scheduler whether it would take the plan, without a submit; UsageError where there is none."""
        name, kind = launch.profile["name"], launch.profile["kind"]
        raise UsageError(f"--check asks Slurm, and {name} is a profile of kind {kind}")

    # -- looking

    @abstractmethod
    def alive(self, run: RunDir) -> Mapping[int, bool | None]:
        """Tell for each node that has an agent whether it lives; None where it can't be told now."""

    def other_machine(self, run: RunDir) -> str:
        """Return the machine whose processes the run's are, where that is another one and can't be asked; else ""."""
        return ""

    def unreachable_nodes(self, run: RunDir) -> Mapping[int, Unreachable]:
        """Return the nodes whose machines nobody could reach when they were asked last."""
        return {}

    def hosts(self, run: RunDir) -> list[str] | None:
        """Return what the nodes' machines are called now, where that can differ from the plan; else None."""
        return None

    def slurm_job(self, run: RunDir) -> str | None:
        """Return the number of the run's Slurm job, once it has one; None for runs that are none."""
        return None

    @abstractmethod
    def wait(self, run: RunDir, timeout: float) -> None:
        """Return when something of the run has changed, or after `timeout` seconds."""

    def bringing_logs(self, run: RunDir, selection: Selection) -> AbstractContextManager[None]:
        """Have the chosen logs grow here as they do on their nodes, while it lasts.

        Where the nodes write to the run directory itself they do so anyway.
        """
        return nullcontext()

    @abstractmethod
    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return what to start here for the command to run on a node, at this terminal if there is one.

        BackendError where the node is not the run's any more.
        """

    @abstractmethod
    def stage_replay(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """Put what a replay needs into a folder of this name on the node; return what is to be started there."""

    # -- ending

    @abstractmethod
    def cancel(self, run: RunDir) -> None:
        """Pass the recorded cancel on to every agent."""

    @abstractmethod
    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """End whatever is left of the run on its nodes, agents included, and prove it for each node."""

    def collect(self, run: RunDir) -> None:
        """Bring back what is still on the nodes of a run that has ended, and leave nothing of it there.

        Where the nodes write to the run directory itself there is nothing elsewhere.
        """
        return

    def bring_outputs(self, run: RunDir) -> None:
        """Bring the outputs that are still on the nodes, whatever their size; once it has ended, nothing stays there.

        Where the nodes write to the run directory itself they are here. BackendError where a machine is out of reach.
        """
        return

    # -- a profile's machines

    def doctor(self, profile: AnyProfile, *, on_node: bool) -> list[Check]:
        """Check every machine of a profile, or its scheduler; with `on_node`, also by a short job of its own."""
        raise UsageError("doctor needs an ssh or slurm profile", f"this one is of kind {profile.kind}: -p PROFILE")

    def holdings(self, profile: AnyProfile) -> list[dict[str, Any]]:
        """List what a profile's machines have, and who holds it; of a scheduler, its partitions."""
        raise UsageError("nodes needs an ssh or slurm profile", f"this one is of kind {profile.kind}: -p PROFILE")

    def collect_garbage(self, profile: AnyProfile, judge: Judge, *, dry_run: bool) -> list[Finding]:
        """Find what runs have left on a profile's machines, and end what the judge says is to end."""
        raise UsageError(
            "gc --profile needs an ssh profile", f"this one is of kind {profile.kind}: leave --profile out"
        )


class Connecting(ABC):
    """A backend that reaches its machines over connections: the process that starts a run can follow it by these."""

    @abstractmethod
    def prepare_connections(self) -> None:
        """Load what the first connection needs, while nobody waits for it yet."""


class Relauncher(ABC):
    """A backend whose runs the supervisor starts again, after a node was lost."""

    @abstractmethod
    def relaunch(self, run: RunDir, again: Relaunch) -> None:
        """See the start through that has been decided on; what of it is done already is not done twice."""

    @abstractmethod
    def reserves(self, run: RunDir) -> Reserves:
        """Return what the run's profile has for the loss of a machine."""


class Turn(Protocol):
    """A run's place in a queue of orch's own; what needs machines raises BackendError where one is out of reach."""

    def join(self) -> bool: ...
    def renew(self) -> None: ...
    def leave(self) -> None: ...


class Queueing(ABC):
    """A backend whose runs wait in a queue of orch's own while others hold what they need: the supervisor starts them.

    `submit` raises PlacesTakenError for a run that has been put into that queue.
    """

    @abstractmethod
    def _turn(self, run: RunDir) -> Turn | None:
        """Return the run's place in the queue; None for one that is in none."""

    def may_start(self, run: RunDir) -> bool:
        """Tell whether the run's turn has come, and keep its place; never while a machine is out of reach.

        True of one that is in no queue, and of a start that was cut off, which goes on or gives back what it holds.
        """
        turn = self._turn(run)
        if turn is None or (run.path / "handle.json").exists():
            return True
        try:
            return turn.join()
        except BackendError:
            return False

    def keep_place(self, run: RunDir) -> None:
        """Say that the run still waits, while it is being started."""
        if (turn := self._turn(run)) is not None:
            with suppress(BackendError):
                turn.renew()

    def _leave_queue(self, run: RunDir) -> None:
        if (turn := self._turn(run)) is not None:
            turn.leave()


class Scheduler(ABC):
    """A backend with a queue of its own: it tells whether a job waits, may go on, and how it ended."""

    @abstractmethod
    def scheduler_status(self, run: RunDir) -> SchedulerStatus:
        """Return what the scheduler says of the run's job now; never an error."""

    @abstractmethod
    def has_ended(self, run: RunDir) -> bool:
        """Tell whether the scheduler itself says that the run's job is over; False where it can't be asked."""

    @abstractmethod
    def waiting_for(self, runs: Sequence[RunDir], *, succeeds: bool) -> str | None:
        """Return the condition under which a job waits for those of these runs; None where one of them isn't known."""

    @abstractmethod
    def used(self, run: RunDir) -> JobUse | None:
        """Return what the run's job was given, and what of it was used; None where it isn't known, or BackendError."""

    def excess(self, run: RunDir) -> str:
        """Return what the run asks for that its queue never gives, in numbers; empty where nothing is known to."""
        return ""

    def unsaid(self, run: RunDir) -> str:
        """Return what the run's profile should say, and doesn't, in a sentence; empty where it says all."""
        return ""

    @abstractmethod
    def script(self, launch: LaunchPlan) -> str:
        """Return the batch script that a submit of this plan hands over."""


class BatchSubmitter(ABC):
    """A backend that takes all points of a sweep in one submission."""

    @abstractmethod
    def check_alike(self, plans: Sequence[LaunchPlan]) -> None:
        """Raise UsageError where the points differ in what they would ask for."""

    @abstractmethod
    def submit_all(
        self,
        plans: Sequence[LaunchPlan],
        tasks: Sequence[tuple[NodeTask, ...]],
        runs: Sequence[RunDir],
        folder: Path,
        parallel: int | None,
    ) -> None:
        """Start all runs, at most so many at a time; `folder` is what they share, named after the sweep."""

    @abstractmethod
    def cancel_waiting(self, runs: Sequence[RunDir]) -> None:
        """Take those of the runs out of the queue that have not begun."""
