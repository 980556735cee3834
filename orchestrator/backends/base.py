"""What a backend does: a base class with what most of them don't do, and what only some can do besides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from orchestrator.errors import UsageError

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from pathlib import Path

    from orchestrator.backends.replay_stage import Order
    from orchestrator.protocol.task import NodeTask
    from orchestrator.runs.relaunch import Relaunch
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

    # -- starting

    @abstractmethod
    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """Return where the run will live; UsageError when that folder can't be used."""

    def shared_folder(self, launch: LaunchPlan) -> str | None:
        """Return where the run directory itself has to lie, because a job's nodes write to it; None: it may stay."""
        return None

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

    @abstractmethod
    def wait(self, run: RunDir, timeout: float) -> None:
        """Return when something of the run has changed, or after `timeout` seconds."""

    def bringing_logs(self, run: RunDir, ranks: list[int] | None) -> AbstractContextManager[None]:
        """Have the logs of these ranks (None: of all) grow here as they do on their nodes, while it lasts.

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
        raise UsageError(f"profiles of kind {profile.kind} have no hosts to ask over SSH", "name an ssh profile")

    def holdings(self, profile: AnyProfile) -> list[dict[str, Any]]:
        """List what a profile's machines have, and who holds it; of a scheduler, its partitions."""
        raise UsageError(f"profiles of kind {profile.kind} have no hosts of their own", "name an ssh profile")

    def collect_garbage(self, profile: AnyProfile, judge: Judge, *, dry_run: bool) -> list[Finding]:
        """Find what runs have left on a profile's machines, and end what the judge says is to end."""
        raise UsageError(f"profiles of kind {profile.kind} have no hosts of their own", "leave --profile out")


class Relauncher(ABC):
    """A backend whose runs the supervisor starts again, after a node was lost."""

    @abstractmethod
    def relaunch(self, run: RunDir, again: Relaunch) -> None:
        """See the start through that has been decided on; what of it is done already is not done twice."""


class Scheduler(ABC):
    """A backend with a queue of its own: it tells whether a job waits, may go on, and how it ended."""

    @abstractmethod
    def scheduler_status(self, run: RunDir) -> SchedulerStatus:
        """Return what the scheduler says of the run's job now; never an error."""

    @abstractmethod
    def waiting_for(self, runs: Sequence[RunDir], *, succeeds: bool) -> str | None:
        """Return the condition under which a job waits for those of these runs; None where one of them isn't known."""

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
