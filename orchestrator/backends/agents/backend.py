"""The base class of the local and ssh backends, which start an agent on each node without a scheduler."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from orchestrator.backends.agents.handle import read_handle
from orchestrator.backends.base import Backend, Check, NodeProof, Turn
from orchestrator.backends.settings import AgentsSettings
from orchestrator.errors import BackendError, PlacesTakenError
from orchestrator.runs.dependencies import awaited_places

if TYPE_CHECKING:  # `orch status` must wait neither for pydantic nor for fabric
    from orchestrator.protocol.task import NodeTask
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.transport.machine import Machine, Machines

T = TypeVar("T")


class Agents(Backend):
    """The backend that starts agents as detached processes of the user.

    A subclass defines the machines, and how their files are copied to this machine.
    """

    @property
    @abstractmethod
    def machines(self) -> Machines:
        """Return an object whose method `session` returns the machine at an address."""

    @abstractmethod
    def _on_machines(
        self, run: RunDir, work: Callable[[int | None, Machine, str], T], without: Collection[int] = ()
    ) -> tuple[dict[int, T], dict[int, BackendError]]:
        """Call `work(node, machine, folder)` for each machine of the run. `folder` is the run's folder on that machine.

        `node` is None if one call serves all nodes of the run. Return the results and the errors, each as a dict from
        node number.
        """

    # -- starting

    def _start(self, tasks: tuple[NodeTask, ...], run: RunDir, settings: AgentsSettings) -> None:
        """Prepare every machine, then start all agents. If a node can't take part, no agent is started."""
        from orchestrator.backends.agents.start import Start

        hosts = dict(enumerate(settings.hosts))
        try:
            Start(self.machines, run, settings, hosts).begin(tasks, tuple(hosts))
        except BackendError as error:
            handle = run.path / "handle.json"
            if isinstance(error, PlacesTakenError) and handle.exists():  # an interrupted start has left the handle
                self._end_processes(run)  # a run that waits holds no places
                handle.unlink()
            self._remove_sent(run)
            raise
        self._leave_queue(run)

    def _remove_sent(self, run: RunDir) -> None:
        """After a failed start that has not written handle.json, remove the files that were sent to the machines. The
        default does nothing.
        """

    def turn(self, run: RunDir) -> Turn | None:
        """Return the run's entry in the queue for GPUs or slots on its machines; None if the run is not queued."""
        if awaited_places(run) is None:
            return None
        from orchestrator.backends.places.waiting import Waiting

        return Waiting.recorded(self.machines, run)

    def _leave_queue(self, run: RunDir) -> None:
        if (turn := self.turn(run)) is not None:
            turn.leave()

    # -- ending

    def cancel(self, run: RunDir) -> None:
        """Record the cancel on every node and send TERM to every agent. An unreachable node gets the cancel later.

        If a local run was started on another machine that shares the state folder, that machine's supervisor cancels
        the run.
        """
        agents, recorded = _recorded_agents(run), (run.read("cancel.json") or {}) if self.is_remote else None

        def one(node: int | None, machine: Machine, folder: str) -> None:
            machine.call("cancel", run_dir=folder, node=node, cancel=recorded, agents=agents)

        self._on_machines(run, one)

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """Kill all remaining processes of the run on every node, and take the run out of its queue. Return a result for
        each node, which also says whether the node was unreachable.
        """
        self._leave_queue(run)
        return self._end_processes(run)

    def _end_processes(self, run: RunDir) -> list[NodeProof]:
        handle, lost, agents = read_handle(run), self.unreachable(run), _recorded_agents(run)

        def one(node: int | None, machine: Machine, folder: str) -> NodeProof:
            reply, _ = machine.call(
                "clean_up", run_dir=folder, run_id=run.run_id, node=node, agents=agents, anywhere=False
            )
            return NodeProof(node or 0, reply["host"], reply["ended"], tuple(reply["survivors"]))

        proofs, failed = self._on_machines(run, one, without=lost)
        for node in {*failed, *lost}:
            host = handle.hosts[node].name if handle else "?"
            proofs[node] = NodeProof(node, host, 0, is_unreachable=True)
        return [proofs[node] for node in sorted(proofs)]

    def unreachable(self, run: RunDir) -> set[int]:
        """Return the nodes that this process watches and can't reach at the moment."""
        return set()

    # -- a profile's machines

    def doctor(self, profile: AnyProfile, *, on_node: bool) -> list[Check]:
        """Check the machines of all nodes in parallel."""
        from orchestrator.backends.agents.doctor import examine

        return examine(profile, self.machines)


def _recorded_agents(run: RunDir) -> dict[str, tuple[int, int]]:
    handle = read_handle(run)
    return {str(node): agent for node, agent in handle.agents.items()} if handle is not None else {}
