"""The events in a run's events.jsonl files, which nodes and the submitting machine write.

An event is a line of JSON with the `kind` of its class. `read_event` parses it. Unknown kinds and fields are ignored,
so that an old version of orch can read runs of a newer version. Fields that the first versions did not write have
defaults, so that a new version can read runs of an old one. docs/events.md describes the kinds for users.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Optional, TypeVar

from orchestrator.protocol.rank_reports import Culprit, ProcessGroup, RankEnd, RankStack
from orchestrator.protocol.typed import Count, DamagedError, Kinds, Node, OfKind, Port, Rank, Seconds, to_json

Found = TypeVar("Found", bound="Event")
Strings = tuple[str, ...]
UNREPORTED = -1  # the step in events of old versions, which did not report it


KINDS: "Kinds[Event]" = Kinds()


class Event(OfKind):
    """The fields of every event: when it was written, and by which node (None: by the submitting machine)."""

    kinds = KINDS
    time: float = field(default=0.0, init=False)  # seconds since 1970, for people
    mono: Optional[float] = field(default=None, init=False)  # seconds of a clock that orders the events of a host
    seq: Optional[int] = field(default=None, init=False)  # the number of the line in the node's file
    node: Optional[Node] = field(default=None, init=False)

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON types. Fields with default values are included, for readers without the defaults."""
        return {"kind": self.kind, **to_json(self, whole=True)}

    def timed(self, time: float) -> "Event":
        """Return a copy of the event with this time."""
        made: Event = object.__new__(type(self))
        made.__dict__.update(self.__dict__, time=time)
        return made


def read_event(line: Any) -> Optional[Event]:
    """Return the event in a parsed line. Return None if its kind is unknown or a required field is damaged."""
    if isinstance(line, Event):
        return line
    try:
        return KINDS.read(line, lenient=True)
    except DamagedError:
        return None


def read_events(lines: Iterable[Any]) -> list[Event]:
    """Return the events in parsed lines. Lines that are not a known event are skipped."""
    return [event for event in map(read_event, lines) if event is not None]


def of(events: Iterable[Event], *classes: type[Found]) -> list[Found]:
    """Return the events that are instances of these classes."""
    return [event for event in events if isinstance(event, classes)]


def last_of(events: Sequence[Event], *classes: type[Found]) -> Optional[Found]:
    """Return the last event that is an instance of these classes, or None."""
    return next((event for event in reversed(events) if isinstance(event, classes)), None)


class OfAttempt(Event):
    """An event about one attempt."""

    attempt: Count


# -- on the submitting machine, in RUN/events.jsonl


class Snapshot(Event, kind="snapshot"):
    """The code folder was copied when the run was submitted."""

    files: Count
    bytes: Count
    sha256: str = ""
    git: Optional[str] = None
    dirty: bool = False
    diff: Optional[str] = None
    untracked: Strings = ()
    left_out: Any = None  # the size of the ignored files; runs/files/ignore_rules.py reads this field
    linked: Any = None  # checkpoints that are links to the user's own files
    ignored: Any = None


class Queued(Event, kind="held"):
    """The run was put into orch's own queue, and the supervisor will start it later."""


class Dropped(Event, kind="dropped"):
    """The run will not be started any more."""

    reason: str


class Environment(Event, kind="environment"):
    """The Python environment of node `of` is ready to use."""

    of: Node
    start: Count = 0
    host: str = ""
    folder: str = ""
    is_whole: bool = True
    made: bool = False  # whether this start installed the environment
    seconds: Seconds = 0.0


class Submitted(Event, kind="submitted"):
    """All agents were started, or the scheduler accepted the job."""


class NotRestored(Event, kind="not_restored"):
    """A relaunch could not restore parts of the environment (variables, limits etc.) in which the run was submitted."""

    what: Any


class SubmitFailed(Event, kind="submit_failed"):
    """The submit was refused, or a relaunch was given up."""

    reason: str


class StartProblem(Event, kind="start_problem"):
    """A relaunch failed, and the supervisor will try it again."""

    reason: str


class Clock(Event, kind="clock"):
    """The clock of node `of` is `ahead` seconds ahead of the submitting machine's. The difference is measured at each
    start.
    """

    of: Node
    ahead: float
    start: Count = 0
    host: str = ""


class FoundLost(Event, kind="found_lost"):
    """The submitting machine decided that some agents will never report."""

    reason: str = ""


class StartingAgain(OfAttempt, kind="starting_again"):
    """The agents are started again. The supervisor writes this event, or node 0 if a scheduler runs the job again."""

    start: Count
    cause: str
    reason: str
    step: Optional[int] = UNREPORTED  # the step of the newest checkpoint; None if there is no checkpoint
    beat: Optional[int] = None  # the newest step in a heartbeat, if there is no checkpoint
    saved: Optional[float] = None  # the time of the last write, if there is no checkpoint


class Replaced(Event, kind="replaced"):
    """A spare machine, `by`, replaced the host of node `lost`."""

    start: Count
    lost: Node
    host: str
    by: str
    why: str = ""


class GoingOnWithout(Event, kind="going_on_without"):
    """A relaunch uses fewer machines: `nodes` of the `of` planned nodes. The machines `hosts` are left out."""

    start: Count
    hosts: Strings
    nodes: Count
    of: Count
    why: Strings = ()


class WaitingForHosts(Event, kind="waiting_for_hosts"):
    """A relaunch waits until `hosts` are available again."""

    start: Count
    hosts: Strings
    why: Strings = ()


class Cancel(Event, kind="cancel"):
    """A user or a search requested the run's end. A search adds its reason."""

    now: bool = False
    reason: Optional[str] = None


class Collected(Event, kind="collected"):
    """A checkpoint was copied to the submitting machine."""

    step: Optional[int]


class LeftBehind(Event, kind="left_behind"):
    """Files of node `left` could not be copied to the submitting machine, or could not be deleted on the node."""

    left: Node
    host: str = ""
    folder: str = ""
    reason: str = ""
    files: Optional[int] = None
    bytes: Count = 0


class OutputsLeft(Event, kind="outputs_left"):
    """Outputs of node `left` were not copied to the submitting machine."""

    left: Node
    host: str = ""
    folder: str = ""
    files: Optional[int] = None
    bytes: Count = 0
    reason: str = ""


class OutputsBrought(Event, kind="outputs_brought"):
    """Outputs that could not be copied from a node before have now been copied to the submitting machine. `left` is
    the node's number.
    """

    left: Optional[Node] = None
    host: str = ""


class CleanedUp(Event, kind="swept"):
    """Processes that the run left behind were ended, by the submitting machine or by an agent on its own node."""

    killed: Count = 0  # set by an agent
    ended: Count = 0  # set by the submitting machine
    survivors: tuple[Any, ...] = ()
    hosts: Strings = ()
    away: Strings = ()  # hosts that could not be reached


# -- on each node's agent, in RUN/nodes/N/events.jsonl


class BatchJob(Event, kind="batch_job"):
    """The id of the run's job, and the hosts of the job. The event is written each time the scheduler starts the
    job.
    """

    start: Count
    job: Optional[str] = None
    hosts: Strings = ()
    requeues: Optional[Count] = None  # how often a job with spare nodes was requeued


KINDS["slurm_job"] = BatchJob  # the kind of Slurm's jobs until version 0.1


class AgentStarted(Event, kind="agent_started"):
    """An agent has started. `started` is the start time of its process in the kernel's clock ticks."""

    host: str = "?"
    pid: Optional[int] = None
    started: Optional[int] = None
    start: Count = 0
    python: Optional[str] = None
    cores: Optional[int] = None
    gpus: Optional[int] = None
    gpu_names: Strings = ()
    nproc: Optional[int] = None


class ReachedLeader(Event, kind="reached_leader"):
    """The node has connected to the leader on node 0."""

    addr: str = ""


class CantReach(Event, kind="cant_reach"):
    """The node has tried to connect to the leader on node 0 for 5 s without success."""

    why: str = ""


class InContainer(Event, kind="container"):
    """The launcher runs in this container."""

    runtime: str = ""
    version: str = ""  # version of the container runtime
    image: str = ""
    image_id: Optional[str] = None
    name: str = ""
    id: str = ""
    attempt: Count = 0


class LauncherImported(OfAttempt, kind="launcher_imported"):
    """The launcher has imported its modules, or a module that every rank needs is missing."""

    seconds: Optional[float] = None
    torch: Optional[str] = None
    opened_gpu: Optional[str] = None  # the imported module that opened a GPU, after which ranks can't be forked
    missing: str = ""
    network: Optional[str] = None


class LauncherStarted(OfAttempt, kind="launcher_started"):
    """The launcher has started the ranks. The event has their pids."""

    pids: Mapping[int, int]


class LauncherLogError(OfAttempt, kind="launcher_log_error"):
    """A rank's output can't be written."""

    rank: Optional[Rank] = None
    path: str = ""
    error: Optional[str] = None


class ReportFailed(Event, kind="launcher_report_failed"):
    """An error occurred while the agent collected the details of a rank's end."""

    what: str = ""
    error: str = ""


class LauncherKilled(Event, kind="launcher_killed"):
    """The agent killed the launcher."""

    reason: str = ""


class LauncherGone(Event, kind="launcher_gone"):
    """The launcher ended unexpectedly."""

    code: Optional[int] = None
    tail: Strings = ()


class Started(OfAttempt, kind="started"):
    """The node's ranks of an attempt were started. `ranks` is (first rank, last rank + 1)."""

    ranks: tuple[Rank, Rank]
    world_size: Optional[int] = None
    processes: Optional[int] = None  # the processes of the ranks; torchrun is one process for all ranks of its node
    master_addr: Optional[str] = None
    master_port: Optional[Port] = None
    network: Any = None


class FirstStepsSeen(OfAttempt, kind="first_steps"):
    """The first sign of the step from which rank 0's program started. It shows whether the program has loaded the
    checkpoint that orch offered.

    Exactly one of `read`, `loaded`, `steps` and `saved` is set.
    """

    offered_step: Optional[int] = None
    read: bool = False  # rank 0's process has read a weight file of the checkpoint to its end, or mapped it
    loaded: Optional[int] = None
    steps: Optional[tuple[int, int]] = None
    saved: Optional[int] = None


class Slept(Event, kind="slept"):
    """The leader's process did not run for `seconds`, because the machine was suspended or the process was paused."""

    seconds: Seconds = 0.0


class SamplingFailed(Event, kind="sampling_failed"):
    """The resource usage of the node can't be measured or written."""

    reason: str = ""


class MetricsUnread(Event, kind="metrics_unread"):
    """A metrics file of the program can't be read, or can't be read further."""

    path: str = ""
    reason: str = ""


class Stalled(OfAttempt, kind="stall"):
    """A rank has sent no sign of life for half of its time limit. With `full`, the leader considers the rank hung."""

    rank: Rank
    seconds: Seconds
    full: bool
    phase: str = ""
    step: Optional[int] = None
    limit: Optional[float] = None
    between_steps: bool = False


class RankExit(RankEnd, Event, kind="rank_exit"):
    """The exit code or signal of one rank."""

    attempt: Optional[Count] = None
    # Only in records of earlier versions. Today `outcome/ends.py` derives these facts.
    victim: bool = False
    worker_killed: bool = False
    oom: bool = False


class SignalReceived(Event, kind="signal"):
    """The agent received a signal. `cancelled` tells whether a cancel of the run is recorded."""

    name: str = ""
    cancelled: bool = False


class Troubled(Event, kind="trouble"):
    """A problem prevents the node from taking part. `tail` has the last lines of its launcher's log."""

    reason: str = ""
    cause: str = ""
    tail: Strings = ()


class DiskFull(Event, kind="disk_full"):
    """A file of the run can't be written."""

    path: str = ""
    error: Optional[str] = None


class GaveUp(Event, kind="gave_up"):
    """The agent exits although the leader has not decided so. It has lost the leader, was stopped before it joined,
    or knows that further ranks would make no progress.
    """

    outcome: str
    cause: str
    reason: str


class Strangers(Event, kind="strangers"):
    """Connections to this agent failed to prove that they belong to this run. The event is written each time that
    their number doubles.
    """

    at: str = ""  # gang | neighbour
    counts: Mapping[str, int] = field(default_factory=dict)  # by address


class AgentEnded(Event, kind="agent_ended"):
    """The agent has ended. This is its last event."""

    outcome: str
    code: Optional[int] = None
    swept: Count = 0  # number of processes that the ranks left behind and the agent ended
    survivors: tuple[int, ...] = ()  # pids of processes that could not be ended
    containers: Strings = ()  # names of containers that could not be removed
    joules: Optional[float] = None  # energy that the GPUs used


# -- on node 0, as the gang's leader


class Listening(Event, kind="listening"):
    """The leader listens on this port at these addresses."""

    port: Port = 0
    addrs: Strings = ()


class Joined(Event, kind="joined"):
    """A node has joined."""

    joined: Node
    host: str = "?"
    nproc: Optional[int] = None


class LostNode(Event, kind="lost_node"):
    """The leader lost its connection to a node, or the node fell silent. `slept` is the pause of the leader's own
    process before that, in seconds.
    """

    lost: Node
    host: str = ""
    reason: str = ""
    slept: Optional[float] = None


class HandedOver(OfAttempt, kind="handed_over"):
    """Node 0 sent the checkpoint from which an attempt resumes to the nodes `to`."""

    checkpoint: str = ""
    to: tuple[int, ...] = ()


class Go(OfAttempt, kind="go"):
    """An attempt begins: the leader has numbered the ranks and ordered the nodes to start them."""

    world_size: Count
    master_port: Optional[Port] = None
    nproc: tuple[int, ...] = ()
    resume_from: Optional[str] = None


class Stopping(Event, kind="stopping"):
    """The leader asked the ranks to stop at a step boundary. If a signal was the reason, node `told` received it."""

    reason: str = ""
    signal: str = ""
    told: Optional[Node] = None


class TimeLimit(Event, kind="time_limit"):
    """The run has reached the time limit in its job."""

    seconds: Seconds = 0.0


class Unused(OfAttempt, kind="unused"):
    """All nodes have been idle for as long as the job's `idle` allows."""

    seconds: Count
    use: str


class Used(OfAttempt, kind="used"):
    """Node `by` is no longer idle."""

    by: Optional[Node] = None


class Moved(OfAttempt, kind="moved"):
    """A rank that was considered hung has continued."""

    rank: Rank


class FolderLost(Event, kind="folder_lost"):
    """The run's folder on node `of` was removed or damaged. `with_heartbeats` tells whether the heartbeats of its
    ranks are lost too.
    """

    host: str
    path: str
    of: Optional[Node] = None
    with_heartbeats: bool = False


class Unjoined(OfAttempt, kind="unjoined"):
    """Ranks wait for other ranks that have not joined the process group. `words` names the missing ranks; it is empty
    when a rank computes again.
    """

    words: str


class Stacks(OfAttempt, kind="stacks"):
    """The stack traces of the ranks at a time when a rank hung."""

    ranks: Mapping[int, RankStack] = field(default_factory=dict)
    recorders: Mapping[int, Mapping[str, ProcessGroup]] = field(default_factory=dict)


class AttemptFailed(OfAttempt, kind="attempt_failed"):
    """An attempt failed. The event has the rank that is to blame, and the cause, which decides the retry budget."""

    culprit: Culprit
    cause: str
    step: Optional[int] = UNREPORTED
    beat: Optional[int] = None
    saved: Optional[float] = None


class Restart(OfAttempt, kind="restart"):
    """The leader decided to start the ranks again. The agents continue to run."""

    cause: str
    from_step: Optional[int] = None


class SecondCopyFailed(Event, kind="second_copy_failed"):
    """A checkpoint could not be copied to node 1, which keeps the second copies. No further copies are made in this
    attempt.
    """

    checkpoint: str = ""
    reason: str = ""


class GangEnded(OfAttempt, kind="gang_ended"):
    """The leader ended the gang (the run's connected agents). The event has the outcome."""

    outcome: str
    cause: str
    reason: str
    failed_node: Optional[Node] = None
    tail: Strings = ()
    step: Optional[int] = UNREPORTED
    beat: Optional[int] = None
    saved: Optional[float] = None
