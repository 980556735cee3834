"""The agent's side of the launcher: start it inside the runtime, talk in JSON lines, make sure that it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
from dataclasses import replace
from typing import Any, Callable

from orchestrator.node.background import in_thread
from orchestrator.node.containers import ENGINES
from orchestrator.node.engine import EngineError, remove
from orchestrator.node.enter import enter
from orchestrator.node.preflight import cores
from orchestrator.node.processes import MARK, mark
from orchestrator.node.reports import last_lines
from orchestrator.node.signals import held_back
from orchestrator.wire import RANK_VARIABLES, NodeTask, node_folder

Message = dict[str, Any]


def launcher_argv(task: NodeTask) -> list[str]:
    """The argv of the launcher on the node itself: the profile's set-up lines, the training interpreter."""
    return after_setup(task, [task.python, *entry(task), "launcher"])


def after_setup(task: NodeTask, argv: list[str]) -> list[str]:
    """The argv, once the profile's set-up lines have been run on the node."""
    if not task.setup:
        return argv
    lines = [
        f"{{ {line}\n}} || {{ echo {shlex.quote(f'orch: setup line {number} failed: {line}')} >&2; exit 1; }}"
        for number, line in enumerate(task.setup, start=1)
    ]
    # A login shell, because `module` is a function that /etc/profile.d defines.
    return ["bash", "-lc", "\n".join([*lines, 'exec "$@"']), "orch-setup", *argv]


def entry(task: NodeTask) -> list[str]:
    """What follows the interpreter to reach this code: the archive that was sent along."""
    return [f"{task.run_dir}/node.pyz"]


def launcher_environment(task: NodeTask, nproc: int) -> dict[str, str]:
    """What the launcher's interpreter and its libraries read while they load; secrets come over stdin."""
    environment = {
        key: value for key, value in os.environ.items() if key not in RANK_VARIABLES and not key.startswith("PET_")
    }
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // nproc)))
    environment.update(task.env)
    paths = [*entry(task), *filter(None, [environment.get("PYTHONPATH")])]
    environment.update(
        {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", MARK: mark(task.run_id, task.node_rank)}
    )
    return environment


def engine_environment(task: NodeTask) -> dict[str, str]:
    """What the program that starts the container gets: this process's own variables, and the mark."""
    environment = {key: value for key, value in os.environ.items() if key not in RANK_VARIABLES}
    # Marked, but for pyxis: to the launcher inside, its srun is a stranger with the run's mark.
    if task.container is not None and task.container.runtime != "pyxis":
        environment[MARK] = mark(task.run_id, task.node_rank)
    return environment


class LauncherProcess:
    """A running launcher; its reports arrive through `on_report`, and its end as {"kind": "gone"}."""

    def __init__(self, task: NodeTask, on_report: Callable[[Message], None]) -> None:
        self.task, self.on_report = task, on_report
        self.log_path = f"{node_folder(task.run_dir, task.node_rank)}/launcher.log"
        self.process: asyncio.subprocess.Process | None = None
        self.early: list[Message] = []  # orders from before it was started
        self.container: Message = {}  # what is known of its container, once that is about to be started
        self.left: list[str] = []  # what could not be removed of it

    @property
    def pid(self) -> int | None:
        """The process's number while it may be running."""
        return self.process.pid if self.process is not None else None

    async def start(self, nproc: int, attempt: int) -> None:
        """Start it and tell it its task; OSError or EngineError when it can't be started."""
        task, argv = self.task, launcher_argv(self.task)
        environment = launcher_environment(task, nproc)
        if task.container is not None:
            threads = max(1, cores() // nproc)
            entry = await in_thread(enter, task, attempt, threads)
            task, argv, self.container = entry.task, after_setup(task, entry.argv), entry.record
            environment = engine_environment(task)
        with open(self.log_path, "ab") as log, held_back():
            self.process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=self.task.code_dir,
                limit=1 << 20,
                start_new_session=True,
            )
        for order in (replace(task, token="").to_json(), *self.early):
            self.send(order)
        self.early = []
        self.reader = asyncio.create_task(self._read())

    def send(self, order: Message) -> None:
        """Give an order, also before it is started; a launcher that is gone is reported by its end, not here."""
        if self.process is None:
            self.early.append(order)
        elif self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            while line := await self.process.stdout.readline():
                with contextlib.suppress(ValueError):  # a line cut by its death
                    self.on_report(json.loads(line))
        except ValueError:  # a line beyond all bounds: whatever writes it is no launcher of ours any more
            self.kill()
        code = await self.process.wait()
        self.left = await self._remove_container()
        self.on_report({"kind": "gone", "code": code, "tail": last_lines(self.log_path)})

    async def _remove_container(self) -> list[str]:
        """What can't be removed of its containers; none is left where all went well: they remove themselves."""
        if self.container.get("runtime") not in ENGINES:
            return []
        try:
            return (await in_thread(remove, self.container["runtime"], self.task.run_id, self.task.node_rank))[1]
        except EngineError as error:
            return [f"{self.container['name']} ({error})"]

    async def end(self, patience: float = 5.0) -> None:
        """Close its stdin, which ends it and its ranks; kill it when it does not obey."""
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
        """SIGKILL; the ranks follow by PDEATHSIG, and a container is removed when its client is gone."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
