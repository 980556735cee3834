"""A backend of somebody else's: it starts each agent by `nohup nice`, and uses nothing of orch's own backends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from orch_nohup_profile import NohupProfile

from orchestrator.backends.base import Backend, NodeProof, Sight
from orchestrator.errors import BackendError
from orchestrator.node.server.machine import end_run
from orchestrator.node.system.processes import Process, identify, is_alive, send_signal, wait_gone
from orchestrator.protocol.task import NodeTask, task_json
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, write_durably
from orchestrator.specs.plan import LaunchPlan, RunPaths
from orchestrator.specs.profile import as_profile
from orchestrator.transport.node_archive import node_archive


class Nohup(Backend):
    """One process of nohup for each node."""

    def paths(self, run: RunDir, workdir: str | None, python: str | None) -> RunPaths:
        folder, inputs = str(run.path), str(run.root / "inputs")
        return RunPaths(folder, f"{folder}/code", inputs, sys.executable, python or sys.executable)

    def submit(
        self, plans: Sequence[LaunchPlan], tasks: Sequence[tuple[NodeTask, ...]], runs: Sequence[RunDir]
    ) -> None:
        (plan,), (mine,), (run,) = plans, tasks, runs
        write_durably(run.path / "node.pyz", node_archive())
        run.write("handle.json", {"state": HandleStatus.INTENT})
        agents = []
        for task, argv in zip(mine, plan.commands, strict=True):
            folder = run.node(task.node_rank)
            folder.mkdir(parents=True, exist_ok=True)
            write_durably(folder / "task.json", task_json(task), private=True)
            agents.append(self._start(folder, argv, as_profile(plan.profile, NohupProfile).niceness))
        run.write("handle.json", {"state": HandleStatus.SUBMITTED, "processes": agents})

    def _start(self, folder: Path, argv: Sequence[str], niceness: int) -> list[int]:
        try:
            with open(folder / "agent.log", "ab") as log:
                child = subprocess.Popen(
                    ["nohup", "nice", "-n", str(niceness), *argv],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise BackendError(f"{folder.name}: nohup can't be started: {error.strerror}") from error
        found = identify(child.pid)
        child.returncode = 0  # it outlives this process
        return [child.pid, found.started if found else 0]

    def look(self, run: RunDir, *, recorded: bool = False) -> Sight:
        if recorded:
            return Sight()
        return Sight({node: is_alive(process) for node, process in enumerate(_agents(run))})

    def wait(self, run: RunDir, timeout: float) -> None:
        living = [process for process in _agents(run) if is_alive(process)]
        if living:
            wait_gone(living[:1], timeout)
        else:
            time.sleep(timeout)

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        return list(argv)

    def cancel(self, runs: Sequence[RunDir]) -> None:
        for process in [process for run in runs for process in _agents(run)]:
            send_signal(process, signal.SIGTERM)

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        folders = [str(folder) for folder in (run.path / "nodes").glob("*")]
        ended, survivors = end_run(run.run_id, _agents(run), folders)
        return [NodeProof(0, os.uname().nodename, ended, tuple(survivors))]


def _agents(run: RunDir) -> list[Process]:
    return [Process(pid, started) for pid, started in (run.read("handle.json") or {}).get("processes", ())]
