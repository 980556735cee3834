"""What node 0's agent decides for the gang: when to go, whose failure counts, whether to start again. No I/O.

The clock (seconds, monotonic) is an argument; messages leave through `send`, facts through `record`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from orchestrator.node.agent.missing_module import Lacking, missing_in_words, missing_module_of
from orchestrator.node.agent.missing_rank import missing_rank
from orchestrator.node.agent.stall_detector import DEFAULT_LIMITS, culprit_of_hang
from orchestrator.node.agent.standstill import Standstill
from orchestrator.node.agent.start_watch import why_it_waits
from orchestrator.node.container.argv import odd_image, short
from orchestrator.outcome import gang, restart, rules
from orchestrator.outcome.rule import Rule
from orchestrator.outcome.verdict import Cause, Outcome
from orchestrator.protocol import events
from orchestrator.protocol.checkpoints.checksum import Algorithm, agreed
from orchestrator.protocol.gang import Hello
from orchestrator.protocol.hostlist import nodes_in_words
from orchestrator.protocol.messages import (
    Bye,
    Check,
    FindModule,
    FolderLost,
    Go,
    HandedOver,
    HandOver,
    ModuleSought,
    Moved,
    OfAttempt,
    Order,
    Patience,
    Prepare,
    RankEnded,
    RanksIdle,
    Ready,
    Report,
    ReportStacks,
    SignalReceived,
    StacksFound,
    Stalled,
    Stop,
    Trouble,
    Unused,
    Used,
    Waits,
    WayTried,
)
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.rank_reports import Culprit, ProcessGroup, RankEnd, RankError, RankStack
from orchestrator.protocol.ranks import EXIT_REQUEUE, bind
from orchestrator.protocol.samples import lasting
from orchestrator.protocol.str_enum import StrEnum
from orchestrator.protocol.task import NodeTask
from orchestrator.protocol.typed import Handlers, read, to_json

HEARTBEAT_SECONDS = 2.0
SETTLE_SECONDS = 1.5  # a victim's words may arrive before the culprit's: wait for those
FAILURE_GRACE = 2.0  # the others hang in a collective by now: TERM is only a courtesy
HANG_SETTLE_SECONDS = 2.5  # so that every node's stalls are known
STACKS_SECONDS = 8.0  # after which a node that owes its stacks is not waited for any more
SAVE_GRACE = 1800.0  # rank 0 may be saving long after the others have left
STACKS_EVERY = 20.0  # seconds between two dumps

_HANDLERS = Handlers(Report)


class Phase(StrEnum):
    """Where the gang is; an attempt goes from preparing to stopping or ended, and a restart back to preparing."""

    JOINING = "joining"
    """Not all nodes have said hello."""
    CHECKING = "checking"
    """Each node tries the way to its neighbour."""
    PREPARING = "preparing"
    """Each node gets its launcher ready; node 0's binds the store's port."""
    RUNNING = "running"
    """The ranks have been told to start."""
    STOPPING = "stopping"
    """The ranks have been told to stop, and not all nodes are rid of theirs."""
    ENDED = "ended"
    """The outcome is recorded, and every node has been told; whoever joins now is told as well."""


BEFORE_THE_RANKS = (Phase.JOINING, Phase.CHECKING, Phase.PREPARING)  # each has a deadline


class StopReason(StrEnum):
    """Why the ranks of an attempt have been told to stop."""

    FAILURE = "failure"
    """A rank failed, a node was lost, or a rank stands still: another attempt may follow."""
    CANCELLED = "cancelled"
    """The user asked for it."""
    PREEMPTED = "preempted"
    """A signal from outside, or ranks that have stopped at a step boundary by themselves."""
    TIMEOUT = "timeout"
    """The job's time limit is over."""
    IDLE = "idle"
    """All nodes have done next to nothing for as long as the job allows."""


@dataclass
class Leader:
    """The state of one gang, from the first hello to the bye."""

    task: NodeTask
    send: Callable[[int, Order], None]
    record: Callable[[events.Event], None]
    progress: Callable[[], Progress]  # what has been saved
    strangers: Callable[[], str]  # who could not prove to belong to this run, in words
    started: float
    phase: Phase = Phase.JOINING
    attempt: int = 0
    hellos: dict[int, Hello] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)  # nodes that still owe an answer in this phase
    seen: dict[int, float] = field(default_factory=dict)
    reached_at: dict[int, str] = field(default_factory=dict)  # node 0's address on each node's connection
    ready: dict[int, Ready] = field(default_factory=dict)  # what each node's launcher can do
    sought: str = ""  # the module that a rank of this attempt lacked; every node is asked for it
    lacking: set[int] = field(default_factory=set)  # the nodes that reported that they lack it
    exits: list[Culprit] = field(default_factory=list)
    done: set[int] = field(default_factory=set)  # the nodes whose last rank has ended by itself
    exits_on: dict[int, list[Culprit]] = field(default_factory=dict)  # the same ones, of each node
    lost: dict[int, str] = field(default_factory=dict)  # and why
    deserters: dict[int, float] = field(default_factory=dict)  # nodes that were lost by a sleep of so many seconds
    slept: float = 0.0  # for how long this process did not run until it `woke`; not less by a short sleep right after
    woke: float = 0.0
    stop_reason: StopReason | None = None
    settle_at: float | None = None
    restarts: list[str] = field(default_factory=list)  # their causes
    begun_at: list[Progress] = field(default_factory=list)  # what had been saved as each attempt began
    bye: Bye | None = None
    unused: dict[int, Unused] = field(default_factory=dict)  # what idle nodes say of themselves
    in_use: set[int] = field(default_factory=set)  # the nodes that are neither idle nor lost
    standstill: Standstill = field(default_factory=Standstill)
    folders_lost: dict[int, str] = field(default_factory=dict)  # the run's folder, on each node that lost it
    stacks: dict[int, RankStack] = field(default_factory=dict)
    recorders: dict[int, Mapping[str, ProcessGroup]] = field(
        default_factory=dict
    )  # of each rank's flight recorder: its process groups
    stacks_asked: float | None = None
    stacks_owed: set[int] = field(default_factory=set)  # nodes that have not answered yet
    hang_at: float | None = None
    waits: Waits | None = None  # node 0's report that its ranks compute nothing, until the reason is known
    why_waiting: str = ""  # the explanation

    def __post_init__(self) -> None:
        self.attempt = self.task.attempt
        self.ticked = self.started
        self.deadline = self.started + self.task.join_timeout
        self.begun_at = [self.progress()]
        self.waiting = set(range(self.task.nnodes))

    # -- what happens to the gang

    def joined(self, hello: Hello, now: float, reached_at: str = "") -> None:
        """Count in a node that has proved itself and said hello, and which address of node 0 it has reached."""
        node = hello.node_rank
        self.hellos[node] = hello
        if node:
            self.reached_at[node] = reached_at
        self.seen[node] = now
        self.waiting.discard(node)
        self.record(events.Joined(node, hello.host, hello.nproc))
        if self.bye is not None:
            self.send(node, self.bye)
        if self.phase is not Phase.JOINING or self.waiting or self.lost:
            return
        if self.task.nnodes == 1:
            self._prepare(now)
            return
        self.phase, self.waiting = Phase.CHECKING, set(self.hellos)
        for rank in self.hellos:
            neighbour = self.hellos[(rank + 1) % self.task.nnodes]
            self.send(rank, Check(neighbour.addrs, neighbour.neighbour_port, neighbour.host))

    def received(self, node: int, report: Report, now: float) -> None:
        """Handle a report from a node that has joined; one of a past attempt is ignored."""
        self.seen[node] = now
        if isinstance(report, OfAttempt) and report.attempt != self.attempt:
            return
        handler = _HANDLERS.get(type(report))
        if handler is not None and self.phase is not Phase.ENDED:
            handler(self, node, report, now)

    def left(self, node: int, reason: str, now: float) -> None:
        """Count out a node whose connection is gone."""
        self._count_out(node, reason, now)
        self._end_before_the_ranks(now)

    def _count_out(self, node: int, reason: str, now: float) -> None:
        if self.phase is Phase.ENDED or node in self.lost:
            return
        self._notice_sleep(now)  # a connection may end before the next tick
        self.lost[node] = reason
        self.in_use.discard(node)
        self.standstill.drop(node)
        asleep = None
        if self.slept > self.task.link_timeout and now - self.woke <= self.task.link_timeout:
            self.deserters[node] = self.slept
            asleep = round(self.slept, 1)
        self.record(events.LostNode(node, self.task.hosts[node], reason, asleep))
        if self.phase in (Phase.RUNNING, Phase.STOPPING):
            if not self._ended_well(node):  # else nobody misses it
                self._stop(StopReason.FAILURE, FAILURE_GRACE)
            self.waiting.discard(node)
            self._end_attempt_when_idle(now)

    def _end_before_the_ranks(self, now: float) -> None:
        """End for nodes that are lost, as soon as no other has been silent for so long that it may go the same way."""
        if self.phase not in BEFORE_THE_RANKS or not self.lost:
            return
        known = now - self.task.link_timeout / 2
        if all(when >= known or node in self.lost for node, when in self.seen.items()):
            self._fail(rules.LOST, self._who_was_lost())

    def _who_was_lost(self) -> str:
        return gang.who_was_lost(self.lost, self.deserters, self._names)

    def _ended_well(self, node: int) -> bool:
        """Tell whether all ranks of the node have exited well; a later loss of the node does not change that."""
        exits = self.exits_on.get(node, [])
        return node in self.done and all(each.ended_well for each in exits)

    def tick(self, now: float) -> None:
        """Act on whatever time-outs have passed."""
        if self.phase is Phase.ENDED:
            self.ticked = now
            return
        self._notice_sleep(now)
        self._watch_stalls(now)
        for node, when in list(self.seen.items()):
            if now - when > self.task.link_timeout and node not in self.lost:
                self._count_out(node, f"no heartbeat for {now - when:.0f} s", now)
        self._end_before_the_ranks(now)
        if self.phase in BEFORE_THE_RANKS and now >= self.deadline and not self.lost:
            self._fail(rules.NOT_JOINED, self._what_is_missing())
        elif self.phase is Phase.RUNNING and self.settle_at is not None and now >= self.settle_at:
            self._stop(StopReason.FAILURE, FAILURE_GRACE)
        elif self.phase is Phase.RUNNING and self._knows_hang(now):
            self._blame_hang(now)
        elif self.phase is Phase.RUNNING and self.task.time_limit and now >= self.started + self.task.time_limit:
            self.record(events.TimeLimit(self.task.time_limit))
            self._stop(StopReason.TIMEOUT, self.task.grace)

    def _notice_sleep(self, now: float) -> None:
        """Move all deadlines if this process was stopped or suspended since the last tick, so it missed messages."""
        late, self.ticked = now - self.ticked, now
        if late <= HEARTBEAT_SECONDS:
            return
        if late >= self.slept or now - self.woke > self.task.link_timeout:
            self.slept, self.woke = late, now
        self.record(events.Slept(round(late, 1)))
        self.seen = {node: min(now, when + late) for node, when in self.seen.items()}
        self.started += late
        self.deadline += late
        self.settle_at = self.settle_at and self.settle_at + late
        self.hang_at = self.hang_at and self.hang_at + late
        self.standstill.slept(late)

    # -- messages

    @_HANDLERS.add
    def _on_path(self, node: int, report: WayTried, now: float) -> None:
        if report.error:
            self._fail(rules.CANT_REACH, report.error)
            return
        self.waiting.discard(node)
        if self.phase is Phase.CHECKING and not self.waiting and not self.lost:
            self._prepare(now)

    @_HANDLERS.add
    def _on_trouble(self, node: int, report: Trouble, now: float) -> None:
        """End for a node that can't take part: nothing that another start would mend, unless it says so."""
        reason = f"{self._name(node)}: {report.reason}"
        self._end(Outcome.FAILED, report.cause, reason, failed_node=node, tail=report.tail)

    @_HANDLERS.add
    def _on_ready(self, node: int, report: Ready, now: float) -> None:
        self.ready[node] = report
        self.waiting.discard(node)
        if self.phase is not Phase.PREPARING or self.waiting or self.lost:
            return
        if any(each.unfit for each in self.ready.values()):
            self._fail(rules.UNFIT, self._who_is_unfit())
            return
        if lacking := [node for node, each in self.ready.items() if each.missing]:
            words = self._missing_in_words(self.ready[lacking[0]].missing, set(lacking))
            self._fail(rules.UNFIT, words, failed_node=lacking[0])
            return
        if (odd := odd_image(self._images())) is not None:
            self._fail(rules.UNFIT, self._how_images_differ(odd))
            return
        wanted = self.ready[0].checkpoints[:1]
        lacking = [node for node, each in self.ready.items() if wanted and wanted[0] not in each.checkpoints]
        if not lacking:
            self._go()
            return
        self.waiting, self.deadline = {0}, now + SAVE_GRACE
        to = tuple((node, self.hellos[node].addrs, self.hellos[node].neighbour_port) for node in sorted(lacking))
        self.send(0, HandOver(self.attempt, self._resume_from(), to))

    def _images(self) -> dict[int, str]:
        return {node: each.image or "" for node, each in self.ready.items()}

    @_HANDLERS.add
    def _on_handed_over(self, node: int, report: HandedOver, now: float) -> None:
        if self.phase is not Phase.PREPARING or self.lost:
            return
        if report.given:
            self.record(events.HandedOver(self.attempt, self._resume_from(), report.given))
        if report.failed:
            self._fail(rules.CANT_REACH, "; ".join(f"{self._name(each)} {said}" for each, said in report.failed))
        else:
            self._go()

    def _resume_from(self) -> str:
        """Return what the attempt goes on from: node 0's newest, which is handed to those who lack it."""
        return next((name for name, _ in self.ready[0].checkpoints), "")

    def _go(self) -> None:
        self.phase, self.waiting = Phase.RUNNING, set(self.hellos)
        bindings = bind([self.hellos[rank].nproc for rank in range(self.task.nnodes)])
        resume_from, usual_addr = self._resume_from(), self._usual_addr()
        # A spare may lack what the nodes have.
        checksum = (
            Algorithm.SHA256 if self.task.has_spares else agreed([each.checksums for each in self.ready.values()])
        )
        port, nproc = self.ready[0].port, tuple(binding.nproc for binding in bindings)
        self.record(events.Go(self.attempt, bindings[0].world_size, port, nproc, resume_from or None))
        for binding in bindings:
            master_addr = self.reached_at.get(binding.node_rank, usual_addr)
            self.send(binding.node_rank, Go(self.attempt, binding, master_addr, port, resume_from, checksum))

    def _who_is_unfit(self) -> str:
        """Return in words which nodes can run no rank, and why. Nodes with the same reason are listed together."""
        together: dict[str, list[int]] = {}
        for node, each in sorted(self.ready.items()):
            if each.unfit:
                together.setdefault(each.unfit, []).append(node)
        return "; ".join(f"{self._names(nodes)}: {why}" for why, nodes in together.items())

    def _how_images_differ(self, odd: int) -> str:
        image = self.task.container.image if self.task.container else "image"
        images = self._images()
        usual = next(each for each in images.values() if each and each != images[odd])
        return (
            f"{self._name(odd)}: its {image} is {short(images[odd])}, and the other nodes have {short(usual)}; "
            "pull or load the same one everywhere, or set container.pull: always"
        )

    @_HANDLERS.add
    def _on_exit(self, node: int, report: RankEnded, now: float) -> None:
        host = self.hellos[node].host
        # What a launcher has not stopped itself ended by itself, however late that is heard of; or of a node's loss.
        after_stop = self.phase is Phase.STOPPING and (bool(self.lost) or report.stopped is not False)
        by_order = self.phase is Phase.STOPPING or bool(report.stopped)  # or by the signal that orch received
        values = {**to_json(report), "node": node, "host": host, "after_stop": after_stop, "stopped": by_order}
        self._note_exit(read(Culprit, values))
        self.standstill.forget(report.rank)
        if report.left == 0:
            self.done.add(node)
            self.standstill.drop(node)
        if self.phase is not Phase.RUNNING or report.code == 0:
            return
        self._seek_module(report)
        if report.code == EXIT_REQUEUE:
            self._stop(StopReason.PREEMPTED, SAVE_GRACE)  # the others are to stop at their step boundary too
        elif report.victim:
            self.settle_at = self.settle_at or now + SETTLE_SECONDS
        else:
            self._stop(StopReason.FAILURE, FAILURE_GRACE)

    def _seek_module(self, exit_report: RankEnd) -> None:
        """Ask every node for the module that a rank lacked; other ranks are stopped before they can report it."""
        module = missing_module_of(exit_report)
        if module and not self.sought and self.task.nnodes > 1 and self.task.program.kind != "command":
            self.sought = module  # a `command:` may use another interpreter than the launcher's
            for node in self.hellos:
                self.send(node, FindModule(module))

    @_HANDLERS.add
    def _on_found(self, node: int, report: ModuleSought, now: float) -> None:
        if report.module == self.sought and not report.is_there:
            self.lacking.add(node)

    def _where_missing(self, failure: Culprit) -> Culprit:
        """Return the failure with the nodes that lack the module named in it."""
        module = missing_module_of(failure)
        if not module or module != self.sought:
            return failure
        own = {each.node for each in self.exits if each.node is not None and missing_module_of(each) == module}
        return replace(failure, lacks=self._missing_in_words(module, self.lacking | own))

    def _missing_in_words(self, module: str, nodes: set[int]) -> str:
        lacking = {
            node: Lacking(self._host(node), self.ready[node].python if node in self.ready else "")
            for node in sorted(nodes)
        }
        return missing_in_words(module, lacking, self.task.nnodes)

    def _note_exit(self, exit_report: Culprit) -> None:
        self.exits.append(exit_report)
        self.exits_on.setdefault(exit_report.node or 0, []).append(exit_report)

    @_HANDLERS.add
    def _on_stall(self, node: int, report: Stalled, now: float) -> None:
        """Note a rank that was silent for half of its limit or all of it, and request stacks from all nodes."""
        if self.phase is not Phase.RUNNING:
            return
        self.standstill.note(node, report, now)
        if self.stacks_asked is None or now > self.stacks_asked + STACKS_EVERY:
            self._ask_for_stacks(now)
        self._watch_stalls(now)

    @_HANDLERS.add
    def _on_moved(self, node: int, report: Moved, now: float) -> None:
        if self.standstill.forget(report.rank):
            self.record(events.Moved(self.attempt, report.rank))

    @_HANDLERS.add
    def _on_patience(self, node: int, report: Patience, now: float) -> None:
        self.standstill.be_patient(node, report.seconds, now)

    def _watch_stalls(self, now: float) -> None:
        """Record each new hang, and start the search for the culprit. The search stops if no rank hangs any more."""
        if self.phase is not Phase.RUNNING:
            return
        hung = self.standstill.hung(now)
        for stall in self.standstill.newly(hung):
            self.record(
                events.Stalled(
                    self.attempt, stall.rank, round(stall.seconds, 1), stall.full, stall.phase, stall.step, stall.limit
                )
            )
        # A program without heartbeats is judged by its output, and ended for its silence only when the job says so.
        action = self.task.hang.get("action")
        enough = action == "restart" or (action == "auto" and any(stall.phase != "output" for stall in hung))
        if not (hung and enough):
            self.hang_at = None
        elif self.hang_at is None:
            self.hang_at = now + HANG_SETTLE_SECONDS
            self.stacks, self.recorders = {}, {}  # those of half the limit may be of another standstill, which passed
            self._ask_for_stacks(now)

    def _knows_hang(self, now: float) -> bool:
        """Tell whether a rank is to be blamed now: all nodes have said where theirs stand, or are not waited for."""
        if self.hang_at is None or now < self.hang_at:
            return False
        return not self.stacks_owed - set(self.lost) or now >= self.hang_at + STACKS_SECONDS

    def _ask_for_stacks(self, now: float) -> None:
        self.stacks_asked, self.stacks_owed = now, set(self.hellos) - set(self.lost)
        for node in self.hellos:
            self.send(node, ReportStacks())

    @_HANDLERS.add
    def _on_stacks(self, node: int, report: StacksFound, now: float) -> None:
        self.stacks_owed.discard(node)
        self.stacks.update(report.ranks)
        self.recorders.update({rank: groups for rank, groups in report.recorders.items() if groups})
        self.record(events.Stacks(self.attempt, report.ranks, report.recorders))
        if self.waits and not self.stacks_owed:
            self._explain_start()

    @_HANDLERS.add
    def _on_waits(self, node: int, report: Waits, now: float) -> None:
        """Request stacks if no rank of node 0 computes. Withdraw the explanation if a rank computes again."""
        if self.phase is not Phase.RUNNING:
            return
        self.waits = report if report.seconds else None
        if self.waits:
            self._ask_for_stacks(now)
        elif self.why_waiting:
            self.why_waiting = ""
            self.record(events.Unjoined(self.attempt, ""))

    def _explain_start(self) -> None:
        """Record which ranks the others wait for, if they wait for ranks to join."""
        assert self.waits is not None
        seconds, port, self.waits = self.waits.seconds, self.waits.unused_port, None
        world = range(sum(hello.nproc for hello in self.hellos.values()))
        self.why_waiting = why_it_waits(self.stacks, world, [each.rank for each in self.exits], seconds, port)
        if self.why_waiting:
            self.record(events.Unjoined(self.attempt, self.why_waiting))

    def _blame_hang(self, now: float) -> None:
        """Make the rank that the others wait for the attempt's failure."""
        missing = missing_rank(self.recorders)
        stall = culprit_of_hang(self.standstill.full(), self.stacks, missing)
        seen = self.stacks.get(stall.rank, RankStack())
        how = "; it is stopped (SIGSTOP)" if seen.state in ("T", "t") else ""
        how += f"; {missing.words}" if missing is not None and missing.rank == stall.rank else ""
        words = (
            f"rank {stall.rank} has stood still in {stall.phase} at step {stall.step} "
            f"for {stall.seconds:.0f} s (limit {stall.limit:.0f} s){how}"
        )
        words += f"; {self.why_waiting}" if self.why_waiting else ""
        self.hang_at = None
        self._note_exit(
            Culprit(
                stall.rank, error=RankError("Hang", words, "\n".join(seen.frames)), tail=seen.frames,
                attempt=self.attempt, node=stall.node, host=self.hellos[stall.node].host, hang=True,
                in_collective=seen.in_collective,
            )
        )  # fmt: skip
        self._stop(StopReason.FAILURE, FAILURE_GRACE)

    @_HANDLERS.add
    def _on_folder_lost(self, node: int, report: FolderLost, now: float) -> None:
        """Note that a node lost the run's folder or a part of it, perhaps with the heartbeats of its ranks."""
        self.folders_lost[node] = report.path
        if report.with_heartbeats:
            self.standstill.unseen[node] = float(self.task.hang.get("other", DEFAULT_LIMITS["other"]))
        self.record(events.FolderLost(self._host(node), report.path, node, report.with_heartbeats))

    def _how_folders_were_lost(self) -> str:
        """Return which nodes have lost the run's folder, in words; "" if none has."""
        if not (nodes := sorted(self.folders_lost)):
            return ""
        return f"{self._names(nodes)} lost the run's folder: {self.folders_lost[nodes[0]]} was removed during the run"

    @_HANDLERS.add
    def _on_unused(self, node: int, report: Unused, now: float) -> None:
        """Note a node that has been idle for long; once all are, say so, and end the run where the job asks for it."""
        if self.phase is not Phase.RUNNING:
            return
        self.unused[node] = report
        self.in_use.discard(node)
        if self.in_use:
            return
        seconds = min(each.seconds for each in self.unused.values())
        use = ", ".join(dict.fromkeys(each.use for _, each in sorted(self.unused.items())))
        self.record(events.Unused(self.attempt, seconds, use))
        if self.task.idle.get("do") == "cancel":
            self._stop(StopReason.IDLE, self.task.grace)

    @_HANDLERS.add
    def _on_used(self, node: int, report: Used, now: float) -> None:
        if self.unused.pop(node, None) is None:
            return
        if not self.in_use:
            self.record(events.Used(self.attempt, node))
        self.in_use.add(node)

    @_HANDLERS.add
    def _on_idle(self, node: int, report: RanksIdle, now: float) -> None:
        self.waiting.discard(node)
        self._end_attempt_when_idle(now)

    @_HANDLERS.add
    def _on_signal(self, node: int, report: SignalReceived, now: float) -> None:
        """Stop at a step boundary, as TERM or USR2 reached an agent, or at once when cancelled with --now.

        One that comes after the loss of a node is no reason of its own: srun sends TERM to all others for it.
        """
        reason = StopReason.CANCELLED if report.cancelled else StopReason.PREEMPTED
        grace = 0.0 if report.now else self.task.grace
        self.record(events.Stopping(reason.value, report.name, node))
        outranks = reason is StopReason.CANCELLED and (self.stop_reason is not StopReason.CANCELLED or grace == 0.0)
        if self.phase is Phase.RUNNING or (self.phase is Phase.STOPPING and outranks):
            self.phase = Phase.RUNNING
            self._stop(reason, grace)
        elif self.phase is Phase.STOPPING and self.stop_reason is StopReason.FAILURE and not self.lost:
            self.stop_reason = reason  # whoever ends us now would end a restarted gang as well
        elif self.phase is not Phase.STOPPING:
            self._end(reason, reason, f"{reason} before the ranks were started")

    # -- decisions

    def _prepare(self, now: float) -> None:
        self.phase, self.waiting = Phase.PREPARING, set(self.hellos)
        self.deadline = now + self.task.join_timeout
        self.exits, self.exits_on, self.done = [], {}, set()
        self.stop_reason, self.settle_at = None, None
        self.unused, self.in_use = {}, set(self.hellos)
        self.standstill, self.stacks, self.recorders = Standstill(), {}, {}
        self.sought, self.lacking = "", set()
        self.stacks_asked, self.hang_at = None, None
        self.waits, self.why_waiting = None, ""
        store = self._store_addrs()
        for node in self.hellos:
            self.send(node, Prepare(self.attempt, store[0] if store else ""))

    def _store_addrs(self) -> tuple[str, ...]:
        """Return node 0's address where all others have reached the same one; none where they have not."""
        if self.task.nnodes == 1:
            return ("127.0.0.1",)
        found = set(self.reached_at.values())
        return tuple(found) if len(found) == 1 else ()

    def _usual_addr(self) -> str:
        """Return what node 0's own ranks are to dial; those of others have the address that they have reached."""
        return (self._store_addrs() or tuple(self.reached_at.values()))[0]

    def _stop(self, reason: StopReason, grace: float) -> None:
        if self.phase is not Phase.RUNNING:
            return
        self.phase, self.stop_reason = Phase.STOPPING, reason
        for node in self.hellos:
            if node not in self.lost:
                self.send(node, Stop(self.attempt, grace))

    def _end_attempt_when_idle(self, now: float) -> None:
        if self.phase not in (Phase.RUNNING, Phase.STOPPING) or self.waiting:
            return
        saved = self.progress()
        end = gang.end_of(gang.Attempt(
            self.exits,
            all(map(self._ended_well, self.hellos)),
            Cause.NONE if self.stop_reason in (None, StopReason.FAILURE) else Cause(self.stop_reason.value),
            self._who_was_lost(), self._how_folders_were_lost(), self._how_idle(), self.task.retry, self.restarts,
            restart.stalled(self.begun_at, saved), self.task.has_spares,
        ))  # fmt: skip
        if end.culprit is not None:
            culprit = self._where_missing(end.culprit)
            self.record(events.AttemptFailed(self.attempt, culprit, end.failure, **saved.to_event()))
        if not end.again:
            self._end(end.outcome, end.cause, end.reason)
            return
        self.restarts.append(end.cause)
        self.begun_at.append(saved)
        self.attempt += 1
        self.record(events.Restart(self.attempt, end.cause, saved.known_step))
        self._prepare(now)

    def _how_idle(self) -> str:
        """Return why an idle run was ended, in words."""
        use = ", ".join(dict.fromkeys(each.use for _, each in sorted(self.unused.items())))
        seconds = min((each.seconds for each in self.unused.values()), default=0)
        return f"it was idle ({use}) on all nodes for {lasting(seconds)}, and the job says idle.do: cancel"

    def _what_is_missing(self) -> str:
        names = self._names(sorted(self.waiting))
        what = {
            Phase.JOINING: "did not join",
            Phase.CHECKING: "did not report on the way to its neighbour",
            Phase.PREPARING: "did not get its launcher ready",
        }[self.phase]
        late = f"{names} {what} within {self.task.join_timeout:g} s"
        return "; ".join(filter(None, [late, self.strangers()]))

    def _name(self, node: int) -> str:
        return self._names([node])

    def _names(self, nodes: list[int]) -> str:
        return nodes_in_words([(node, self._host(node)) for node in nodes])

    def _host(self, node: int) -> str:
        return self.hellos[node].host if node in self.hellos else self.task.hosts[node]

    def _fail(self, rule: Rule, reason: str, **more: Any) -> None:
        """End for a failure that no rank caused."""
        self._end(Outcome.FAILED, rule.cause, reason, **more)

    def _end(self, outcome: str, cause: str, reason: str, **more: Any) -> None:
        self.phase = Phase.ENDED
        progress = self.progress().to_event()
        self.record(events.GangEnded(self.attempt, str(outcome), str(cause), reason, **more, **progress))
        code = {"succeeded": 0, "preempted": EXIT_REQUEUE, "timeout": EXIT_REQUEUE}.get(outcome, 1)
        self.bye = Bye(str(outcome), code)
        for node in self.hellos:
            if node not in self.lost:
                self.send(node, self.bye)
