"""Starts the supervisor (the background process) if runs are live and no supervisor is running. The supervisor's own
code is not imported here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from orchestrator.errors import StoreError
from orchestrator.node.system.private import users_umask
from orchestrator.node.system.processes import Process, identify, is_stopped, send_signal
from orchestrator.protocol.files import locked_if_free
from orchestrator.runs.claims import claim_of, here, may_take, now_of, record_name
from orchestrator.runs.store import RunDir, check_own, is_any_live, live_runs, state_root

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
ARGV: Final = (sys.executable, "-P", "-m", "orchestrator.supervisor")


def supervisor_lock(root: Path) -> contextlib.AbstractContextManager[bool]:
    """Try to hold the lock that this machine's running supervisor holds. Yield True if the lock was free."""
    return locked_if_free(root / f"supervisor.{here()}.lock")


def attended_root() -> Path:
    """Return the folder of all runs. If live runs need a supervisor on this machine, start it first.

    The folder may be another user's. Its runs can be read, but no supervisor is started for them.
    """
    root = state_root()
    attend(root)
    return root


def attend(root: Path) -> None:
    """Start a supervisor if no supervisor is running on this machine, and this machine may look after a live run
    (`may_take`). Send SIGCONT to a supervisor of this machine that was stopped (SIGSTOP).

    If the disk is too full for the supervisor's files, no error is raised, so that commands that only show runs still
    work.
    """
    if is_any_live(root):
        try:
            check_own(root)
            with supervisor_lock(root) as is_free:
                pass
            now = now_of(root)
            if is_free and any(may_take(run, claim_of(run), now) for run in live_runs(root)):
                start_supervisor(root, without=_secret_names(root))
            elif not is_free:
                continue_if_stopped(supervisor_of(root))
        except (PermissionError, StoreError):
            pass
        except OSError as error:
            if error.errno not in FULL:
                raise


def supervisor_of(root: Path) -> Process | None:
    """Return the supervisor's process if it is alive and on this machine; otherwise None."""
    with contextlib.suppress(StoreError):
        record = RunDir(root).read(record_name(here())) or {}
        found = identify(record["pid"]) if type(record.get("pid")) is int else None
        if found and (found.started, here()) == (record.get("started"), record.get("host")):
            return found
    return None


def continue_if_stopped(process: Process | None) -> None:
    """Send SIGCONT to a process that is stopped."""
    if process is not None and is_stopped(process.pid):
        send_signal(process, signal.SIGCONT)


def _secret_names(root: Path) -> set[str]:
    """Return the names of the live runs' secrets, which the supervisor must not receive."""
    names: set[str] = set()
    for run in live_runs(root):
        with contextlib.suppress(StoreError):
            names.update(run.plan().secret_names)
    return names


def is_attended(root: Path) -> bool:
    """Return True if a supervisor is running on this machine."""
    with supervisor_lock(root) as is_free:
        return not is_free


def start_supervisor(root: Path, without: Iterable[str] = (), *, starts: str = "", stdin: int | None = None) -> int:
    """Start a supervisor as a background process and return its pid. It outlives the terminal and gets no secret.

    It exits at once if another supervisor is running on this machine. If it must first start a run, `starts` is the
    run's kind of backend, and the new process reads the request for this run from `stdin`.
    """
    import subprocess

    check_own(root)
    continue_if_stopped(supervisor_of(root))  # a stopped supervisor holds the lock, so a new one could do nothing
    hidden = set(without)
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"ORCH_HOME": str(root)}
    with open(root / "supervisor.log", "ab") as log:
        child = subprocess.Popen(
            [*ARGV, *filter(None, [starts])],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=log,
            stderr=log,
            env=environment,
            cwd="/",
            umask=users_umask(),
            start_new_session=True,
        )
    child.returncode = 0  # prevents a warning of Popen, because this process does not wait for its child
    return child.pid
