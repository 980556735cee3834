"""The tickets of runs that wait for places (GPUs or slots) of this machine. All users of the machine can see them.

A ticket is a folder in the shared folder for temporary files, and contains a folder `renewed`. The ticket's name
contains the run's id and the number of places that the run needs. The owner of a ticket, its creation time and its last
renewal come from the folders' uid and ctime. Only root can forge these values. Only names, uids and ctimes are read,
and no link is followed. Folders can't have hard links, and in a sticky folder nobody can remove or rename another
user's ticket.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.node.server import leases
from orchestrator.node.server.request import Answer, RefusedError, Request
from orchestrator.node.system.private import user_name
from orchestrator.protocol.places.tickets import MOST_OF_USER, Ticket

SHARED = ("/var/tmp", "/tmp")  # noqa: S108 (all users share the first of these that is sticky and root's)
EVERYBODYS = stat.S_ISVTX | stat.S_IWOTH
RENEWED = "renewed"
FORGOTTEN_SECONDS = 30 * 86400.0  # after this many seconds, a ticket is removed when the same user takes another ticket
MOST_TOLD = 4 * MOST_OF_USER  # the most tickets of one user in an answer, which limits its length
_NAME = re.compile(r"orch-queue\.[0-9a-f]{16}\.(\d{1,6})\.(\d{1,20})\.([A-Za-z0-9][A-Za-z0-9_.-]{0,99})", re.ASCII)


class _Found(NamedTuple):
    path: str
    ticket: Ticket


def look_at_queue(request: Request, _: bytes) -> Answer:
    """Return every place (GPU or slot) of this machine with its holder, and the tickets of all users. `uid` is the
    requester's uid, and `now` is this machine's time.
    """
    found = [each.ticket for each in _bounded(_tickets(_shared()))]
    shown = [{**each._asdict(), "user": user_name(each.uid)} for each in found]
    places = leases.holders_of(leases.places(request.get("slots")))
    return {"places": places, "tickets": shown, "uid": os.getuid(), "now": time.time_ns()}, b""


def take_ticket(request: Request, _: bytes) -> Answer:
    """Enter a run into the queue for places (GPUs or slots): write a ticket for the run, and remove the run's earlier
    ticket. Raises RefusedError if the users of this machine share no folder.
    """
    folder, run_id = _shared(), request["run_id"]
    if folder is None:
        raise RefusedError(
            "the queue needs a folder with the sticky bit that root owns, and none of "
            f"{' and '.join(SHARED)} is such a folder"
        )
    name = f"orch-queue.{os.urandom(8).hex()}.{int(request['count'])}.{int(request['number'])}.{run_id}"
    if not _NAME.fullmatch(name):
        raise RefusedError(f"{name} is not a valid name for a ticket of the queue")
    for each in _own(folder):
        if each.ticket.run == run_id or each.ticket.age > FORGOTTEN_SECONDS:
            _remove(each.path)
    path = f"{folder}/{name}"
    os.mkdir(path, 0o700)
    os.mkdir(f"{path}/{RENEWED}", 0o700)
    os.chmod(path, 0o711)  # noqa: S103 (the ticket is complete now, and others may read when it was renewed)
    return {"taken": True}, b""


def renew_ticket(request: Request, _: bytes) -> Answer:
    """Record that the run still waits for places. If the run has no ticket in the queue, `renewed` in the answer is
    false.
    """
    mine = [each for each in _own(_shared()) if each.ticket.run == request["run_id"]]
    for each in mine:
        os.utime(f"{each.path}/{RENEWED}")
    return {"renewed": bool(mine)}, b""


def drop_ticket(request: Request, _: bytes) -> Answer:
    """Remove the run's ticket from the queue for places."""
    mine = [each for each in _own(_shared()) if each.ticket.run == request["run_id"]]
    for each in mine:
        _remove(each.path)
    return {"dropped": len(mine)}, b""


def _shared() -> str | None:
    """Return the folder that holds all users' tickets; None if no such folder can be trusted."""
    for path in SHARED:
        with contextlib.suppress(OSError):
            info = os.stat(path)
            if stat.S_ISDIR(info.st_mode) and info.st_uid == 0 and info.st_mode & EVERYBODYS == EVERYBODYS:
                return path
    return None


def _tickets(folder: str | None) -> Iterator[_Found]:
    """Yield the tickets of waiting runs in the folder."""
    if folder is None:
        return
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith("orch-queue.")]
    now = time.time()
    for name in names:
        match, path = _NAME.fullmatch(name), f"{folder}/{name}"
        times = _times(path) if match else None
        if match and times is not None:
            uid, made, renewed = times
            yield _Found(path, Ticket(uid, match[3], int(match[1]), int(match[2]), made, now - renewed))


def _times(path: str) -> tuple[int, int, float] | None:
    """Return the owner, creation time and last renewal of a ticket; None if the ticket was removed or the path is no
    ticket.
    """
    try:
        folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        outer, inner = os.fstat(folder), os.stat(RENEWED, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    finally:
        os.close(folder)
    if not stat.S_ISDIR(inner.st_mode) or inner.st_uid != outer.st_uid:
        return None
    return outer.st_uid, outer.st_ctime_ns, inner.st_ctime


def _own(folder: str | None) -> list[_Found]:
    return [each for each in _tickets(folder) if each.ticket.uid == os.getuid()]


def _bounded(found: Iterator[_Found]) -> list[_Found]:
    """Return at most MOST_TOLD tickets of each user. Tickets that are renewed regularly come first."""
    kept: list[_Found] = []
    of_user: dict[int, int] = {}
    for each in sorted(found, key=lambda one: (not one.ticket.is_fresh, one.ticket.order)):
        of_user[each.ticket.uid] = of_user.get(each.ticket.uid, 0) + 1
        if of_user[each.ticket.uid] <= MOST_TOLD:
            kept.append(each)
    return kept


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(f"{path}/{RENEWED}")
    with contextlib.suppress(OSError):
        os.rmdir(path)
