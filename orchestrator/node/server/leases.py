"""Which run holds which GPU (or slot) of this machine: one lock file each, in a folder that all its users share.

The lock is the kernel's (flock), taken for the agent by who starts it and held by the agent's own descriptor: it is
free again the moment the agent is gone, however it went. What the file says of its holder is for people.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import threading
import time
from typing import Any

from orchestrator.node.server.request import Answer, RefusedError, Request
from orchestrator.node.system.host import gpus

FOLDER = "/tmp/orch-leases"  # noqa: S108 (all users of the machine have to find the same one, and a boot empties it)
WAIT_SECONDS = 0.5
HOLD_SECONDS = 120.0

held: dict[str, list[int]] = {}  # run id -> descriptors that wait for their agent


def places(slots: int | None) -> list[str]:
    """Return the names of what can be held here: the GPUs, or, without any, as many slots as the profile says."""
    count = gpus()
    return [f"gpu-{index}" for index in range(count)] or [f"slot-{index}" for index in range(slots or 0)]


def lease(request: Request, _: bytes) -> Answer:
    """Take `count` places for a run, all or none; waits for them where `wait` is set, else says who holds them."""
    names, count = places(request.get("slots")), int(request["count"])
    if not names:
        return {"places": []}, b""
    if count > len(names):
        raise RefusedError(f"it has {len(names)} {_kind(names)}, and {count} are asked for")
    while True:
        taken = _take(names, count, request["run_id"])
        if len(taken) == count:
            _hold(request["run_id"], list(taken.values()))
            return {"places": list(taken)}, b""
        for descriptor in taken.values():
            os.close(descriptor)
        if not request.get("wait"):
            holders = "; ".join(f"{name} by {_in_words(holder)}" for name in names if (holder := holder_of(name)))
            raise RefusedError(
                f"only {len(taken)} of {len(names)} {_kind(names)} are free, {count} are needed: {holders}"
            )
        time.sleep(WAIT_SECONDS)  # there is nothing to wait on for any of several locks


def _hold(run_id: str, descriptors: list[int]) -> None:
    """Keep them for the run's agent; not for ever, for who asked may have gone while this machine waited."""
    held[run_id] = descriptors

    def let_go() -> None:
        if held.get(run_id) is descriptors:
            release({"run_id": run_id}, b"")

    timer = threading.Timer(HOLD_SECONDS, let_go)
    timer.daemon = True
    timer.start()


def _kind(names: list[str]) -> str:
    return "GPUs" if names[0].startswith("gpu") else "slots"


def _take(names: list[str], count: int, run_id: str) -> dict[str, int]:
    """Return up to `count` places and the descriptors that hold them."""
    taken: dict[str, int] = {}
    for name in names:
        if len(taken) == count:
            break
        descriptor = _open(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        holder = {"run": run_id, "user": _user(os.getuid()), "since": round(time.time())}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        taken[name] = descriptor
    return taken


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _open(name: str) -> int:
    """Open the lock file, which any user may have made; without O_CREAT where it is there (fs.protected_regular)."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(FOLDER)
        os.chmod(FOLDER, 0o1777)  # noqa: S103 (shared by all users, like /tmp itself)
    path = f"{FOLDER}/{name}"
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(PermissionError):  # somebody else's since a moment ago: then it is open to all already
            os.fchmod(descriptor, 0o666)
        return descriptor


def holder_of(name: str) -> dict[str, Any] | None:
    """Return who holds a place now: run, user, since; None when it is free."""
    try:
        descriptor = os.open(f"{FOLDER}/{name}", os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            found = json.loads(os.pread(descriptor, 4096, 0))
        except ValueError:  # being written right now
            found = {}
        return found if isinstance(found, dict) else {}
    finally:
        os.close(descriptor)
    return None


def _in_words(holder: dict[str, Any]) -> str:
    return f"{holder.get('user', '?')}'s run {holder.get('run', '?')}"


def leases(request: Request, _: bytes) -> Answer:
    """Return every place of this machine and who holds it."""
    return {"places": {name: holder_of(name) for name in places(request.get("slots"))}}, b""


def release(request: Request, _: bytes) -> Answer:
    """Let go of what was taken for a run whose agent is not to be started after all."""
    descriptors = held.pop(request["run_id"], [])
    for descriptor in descriptors:
        os.close(descriptor)
    return {"released": len(descriptors)}, b""
