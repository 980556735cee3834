"""The messages between leader, agents and launchers. Python 3.9, pure.

Orders go from the leader to an agent, and from an agent to its launcher. Reports go the other way. Requests go from an
agent to another node's agent. A message is a line of JSON with the `kind` of its class, and an answer to a request has
no kind. Each receiver has a table from class to handler, and ignores unknown kinds and unknown fields. A damaged
message is reported as the trouble of its node, and ends no agent by itself.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Optional

from orchestrator.protocol.gang import Hello
from orchestrator.protocol.rank_reports import ProcessGroup, RankEnd, RankStack
from orchestrator.protocol.ranks import Binding
from orchestrator.protocol.typed import Bounds, Count, DamagedError, Fields, Kinds, Node, OfKind, Port, Rank, Seconds

Strings = tuple[str, ...]
INFRA = "infra"


ORDERS: "Kinds[Order]" = Kinds()
REPORTS: "Kinds[Report]" = Kinds()
REQUESTS: "Kinds[Request]" = Kinds()


class Order(OfKind):
    """A message from the leader to an agent, or from an agent to its launcher."""

    kinds = ORDERS


class Report(OfKind):
    """A message from a launcher to its agent, or from an agent to the leader."""

    kinds = REPORTS


class Request(OfKind):
    """A request to the neighbour server of node `to`."""

    kinds = REQUESTS
    to: Node


def read_report(data: Any) -> Optional[Report]:
    """Return the report; None if its kind is unknown, and a Trouble if it is damaged."""
    try:
        return REPORTS.read(data)
    except DamagedError as error:
        return Trouble(f"the report {data['kind']!r} is not understood: {error}"[:500])


# -- between agents of different nodes


class Introduction(Fields):
    """The first message of a node on its connection to the leader."""

    to: str = ""
    hello: Optional[Hello] = None


class Admission(Fields):
    """The leader's answer: the number of the node that has joined, or why it is refused."""

    joined: Optional[Node] = None
    refused: str = ""


class Probe(Request, kind="probe"):
    """Send the padding back, which shows whether large packets arrive."""

    padding: str


class Keep(Request, kind="keep"):
    """Receive a checkpoint, whose list of files follows as `listing` bytes. FilesWanted and Kept answer it."""

    checkpoint: str
    listing: Annotated[int, Bounds(0, 64 << 20)]
    replaces: bool = False  # also if the node's own ranks have written something there
    keeps: Optional[Strings] = None  # the earlier checkpoints that the node keeps; None: all


class Answer(Fields):
    """An answer of a neighbour server, with the problem if it can't do what was requested."""

    problem: str = ""


class Probed(Answer):
    """The answer to a probe."""

    node: Optional[Node] = None
    padding: str = ""


class FilesWanted(Answer):
    """The files of the checkpoint that the node lacks."""

    wanted: Strings = ()


class Kept(Answer):
    """The checkpoint is in its place."""

    kept: str = ""


class Hashed(Fields):
    """The hash of the file that was just sent, if it is not in the list."""

    sha256: str


class Again(Fields):
    """The request of one start of a scheduler's job for the next, which the agents leave in a file of the run."""

    cause: str
    reason: str = ""
    node: Optional[Node] = None  # whose agent requested it


# -- orders


class LeaderHeartbeat(Order, kind="heartbeat"):
    """The leader runs."""


class Check(Order, kind="check"):
    """Try the way to the neighbour."""

    addrs: Strings
    port: Port
    host: str


class Prepare(Order, kind="prepare"):
    """Make ready for an attempt. Node 0's launcher binds the store's port at this address."""

    attempt: Count
    store_addr: str = ""


class HandOver(Order, kind="hand_over"):
    """Node 0 gives the nodes that lack it the checkpoint that the attempt resumes from."""

    attempt: Count
    checkpoint: str
    to: tuple[tuple[Node, Strings, Port], ...]


class Go(Order, kind="go"):
    """Start the attempt's ranks."""

    attempt: Count
    binding: Binding
    master_addr: str
    master_port: Port
    resume_from: str = ""  # the checkpoint's name; for the launcher its path
    checksum: str = ""  # the algorithm for the checkpoints that the ranks write
    network: Mapping[str, str] = field(default_factory=dict)  # the node's own variables, for the launcher


class Stop(Order, kind="stop"):
    """Have the ranks stop at a step boundary, and kill them after `grace` seconds."""

    attempt: Count
    grace: Seconds


class ReportStacks(Order, kind="stacks"):
    """Report where each rank stands."""


class FindModule(Order, kind="find_module"):
    """Report whether the ranks' interpreter finds a module that a rank of another node lacks."""

    module: str


class Bye(Order, kind="bye"):
    """The gang has ended: leave with this exit code."""

    outcome: str
    code: int


class Ping(Order, kind="ping"):
    """Answer the agent, which checks that the launcher runs."""


# -- reports


class Heartbeat(Report, kind="heartbeat"):
    """The agent runs."""


class WayTried(Report, kind="path"):
    """The way to the neighbour was tried; with the error if it does not work."""

    error: Optional[str] = None


class Trouble(Report, kind="trouble"):
    """The node can't take part. `tail` is from its launcher's log."""

    reason: str
    cause: str = INFRA
    tail: Strings = ()


class FolderLost(Report, kind="folder_lost"):
    """The run's folder on this node, or a part of it, was removed, perhaps with the heartbeats of its ranks."""

    path: str
    with_heartbeats: bool = False


class SignalReceived(Report, kind="signal"):
    """The agent received a signal. With `now`, a cancel wants the ranks to be killed at once."""

    name: str
    cancelled: bool = False
    now: bool = False


class StacksFound(Report, kind="stacks"):
    """The positions of the node's ranks, and the process groups in their flight recorders."""

    ranks: Mapping[int, RankStack] = field(default_factory=dict)
    recorders: Mapping[int, Mapping[str, ProcessGroup]] = field(default_factory=dict)


class ModuleSought(Report, kind="found"):
    """The answer to FindModule: whether the ranks' interpreter finds the module."""

    module: str
    is_there: bool = False


class LauncherGone(Report):
    """The launcher's process has ended. It has no kind, because the agent itself makes it."""

    code: int
    tail: Strings = ()


class Used(Report, kind="used"):
    """The node is not idle any more."""


class OfAttempt(Report):
    """A report about one attempt, which is ignored in another attempt."""

    attempt: Count


class Imported(OfAttempt, kind="imported"):
    """The launcher has imported what its ranks share; with `failed`, an import failed."""

    seconds: Optional[float] = None
    torch: Optional[str] = None
    opened_gpu: Optional[str] = None
    missing: str = ""  # a module that every rank needs and the interpreter lacks
    failed: str = ""
    network: Optional[str] = None  # of the launcher's container


class Ready(OfAttempt, kind="ready"):
    """The launcher can start the ranks. The agent adds the last three fields."""

    port: Port = 0  # of the store, on node 0
    checksums: Strings = ()  # that the ranks can make
    python: str = ""
    missing: str = ""
    image: Optional[str] = None  # of the node's container
    checkpoints: tuple[tuple[str, str], ...] = ()  # name and mark, the newest first
    unfit: str = ""  # why no rank can run on the node


class RanksStarted(OfAttempt, kind="started"):
    """The launcher has started the ranks' processes."""

    pids: Mapping[int, int]
    holds_port: bool = False  # the launcher holds the store's port until a process connects


class Dialed(OfAttempt, kind="dialed"):
    """A process has connected to the store's port."""


class LogFailed(OfAttempt, kind="log_error"):
    """A rank's output can't be written."""

    rank: Optional[Rank] = None
    path: str = ""
    error: Optional[str] = None


class Pong(OfAttempt, kind="pong"):
    """The launcher runs."""


class RankEnded(RankEnd, OfAttempt, kind="exit"):
    """A rank has ended. `left` ranks of its node still run; if `left` is None, all of them end."""

    left: Optional[Count] = None


class RanksIdle(OfAttempt, kind="idle"):
    """All ranks of the node have ended. A launcher in a container reports what it ended; None: it is outside."""

    killed: Optional[Count] = None
    survivors: tuple[int, ...] = ()


class HandedOver(OfAttempt, kind="handed_over"):
    """The nodes that received the checkpoint, and those that could not, with the reason."""

    given: tuple[Node, ...] = ()
    failed: tuple[tuple[Node, str], ...] = ()


class Stalled(OfAttempt, kind="stall"):
    """A rank has been silent for `seconds`, half of its `limit` or all of it."""

    rank: Rank
    phase: str
    step: int
    seconds: Seconds
    limit: Seconds
    between_steps: bool = False  # the short limit applies: the rank is in `train`, and has made steps
    full: bool = False


class Moved(OfAttempt, kind="moved"):
    """A rank that was silent has continued, or has ended."""

    rank: Rank


class Patience(OfAttempt, kind="patience"):
    """A rank of the node is inside a longer limit for so many more seconds; 0 if none is."""

    seconds: Seconds


class Waits(OfAttempt, kind="waits"):
    """No rank of node 0 has computed for so long; 0 if one computes again."""

    seconds: Seconds
    unused_port: Port = 0  # the store's, if no process has connected to it


class Unused(OfAttempt, kind="unused"):
    """The node has been idle for as long as the job allows."""

    seconds: Count
    use: str = ""
