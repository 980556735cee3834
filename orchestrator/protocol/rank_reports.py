"""The launcher's reports on its ranks: how a rank ended, and which line it has reached. Python 3.9, pure."""

from collections.abc import Mapping
from dataclasses import field
from typing import Optional

from orchestrator.protocol.typed import Count, Fields, Node, Rank


class RankError(Fields):
    """The exception that ended a rank, or an error that orch names itself (Hang, LauncherLost)."""

    type: Optional[str] = None
    message: Optional[str] = None
    traceback: str = ""
    memory: Mapping[str, int] = field(default_factory=dict)  # of a GPU that ran out of memory, in bytes
    snapshot: str = ""  # the file with what was in that memory


class MissingModule(Fields):
    """A module that a rank lacked: the rank's interpreter, and other interpreters of its node."""

    module: str = ""
    python: str = ""
    has_it: bool = False  # whether the others have the module
    others: tuple[str, ...] = ()


class RankEnd(Fields):
    """The end of one rank's process."""

    rank: Rank
    code: Optional[int] = None
    signal: Optional[str] = None
    error: Optional[RankError] = None
    tail: tuple[str, ...] = ()  # the last lines of the rank's log
    victim: bool = False  # the rank reports a peer that went away, and no error of its own
    stopped: Optional[bool] = None  # the launcher ended the rank; None: the launcher could not report that
    failed_rank: Optional[int] = None  # the rank of another launcher that failed
    unread: str = ""  # why the rank's last words can't be understood
    worker_killed: bool = False  # a process that the rank started was killed
    oom: bool = False  # the kernel killed it for memory
    missing: Optional[MissingModule] = None
    log_bytes_lost: Count = 0
    saves: Optional[int] = None  # of rank 0: how many checkpoints it tried to save
    saves_failed: Optional[int] = None
    unsaved: str = ""  # why the last checkpoint was not written
    kernel: tuple[str, ...] = ()  # the kernel's messages about the node's GPUs

    @property
    def how(self) -> str:
        """Return `exit code 17` or `SIGKILL`, for use in a message."""
        return self.signal or f"exit code {self.code}"


class LeftEarly(Fields):
    """Ranks that exited with 0 while other ranks waited for them in a collective."""

    ranks: tuple[int, ...] = ()
    waited: tuple[int, ...] = ()
    said: str = ""  # the error of a rank that waited


class Culprit(RankEnd):
    """The end of a rank as the leader knows it: where, when, and by whose order."""

    attempt: Count = 0
    node: Optional[Node] = None
    host: str = "?"
    after_stop: bool = False  # it ended because the attempt was stopped
    hang: bool = False  # it stood still, and the leader ended it
    in_collective: Optional[bool] = None  # of a rank that stood still; None: unknown
    left_early: Optional[LeftEarly] = None
    lacks: str = ""  # the nodes that lack a module, in words


class RankStack(Fields):
    """The position of a rank's main thread."""

    state: str = ""  # of its process, as in /proc; T and t: it is stopped
    in_collective: Optional[bool] = None  # whether it waits in a collective; None: unknown
    where: Optional[str] = None  # the line of the program that it has reached
    frames: tuple[str, ...] = ()  # the innermost first
    late: bool = False  # it did not answer in time


class ProcessGroup(Fields):
    """A process group of a rank, from the rank's flight recorder."""

    desc: str = ""
    entered: Count = 0  # the number of the last collective that the rank entered
    waits: Optional[tuple[int, str]] = None  # number and name of the first collective that has not ended
