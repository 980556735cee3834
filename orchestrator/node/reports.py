"""What a rank's end tells: code or signal, traceback, last lines, and whether it was a victim."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

from orchestrator.node.rank import RankStart

TAIL_BYTES = 16_384
TAIL_LINES = 25
_TRACEBACK = "Traceback (most recent call last):"
# What torch says on a rank whose peer went away first.
_VICTIM = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe|NCCL.{0,80}(abort|remote)"
    r"|ncclRemoteError|Socket closed|connection was likely closed|recvBytes|DistNetworkError"
    r"|DistStoreError|Timed out waiting .{0,40}(send|recv)|store.{0,40}(closed|reset)"
    r"|peer .{0,40}(exited|terminated|closed)",
    re.IGNORECASE,
)


def failure_report(start: RankStart, code: int) -> dict[str, Any]:
    """Code, signal name, error and last lines of an ended rank; all JSON types."""
    report: dict[str, Any] = {"code": code if code >= 0 else None, "signal": None}
    if code < 0:
        report["signal"] = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if code == 0:
        return report
    log = os.path.join(os.path.dirname(start.error_file), f"rank_{start.rank}.log")
    tail = last_lines(log)
    error = _error_of(start.error_file) or _traceback_in(tail)
    report.update(tail=tail, error=error, victim=code > 0 and looks_like_victim(error, tail))
    return report


def looks_like_victim(error: dict[str, Any] | None, tail: list[str]) -> bool:
    """Does the rank complain of a peer that went away, rather than of something of its own?"""
    words = f"{error.get('type')}: {error.get('message')}" if error else "\n".join(tail[-5:])
    return _VICTIM.search(words) is not None


def last_lines(path: str) -> list[str]:
    """The last lines of a log, a progress bar's \\r taken as line ends; [] when there is no log."""
    try:
        with open(path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line[:2000] for line in re.split(r"[\r\n]+", text) if line.strip()]
    return lines[-TAIL_LINES:]


def _error_of(path: str) -> dict[str, Any] | None:
    """The error that the rank wrote down itself: orch's record, or torchelastic's under @record."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict):
        return None
    message = data.get("message")
    if isinstance(message, dict):
        info = message.get("extraInfo") or {}
        words = str(message.get("message", ""))
        kind, _, rest = words.partition(": ")
        return {
            "type": kind,
            "message": rest[:4000],
            "traceback": str(info.get("py_callstack", ""))[-20_000:],
        }
    return {key: data.get(key) for key in ("type", "message", "traceback")}


def _traceback_in(tail: list[str]) -> dict[str, Any] | None:
    """The last Python traceback among the last lines, for programs that write no error file."""
    starts = [index for index, line in enumerate(tail) if line.startswith(_TRACEBACK)]
    if not starts:
        return None
    lines = tail[starts[-1] :]
    ends = [index for index, line in enumerate(lines) if index and not line.startswith(" ")]
    lines = lines[: ends[0] + 1] if ends else lines
    kind, _, message = lines[-1].partition(": ")
    return {"type": kind, "message": message, "traceback": "\n".join(lines)}
