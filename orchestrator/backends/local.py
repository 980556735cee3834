"""This machine: every node of the profile is an agent here, detached from the terminal that started it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.backends.base import Backend, Check, NodeProof, Sight, Turn
from orchestrator.errors import BackendError, StoreError
from orchestrator.node.system.private import users_umask
from orchestrator.node.system.processes import Process, identify, is_alive, send_signal, wait_gone
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, write_durably

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from pathlib import Path

    from orchestrator.backends.replay_stage import Order
    from orchestrator.protocol.task import NodeTask
    from orchestrator.specs.plan import LaunchPlan, Place
    from orchestrator.specs.profiles import AnyProfile

NOBODY = Process(0, 0)  # an agent that was started, and of which is not known which process it is


class LocalBackend(Backend):
    """Agents as detached processes of this user on this machine.

    They are not started again: what takes this machine's agents down takes the supervisor down too.
    """

    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """Return the run directory itself."""
        from orchestrator.specs.plan import Place  # noqa: PLC0415 (loads pydantic)

        return Place(
            run_dir=str(run.path),
            code_dir=str(run.path / "code"),
            inputs_dir=str(run.path.parent.parent / "inputs"),
            agent_python=sys.executable,
            python=python or sys.executable,
        )

    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Start the agents; the handle is written before and after, and each agent records itself as well."""
        from orchestrator.backends.local_places import leased_here  # noqa: PLC0415 (only a submit needs it)

        if plan.job["environment"] is not None:
            from orchestrator.backends.environments import with_environment  # noqa: PLC0415 (most jobs have none)
            from orchestrator.transport.machine import LocalMachine  # noqa: PLC0415 (as above)

            tasks = with_environment(run, tasks, {0: LocalMachine()}, str(run.path.parent.parent))
        began = (run.path / "handle.json").exists()
        with leased_here(run, plan.profile, tasks, began=began) as (told, places):
            self._start_all(plan, told, places, run)
        _leave_queue(self.turn(run))

    def _start_all(
        self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], places: Mapping[int, Sequence[int]], run: RunDir
    ) -> None:
        from orchestrator.protocol.task import task_json  # noqa: PLC0415 (only a submit needs it)
        from orchestrator.transport.node_archive import kept_archive  # noqa: PLC0415 (as above)

        write_durably(run.path / "node.pyz", kept_archive(run.root))
        for task in tasks:
            run.node(task.node_rank).mkdir(parents=True, exist_ok=True)
            path = run.node(task.node_rank) / "task.json"
            write_durably(path, task_json(task), private=True)
        host = os.uname().nodename
        run.write("handle.json", {"state": HandleStatus.INTENT, "host": host, "agents": {}})
        agents = {}
        for task, command in zip(tasks, plan.commands, strict=True):
            process = _start(command, run, task, plan, places.get(task.node_rank, ()))
            agents[str(task.node_rank)] = {"pid": process.pid, "started": process.started}
        run.write("handle.json", {"state": HandleStatus.SUBMITTED, "host": host, "agents": agents})

    def turn(self, run: RunDir) -> Turn | None:
        """Return the run's place among the runs that wait for this machine's GPUs."""
        from orchestrator.backends.local_places import waiting_here  # noqa: PLC0415 (`orch status` does without)

        return waiting_here(run)

    def doctor(self, profile: AnyProfile, *, on_node: bool) -> list[Check]:
        """Check this machine's Python, torch, disk, shared memory and GPUs."""
        from orchestrator.backends.local_doctor import examine  # noqa: PLC0415 (`orch status` does without)

        return examine(profile)

    def look(self, run: RunDir, *, recorded: bool = False) -> Sight:
        """Look at each recorded agent's pid and start time. On another machine these belong to other processes."""
        if recorded:
            return Sight()
        agents = _agents(run)
        if other := _other_machine(run):
            return Sight(dict.fromkeys(agents), other_machine=other)
        return Sight({node: is_alive(process) for node, process in agents.items()})

    def wait(self, run: RunDir, timeout: float) -> None:
        """Wait on the pidfd of the first agent that lives; where none does, there is nothing but time to wait on."""
        living = [process for process in _agents(run).values() if is_alive(process)]
        if living and not _other_machine(run):
            wait_gone(living[:1], timeout)
        else:
            time.sleep(timeout)  # agents of another machine, or not started yet: no pidfd to wait on

    def cancel(self, run: RunDir) -> None:
        """Send TERM to every agent; each of them finds the recorded cancel and tells the leader.

        On another machine than theirs the supervisor there finds it.
        """
        if _other_machine(run):
            return
        for process in _agents(run).values():
            send_signal(process, signal.SIGTERM)

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the command itself: every node is this machine."""
        return list(argv)

    def stage_replay(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """Use the run directory."""
        from orchestrator.backends.replay_stage import stage_replay  # noqa: PLC0415 (only a replay needs it)

        return stage_replay(run, name, checkpoint, order, sys.executable)

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """Send KILL to the agents that are left and to everything that carries the run's mark."""
        from orchestrator.node.server.machine import end_run  # noqa: PLC0415 (`orch status` ends nothing)

        if host := _other_machine(run):
            return [NodeProof(0, host, 0, is_unreachable=True)]
        _leave_queue(self.turn(run))
        folders = [str(folder) for folder in (run.path / "nodes").glob("*")]
        ended, survivors = end_run(run.run_id, list(_agents(run).values()), folders)
        return [NodeProof(0, os.uname().nodename, ended, tuple(survivors))]


def _start(command: tuple[str, ...], run: RunDir, task: NodeTask, plan: LaunchPlan, places: Sequence[int]) -> Process:
    import subprocess  # noqa: PLC0415 (`orch status` starts nothing)

    from orchestrator.protocol.ranks import RANK_VARIABLES  # noqa: PLC0415 (only a submit needs it)

    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in RANK_VARIABLES and key not in plan.secret_names and not key.startswith("ORCH_")
    }
    try:
        with open(run.node(task.node_rank) / "agent.log", "ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=run.path,
                start_new_session=True,
                umask=users_umask(),
                pass_fds=places,
            )
    except OSError as error:
        raise BackendError(f"node {task.node_rank}: its agent can't be started: {error}") from error
    found = identify(child.pid)
    child.returncode = 0  # it outlives this process on purpose; nobody waits for it here
    return found or Process(child.pid, 0)


def _other_machine(run: RunDir) -> str:
    """Return the machine on which the run was started if it is not this one: the state folder may be shared."""
    try:
        host = (run.read("handle.json") or {}).get("host")
    except StoreError:  # damaged: nearly all runs were started on this machine
        return ""
    return host if isinstance(host, str) and host != os.uname().nodename else ""


def _leave_queue(turn: Turn | None) -> None:
    if turn is not None:
        turn.leave()


def _agents(run: RunDir) -> dict[int, Process]:
    """Return the recorded agents: by the handle, and by what each wrote of itself when its handle was never written."""
    agents: dict[int, Process] = {}
    try:
        handle = run.read("handle.json") or {}
    except StoreError:  # damaged: what the agents wrote of themselves counts all the same
        handle = {}
    recorded = handle.get("agents")
    for node, values in recorded.items() if isinstance(recorded, dict) else ():
        if node.isdecimal() and (process := _process(values)):
            agents[int(node)] = process
    for folder in sorted((run.path / "nodes").glob("*")):
        if folder.name.isdigit() and (own := run.read(f"nodes/{folder.name}/agent.json")):
            agents[int(folder.name)] = _process(own) or agents.get(int(folder.name), NOBODY)
    return agents


def _process(values: Any) -> Process | None:
    """Return the process of a record; None where the record has been damaged."""
    if not isinstance(values, dict) or [type(values.get(name)) for name in ("pid", "started")] != [int, int]:
        return None
    return Process(values["pid"], values["started"])
