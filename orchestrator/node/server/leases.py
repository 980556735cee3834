"""Which run holds which GPU (or slot) of this machine: a name in the kernel for each, which one process at a time has.

It is taken for the agent by who starts it and held by the agent's own descriptor: it is free again the moment the agent
is gone, however it went. What the name of a second socket says of the run is for people, and believed of the same user.
"""

from __future__ import annotations

import contextlib
import pwd
import re
import time
from socket import socket
from typing import Any

from orchestrator.node.server.request import Answer, RefusedError, Request
from orchestrator.node.system.abstract_sockets import owned_names, take
from orchestrator.node.system.host import gpus

PREFIX = "orch-lease"
WAIT_SECONDS = 0.5
_PLACE = r"(?:gpu|slot)-\d{1,6}"
_SAID = r"([A-Za-z0-9][A-Za-z0-9_.-]{0,99})/(\d{1,11})"

Places = dict[str, list[socket]]  # what is held: the name of each place, and its sockets

held: dict[str, Places] = {}  # run id -> what waits for its agent, as long as this server lives


def places(slots: int | None) -> list[str]:
    """Return the names of what can be held here: the GPUs, or, without any, as many slots as the profile says."""
    count = gpus()
    return [f"gpu-{index}" for index in range(count)] or [f"slot-{index}" for index in range(slots or 0)]


def lease(request: Request, _: bytes) -> Answer:
    """Take `count` places for a run, all or none; null and `why` where they are not free within `wait` seconds."""
    names, count, run_id = places(request.get("slots")), int(request["count"]), request["run_id"]
    if not names:
        return {"places": []}, b""
    if count > len(names):
        raise RefusedError(f"it has {len(names)} {_kind(names)}, and {count} are asked for")
    release(request, b"")  # what an answer that was lost had promised
    end = time.monotonic() + float(request.get("wait", 0.0))
    while True:
        taken = _take(names, count, run_id)
        if len(taken) == count:
            held[run_id] = taken
            return {"places": list(taken)}, b""
        _close(taken)
        if time.monotonic() >= end:
            return {"places": None, "why": _why(names, count)}, b""
        time.sleep(WAIT_SECONDS)  # there is nothing to wait on for any of several names


def _kind(names: list[str]) -> str:
    return "GPUs" if names[0].startswith("gpu") else "slots"


def _take(names: list[str], count: int, run_id: str) -> Places:
    """Return up to `count` places that were free."""
    taken: Places = {}
    for name in names:
        if len(taken) == count:
            break
        place = take(f"{PREFIX}/{name}")
        if place is not None:
            said = take(f"{PREFIX}/{name}/{run_id}/{time.time():.0f}")
            taken[name] = [place, *([said] if said is not None else [])]
    return taken


def _close(taken: Places) -> None:
    for sockets in taken.values():
        for each in sockets:
            each.close()


def holders() -> dict[str, dict[str, Any]]:
    """Return who holds each place that is taken: uid, user, run, since; null where that is not known."""
    place, said = re.compile(rf"{PREFIX}/({_PLACE})"), re.compile(rf"{PREFIX}/({_PLACE})/{_SAID}")
    names = owned_names()
    uids = {match[1]: each.uid for each in names if (match := place.fullmatch(each.name))}
    found: dict[str, dict[str, Any]] = {
        name: {"uid": uid, "user": _user(uid), "run": None, "since": None} for name, uid in uids.items()
    }
    for each in names:
        match = said.fullmatch(each.name)
        if match and match[1] in uids and uids[match[1]] == each.uid:
            found[match[1]].update(run=match[2], since=int(match[3]))
    return found


def _user(uid: int | None) -> str | None:
    with contextlib.suppress(KeyError, TypeError, OverflowError):
        return pwd.getpwuid(uid).pw_name  # type: ignore[arg-type]
    return None


def _why(names: list[str], count: int) -> str:
    """Return who holds what, in a sentence."""
    known, by_holder = holders(), dict[str, list[str]]()
    for name in names:
        if name in known:
            by_holder.setdefault(_in_words(known[name]), []).append(name)
    free = len(names) - sum(map(len, by_holder.values()))
    told = "; ".join(f"{', '.join(theirs)} held by {holder}" for holder, theirs in by_holder.items())
    return f"only {free} of {len(names)} {_kind(names)} are free, {count} are needed: {told}"


def _in_words(holder: dict[str, Any]) -> str:
    """Return `user bob (uid 1001), run NAME since ...`: the user is the kernel's word, the rest that user's."""
    uid, run, since = holder["uid"], holder["run"], holder["since"]
    who = "a user whom its kernel does not tell" if uid is None else f"user {holder['user'] or '?'} (uid {uid})"
    if run is None:
        return f"{who}, who names no run"
    return f"{who}, run {run} since {time.strftime('%Y-%m-%d %H:%M', time.localtime(since))}"


def leases(request: Request, _: bytes) -> Answer:
    """Return every place of this machine and who holds it."""
    known = holders()
    return {"places": {name: known.get(name) for name in places(request.get("slots"))}}, b""


def still_held(request: Request, _: bytes) -> Answer:
    """Return which places this server holds for a run; asking keeps it from ending as forgotten."""
    return {"places": list(held.get(request["run_id"], {}))}, b""


def hand_over(run_id: str, promised: list[str]) -> list[socket]:
    """Return what is held for the run's agent, to be its own; RefusedError where that is not what was promised."""
    taken = held.pop(run_id, {})
    if list(taken) != promised:
        _close(taken)
        lost = ", ".join(name for name in promised if name not in taken) or "nothing"
        raise RefusedError(f"{lost} is held no longer for run {run_id}: the connection that held it was lost meanwhile")
    return [each for sockets in taken.values() for each in sockets]


def release(request: Request, _: bytes) -> Answer:
    """Let go of what was taken for a run whose agent is not to be started after all."""
    taken = held.pop(request["run_id"], {})
    _close(taken)
    return {"released": len(taken)}, b""
