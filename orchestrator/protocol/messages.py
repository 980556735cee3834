"""The messages between leader, agents and launchers.

The leader sends orders to agents, and an agent sends orders to its launcher. Reports go the other way. An agent sends
requests to the agent of another node. A message is a line of JSON with the `kind` of its class; an answer to a request
has no kind. Each receiver has a table that maps classes to handlers, and ignores unknown kinds and fields. If a message
is damaged, the receiver reports a problem of its node (Trouble), and no agent ends for that reason alone.
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
    """A request from an agent to the agent of node `to`. It is sent directly to that agent's neighbour server, which
    listens for other agents.
    """

    kinds = REQUESTS
    to: Node


def read_report(data: Any) -> Optional[Report]:
    """Parse a report. Return None if its kind is unknown, and a Trouble if it is damaged."""
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
    """The leader's answer to an Introduction: the number of the node, or the reason for which the node is refused."""

    joined: Optional[Node] = None
    refused: str = ""


class Probe(Request, kind="probe"):
    """A request to send `padding` back, which tests whether large packets arrive in both directions."""

    padding: str


class Keep(Request, kind="keep"):
    """A request to receive and store a checkpoint. Its list of files follows the message, in `listing` bytes. The
    answers are FilesWanted and then Kept.
    """

    checkpoint: str
    listing: Annotated[int, Bounds(0, 64 << 20)]
    replaces: bool = False  # whether to overwrite files of this name that the node's own ranks have written
    keeps: Optional[Strings] = None  # the earlier checkpoints that the node must keep; None: all


class Answer(Fields):
    """The answer of the server on the neighbouring node. It describes the problem if the request failed."""

    problem: str = ""


class Probed(Answer):
    """The answer to a probe."""

    node: Optional[Node] = None
    padding: str = ""


class FilesWanted(Answer):
    """The first answer to Keep: the names of the checkpoint's files that the answering node lacks."""

    wanted: Strings = ()


class Kept(Answer):
    """The final answer to Keep: the received checkpoint was moved to its final folder."""

    kept: str = ""


class Hashed(Fields):
    """The hash of the file that was just sent. The message is left out if the list of files has the hash."""

    sha256: str


class Again(Fields):
    """A request to start a scheduler's job again. An agent writes it to a file that the job's next start reads."""

    cause: str
    reason: str = ""
    node: Optional[Node] = None  # the node whose agent requested it


class Losses(Fields):
    """The nodes of a start whose agents have died. The submitting machine writes it to a file that the agents read."""

    start: Optional[Count] = None
    nodes: tuple[Node, ...] = ()
    reason: str = "its agent vanished without a word"


# -- orders


class LeaderHeartbeat(Order, kind="heartbeat"):
    """A regular sign of life from the leader to each agent."""


class Check(Order, kind="check"):
    """Test the network path to the neighbour node."""

    addrs: Strings
    port: Port
    host: str


class Prepare(Order, kind="prepare"):
    """Prepare for an attempt. On node 0, the launcher binds the port of torch's store at this address."""

    attempt: Count
    store_addr: str = ""


class HandOver(Order, kind="hand_over"):
    """Node 0 sends the checkpoint from which the attempt resumes to the nodes that lack it."""

    attempt: Count
    checkpoint: str
    to: tuple[tuple[Node, Strings, Port], ...]


class Go(Order, kind="go"):
    """Start the attempt's ranks."""

    attempt: Count
    binding: Binding
    master_addr: str
    master_port: Port
    resume_from: str = ""  # the checkpoint's name in an order to an agent, its path in an order to a launcher
    checksum: str = ""  # the algorithm for the checkpoints that the ranks write
    network: Mapping[str, str] = field(default_factory=dict)  # the node's own variables, for the launcher


class Stop(Order, kind="stop"):
    """Stop the ranks at a step boundary, and kill the remaining ranks after `grace` seconds."""

    attempt: Count
    grace: Seconds


class ReportStacks(Order, kind="stacks"):
    """Report the stack trace of each rank."""


class FindModule(Order, kind="find_module"):
    """Report whether the ranks' interpreter has a module that a rank of another node lacks."""

    module: str


class Bye(Order, kind="bye"):
    """Exit with this code, because the gang (the run's connected agents) has ended."""

    outcome: str
    code: int


class Ping(Order, kind="ping"):
    """Answer with Pong. The agent sends this to check that its launcher responds."""


# -- reports


class Heartbeat(Report, kind="heartbeat"):
    """A regular sign of life from an agent to the leader."""


class WayTried(Report, kind="path"):
    """The network path to the neighbour node was tested. `error` is the reason if the test failed."""

    error: Optional[str] = None


class Trouble(Report, kind="trouble"):
    """The node can't take part in the run. `tail` is the end of its launcher's log."""

    reason: str
    cause: str = INFRA
    tail: Strings = ()


class FolderLost(Report, kind="folder_lost"):
    """The run's folder on this node was removed or damaged. `with_heartbeats` tells whether the heartbeats of its
    ranks are lost too.
    """

    path: str
    with_heartbeats: bool = False


class SignalReceived(Report, kind="signal"):
    """The agent received a signal. With `now`, the run is cancelled and the ranks are to be killed at once."""

    name: str
    cancelled: bool = False
    now: bool = False


class StacksFound(Report, kind="stacks"):
    """The stack traces of the node's ranks, and the process groups from torch's flight recorder."""

    ranks: Mapping[int, RankStack] = field(default_factory=dict)
    recorders: Mapping[int, Mapping[str, ProcessGroup]] = field(default_factory=dict)


class ModuleSought(Report, kind="found"):
    """The answer to FindModule: whether the ranks' interpreter finds the module."""

    module: str
    is_there: bool = False


class LauncherGone(Report):
    """The launcher's process has ended. The message has no kind, because an agent creates it for itself."""

    code: int
    tail: Strings = ()


class Used(Report, kind="used"):
    """The node is no longer idle."""


class OfAttempt(Report):
    """A report about one attempt. The leader ignores it if another attempt is running."""

    attempt: Count


class Imported(OfAttempt, kind="imported"):
    """The launcher has imported the modules that its ranks share. `failed` tells whether an import failed."""

    seconds: Optional[float] = None
    torch: Optional[str] = None
    opened_gpu: Optional[str] = None
    missing: str = ""  # a module that every rank needs and that the interpreter lacks
    failed: str = ""
    network: Optional[str] = None  # identifies the network of the launcher's container


class Ready(OfAttempt, kind="ready"):
    """The launcher can start the ranks. The agent adds the last three fields."""

    port: Port = 0  # the store's port, reported by node 0
    checksums: Strings = ()  # the checksum algorithms that the ranks have
    python: str = ""
    missing: str = ""
    image: Optional[str] = None  # the id of the image of the node's container
    checkpoints: tuple[tuple[str, str], ...] = ()  # (name, fingerprint) of each checkpoint on the node, newest first
    unfit: str = ""  # why no rank can run on the node; empty if ranks can run


class RanksStarted(OfAttempt, kind="started"):
    """The launcher has started the ranks' processes."""

    pids: Mapping[int, int]
    holds_port: bool = False  # the launcher holds the store's port until a process connects


class Dialed(OfAttempt, kind="dialed"):
    """A process has connected to the port of torch's store."""


class LogFailed(OfAttempt, kind="log_error"):
    """A rank's output can't be written."""

    rank: Optional[Rank] = None
    path: str = ""
    error: Optional[str] = None


class Pong(OfAttempt, kind="pong"):
    """The launcher's answer to Ping."""


class RankEnded(RankEnd, OfAttempt, kind="exit"):
    """A rank has ended. `left` ranks of its node still run. If `left` is None, all other ranks of the node end too."""

    left: Optional[Count] = None


class RanksIdle(OfAttempt, kind="idle"):
    """All ranks of the node have ended. A launcher in a container also reports the processes that it killed; outside
    of a container, `killed` is None.
    """

    killed: Optional[Count] = None
    survivors: tuple[int, ...] = ()


class HandedOver(OfAttempt, kind="handed_over"):
    """The nodes that received the checkpoint, and each node that did not receive it with the reason."""

    given: tuple[Node, ...] = ()
    failed: tuple[tuple[Node, str], ...] = ()


class Stalled(OfAttempt, kind="stall"):
    """A rank has sent no sign of life for `seconds`: half of its time limit or, with `full`, all of it."""

    rank: Rank
    phase: str
    step: int
    seconds: Seconds
    limit: Seconds
    between_steps: bool = False  # the short limit applies: the rank is in `train`, and has made steps
    full: bool = False


class Moved(OfAttempt, kind="moved"):
    """A rank that was silent has sent a sign of life, or has ended."""

    rank: Rank


class Patience(OfAttempt, kind="patience"):
    """A rank of the node may take longer than usual for this many more seconds; 0 if no rank may."""

    seconds: Seconds


class Waits(OfAttempt, kind="waits"):
    """No rank of node 0 has computed for this many seconds; 0 if a rank computes again."""

    seconds: Seconds
    unused_port: Port = 0  # the store's port if no process has connected to it, else 0


class Unused(OfAttempt, kind="unused"):
    """The node has been idle for as long as the job allows."""

    seconds: Count
    use: str = ""
