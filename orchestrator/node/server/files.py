"""Sends the new parts of a node's logs and records to the submitting machine, by offset and in pieces of limited
size.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from typing import Any

from orchestrator.node.server.machine import lives
from orchestrator.node.server.request import Answer, Request, at_user
from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.reading import NotOrdinaryError, info_of, names_in, read_part
from orchestrator.protocol.schedulers import FOLDERS

POLL_SECONDS = 0.05  # seconds; files on a network file system send no events, so this polls
PIECE = 1 << 20
MOST = 4 << 20
MOST_OF_A_LOOK = 2 * (MOST + PIECE)  # heartbeats and samples follow in the same answer
TAIL = 256
_LOG, _BEAT = re.compile(r"rank_(\d+)\.log"), re.compile(r"beat_(\d+)")
_SAMPLES, _METRICS = "samples.jsonl", "metrics.jsonl"
# The files of a node's folder. A result and a flight recorder's dump are written once, and sent in pieces because they
# may be large.
_APPENDED = re.compile(
    r"(agent|launcher)\.log|(events|samples|metrics)\.jsonl"
    r"|attempt_\d+/(rank_\d+\.log|result_\d+\.(json|pt)|flight_\d{1,6})"
)
_REPLACED = re.compile(r"agent\.json|attempt_\d+/(beat_\d+|(error|stacks|warm)[A-Za-z0-9_.-]{0,80}\.(json|txt))")
# The files of the run's folder, which only node 0 writes: those of rank 0 and its launcher, and the scheduler's logs.
_APPENDED_OF_RUN = re.compile(rf"metrics\.jsonl|({'|'.join(FOLDERS)})/[A-Za-z0-9_%-][A-Za-z0-9_.%-]{{0,80}}\.log")
_REPLACED_OF_RUN = re.compile(r"result\.json|rank0\.done")


def is_appended(node: int, name: str) -> bool | None:
    """Return True if the node appends to the named file, False if it replaces the file, and None if the file is not
    copied to the submitting machine.

    `name` is the path below the run's folder.
    """
    own = f"nodes/{node}/"
    below = name.removeprefix(own)
    if name.startswith(own):
        appended, replaced = _APPENDED, _REPLACED
    elif node == 0:
        appended, replaced = _APPENDED_OF_RUN, _REPLACED_OF_RUN
    else:
        return None
    return True if appended.fullmatch(below) else False if replaced.fullmatch(below) else None


def is_of_progress(name: str) -> bool:
    """Return whether a file only shows the progress of the ranks. Decisions about a run never depend on such a file."""
    last = name.rpartition("/")[2]
    return last in (_METRICS, _SAMPLES) or _BEAT.fullmatch(last) is not None or _LOG.fullmatch(last) is not None


def files_of(run_dir: str, node: int) -> list[tuple[str, bool]]:
    """Return (path below the run's folder, whether the file is append-only) of the node's files that are copied. The
    record of events comes last.

    A file that an event mentions is written before the event. So a reader that has the event also has the file.
    """
    own = f"nodes/{node}"
    folders = [own, *(f"{own}/{name}" for name in names_in(f"{run_dir}/{own}") if name.startswith("attempt_"))]
    folders += [*FOLDERS, ""] if node == 0 else []
    names = [f"{folder}/{name}".lstrip("/") for folder in folders for name in names_in(f"{run_dir}/{folder}")]
    found = [(name, kind) for name in names if (kind := is_appended(node, name)) is not None]
    return sorted(found, key=lambda each: each[0].endswith("/events.jsonl"))


@dataclass(frozen=True)
class _Piece:
    """A part of a file. `at` is its offset; None means that the part replaces the file. `rotated` is True if this is
    the last part of a rotated file.
    """

    name: str
    data: bytes
    at: int | None
    stamp: str = ""
    rotated: bool = False

    def head(self) -> list[Any]:
        return [self.name, len(self.data), self.at, self.stamp, self.rotated]


def tail_hash(path: str, size: int, below: str) -> str:
    """Return the hash of the last bytes before offset `size`. Two copies of a file with the same hash at this offset
    have the same content there.
    """
    return hashlib.sha256(read_part(path, max(0, size - TAIL), min(size, TAIL), below)).hexdigest()[:16]


def poll_changes(request: Request, _: bytes) -> Answer:
    """Return the file parts that the requester lacks, and whether the agent is alive. Wait up to `wait` seconds for
    changes.

    have: a dict from file name to the requester's copy, which is described by [size, tail hash] if the file is
    append-only, or by a stamp for any other file. ranks: the ranks whose logs are sent; null for all.
    """
    run_dir, node = at_user(request["run_dir"]), int(request["node"])
    end = time.monotonic() + float(request.get("wait", 0.0))
    while True:
        alive = lives(request)
        pieces, more = _news(run_dir, node, request, beats=False)
        steps = checkpoint_dir.committed(at_user(request["checkpoints"])) if request.get("checkpoints") else []
        changed = pieces or alive != request.get("alive") or steps != request.get("steps", steps)
        if changed or time.monotonic() >= end:
            break
        time.sleep(POLL_SECONDS)  # files on a network file system send no events
    beats, more_beats = _news(run_dir, node, request, beats=True)
    pieces, more = pieces + beats, more or more_beats
    values = {"files": [piece.head() for piece in pieces], "alive": alive, "steps": steps, "more": more}
    return values, b"".join(piece.data for piece in pieces)


def _news(run_dir: str, node: int, request: Request, *, beats: bool) -> tuple[list[_Piece], bool]:
    """Return (the file parts that the requester lacks, whether more data remains than fits into one answer)."""
    have, room = request["have"], MOST
    pieces: list[_Piece] = []
    for name, grows in files_of(run_dir, node):
        if not _is_wanted(name, request, beats=beats):
            continue
        if room <= 0:
            return pieces, True
        try:
            known = have.get(name)
            is_new = f"{name}.1" not in have
            piece = _grown(run_dir, name, known, room, is_new) if grows else _replaced(run_dir, name, known)
        except (FileNotFoundError, NotADirectoryError, NotOrdinaryError):
            continue  # the file was removed meanwhile, or a program has put a link or a pipe in its place
        if piece is not None:
            pieces.append(piece)
            room -= len(piece.data)
    return pieces, room <= 0 or any(piece.rotated or len(piece.data) == PIECE for piece in pieces)


def _is_wanted(name: str, request: Request, *, beats: bool) -> bool:
    """Return whether the request wants the file. With `beats`, it wants only heartbeats and the samples of the node's
    resource use, else only other files.
    """
    last, ranks = name.rpartition("/")[2], request.get("ranks")
    log, beat = _LOG.fullmatch(last), _BEAT.fullmatch(last)
    of_rank = log or beat
    is_chosen = of_rank is None or ranks is None or int(of_rank[1]) in ranks
    is_beat = beat is not None or last == _SAMPLES
    return is_chosen and is_beat == beats and (log is not None or not request.get("only_logs"))


def steps(request: Request, _: bytes) -> Answer:
    """Return the names of the committed checkpoints in a folder."""
    return {"steps": checkpoint_dir.committed(at_user(request["folder"]))}, b""


def has_begun(request: Request, _: bytes) -> Answer:
    """Return whether the run's job has begun. This is True if there is a log in the request's `folder` (below the run's
    folder), because the job's batch script first opens a log there.
    """
    try:
        names = os.listdir(f"{at_user(request['run_dir'])}/{request['folder']}")
    except FileNotFoundError:  # other errors are raised, because they leave the answer unknown
        names = []
    return {"begun": any(name.endswith(".log") for name in names)}, b""


def _grown(run_dir: str, name: str, known: Any, room: int, is_new: bool) -> _Piece | None:
    """Return the next piece of an append-only file, or None if there are no new bytes. If the file was rotated, the
    part before the rotation is sent first.

    is_new: whether the reader has no copy of the part before the rotation.
    """
    path = f"{run_dir}/{name}"
    size, tail = (int(known[0]), str(known[1])) if known else (0, "")
    rotated = size == 0 and is_new and os.path.exists(f"{path}.1")
    if os.path.getsize(path) == size and not rotated:
        return None  # the usual case, many times a second
    if not rotated and (size == 0 or _ends_alike(path, size, tail, run_dir)):
        data = read_part(path, size, min(PIECE, room), run_dir)
        return _Piece(name, data, size) if data else None
    if rotated or _ends_alike(f"{path}.1", size, tail, run_dir):
        data = read_part(f"{path}.1", size, min(PIECE, room), run_dir)
        return _Piece(name, data, size, rotated=size + len(data) >= os.path.getsize(f"{path}.1"))
    return _Piece(name, read_part(path, 0, min(PIECE, room), run_dir), 0)


def _ends_alike(path: str, size: int, tail: str, below: str) -> bool:
    try:
        return os.path.getsize(path) >= size and tail_hash(path, size, below) == tail
    except FileNotFoundError:
        return False


def _replaced(run_dir: str, name: str, known: Any) -> _Piece | None:
    path = f"{run_dir}/{name}"
    info = info_of(path, run_dir)
    stamp = f"{info.st_mtime_ns}-{info.st_size}"
    return None if stamp == known else _Piece(name, read_part(path, 0, PIECE, run_dir), None, stamp)
