"""New bytes in a node's part of a run, for the submitting machine's copy: by offset, in bounded pieces."""

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
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.reading import NotOrdinaryError, info_of, names_in, read_part

POLL_SECONDS = 0.05  # files on a network file system send no events, so this polls
PIECE = 1 << 20
MOST = 4 << 20
MOST_OF_A_LOOK = 2 * (MOST + PIECE)  # the heartbeats come after what else is new
TAIL = 256
_LOG = re.compile(r"rank_(\d+)\.log")
_BEAT = re.compile(r"beat_(\d+)")
# Of orch.launch, and a flight recorder's dump: they may be large, so they are sent in pieces as a log is.
_RESULT = re.compile(r"result_\d+\.(json|pt)|flight_\d{1,6}")
_WHOLE = re.compile(r"(error|stacks|warm)[A-Za-z0-9_.-]{0,80}\.(json|txt)")
_ATTEMPT = re.compile(r"attempt_\d+")
_SAMPLES = "samples.jsonl"
_METRICS = "metrics.jsonl"  # rank 0's in the run's folder; that of the program's own files in the node's folder
_OF_NODE = ("agent.log", "launcher.log", "agent.json", "events.jsonl", _SAMPLES, _METRICS)
_OF_RUN = (_METRICS, "result.json", "rank0.done")  # only rank 0 and its launcher write these, on node 0
_JOB_FOLDERS = ("slurm", "batch")  # of the scheduler's script and logs
_JOB_LOG = re.compile(r"(slurm|batch)/[A-Za-z0-9_%-][A-Za-z0-9_.%-]{0,80}\.log")


def is_written_by(node: int, name: str) -> bool:
    """Return whether the node writes a file of this name below the run's folder, so that the file is copied."""
    if node == 0 and (name in _OF_RUN or _JOB_LOG.fullmatch(name)):
        return True
    own = f"nodes/{node}/"
    attempt, _, last = name.removeprefix(own).rpartition("/")
    if not name.startswith(own) or not attempt:
        return name.startswith(own) and last in _OF_NODE
    kinds = (_LOG, _BEAT, _RESULT, _WHOLE)
    return _ATTEMPT.fullmatch(attempt) is not None and any(kind.fullmatch(last) for kind in kinds)


def is_of_progress(name: str) -> bool:
    """Return whether a file only shows the progress of the ranks. No decision about a run depends on such a file."""
    last = name.rpartition("/")[2]
    return last in (_METRICS, _SAMPLES) or _BEAT.fullmatch(last) is not None or _LOG.fullmatch(last) is not None


@dataclass(frozen=True)
class _Piece:
    """A part of one file. `at` is its offset, or None if it replaces the file. `rotated` means that nothing will
    follow it.
    """

    name: str
    data: bytes
    at: int | None
    stamp: str = ""
    rotated: bool = False

    def head(self) -> list[Any]:
        return [self.name, len(self.data), self.at, self.stamp, self.rotated]


def tail_hash(path: str, size: int, below: str) -> str:
    """Return the hash of the last bytes before `size`, to compare the end of another copy of that size."""
    return hashlib.sha256(read_part(path, max(0, size - TAIL), min(size, TAIL), below)).hexdigest()[:16]


def poll_changes(request: Request, _: bytes) -> Answer:
    """Return everything that the requester lacks, after at most `wait` seconds, and whether the agent lives.

    have: {name: [size, tail hash] of a growing file, or the stamp of a replaced file}. ranks: the ranks whose logs are
    wanted; null for all.
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
    """Return (the pieces, whether there is more than fits into one answer)."""
    have, room = request["have"], MOST
    pieces: list[_Piece] = []
    for name, grows in _files(run_dir, node, request.get("ranks"), beats=beats):
        if request.get("only_logs") and not _LOG.fullmatch(os.path.basename(name)):
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


def _files(run_dir: str, node: int, ranks: list[int] | None, *, beats: bool) -> list[tuple[str, bool]]:
    """Return (name below the run's folder, whether it grows) of all files that are sent; the events come last.

    So a reader of an event finds the files that the event describes, because they were written before it.
    """
    folder = os.path.relpath(node_folder(run_dir, node), run_dir)
    found: list[tuple[str, bool]] = []
    for attempt in names_in(f"{run_dir}/{folder}"):
        if attempt.startswith("attempt_"):
            for name in names_in(f"{run_dir}/{folder}/{attempt}"):
                log, beat = _LOG.fullmatch(name), _BEAT.fullmatch(name)
                number = int((log or beat)[1]) if log or beat else None  # type: ignore[index]
                wanted = number is None or ranks is None or number in ranks
                grows = bool(log or _RESULT.fullmatch(name))
                if wanted and bool(beat) == beats and (grows or beat or _WHOLE.fullmatch(name)):
                    found.append((f"{folder}/{attempt}/{name}", grows))
    if beats:  # what changes all the time comes along with the rest, and makes no answer by itself
        return [*found, (f"{folder}/{_SAMPLES}", True)]
    if node == 0:
        logs = [f"{top}/{name}" for top in _JOB_FOLDERS for name in names_in(f"{run_dir}/{top}")]
        found += [(name, True) for name in logs if _JOB_LOG.fullmatch(name)]
        found += [(name, name == _METRICS) for name in _OF_RUN]
        found.append((f"{folder}/{_METRICS}", True))
    found += [(f"{folder}/{name}", True) for name in ("agent.log", "launcher.log")]
    return [*found, (f"{folder}/agent.json", False), (f"{folder}/events.jsonl", True)]


def steps(request: Request, _: bytes) -> Answer:
    """Return the names of the committed checkpoints of a folder."""
    return {"steps": checkpoint_dir.committed(at_user(request["folder"]))}, b""


def has_begun(request: Request, _: bytes) -> Answer:
    """Tell whether the run's job has ever begun: its script first opens a log in this folder of the run's folder."""
    try:
        names = os.listdir(f"{at_user(request['run_dir'])}/{request['folder']}")
    except FileNotFoundError:  # anything else is no answer: what the job has written would be taken for nothing
        names = []
    return {"begun": any(name.endswith(".log") for name in names)}, b""


def _grown(run_dir: str, name: str, known: Any, room: int, is_new: bool) -> _Piece | None:
    """Return the next piece of a growing file, or None if there is no more. The rotated file comes first.

    is_new: the reader has no copy of a rotated file.
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
