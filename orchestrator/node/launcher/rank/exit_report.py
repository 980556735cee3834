"""Reports how a rank ended: its exit code or signal, traceback and last lines."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable

from orchestrator.node.launcher.rank.error_file import ended_file
from orchestrator.node.system.signals import name_of
from orchestrator.protocol.masking import masked_json
from orchestrator.protocol.rank_reports import RankEnd, RankError
from orchestrator.protocol.reading import MOST_WORD, read_object, read_part
from orchestrator.protocol.terminal_lines import lines_of

if TYPE_CHECKING:  # the agent reads reports and must not load what a rank needs
    from orchestrator.node.launcher.rank.forked import RankStart

Masker = Callable[[str], str]
TAIL_BYTES = 16_384
TAIL_LINES = 25
# A report is one line to the leader, whose length is limited. One character may become 12 bytes of this line.
MESSAGE_CHARS = 2_000
TRACEBACK_CHARS = 8_000
_TRACEBACK = "Traceback (most recent call last):"
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch's excepthook writes this prefix at the beginning of every line


def failure_report(start: RankStart, code: int, masked: Masker = str) -> RankEnd:
    """Return the exit code, signal name, error and last lines of an ended rank, with secrets masked.

    If the rank's files are damaged, this raises nothing, and the report's field `unread` has the reason.
    """
    if code == 0:
        return RankEnd(start.rank, code)
    end = RankEnd(start.rank, code) if code > 0 else RankEnd(start.rank, signal=name_of(-code))
    try:
        return _with_last_words(end, start, code, masked)
    except Exception as error:  # noqa: BLE001 (an error in this report must not be taken for the rank's own)
        return replace(end, unread=f"{type(error).__name__}: {error}"[:500])


def _with_last_words(end: RankEnd, start: RankStart, code: int, masked: Masker) -> RankEnd:
    lines = _lines_of(os.path.join(os.path.dirname(start.error_file), f"rank_{start.rank}.log"), masked)
    tail = tuple(lines[-TAIL_LINES:])
    failed, error = _first_error(start, masked)
    error = error or _traceback_in(lines, killed=code in (-signal.SIGKILL, -signal.SIGTERM))
    finished = code < 0 and error is None and os.path.exists(ended_file(start.error_file))
    failed_rank = None if failed == start.rank else failed
    return replace(end, tail=tail, error=error, finished=finished, failed_rank=failed_rank)


def last_lines(path: str, masked: Masker = str) -> list[str]:
    """Return the last lines of a log; empty if there is no log. A progress bar is reduced to its last state."""
    return _lines_of(path, masked)[-TAIL_LINES:]


def _lines_of(path: str, masked: Masker) -> list[str]:
    """Return the lines at the end of a log, with secrets masked.

    Twice the needed size is read, so that a secret at the beginning of the returned part is complete and can be masked.
    If the first line is truncated and other lines follow, it is dropped, because it may contain a part of a secret.
    """
    try:
        data = read_part(path, -2 * TAIL_BYTES, 2 * TAIL_BYTES)
    except OSError:
        return []
    if len(data) == 2 * TAIL_BYTES:
        data = data.partition(b"\n")[2] or data
    text = masked(data.decode("utf-8", "replace"))[-TAIL_BYTES:]
    return [line[:MESSAGE_CHARS] for line in lines_of(text) if line.strip()]


def _first_error(start: RankStart, masked: Masker) -> tuple[int, RankError | None]:
    """Return the rank and the error of the oldest error file. If there is no error file, return this rank and None.

    If the process is another launcher, such as torchrun, each of its ranks may have an error file.
    """
    written = []
    for rank in start.members or (start.rank,):
        path = f"{start.folder}/error_{rank}.json"
        with contextlib.suppress(OSError):
            written.append((os.stat(path).st_mtime_ns, rank, path))
    return next(
        ((rank, error) for _, rank, path in sorted(written) if (error := _error_of(path, masked))), (start.rank, None)
    )


def _error_of(path: str, masked: Masker) -> RankError | None:
    """Return the error in a rank's error file; None if the file can't be read. The file has orch's format, or the
    format of torchelastic's decorator @record.
    """
    if (read := read_object(path, MOST_WORD)) is None:
        return None
    data = masked_json(read, masked)  # mask before cutting, because a secret may be cut below
    message = data.get("message")
    if isinstance(message, dict):
        info = message.get("extraInfo") or {}
        words = str(message.get("message", ""))
        kind, _, rest = words.partition(": ")
        return RankError(kind, rest[:MESSAGE_CHARS], str(info.get("py_callstack", ""))[-TRACEBACK_CHARS:])
    return RankError(
        str(data["type"])[:200] if data.get("type") else None,
        str(data.get("message") or "")[:MESSAGE_CHARS],
        str(data.get("traceback") or "")[-TRACEBACK_CHARS:],
        _numbers(data.get("memory")),
        str(data.get("snapshot") or "")[:200],
    )


def _numbers(value: Any) -> dict[str, int]:
    """Return the GPU memory in an error file, as a dict from the names `allocated`, `reserved` and `total` to bytes."""
    given = value if isinstance(value, dict) else {}
    return {name: given[name] for name in ("allocated", "reserved", "total") if type(given.get(name)) is int}


def _traceback_in(lines: list[str], *, killed: bool) -> RankError | None:
    """Return the traceback at the end of a log, for a program that writes no error file. Return None if there is none.

    A few lines may follow the traceback, because torch and C++ print more text. If the program was killed, no line may
    follow the traceback. If the last traceback is torchrun's own, the previous traceback is returned, because it comes
    from the failed rank.
    """
    lines = [_RANK_PREFIX.sub("", line) for line in lines]
    found = []
    for start, line in enumerate(lines):
        if line.startswith(_TRACEBACK):
            end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith(" ")), len(lines) - 1)
            found.append((end, lines[start : end + 1]))
    if found and "ChildFailedError" in found[-1][1][-1]:
        found = found[-2:-1] or found
    elif found and len(lines) - found[-1][0] > (1 if killed else TAIL_LINES):
        return None
    if not found:
        return None
    text = found[-1][1]
    kind, _, message = text[-1].partition(": ")
    return RankError(kind[:200], message, "\n".join(text)[-TRACEBACK_CHARS:])
