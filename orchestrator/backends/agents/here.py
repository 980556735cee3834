"""The backend for profiles of kind local, which starts agents on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from orchestrator.backends.agents.backend import Agents
from orchestrator.backends.agents.handle import agents_here, read_handle
from orchestrator.backends.base import NodeProof, Sight
from orchestrator.backends.settings import AgentsSettings
from orchestrator.node.system.processes import is_alive, wait_gone

if TYPE_CHECKING:
    from orchestrator.errors import BackendError
    from orchestrator.protocol.task import NodeTask
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.plan import LaunchPlan, Place
    from orchestrator.transport.machine import Machine, Machines

T = TypeVar("T")


class AgentsHere(Agents):
    """Agents on this machine.

    The agents write into the run's folder directly, so no file is copied, and `look` asks the kernel whether the agents
    live. The agents are not started again after a loss, because a loss of this machine, such as a reboot, ends the
    supervisor too.
    """

    @property
    def machines(self) -> Machines:
        """Return an object whose method `session` always returns this machine."""
        from orchestrator.transport.machine import OnlyHere

        return OnlyHere()

    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """Return the run's own folder."""
        from orchestrator.specs.plan import Place

        trains, inputs = python or sys.executable, str(run.root / "inputs")
        return Place(str(run.path), str(run.path / "code"), inputs, sys.executable, trains)

    def submit(
        self, plans: Sequence[LaunchPlan], tasks: Sequence[tuple[NodeTask, ...]], runs: Sequence[RunDir]
    ) -> None:
        """Start all agents of the run."""
        self._start(tasks[0], runs[0], replace(AgentsSettings.of(plans[0].profile), workdir=str(runs[0].root)))

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

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """Kill the run's remaining processes on this machine. If another machine started the run, report that
        machine as unreachable.
        """
        if other := self.look(run).other_machine:
            return [NodeProof(0, other, 0, is_unreachable=True)]
        return super().clean_up(run)

    def _on_machines(
        self, run: RunDir, work: Callable[[int | None, Machine, str], T], without: Collection[int] = ()
    ) -> tuple[dict[int, T], dict[int, BackendError]]:
        from orchestrator.backends.hosts import on_all
        from orchestrator.transport.machine import LocalMachine

        handle = read_handle(run)
        machines = {} if handle is not None and handle.other_machine else {0: LocalMachine()}
        return on_all(lambda _, machine: work(None, machine, str(run.path)), machines)
