"""The backend for profiles of kind local, which starts an agent for each node on this machine. The backend for ssh
profiles is a subclass.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from orchestrator.backends.agents.handle import agents_here, read_handle
from orchestrator.backends.base import Backend, Check, NodeProof, Sight
from orchestrator.backends.hosts import on_all, on_each
from orchestrator.backends.settings import AgentsSettings
from orchestrator.errors import BackendError, PlacesTakenError
from orchestrator.node.system.processes import is_alive, wait_gone
from orchestrator.runs.dependencies import awaited_places
from orchestrator.transport.machine import LocalMachine, Machine, Machines, OnlyHere

if TYPE_CHECKING:  # `orch status` must wait neither for pydantic nor for fabric
    from orchestrator.protocol.task import NodeTask
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.plan import LaunchPlan, RunPaths
    from orchestrator.specs.profiles import AnyProfile

T = TypeVar("T")


class Agents(Backend):
    """Agents that are detached processes of the user on this machine.

    The agents write into the run's folder directly, so no file is copied, and `look` asks the kernel whether the agents
    live. The agents are not started again after a loss, because a loss of this machine, such as a reboot, ends the
    supervisor too.
    """

    @property
    def machines(self) -> Machines:
        """Return an object whose method `session` returns the machine at an address."""
        return self.pool or OnlyHere()

    # -- starting

    def paths(self, run: RunDir, workdir: str | None, python: str | None) -> RunPaths:
        """Return paths in the run's own folder."""
        from orchestrator.specs.plan import RunPaths

        trains, inputs = python or sys.executable, str(run.root / "inputs")
        return RunPaths(str(run.path), str(run.path / "code"), inputs, sys.executable, trains)

    def submit(
        self, plans: Sequence[LaunchPlan], tasks: Sequence[tuple[NodeTask, ...]], runs: Sequence[RunDir]
    ) -> None:
        """Prepare every machine, then start all agents. If a node can't take part, no agent is started."""
        from orchestrator.backends.agents.start import Start

        (plan,), (mine,), (run,) = plans, tasks, runs
        settings = AgentsSettings.of(plan.profile)
        if not self.is_remote:
            settings = replace(settings, workdir=str(run.root))
        hosts = dict(enumerate(settings.hosts))
        try:
            Start(self.machines, run, settings, hosts).begin(mine, tuple(hosts))
        except PlacesTakenError:
            if run.has_begun:  # an interrupted start has left the handle
                self._end_processes(run)  # a run that waits holds no places
                (run.path / "handle.json").unlink()
            raise
        self._leave_queue(run)

    def _leave_queue(self, run: RunDir) -> None:
        if awaited_places(run) is None:
            return
        from orchestrator.backends.places.waiting import Waiting

        if (waiting := Waiting.recorded(self.pool, run)) is not None:
            waiting.leave()

    # -- looking

    def look(self, run: RunDir, *, recorded: bool = False) -> Sight:
        """Determine for each recorded agent, from its pid and start time, whether it lives.

        If the run was started on another machine that shares the state folder, its pids mean nothing on this machine.
        """
        if recorded:
            return Sight()
        handle = read_handle(run)
        agents = agents_here(run, handle)
        if handle is not None and (other := handle.other_machine):
            return Sight(dict.fromkeys(agents), other_machine=other)
        return Sight({node: is_alive(process) for node, process in agents.items()})

    def wait(self, run: RunDir, timeout: float) -> None:
        """Wait on the pidfd of one living agent until that agent ends, for at most `timeout` seconds."""
        handle = read_handle(run)
        agents = () if handle is not None and handle.other_machine else agents_here(run, handle).values()
        if living := [process for process in agents if is_alive(process)]:
            wait_gone(living[:1], timeout)
        else:
            time.sleep(timeout)  # agents of another machine, or not started yet: no pidfd to wait on

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the command unchanged, because the node is this machine."""
        return list(argv)

    def unreachable(self, run: RunDir) -> set[int]:
        """Return the nodes that this process watches and can't reach at the moment."""
        return set()

    # -- ending

    def cancel(self, runs: Sequence[RunDir]) -> None:
        """Record the cancel on every node and send TERM to every agent. An unreachable node gets the cancel later.

        If a local run was started on another machine that shares the state folder, that machine's supervisor cancels
        the run.
        """
        on_each(lambda _, run: self._cancel(run), dict(enumerate(runs)))

    def _cancel(self, run: RunDir) -> None:
        agents, recorded = _recorded_agents(run), (run.read("cancel.json") or {}) if self.is_remote else None

        def one(node: int | None, machine: Machine, folder: str) -> None:
            machine.call("cancel", run_dir=folder, node=node, cancel=recorded, agents=agents)

        self._on_machines(run, one)

    def tell_losses(self, run: RunDir, nodes: Collection[int]) -> None:
        """Write the losses into a file on each machine that can be reached. The agents read it."""
        from orchestrator.protocol.layout import lost_file
        from orchestrator.protocol.messages import Losses
        from orchestrator.protocol.typed import to_json

        if (handle := read_handle(run)) is not None:
            losses = json.dumps(to_json(Losses(handle.start, tuple(nodes)))).encode()

            def one(_: int | None, machine: Machine, folder: str) -> None:
                machine.call("write_file", losses, path=lost_file(folder))

            self._on_machines(run, one, without=self.unreachable(run))

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """Kill all remaining processes of the run on every node, and take the run out of its queue. Return a result for
        each node, which also says whether the node was unreachable.

        If another machine has started a local run, report that machine as unreachable.
        """
        if (handle := read_handle(run)) is not None and (other := handle.other_machine):
            return [NodeProof(0, other, 0, is_unreachable=True)]
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

    def _on_machines(
        self, run: RunDir, work: Callable[[int | None, Machine, str], T], without: Collection[int] = ()
    ) -> tuple[dict[int, T], dict[int, BackendError]]:
        """Call `work(node, machine, folder)` for each machine of the run. `folder` is the run's folder on that machine.

        `node` is None if one call serves all nodes of the run. Return the results and the errors, each as a dict from
        node number.
        """
        handle = read_handle(run)
        machines = {} if handle is not None and handle.other_machine else {0: LocalMachine()}
        return on_all(lambda _, machine: work(None, machine, str(run.path)), machines)

    # -- a profile's machines

    def doctor(self, profile: AnyProfile, *, on_node: bool) -> list[Check]:
        """Check the machines of all nodes in parallel."""
        from orchestrator.backends.agents.doctor import examine

        if self.pool is not None:
            self.pool.try_again()
        return examine(profile, self.machines)


def _recorded_agents(run: RunDir) -> dict[str, tuple[int, int]]:
    handle = read_handle(run)
    return {str(node): agent for node, agent in handle.agents.items()} if handle is not None else {}
