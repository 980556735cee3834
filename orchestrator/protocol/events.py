"""The events in a run's events.jsonl files, which nodes and the submitting machine write. Python 3.9, pure.

An event is a line of JSON with the `kind` of its class. `read_event` reads it. Unknown kinds and unknown fields are
ignored, so that an older orch can read the runs of a newer one. A field that the first versions did not write has a
default, so that a newer orch can read the runs of an older one. docs/events.md describes the kinds for users.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Optional, TypeVar

from orchestrator.protocol.rank_reports import Culprit, ProcessGroup, RankEnd, RankStack
from orchestrator.protocol.typed import Count, DamagedError, Kinds, Node, OfKind, Port, Rank, Seconds, to_json

Found = TypeVar("Found", bound="Event")
Strings = tuple[str, ...]
UNREPORTED = -1  # the step in events of versions that did not report it


KINDS: "Kinds[Event]" = Kinds()


class Event(OfKind):
    """The fields of every event: when it was written, and by which node (None: by the submitting machine)."""

    kinds = KINDS
    time: float = field(default=0.0, init=False)  # seconds since 1970, for people
    mono: Optional[float] = field(default=None, init=False)  # orders the events of a host
    seq: Optional[int] = field(default=None, init=False)  # the number of the line in the node's file
    node: Optional[Node] = field(default=None, init=False)

    def to_json(self) -> dict[str, Any]:
        """Return JSON types, with the fields that have their default, for readers that don't know the defaults."""
        return {"kind": self.kind, **to_json(self, whole=True)}

    def timed(self, time: float) -> "Event":
        """Return the event with this time."""
        made: Event = object.__new__(type(self))
        made.__dict__.update(self.__dict__, time=time)
        return made


def read_event(line: Any) -> Optional[Event]:
    """Return the event of a parsed line; None if its kind is unknown or a field that it must have is damaged."""
    if isinstance(line, Event):
        return line
    try:
        return KINDS.read(line, lenient=True)
    except DamagedError:
        return None


def read_events(lines: Iterable[Any]) -> list[Event]:
    """Return the events of parsed lines. Lines that are no known event are left out."""
    return [event for event in map(read_event, lines) if event is not None]


def of(events: Iterable[Event], *classes: type[Found]) -> list[Found]:
    """Return the events of these classes."""
    return [event for event in events if isinstance(event, classes)]


def last_of(events: Sequence[Event], *classes: type[Found]) -> Optional[Found]:
    """Return the last event of these classes; None if there is no such event."""
    return next((event for event in reversed(events) if isinstance(event, classes)), None)


class OfAttempt(Event):
    """An event about one attempt."""

    attempt: Count


# -- on the submitting machine, in RUN/events.jsonl


class Snapshot(Event, kind="snapshot"):
    """The code was copied."""

    files: Count
    bytes: Count
    sha256: str = ""
    git: Optional[str] = None
    dirty: bool = False
    diff: Optional[str] = None
    untracked: Strings = ()
    left_out: Any = None  # what ignore files left out; runs/files/ignore_rules.py reads it
    linked: Any = None  # checkpoints that are links to the user's own files
    ignored: Any = None


class Queued(Event, kind="held"):
    """Orch itself holds the run, and the supervisor starts it later."""


class Dropped(Event, kind="dropped"):
    """The run will not be started any more."""

    reason: str


class Environment(Event, kind="environment"):
    """The Python environment of node `of` is ready."""

    of: Node
    start: Count = 0
    host: str = ""
    folder: str = ""
    is_whole: bool = True
    made: bool = False  # whether it was installed now
    seconds: Seconds = 0.0


class Submitted(Event, kind="submitted"):
    """The backend reported that every agent, or the job, was handed over."""


class NotRestored(Event, kind="not_restored"):
    """A later start lacks parts of its submit's surroundings."""

    what: Any


class SubmitFailed(Event, kind="submit_failed"):
    """The submit was refused, or a relaunch was given up."""

    reason: str


class StartProblem(Event, kind="start_problem"):
    """A relaunch failed for now, and is tried again."""

    reason: str


class Clock(Event, kind="clock"):
    """The clock of node `of` is `ahead` seconds, measured at this start."""

    of: Node
    ahead: float
    start: Count = 0
    host: str = ""


class FoundLost(Event, kind="found_lost"):
    """Not all agents will ever report."""

    reason: str = ""


class StartingAgain(OfAttempt, kind="starting_again"):
    """Another start of the agents was decided. Node 0 writes this event if Slurm requeued the job."""

    start: Count
    cause: str
    reason: str
    step: Optional[int] = UNREPORTED  # of the newest checkpoint; None: there is none
    beat: Optional[int] = None  # the newest step in a heartbeat, if there is no checkpoint
    saved: Optional[float] = None  # the time of the last write, if there is no checkpoint


class Replaced(Event, kind="replaced"):
    """The spare `by` replaced the host of node `lost`."""

    start: Count
    lost: Node
    host: str
    by: str
    why: str = ""


class GoingOnWithout(Event, kind="going_on_without"):
    """A relaunch uses `nodes` of the plan's nodes, without `hosts`."""

    start: Count
    hosts: Strings
    nodes: Count
    of: Count
    why: Strings = ()


class WaitingForHosts(Event, kind="waiting_for_hosts"):
    """A relaunch waits for `hosts` to return."""

    start: Count
    hosts: Strings
    why: Strings = ()


class Cancel(Event, kind="cancel"):
    """The run's end was requested, by a search with its reason."""

    now: bool = False
    reason: Optional[str] = None


class Collected(Event, kind="collected"):
    """A checkpoint was copied to this machine."""

    step: Optional[int]


class LeftBehind(Event, kind="left_behind"):
    """Files of node `left` could not be copied here, or could not be removed from the node."""

    left: Node
    host: str = ""
    folder: str = ""
    reason: str = ""
    files: Optional[int] = None
    bytes: Count = 0


class OutputsLeft(Event, kind="outputs_left"):
    """Outputs of node `left` are not here."""

    left: Node
    host: str = ""
    folder: str = ""
    files: Optional[int] = None
    bytes: Count = 0
    reason: str = ""


class OutputsBrought(Event, kind="outputs_brought"):
    """The outputs of node `left` are here now."""

    left: Optional[Node] = None
    host: str = ""


class CleanedUp(Event, kind="swept"):
    """Leftovers of the run were ended: by the submitting machine, or by an agent for its node."""

    killed: Count = 0  # by an agent
    ended: Count = 0  # by the submitting machine
    survivors: tuple[Any, ...] = ()
    hosts: Strings = ()
    away: Strings = ()  # hosts that could not be reached


# -- on each node's agent, in RUN/nodes/N/events.jsonl


class SlurmJob(Event, kind="slurm_job"):
    """The job's number and hosts, at each start by Slurm, or by the job itself if it has spares."""

    start: Count
    job: Optional[str] = None
    hosts: Strings = ()
    requeues: Optional[Count] = None  # how often Slurm had queued a job with spares again


class BatchJob(Event, kind="batch_job"):
    """The job's number and hosts, at each start by another scheduler than Slurm."""

    start: Count
    job: Optional[str] = None
    hosts: Strings = ()


class AgentStarted(Event, kind="agent_started"):
    """The agent runs. `started` is the time at which its process began, in the kernel's ticks."""

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
    """The node has joined node 0's gang."""

    addr: str = ""


class CantReach(Event, kind="cant_reach"):
    """The node has not joined node 0's gang for 5 s."""

    why: str = ""


class InContainer(Event, kind="container"):
    """The launcher runs in this container."""

    runtime: str = ""
    version: str = ""  # of the runtime
    image: str = ""
    image_id: Optional[str] = None
    name: str = ""
    id: str = ""
    attempt: Count = 0


class LauncherImported(OfAttempt, kind="launcher_imported"):
    """The launcher is ready, or a module that every rank needs is missing."""

    seconds: Optional[float] = None
    torch: Optional[str] = None
    opened_gpu: Optional[str] = None  # the import that opened a GPU, after which ranks can't be forked
    missing: str = ""
    network: Optional[str] = None


class LauncherStarted(OfAttempt, kind="launcher_started"):
    """The launcher started the ranks, with these process numbers."""

    pids: Mapping[int, int]


class LauncherLogError(OfAttempt, kind="launcher_log_error"):
    """A rank's output can't be written."""

    rank: Optional[Rank] = None
    path: str = ""
    error: Optional[str] = None


class ReportFailed(Event, kind="launcher_report_failed"):
    """An error occurred while the details of a rank's end were collected."""

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
    """The node's ranks of an attempt were started: from the first of `ranks` to before the second."""

    ranks: tuple[Rank, Rank]
    world_size: Optional[int] = None
    processes: Optional[int] = None  # that the launcher started; torchrun is one process for all ranks of its node
    master_addr: Optional[str] = None
    master_port: Optional[Port] = None
    network: Any = None


class FirstStepsSeen(OfAttempt, kind="first_steps"):
    """Rank 0's program showed whether it loaded the checkpoint that was offered, by one of the last three fields."""

    offered_step: Optional[int] = None
    loaded: Optional[int] = None
    steps: Optional[tuple[int, int]] = None
    saved: Optional[int] = None


class Slept(Event, kind="slept"):
    """The leader did not run for so long: it was suspended, or paused."""

    seconds: Seconds = 0.0


class SamplingFailed(Event, kind="sampling_failed"):
    """The use of the node can't be measured or written."""

    reason: str = ""


class MetricsUnread(Event, kind="metrics_unread"):
    """A file of metrics, or the rest of it, can't be read."""

    path: str = ""
    reason: str = ""


class Stalled(OfAttempt, kind="stall"):
    """A rank was silent for half of its limit. With `full`, the leader counts the rank as hung."""

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


class SignalReceived(Event, kind="signal"):
    """The agent received a signal; `cancelled` if a cancel is recorded."""

    name: str = ""
    cancelled: bool = False


class Troubled(Event, kind="trouble"):
    """The launcher can't do its work."""

    reason: str = ""
    cause: str = ""
    tail: Strings = ()


class DiskFull(Event, kind="disk_full"):
    """A file can't be written."""

    path: str = ""
    error: Optional[str] = None


class GaveUp(Event, kind="gave_up"):
    """The agent left without hearing from the leader."""

    outcome: str
    cause: str
    reason: str


class Strangers(Event, kind="strangers"):
    """Connections failed to prove that they belong to this run. Written after each doubling."""

    at: str = ""  # gang | neighbour
    counts: Mapping[str, int] = field(default_factory=dict)  # by address


class AgentEnded(Event, kind="agent_ended"):
    """The agent's last event."""

    outcome: str
    code: Optional[int] = None
    swept: Count = 0  # processes that the ranks left and the agent ended
    survivors: tuple[int, ...] = ()  # processes that could not be ended
    containers: Strings = ()  # containers that could not be removed
    joules: Optional[float] = None  # that the GPUs used


# -- on node 0, as the gang's leader


class Listening(Event, kind="listening"):
    """The gang's port and addresses."""

    port: Port = 0
    addrs: Strings = ()


class Joined(Event, kind="joined"):
    """A node has joined."""

    joined: Node
    host: str = "?"
    nproc: Optional[int] = None


class LostNode(Event, kind="lost_node"):
    """A node's connection is gone or silent. `slept` is the leader's own pause before that, in seconds."""

    lost: Node
    host: str = ""
    reason: str = ""
    slept: Optional[float] = None


class HandedOver(OfAttempt, kind="handed_over"):
    """Nodes `to` received the checkpoint from which an attempt resumes."""

    checkpoint: str = ""
    to: tuple[int, ...] = ()


class Go(OfAttempt, kind="go"):
    """An attempt's ranks are numbered and told to start."""

    world_size: Count
    master_port: Optional[Port] = None
    nproc: tuple[int, ...] = ()
    resume_from: Optional[str] = None


class Stopping(Event, kind="stopping"):
    """The ranks were requested to stop at a step boundary. Node `told` received the signal."""

    reason: str = ""
    signal: str = ""
    told: Optional[Node] = None


class TimeLimit(Event, kind="time_limit"):
    """The job's own limit was reached."""

    seconds: Seconds = 0.0


class Unused(OfAttempt, kind="unused"):
    """All nodes have been idle for as long as the job's `idle` allows."""

    seconds: Count
    use: str


class Used(OfAttempt, kind="used"):
    """Node `by` is not idle any more."""

    by: Optional[Node] = None


class Moved(OfAttempt, kind="moved"):
    """A rank that counted as hung has continued."""

    rank: Rank


class FolderLost(Event, kind="folder_lost"):
    """Node `of` has lost the run's folder, perhaps with the heartbeats of its ranks."""

    host: str
    path: str
    of: Optional[Node] = None
    with_heartbeats: bool = False


class Unjoined(OfAttempt, kind="unjoined"):
    """The ranks for which the others wait at their start, in words; empty when a rank computes again."""

    words: str


class Stacks(OfAttempt, kind="stacks"):
    """The stacks of the ranks while one hung."""

    ranks: Mapping[int, RankStack] = field(default_factory=dict)
    recorders: Mapping[int, Mapping[str, ProcessGroup]] = field(default_factory=dict)


class AttemptFailed(OfAttempt, kind="attempt_failed"):
    """An attempt failed: the rank that is to blame, and the budget that the failure draws on."""

    culprit: Culprit
    cause: str
    step: Optional[int] = UNREPORTED
    beat: Optional[int] = None
    saved: Optional[float] = None


class Restart(OfAttempt, kind="restart"):
    """The same agents start the ranks again."""

    cause: str
    from_step: Optional[int] = None


class SecondCopyFailed(Event, kind="second_copy_failed"):
    """A copy to node 1 failed. The attempt makes no further copy."""

    checkpoint: str = ""
    reason: str = ""


class GangEnded(OfAttempt, kind="gang_ended"):
    """How the leader ended the gang."""

    outcome: str
    cause: str
    reason: str
    failed_node: Optional[Node] = None
    tail: Strings = ()
    step: Optional[int] = UNREPORTED
    beat: Optional[int] = None
    saved: Optional[float] = None
