"""Reads the stacks of Python programs that orch has not started itself. This requires py-spy to be installed."""

from __future__ import annotations

import os
import shutil
import subprocess

from orchestrator.node.launcher.stacks import Frame, Thread
from orchestrator.node.system.kernel_files import read_text
from orchestrator.node.system.private import user_in_words
from orchestrator.node.system.processes import owner_of, status_of
from orchestrator.protocol.json_text import parse_json

DUMP_SECONDS = 20.0
SYS_PTRACE = 19  # the number of the capability CAP_SYS_PTRACE
SCOPES = {
    "1": "only a parent may look into a process",
    "2": "only root may look into a process",
    "3": "nobody may look into a process until the next boot",
}


class NotSeenError(Exception):
    """A process can't be inspected. The text names the reason and a remedy."""


def dump(pid: int) -> tuple[Thread, ...]:
    """Return a process's threads with their stacks. Raises NotSeenError if the stacks can't be read."""
    program = _program(pid)
    if program is None:
        raise NotSeenError(
            "orch did not start this program itself, so it needs py-spy to read the stack: pip install py-spy"
        )
    try:
        done = subprocess.run(
            [program, "dump", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=DUMP_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return tuple(_thread(each) for each in parse_json(done.stdout))
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise NotSeenError(f"{program} fails: {error}") from error
    errors = done.stderr.decode("utf-8", "replace").strip()
    if "Permission" in errors or "not permitted" in errors or "EPERM" in errors:
        raise NotSeenError(
            _why_refused(pid) or f"this machine does not let {program} trace the process (ptrace): {errors[-300:]}"
        )
    raise NotSeenError(f"{program} reports: {errors[-300:]}")


def _program(pid: int) -> str | None:
    """Return the path of py-spy. It is searched next to the process's interpreter, on PATH and in ~/.local/bin. Return
    None if it is missing.
    """
    python = read_text(f"/proc/{pid}/cmdline").partition("\0")[0]
    beside = f"{os.path.dirname(python)}/py-spy"
    if python.startswith("/") and os.access(beside, os.X_OK):
        return beside
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.expanduser("~/.local/bin"))


def _thread(values: dict[str, object]) -> Thread:
    frames = values["frames"]
    assert isinstance(frames, list)
    found = tuple(Frame(str(each["name"]), str(each["filename"]), int(each["line"])) for each in frames)
    return Thread(values.get("thread_name") == "MainThread" or values.get("os_thread_id") == values["pid"], found)


def _why_refused(pid: int) -> str:
    """Return why this process may not inspect the process `pid`, or "" if no reason is known."""
    owner = owner_of(pid)
    if owner is None:
        return "it has just ended"
    scope = read_text("/proc/sys/kernel/yama/ptrace_scope").strip() or "0"
    return why_refused(owner, os.geteuid(), int(status_of(os.getpid(), "CapBnd") or "0", 16), scope)


def why_refused(owner: int, me: int, capabilities: int, scope: str) -> str:
    """Return a sentence about the rule of this machine that forbids to inspect a process with ptrace, or "" if no rule
    does.

    `owner` is the uid of the process, and `me` is the uid of this process. `capabilities` is a bit mask of all
    capabilities that this process could ever get (its bounding set). `scope` is kernel.yama.ptrace_scope, or "0" if
    this setting does not exist.
    """
    if me not in (owner, 0):
        return f"it runs as {user_in_words(owner)}: only that user or root may look into it"
    if scope in SCOPES:
        remedy = "" if scope == "3" else "; root can allow it: sysctl kernel.yama.ptrace_scope=0"
        return f"kernel.yama.ptrace_scope is {scope} on this machine: {SCOPES[scope]}{remedy}"
    if not capabilities >> SYS_PTRACE & 1:
        return "this container has no SYS_PTRACE: start it with --cap-add SYS_PTRACE"
    return ""
