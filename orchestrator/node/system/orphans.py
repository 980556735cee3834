"""Adopts and reaps orphaned processes for an agent. If another thread waits for a child process, this child is left to
that thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

_lock = threading.Lock()
_waited_for = 0  # the number of programs in run(); while it is not 0, reap_orphans reaps nothing


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, so that it can reap them."""
    import ctypes

    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0) != 0:
        print("orch: this kernel has no child subreaper, so orphans are searched by their mark", file=sys.stderr)


def reap_orphans(keep: int | None) -> dict[int, int]:
    """Reap adopted children that have ended, and return a dict from pid to exit code. If signal N ended a child, its
    code is -N.

    Reaping stops if the next ended child is the launcher, whose pid is `keep`. While another thread waits for a
    program, nothing is reaped.
    """
    codes: dict[int, int] = {}
    with _lock:
        while not _waited_for:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended is None or ended.si_pid == keep:
                break
            codes[ended.si_pid] = os.waitstatus_to_exitcode(os.waitpid(ended.si_pid, 0)[1])
    return codes


def run(argv: Sequence[str], timeout: float | None) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its output and exit code. Raises OSError or TimeoutExpired, like subprocess.run."""
    global _waited_for  # noqa: PLW0603 (a count of this process's own children)
    with _lock:
        _waited_for += 1
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout,
            check=False,
        )  # fmt: skip
    finally:
        with _lock:
            _waited_for -= 1
