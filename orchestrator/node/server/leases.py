"""Assigns each place of this machine (a GPU or a slot) to one run. A place is an abstract socket's name in the kernel,
and only one process at a time can hold a name.

A server takes the name and passes the socket's descriptor to the agent, so the place is free as soon as the agent has
ended. The name of a second socket describes the run for people. It is trusted only if the same user holds both sockets.
"""

from __future__ import annotations

import os
import re
import threading
import time
from socket import socket
from typing import Any

from orchestrator.node.server.request import Answer, RefusedError, Request, at_user
from orchestrator.node.system.abstract_sockets import owned_names, take
from orchestrator.node.system.gpus.devices import machine_devices, used_by_others
from orchestrator.node.system.private import user_name
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.places.devices import VISIBLE, is_gpu, named_by
from orchestrator.protocol.places.holders import kind, why_taken

PREFIX = "orch-lease"
WAIT_SECONDS = 0.5
# Places are released after this time without a request about them, because a broken connection may go unnoticed.
PROMISE_SECONDS = 60.0
_PLACE = r"(?:gpu|slot)-\d{1,6}|(?:GPU|MIG)-[0-9A-Za-z-]{1,60}"
_SHORT = 12  # characters of a place's name in its description, because a UUID would not fit beside a run id
_PLACE_IN_SHORT = r"[A-Za-z]{3,4}-[^/]{1,8}"
_SAID = r"([A-Za-z0-9][A-Za-z0-9_.-]{0,99})/(\d{1,11})"

Places = dict[str, list[socket]]  # the sockets that hold each place, by its name

held: dict[str, Places] = {}  # run id -> the places that this server holds for the run's agent
_asked: dict[str, float] = {}  # run id -> the time of the last request about the run


def places(slots: int | None) -> list[str]:
    """Return the names of this machine's places: its GPUs, or, if the machine has no GPUs, as many slots as the profile
    sets.
    """
    found = [each.name for each in named_by(os.environ.get(VISIBLE), machine_devices())]
    return found or [f"slot-{index}" for index in range(slots or 0)]


def lease(request: Request, _: bytes) -> Answer:
    """Take `count` places (GPUs or slots) for a run, or no place at all. If too few become free within `wait` seconds,
    return null and the reason.

    among: the places that the run may have; null for any. If the agent of this start was already started, return the
    places that the agent holds.
    """
    names, count, run_id = places(request.get("slots")), int(request["count"]), request["run_id"]
    among = request.get("among")
    names = names if among is None else [name for name in among if name in names]
    if not names:
        return {"places": []}, b""
    if count > len(names):
        raise RefusedError(f"the host has {len(names)} {kind(names)}, and the run needs {count}")
    release(request, b"")  # release places from an earlier answer, which may have been lost
    if os.path.exists(f"{node_folder(at_user(request['run_dir']), request['node'])}/start_{request['start']}"):
        return {"places": of_run(run_id, names)}, b""
    end = time.monotonic() + float(request.get("wait", 0.0))
    while True:
        taken = _take(names, count, run_id)
        if len(taken) == count:
            _promise(run_id, taken)
            return {"places": list(taken)}, b""
        _close(taken)
        if time.monotonic() >= end:
            return {"places": None, "why": why_taken(holders_of(names), count)}, b""
        time.sleep(WAIT_SECONDS)  # polled, because the kernel can't report when one of several names becomes free


def _promise(run_id: str, taken: Places) -> None:
    """Hold the places (GPUs or slots) for the run's agent as long as requests about them arrive."""
    held[run_id], _asked[run_id] = taken, time.monotonic()

    def look() -> None:
        if held.get(run_id) is not taken:
            return
        if time.monotonic() - _asked[run_id] > PROMISE_SECONDS:
            release({"run_id": run_id}, b"")
        else:
            again()

    def again() -> None:
        timer = threading.Timer(PROMISE_SECONDS, look)
        timer.daemon = True
        timer.start()

    again()


def _take(names: list[str], count: int, run_id: str) -> Places:
    """Take and return up to `count` free places. A place (a GPU or a slot) is free if no process holds it and no other
    program uses its GPU.
    """
    taken: Places = {}
    used = used_by_others() if any(map(is_gpu, names)) else {}
    for name in names:
        if len(taken) == count:
            break
        place = take(f"{PREFIX}/{name}") if name not in used else None
        if place is not None:
            said = take(f"{PREFIX}/{name[:_SHORT]}/{run_id}/{time.time():.0f}")
            taken[name] = [place, *([said] if said is not None else [])]
    return taken


def _close(taken: Places) -> None:
    for sockets in taken.values():
        for each in sockets:
            each.close()


def holders() -> dict[str, dict[str, Any]]:
    """Return the holder of each taken place (GPU or slot): uid, user and run, and since when the place is held. Unknown
    values are null.
    """
    place, said = re.compile(rf"{PREFIX}/({_PLACE})"), re.compile(rf"{PREFIX}/({_PLACE_IN_SHORT})/{_SAID}")
    names = owned_names()
    uids = {match[1]: each.uid for each in names if (match := place.fullmatch(each.name))}
    found: dict[str, dict[str, Any]] = {
        name: {"uid": uid, "user": user_name(uid), "run": None, "since": None} for name, uid in uids.items()
    }
    in_full = {name[:_SHORT]: name for name in uids}
    for each in names:
        match = said.fullmatch(each.name)
        name = in_full.get(match[1]) if match else None
        if match and name is not None and uids[name] == each.uid:
            found[name].update(run=match[2], since=int(match[3]))
    return found


def of_run(run_id: str, names: list[str]) -> list[str]:
    """Return which of these places (GPUs or slots) this user holds for a run, in the order of `names`."""
    known = holders()
    return [name for name in names if (each := known.get(name)) and (each["run"], each["uid"]) == (run_id, os.getuid())]


def holders_of(names: list[str]) -> dict[str, dict[str, Any] | None]:
    """Return the holder of each of these places (GPUs or slots); None if the place is free. The holder may be a program
    that does not belong to a run.
    """
    known = holders()
    used = used_by_others() if any(map(is_gpu, names)) else {}
    return {name: known.get(name) or used.get(name) for name in names}


def still_held(request: Request, _: bytes) -> Answer:
    """Return the places (GPUs or slots) that this server holds for a run. The request extends the time for which it
    holds the places.
    """
    _asked[request["run_id"]] = time.monotonic()
    return {"places": list(held.get(request["run_id"], {}))}, b""


def hand_over(run_id: str, promised: list[str]) -> Places:
    """Return the places (GPUs or slots) that were promised to an agent of the run. From now on the agent owns these
    places.

    Raises RefusedError if this server no longer holds one of the places. In this case all places of the run are
    released.
    """
    taken = held.get(run_id, {})
    if lost := ", ".join(name for name in promised if name not in taken):
        release({"run_id": run_id}, b"")
        said = f"{lost} is held no longer for run {run_id}: the connection that held it was lost meanwhile"
        raise RefusedError(said, transient=True)
    handed = {name: taken.pop(name) for name in promised}
    if not taken:
        held.pop(run_id, None)
    return handed


def release(request: Request, _: bytes) -> Answer:
    """Release the places (GPUs or slots) that were taken for a run whose agent will not be started."""
    taken = held.pop(request["run_id"], {})
    _close(taken)
    return {"released": len(taken)}, b""
