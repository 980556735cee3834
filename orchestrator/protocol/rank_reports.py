"""A launcher's reports on its ranks: how a rank ended, and its stack trace."""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Optional

from orchestrator.protocol.typed import Count, Fields, Node, Rank, Seconds

_NO_MODULE = re.compile(r"No module named '?(\w+)(?:\.\w+)*'?(; '[\w.]+' is (?:not )?a package)?")


def missing_module_in(words: str) -> str:
    """Return the top-level name of the module that Python's error message reports as missing; "" for any other error,
    or if the module is installed.
    """
    found = _NO_MODULE.search(words)
    return "" if found is None or found[2] else found[1]


class RankError(Fields):
    """The exception that ended a rank, or an error that orch itself defines (Hang, LauncherLost)."""

    type: Optional[str] = None
    message: Optional[str] = None
    traceback: str = ""
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes of memory of the GPU that ran out of memory
    snapshot: str = ""  # the file with a snapshot of that memory


class MissingModule(Fields):
    """A module that a rank lacked. It names the rank's interpreter, and the node's other interpreters that were
    tried.
    """

    module: str = ""
    python: str = ""
    has_it: bool = False  # whether the other interpreters have the module
    others: tuple[str, ...] = ()


class RankEnd(Fields):
    """The end of one rank's process."""

    rank: Rank
    code: Optional[int] = None
    signal: Optional[str] = None
    error: Optional[RankError] = None
    tail: tuple[str, ...] = ()  # the last lines of the rank's log
    after: Seconds = 0.0  # seconds from the order to start the ranks to the rank's end, measured on its node
    sent: str = ""  # the last signal that the rank was sent by its launcher, or with its agent; "": none
    stopped: Optional[bool] = None  # whether orch ended the rank; only in records of earlier versions, without `sent`
    failed_rank: Optional[int] = None  # the rank whose failure another launcher (torchrun) blames
    unread: str = ""  # why the end of the rank's log can't be parsed
    finished: bool = False  # a signal ended the process while it exited, after its program had ended
    oom_kills: Count = 0  # how many processes of its cgroup the kernel had killed in this attempt for lack of memory
    missing: Optional[MissingModule] = None
    log_bytes_lost: Count = 0
    saves: Optional[int] = None  # how many checkpoints rank 0 tried to save
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
    said: str = ""  # the error of a rank that was waiting in the collective


class Culprit(RankEnd):
    """The rank that is to blame for a failure: how it ended, and facts that the leader adds, such as the node."""

    node: Optional[Node] = None
    host: str = "?"
    hang: bool = False  # the rank hung, and the leader ended it
    in_collective: Optional[bool] = None  # whether a rank that hung waited in a collective; None: unknown
    left_early: Optional[LeftEarly] = None
    at_exit: bool = False  # the rank died while it exited, and the programs of all ranks had ended
    lacks: str = ""  # the nodes that lack a module, in words


class RankStack(Fields):
    """The stack trace of a rank's main thread."""

    state: str = ""  # the state of the rank's process, as in /proc; T and t mean stopped
    in_collective: Optional[bool] = None  # whether the rank waits in a collective; None: unknown
    where: Optional[str] = None  # the line of the program that the rank has reached
    frames: tuple[str, ...] = ()  # the stack, innermost frame first
    late: bool = False  # the rank did not answer in time


class ProcessGroup(Fields):
    """A process group of a rank, from the rank's flight recorder."""

    desc: str = ""
    entered: Count = 0  # the number of the last collective that the rank entered
    waits: Optional[tuple[int, str]] = None  # number and name of the first collective that has not ended
