"""The agent's side of the launcher: start it inside the runtime, talk in JSON lines, make sure that it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
from dataclasses import replace
from typing import Any, Callable

from orchestrator.node.preflight import cores
from orchestrator.node.processes import MARK, mark
from orchestrator.node.reports import last_lines
from orchestrator.node.signals import held_back
from orchestrator.wire import RANK_VARIABLES, NodeTask, node_folder

Message = dict[str, Any]


def launcher_argv(task: NodeTask) -> list[str]:
    """The argv of the launcher: the profile's set-up lines, the runtime, the training interpreter."""
    argv = [*task.enter, task.python, *entry(task), "launcher"]
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


class LauncherProcess:
    """A running launcher; its reports arrive through `on_report`, and its end as {"kind": "gone"}."""

    def __init__(self, task: NodeTask, on_report: Callable[[Message], None]) -> None:
        self.task, self.on_report = task, on_report
        self.log_path = f"{node_folder(task.run_dir, task.node_rank)}/launcher.log"
        self.process: asyncio.subprocess.Process | None = None
        self.early: list[Message] = []  # orders from before it was started

    @property
    def pid(self) -> int | None:
        """The process's number while it may be running."""
        return self.process.pid if self.process is not None else None

    async def start(self, nproc: int) -> None:
        """Start it and tell it its task; OSError when it can't be started."""
        with open(self.log_path, "ab") as log, held_back():
            self.process = await asyncio.create_subprocess_exec(
                *launcher_argv(self.task),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=launcher_environment(self.task, nproc),
                cwd=self.task.code_dir,
                limit=1 << 20,
                start_new_session=True,
            )
        for order in (replace(self.task, token="").to_json(), *self.early):
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
        self.on_report({"kind": "gone", "code": code, "tail": last_lines(self.log_path)})

    async def end(self, patience: float = 3.0) -> None:
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
        """SIGKILL; the ranks follow by PDEATHSIG."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()


def adopt_orphans() -> None:
    """Make this process the parent of whatever its descendants leave behind, so that it can reap it."""
    import ctypes  # noqa: PLC0415 (only agents need it)

    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0) != 0:
        print("orch: this kernel has no child subreaper; orphans will be found by their mark", file=sys.stderr)


def reap_orphans(keep: int | None) -> None:
    """Reap adopted children that have ended, but not the launcher, whose exit somebody waits for."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == keep:
            return
        os.waitpid(ended.si_pid, 0)
