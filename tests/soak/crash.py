"""Runs a command of orch in this process and kills the process at its N-th act upon the world outside.

    python crash.py COUNT_FILE STOP_AT WHAT [ARGS...]      WHAT: cli | supervisor | alone | start

Acts are the calls that change something that outlives the process: files opened for writing, renamed, synced, made and
removed, processes started and signalled. The process ends by SIGKILL just before act STOP_AT (0: never); the number of
acts made is written to COUNT_FILE at a normal end. `alone` is `cli` without the supervisor that it would start,
`start RUN` what a supervisor starts for a held run. With STOP_AT `after:N:TEXT` the process ends
just after the N-th act whose description contains TEXT.
A file's content is written before the next act, or with it lost: opening counts a second time once it is open.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

CALLS = ("replace", "rename", "fsync", "unlink", "remove", "mkdir", "rmdir", "symlink", "link", "chmod", "utime")


class Acts:
    """Counts, and kills."""

    def __init__(self, stop_at: str, log: str) -> None:
        _, left, self.text = stop_at.split(":", 2) if stop_at.startswith("after:") else ("", "0", "")
        self.left, self.stop_at = int(left), 0 if self.text else int(stop_at)
        self.count, self.log = 0, log

    def act(self, what: str) -> None:
        self.count += 1
        if self.count == self.stop_at:
            descriptor = _open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(descriptor, f"killed before act {self.count}: {what}".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        if self.text and self.text in what:
            self.left -= 1
            self.stop_at = 0 if self.left else self.count + 1


_open, _builtin_open, _popen, _kill = os.open, builtins.open, subprocess.Popen.__init__, signal.pidfd_send_signal
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def watch(acts: Acts, *, supervisor: bool) -> None:
    """Put the counter in front of every act."""

    def counted(name: str) -> None:
        inner = getattr(os, name)

        def call(*args: Any, **values: Any) -> Any:
            acts.act(f"{name}{args}")
            return inner(*args, **values)

        setattr(os, name, call)

    for name in CALLS:
        counted(name)

    def os_open(path: Any, flags: int, *args: Any, **values: Any) -> int:
        if flags & WRITING:
            acts.act(f"open {path}")
        return _open(path, flags, *args, **values)

    def opened(file: Any, mode: str = "r", *args: Any, **values: Any) -> Any:
        writes = set(mode) & set("wax+") and not isinstance(file, int) and os.fspath(file) != os.devnull
        if writes:
            acts.act(f"open {file}")
        stream = _builtin_open(file, mode, *args, **values)
        if writes:
            acts.act(f"opened {file}, nothing written")
        return stream

    def popen(self: Any, args: Any, **values: Any) -> None:
        is_supervisor = "orchestrator.supervisor" in args
        if is_supervisor and not supervisor:
            args = ["true"]
        else:
            acts.act(f"Popen {args}")
        _popen(self, args, **values)

    def send(*args: Any) -> None:
        acts.act(f"signal {args}")
        _kill(*args)

    os.open = os_open
    builtins.open = io.open = opened  # type: ignore[assignment]
    subprocess.Popen.__init__ = popen  # type: ignore[method-assign]
    signal.pidfd_send_signal = send  # type: ignore[assignment]


def main() -> None:
    count_file, stop_at, what, *args = sys.argv[1:]
    import click  # noqa: F401 (imports write no files, but are none of the acts)

    from orchestrator import cli
    from orchestrator.runs.store import RunDir, state_root
    from orchestrator.supervisor import queue, supervisor

    acts = Acts(stop_at, count_file)
    watch(acts, supervisor=what != "alone")
    code: Any = 0
    try:
        if what == "supervisor":
            supervisor.supervise(state_root())
        elif what == "start":
            queue.start_here(RunDir(Path(args[0])))
        else:
            sys.argv = ["orch", *args]
            cli.main()
    except SystemExit as error:
        code = error.code
    with _builtin_open(count_file, "w") as file:
        file.write(str(acts.count))
    os._exit(code or 0)


if __name__ == "__main__":
    main()
