"""Derives from the report on one rank's end whether another party may have caused the end, and how much the rank is to
blame.

A report has only facts: the exit code or signal, the error, the last lines of the log, which signal the rank had been
sent, and how many processes the kernel had killed for memory. So the order in which reports arrive changes no result.
"""

from __future__ import annotations

import re
from enum import IntEnum

from orchestrator.protocol.rank_reports import Culprit, RankEnd
from orchestrator.protocol.ranks import EXIT_NO_RETRY

LOST_LAUNCHER, HANG = "LauncherLost", "Hang"  # the types of errors that orch itself reports for a rank
_BY_STOP = ("SIGTERM", "SIGKILL")  # the signals by which a stop ends a rank
# The types of exceptions that torch raises if a peer has ended, and their messages.
_TORCH_ERRORS = r"(RuntimeError|(torch\.distributed\.)?Dist\w*Error|\S*SignalException)"
_PEER_ENDED = (
    r"(?i)connection closed by peer|connection reset by peer|broken pipe|NCCL.{0,80}(abort|remote)"
    r"|ncclRemoteError|Socket closed|connection was likely closed|recvBytes|DistNetworkError"
    r"|DistStoreError|Timed out waiting .{0,40}(send|recv)|store.{0,40}(closed|reset)"
    r"|peer .{0,40}(exited|terminated|closed)|remote process exited|SignalException: Process \d+ got signal: 15"
)
# A broken connection, in the words of any library.
_CONNECTION_BROKEN = (
    r"(?i)connection ?(error|reset|aborted|refused|closed|lost|broken|timed out)|connection was (closed|lost|reset)"
    r"|broken ?pipe|\bEOF(Error)?\b|incomplete ?read|disconnected|socket closed|peer .{0,40}closed"
    r"|endpoint is not connected|\bUNAVAILABLE\b|no route to host|timed out|Timeout"
)
# Messages about a killed worker, from torch's DataLoader, torch.multiprocessing, concurrent.futures, loky, datasets,
# subprocess and torchrun.
_WORKER_KILLED = (
    r"DataLoader worker \(pid(\(s\))? [\d, ]+\) (is killed by signal: Killed|exited unexpectedly)"
    r"|Pin memory thread exited unexpectedly"
    r"|process \d+ terminated with signal SIGKILL"
    r"|process in the process pool was terminated abruptly|child process terminated abruptly, the process pool"
    r"|worker process managed by the executor was unexpectedly terminated"
    r"|subprocesses has abruptly died during map operation"
    r"|died with <Signals\.SIGKILL: 9>|Signal 9 \(SIGKILL\) received by PID"
)


class Blame(IntEnum):
    """How much a failed rank is to blame for the end of its attempt. The least value is to blame first. Another end, or
    the loss of a node, may have caused a failure with a greater value than FAILED.
    """

    NO_RETRY = 0  # it ruled out another start (exit code 93)
    KILLED = 1  # the kernel or somebody killed the rank, before any stop, or its launcher; no other failure does that
    FAILED = 2  # it failed by itself
    CONNECTION = 3  # one of its connections broke, perhaps because another rank ended
    AT_EXIT = 4  # it died while it exited, after its program had ended
    HUNG = 5  # it hung in a collective, perhaps because another rank never entered it
    AFTER_STOP = 6  # it failed after it had been told to stop
    VICTIM = 7  # torch reports that a peer ended
    STOPPED = 8  # the stop ended it


def blame_of(end: RankEnd) -> Blame:
    """Return how much a rank that failed is to blame."""
    if end.code == EXIT_NO_RETRY and not end.sent:
        return Blame.NO_RETRY
    if was_stopped(end) and end.signal in (end.sent, *_BY_STOP):
        return Blame.STOPPED
    if is_victim(end):
        return Blame.VICTIM
    if end.finished:
        return Blame.AT_EXIT
    is_lost = end.error is not None and end.error.type == LOST_LAUNCHER
    # After a TERM, the program's own handler may kill its processes.
    if is_lost or (end.signal == "SIGKILL" and (not end.sent or end.oom_kills)):
        return Blame.KILLED
    if end.sent:
        return Blame.AFTER_STOP
    if isinstance(end, Culprit) and end.hang:
        return Blame.HUNG if end.in_collective else Blame.FAILED
    is_broken = not end.signal and re.search(_CONNECTION_BROKEN, last_words(end, 5))
    return Blame.CONNECTION if is_broken else Blame.FAILED


def was_stopped(end: RankEnd) -> bool:
    """Return whether a signal that the rank had been sent ended it. If it had been sent TERM and died of KILL, somebody
    else killed it, or its own handler did.
    """
    return bool(end.stopped) or (bool(end.sent) and (end.sent == "SIGKILL" or end.signal != "SIGKILL"))


def is_victim(end: RankEnd) -> bool:
    """Return whether torch reports that a peer of the rank ended, and the rank has no error of its own.

    An exception counts only if its type is one that torch raises. NCCL's watchdog and gloo's threads abort a rank whose
    peer has ended; no other signal follows from a peer's end.
    """
    if not end.code and end.signal != "SIGABRT":
        return False
    if end.error is not None and re.fullmatch(_TORCH_ERRORS, str(end.error.type)) is None:
        return False
    # After a signal, all last lines are searched, because a native stack follows torch's message.
    return re.search(_PEER_ENDED, last_words(end, 5 if end.code else None)) is not None


def worker_was_killed(end: RankEnd) -> bool:
    """Return whether the rank failed because SIGKILL had ended one of its child processes, such as a data loader's
    worker.
    """
    return end.signal != "SIGKILL" and re.search(_WORKER_KILLED, last_words(end)) is not None


def is_oom(end: RankEnd) -> bool:
    """Return whether the kernel killed the rank, or a process that it had started, for lack of memory."""
    return end.oom_kills > 0 and ((end.signal == "SIGKILL" and end.sent != "SIGKILL") or worker_was_killed(end))


def last_words(end: RankEnd, lines: int | None = None) -> str:
    """Return the rank's error or, without an error, the last lines of its log."""
    if end.error is not None:
        return f"{end.error.type}: {end.error.message}"
    return "\n".join(end.tail if lines is None else end.tail[-lines:])
