"""What every backend does for the controller and the supervisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from pathlib import Path

    from orchestrator.backends.laying import Order
    from orchestrator.opinion import Opinion
    from orchestrator.plan import LaunchPlan, Place
    from orchestrator.starts import Again
    from orchestrator.store import RunDir
    from orchestrator.wire import NodeTask


@dataclass(frozen=True)
class NodeProof:
    """What a look at one node found of a run: how many processes were ended, and who is still there."""

    node: int
    host: str
    ended: int
    survivors: tuple[str, ...] = ()
    is_away: bool = False  # it could not be looked at


class Backend(Protocol):
    """Starts a plan's agents, tells which live, ends them, and proves that nothing is left."""

    starts_again: bool  # may a run's agents be started anew by the supervisor, after a node was lost?
    collects: bool  # is there something to bring back, before a run that has ended is concluded?

    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """Where the run will live; UsageError when that folder can't be used."""

    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Start one agent per node by the plan's own commands, and return; BackendError names the node."""

    def alive(self, run: RunDir) -> Mapping[int, bool | None]:
        """For each node that has an agent: does it live? None where it can't be told now."""

    def hosts(self, run: RunDir) -> list[str] | None:
        """What the nodes' machines are called now, where that can differ from the plan; else None."""

    def wait(self, run: RunDir, timeout: float) -> None:
        """Return when an agent ends, or after `timeout` seconds."""

    def cancel(self, run: RunDir) -> None:
        """Pass the recorded cancel on to every agent."""

    def start_again(self, run: RunDir, again: Again) -> None:
        """See the start through that has been decided on; what of it is done already is not done twice."""

    def collect(self, run: RunDir) -> None:
        """Bring back what is still on the nodes of a run that has ended, and leave nothing of it there."""

    def bringing_logs(self, run: RunDir, ranks: list[int] | None) -> AbstractContextManager[None]:
        """While it lasts, the logs of these ranks (None: of all) grow here as they do on their nodes."""

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """What to start here for the command to run on a node, at this terminal if there is one.

        BackendError where the node is not the run's any more.
        """

    def lay_out(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """Put what the order needs into a folder of this name on the node; what is to be started there for it."""

    def sweep(self, run: RunDir) -> list[NodeProof]:
        """End whatever is left of the run on its nodes, agents included, and prove it for each node."""


@runtime_checkable
class Scheduler(Protocol):
    """What a backend with a queue of its own can tell besides: whether the job waits, may go on, and how it ended."""

    collects: bool

    def opinion(self, run: RunDir) -> Opinion:
        """What the scheduler says of the run's job now; never an error."""

    def waiting_for(self, runs: Sequence[RunDir], *, succeeds: bool) -> str | None:
        """The condition under which a job waits for those of these runs; None where one of them isn't known."""

    def script(self, launch: LaunchPlan) -> str:
        """The batch script that a submit of this plan hands over."""


@runtime_checkable
class TakesMany(Protocol):
    """What a backend can do besides that takes all points of a sweep in one submission."""

    def check_alike(self, plans: Sequence[LaunchPlan]) -> None:
        """UsageError where the points differ in what they would ask for."""

    def submit_all(
        self,
        plans: Sequence[LaunchPlan],
        tasks: Sequence[tuple[NodeTask, ...]],
        runs: Sequence[RunDir],
        folder: Path,
        parallel: int | None,
    ) -> None:
        """Start all runs, at most so many at a time; `folder` is what they share, named after the sweep."""

    def cancel_waiting(self, runs: Sequence[RunDir]) -> None:
        """Take those of the runs out of the queue that have not begun."""
