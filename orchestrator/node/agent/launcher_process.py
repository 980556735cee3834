"""Starts the launcher in the task's runtime, exchanges JSON lines with it, and ensures that it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import replace
from typing import Any, Callable

from orchestrator.node.container.argv import ENGINES, SHARES_TMP
from orchestrator.node.container.engine import EngineError, remove
from orchestrator.node.container.prepare import ended_with, prepare, remove_scratch
from orchestrator.node.launcher.rank.exit_report import last_lines
from orchestrator.node.system.host import cores
from orchestrator.node.system.open_files import restore_limit
from orchestrator.node.system.private import users_umask
from orchestrator.node.system.processes import MARK, mark
from orchestrator.node.system.setup_lines import after_setup
from orchestrator.node.system.signals import held_back
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import archive_file, node_folder
from orchestrator.protocol.masking import masker, secret_values
from orchestrator.protocol.messages import LauncherGone, Order, Ping, Report, read_report
from orchestrator.protocol.ranks import RANK_VARIABLES
from orchestrator.protocol.reading import open_own
from orchestrator.protocol.task import NodeTask


def launcher_environment(task: NodeTask, nproc: int) -> dict[str, str]:
    """Return the environment variables of the launcher and its libraries. Secrets are sent over stdin instead."""
    environment = {
        key: value for key, value in os.environ.items() if key not in RANK_VARIABLES and not key.startswith("PET_")
    }
    if not task.program.own_ranks:  # a batch file's launchers set it for the number of ranks that they start
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // nproc)))
    environment.update(task.env)
    if task.environment:
        path = environment.get("PATH", os.defpath)
        environment.update({"VIRTUAL_ENV": task.environment, "PATH": f"{task.environment}/bin{os.pathsep}{path}"})
        environment.pop("PYTHONHOME", None)
    paths = [archive_file(task.run_dir), *filter(None, [environment.get("PYTHONPATH")])]
    environment.update(
        {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", MARK: mark(task.run_id, task.node_rank)}
    )
    return environment


def engine_environment(task: NodeTask) -> dict[str, str]:
    """Return the environment for the program that starts the launcher's container: this process's variables, and the
    variable ORCH_MARK, by which the run's processes are found.
    """
    environment = {key: value for key, value in os.environ.items() if key not in RANK_VARIABLES}
    # pyxis gets no mark, because the launcher in the container would kill the srun process that has the mark.
    if task.container is not None and task.container.runtime != "pyxis":
        environment[MARK] = mark(task.run_id, task.node_rank)
    return environment


class LauncherProcess:
    """Controls the launcher of this node. `on_report` receives the launcher's reports, and LauncherGone when the
    process has ended.
    """

    def __init__(self, task: NodeTask, on_report: Callable[[Report], None]) -> None:
        self.task, self.on_report, self.masked = task, on_report, masker(secret_values(task.secrets, task.env))
        self.log_path = f"{node_folder(task.run_dir, task.node_rank)}/launcher.log"
        self.process: asyncio.subprocess.Process | None = None
        self.early: list[Order] = []  # orders that were sent before the launcher was started
        self.container: dict[str, Any] = {}  # facts about the launcher's container, set shortly before its start
        self.left: list[str] = []  # the launcher's containers that could not be removed
        self.attempt: int | None = None  # the attempt for which the launcher was started
        self.is_dismissed = False
        self.asked: float | None = None  # the monotonic time of the unanswered ping
        self.ended_for = ""  # why this agent has killed the launcher

    @property
    def pid(self) -> int | None:
        """Return the launcher's process id; None if the launcher was never started."""
        return self.process.pid if self.process is not None else None

    async def start(self, nproc: int, attempt: int) -> None:
        """Start the launcher and send its task. Raises OSError or EngineError if the launcher can't be started."""
        self.attempt = attempt
        task = self.task
        argv = after_setup(task.setup, [task.python, archive_file(task.run_dir), "launcher"], task.environment)
        environment = launcher_environment(task, nproc)
        if task.container is not None:
            threads = max(1, cores() // nproc)
            launch = await in_thread(prepare, task, attempt, threads)
            argv = after_setup(task.setup, launch.argv, task.environment)
            task, self.container = launch.task, launch.record
            environment = engine_environment(task)
        descriptor = open_own(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with open(descriptor, "ab") as log, held_back():
            self.process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment,
                cwd=self.task.code_dir, limit=1 << 20, start_new_session=True, umask=users_umask(),
            )  # fmt: skip
        with contextlib.suppress(ProcessLookupError):  # the launcher has ended already, which its reader reports
            restore_limit(self.process.pid)
        if task.debug is not None:
            task = replace(task, debug=replace(task.debug, user=os.geteuid()))
        self._write(replace(task, credentials="").to_json())
        for order in self.early:
            self.send(order)
        self.early = []
        self.reader = asyncio.create_task(self._read())
        if self.is_dismissed:
            await self.end()

    def serves(self, attempt: int) -> bool:
        """Return whether this launcher can run the ranks of an attempt. A launcher in a container runs only one
        attempt, because the container mounts the folder of that attempt.
        """
        return self.task.container is None or self.attempt in (None, attempt)

    async def dismiss(self) -> None:
        """End the launcher, even if it is still being started. When the launcher has ended, `on_report` receives
        LauncherGone.
        """
        self.is_dismissed = True
        await self.end()

    def send(self, order: Order) -> None:
        """Send an order to the launcher, or keep it until the launcher has started. If the launcher has ended, drop
        the order.
        """
        if self.process is None:
            self.early.append(order)
        else:
            self._write(order.to_json())

    def _write(self, line: dict[str, Any]) -> None:
        assert self.process is not None
        if self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(json.dumps(line).encode() + b"\n")

    def silence(self, now: float) -> float:
        """Return for how many seconds the launcher has not answered the last ping. If no ping is unanswered, send a new
        one.
        """
        if self.asked is None:
            self.asked = now
            self.send(Ping())
        return now - self.asked

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            while line := await self.process.stdout.readline():
                self.asked = None
                with contextlib.suppress(ValueError):  # the line is incomplete because the launcher has died
                    report = read_report(parse_json(line))
                    if report is not None:
                        self.on_report(report)
        except ValueError:  # the line is too long, so the writer is not a working launcher
            self.kill()
        code = ended_with(self.task, await self.process.wait())
        self.left = await self._remove_container()
        self.on_report(LauncherGone(code, tuple(last_lines(self.log_path, self.masked))))

    async def _remove_container(self) -> list[str]:
        """Remove the launcher's containers that still exist, although most containers remove themselves. Return the
        containers that can't be removed.
        """
        if self.container.get("runtime") in SHARES_TMP:
            await in_thread(remove_scratch, self.task)
        if self.container.get("runtime") not in ENGINES:
            return []
        try:
            return (await in_thread(remove, self.container["runtime"], self.task.run_id, self.task.node_rank))[1]
        except EngineError as error:
            return [f"{self.container['name']} ({error})"]

    async def end(self, patience: float = 5.0) -> None:
        """Close the launcher's stdin, which makes the launcher end its ranks and itself. Kill the launcher if it does
        not end within `patience` seconds.
        """
        if self.process is None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(asyncio.shield(self.reader), patience)
        except asyncio.TimeoutError:
            self.kill()
            await self.reader

    def kill(self) -> None:
        """Kill the launcher with SIGKILL. The kernel then kills the ranks (PDEATHSIG). A container is removed when its
        client has ended.
        """
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
