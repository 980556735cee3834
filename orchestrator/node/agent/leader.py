"""What node 0's agent decides for the gang: when to go, whose failure counts, whether to start again. No I/O.

The table PHASES says what each phase waits for, and what follows. Handlers take the nodes' reports. The clock (seconds,
monotonic) is an argument; orders leave through `send`, facts through `record`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, NamedTuple

from orchestrator.node.agent.fitness import offered, unfit, where_missing, without_it
from orchestrator.node.agent.hang import HangSearch
from orchestrator.node.agent.missing_module import missing_module_of
from orchestrator.node.agent.presence import Presence
from orchestrator.node.agent.stall_detector import DEFAULT_LIMITS
from orchestrator.outcome import gang, restart
from orchestrator.outcome.rules import cause_of
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
from orchestrator.protocol.rank_reports import Culprit
from orchestrator.protocol.ranks import EXIT_REQUEUE, bind
from orchestrator.protocol.samples import lasting
from orchestrator.protocol.str_enum import StrEnum
from orchestrator.protocol.task import NodeTask
from orchestrator.protocol.typed import Handlers, read, to_json

SETTLE_SECONDS = 1.5  # a victim's words may arrive before the culprit's: wait for those
FAILURE_GRACE = 2.0  # the others hang in a collective by now: TERM is only a courtesy
SAVE_GRACE = 1800.0  # rank 0 may be saving, or handing over a checkpoint, long after the others are ready
_HANDLERS = Handlers(Report)


class Phase(StrEnum):
    """Where the gang is. Another attempt goes back to preparing."""

    JOINING = "joining"
    CHECKING = "checking"
    PREPARING = "preparing"
    HANDING_OVER = "handing over"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Rule(NamedTuple):
    """A phase: what it waits for, what follows, and what a node did not do that is named when the phase takes too long.

    A phase with `late` has a deadline, and ends the gang if a node is lost. In the others the ranks run.
    """

    waits_for: str
    then: Callable[[Leader, float], None]
    late: str = ""


@dataclass
class Attempt:
    """What is known of the present attempt."""

    hang: HangSearch
    ready: dict[int, Ready] = field(default_factory=dict)
    exits: list[Culprit] = field(default_factory=list)
    ended_well: dict[int, bool] = field(default_factory=dict)  # of each node, whether all exits so far are good
    done: set[int] = field(default_factory=set)  # the nodes whose last rank has ended by itself
    stopped: Cause = Cause.NONE  # why the ranks were told to stop, if no failure was the reason
    settle_at: float | None = None  # when a victim is blamed, if nobody else was by then
    unused: dict[int, Unused] = field(default_factory=dict)  # the nodes that are idle
    in_use: set[int] = field(default_factory=set)  # the nodes that are neither idle nor lost
    sought: str = ""  # the module that a rank lacked, for which every node is asked
    lacking: set[int] = field(default_factory=set)  # the nodes that lack it


class Leader:
    """The state of one gang, from the first hello to the bye.

    `progress` returns what has been saved. `strangers` returns, in words, who could not prove to belong to this run.
    """

    def __init__(
        self,
        task: NodeTask,
        *,
        send: Callable[[int, Order], None],
        record: Callable[[events.Event], None],
        progress: Callable[[], Progress],
        strangers: Callable[[], str],
        started: float,
    ) -> None:
        self.task, self.send, self.record, self.progress, self.strangers = task, send, record, progress, strangers
        self.phase, self.waiting = (
            Phase.JOINING,
            set(range(task.nnodes)),
        )  # and the nodes that still owe an answer in it
        self.patience, self.deadline = task.join_timeout, started + task.join_timeout
        self.time_limit = started + task.time_limit if task.time_limit else None
        self.presence = Presence(started, task.link_timeout)
        self.hellos: dict[int, Hello] = {}
        self.reached_at: dict[int, str] = {}  # node 0's address on each node's connection
        self.folders_lost: dict[int, str] = {}  # the run's folder, on each node that lost it
        self.attempt, self.restarts, self.begun_at = task.attempt, list[str](), [progress()]  # progress at each begin
        self.ranks = self._new_attempt()
        self.bye: Bye | None = None

    def _new_attempt(self) -> Attempt:
        return Attempt(HangSearch(self.task.hang, self._ask_for_stacks), in_use=set(self.hellos))

    @property
    def lost(self) -> dict[int, str]:
        """Return the nodes that are lost, and why."""
        return self.presence.lost

    # -- what happens to the gang

    def joined(self, hello: Hello, now: float, reached_at: str = "") -> None:
        """Count in a node that has proved itself and said hello, and which address of node 0 it has reached."""
        node = hello.node_rank
        self.hellos[node] = hello
        if node:
            self.reached_at[node] = reached_at
        self.presence.seen[node] = now
        self.record(events.Joined(node, hello.host, hello.nproc))
        if self.bye is not None:
            self.send(node, self.bye)
        elif self.phase is Phase.JOINING:
            self._answered(node, now)

    def received(self, node: int, report: Report, now: float) -> None:
        """Handle a report from a node that has joined; one of a past attempt is ignored."""
        self.presence.seen[node] = now
        if isinstance(report, OfAttempt) and report.attempt != self.attempt:
            return
        handler = _HANDLERS.get(type(report))
        if handler is not None and self.phase is not Phase.ENDED:
            handler(self, node, report, now)

    def left(self, node: int, reason: str, now: float) -> None:
        """Count out a node whose connection is gone."""
        self._count_out(node, reason, now)
        self._end_before_the_ranks(now)

    def tick(self, now: float) -> None:
        """Act on whatever time-outs have passed."""
        if self.phase is Phase.ENDED:
            self.presence.ticked = now
            return
        self._notice_sleep(now)
        self._watch_stalls(now)
        for node, reason in self.presence.silent(now):
            self._count_out(node, reason, now)
        self._end_before_the_ranks(now)
        if PHASES[self.phase].late and now >= self.deadline and not self.lost:
            self._end(Outcome.FAILED, Cause.INFRA, self._what_is_missing())
        elif self.phase is not Phase.RUNNING:
            return
        elif self.ranks.settle_at is not None and now >= self.ranks.settle_at:
            self._stop()
        elif self.ranks.hang.is_known(now, self.lost):
            self._note_exit(self.ranks.hang.culprit(self.attempt, self._host))
            self._stop()
        elif self.time_limit is not None and now >= self.time_limit:
            self.record(events.TimeLimit(self.task.time_limit or 0))
            self._stop(Cause.TIMEOUT, self.task.grace)

    def _notice_sleep(self, now: float) -> None:
        """Move all deadlines if this process was stopped or suspended since the last look, so it missed messages."""
        late = self.presence.pause(now)
        if not late:
            return
        self.record(events.Slept(round(late, 1)))
        self.deadline += late
        self.time_limit = self.time_limit and self.time_limit + late
        self.ranks.settle_at = self.ranks.settle_at and self.ranks.settle_at + late
        self.ranks.hang.slept(late)

    def _count_out(self, node: int, reason: str, now: float) -> None:
        if self.phase is Phase.ENDED or node in self.lost:
            return
        self._notice_sleep(now)  # a connection may end before the next tick
        asleep = self.presence.lose(node, reason, now)
        self.ranks.in_use.discard(node)
        self.ranks.hang.standstill.drop(node)
        self.record(events.LostNode(node, self.task.hosts[node], reason, asleep))
        if not PHASES[self.phase].late:
            if not self._ended_well(node):  # else nobody misses it
                self._stop()
            self._answered(node, now)

    def _end_before_the_ranks(self, now: float) -> None:
        """End for nodes that are lost, once all that will go the same way are known."""
        if PHASES[self.phase].late and self.lost and self.presence.is_settled(now):
            self._end(Outcome.FAILED, Cause.INFRA, self._who_was_lost())

    # -- phases

    def _answered(self, node: int, now: float) -> None:
        """Go on to what follows the phase, if this was the last node that owed an answer."""
        self.waiting.discard(node)
        if not self.waiting and not (PHASES[self.phase].late and self.lost):
            PHASES[self.phase].then(self, now)

    def _begin(self, phase: Phase, waiting: set[int], now: float, patience: float) -> None:
        self.phase, self.waiting = phase, waiting
        self.patience, self.deadline = patience, now + patience

    def _check_ways(self, now: float) -> None:
        """Have each node try the way to the next: a firewall between two nodes is named before a rank hangs in it."""
        if self.task.nnodes == 1:
            self._prepare(now)
            return
        self.phase, self.waiting = Phase.CHECKING, set(self.hellos)  # with the deadline of joining
        for node in self.hellos:
            neighbour = self.hellos[(node + 1) % self.task.nnodes]
            self.send(node, Check(neighbour.addrs, neighbour.neighbour_port, neighbour.host))

    def _prepare(self, now: float) -> None:
        """Have each node get its launcher ready.

        Node 0's launcher binds the store's port at the address of node 0 that all others have reached.
        """
        self._begin(Phase.PREPARING, set(self.hellos), now, self.task.join_timeout)
        self.ranks = self._new_attempt()
        addrs = self._store_addrs()
        for node in self.hellos:
            self.send(node, Prepare(self.attempt, addrs[0] if addrs else ""))

    def _store_addrs(self) -> tuple[str, ...]:
        """Return node 0's address if all others have reached the same one; else none."""
        if self.task.nnodes == 1:
            return ("127.0.0.1",)
        found = set(self.reached_at.values())
        return tuple(found) if len(found) == 1 else ()

    def _hand_over(self, now: float) -> None:
        """Have node 0 give the checkpoint to the nodes that lack it, if the ranks can start at all."""
        if (problem := unfit(self.task, self.ranks.ready, self._names, self._host)) is not None:
            self._end(Outcome.FAILED, Cause.USER_ERROR, problem.reason, failed_node=problem.node)
        elif not (lacking := without_it(self.ranks.ready)):
            self._go(now)
        else:
            self._begin(Phase.HANDING_OVER, {0}, now, SAVE_GRACE)
            to = tuple((node, self.hellos[node].addrs, self.hellos[node].neighbour_port) for node in lacking)
            self.send(0, HandOver(self.attempt, offered(self.ranks.ready), to))

    def _go(self, now: float) -> None:
        """Number the ranks and start them. A node dials the address of node 0 that its own connection has reached."""
        self.phase, self.waiting = Phase.RUNNING, set(self.hellos)
        bindings = bind([self.hellos[node].nproc for node in range(self.task.nnodes)])
        port, resume_from = self.ranks.ready[0].port, offered(self.ranks.ready)
        usual = (self._store_addrs() or tuple(self.reached_at.values()))[0]
        # A spare may lack what the nodes have, so with spares the algorithm is the one that every Python has.
        able = [each.checksums for each in self.ranks.ready.values()]
        checksum = Algorithm.SHA256 if self.task.has_spares else agreed(able)
        nproc = tuple(each.nproc for each in bindings)
        self.record(events.Go(self.attempt, bindings[0].world_size, port, nproc, resume_from or None))
        for each in bindings:
            addr = self.reached_at.get(each.node_rank, usual)
            self.send(each.node_rank, Go(self.attempt, each, addr, port, resume_from, checksum))

    def _stop(self, cause: Cause = Cause.NONE, grace: float = FAILURE_GRACE) -> None:
        """Have the ranks stop at a step boundary, for a failure if there is no other cause."""
        if self.phase is not Phase.RUNNING:
            return
        self.phase, self.ranks.stopped = Phase.STOPPING, cause
        for node in self.hellos:
            if node not in self.lost:
                self.send(node, Stop(self.attempt, grace))

    def _end_attempt(self, now: float) -> None:
        """Judge an attempt whose ranks are all gone: end, or begin another with the same agents."""
        saved, ranks = self.progress(), self.ranks
        end = gang.end_of(
            gang.Attempt(
                ranks.exits, all(map(self._ended_well, self.hellos)), ranks.stopped,
                self._who_was_lost() if self.lost else "", self._how_folders_were_lost(), self._how_idle(),
                self.task.retry, self.restarts, restart.stalled(self.begun_at, saved), self.task.has_spares,
            )
        )  # fmt: skip
        if end.culprit is not None:
            culprit = self._where_missing(end.culprit)
            cause = cause_of(culprit, folder_lost=bool(self.folders_lost))
            self.record(events.AttemptFailed(self.attempt, culprit, cause.value, **saved.to_event()))
        if not end.again:
            self._end(end.outcome, end.cause, end.reason)
            return
        self.restarts.append(end.cause)
        self.begun_at.append(saved)
        self.attempt += 1
        self.record(events.Restart(self.attempt, end.cause.value, saved.known_step))
        self._prepare(now)

    def _end(self, outcome: str, cause: str, reason: str, **more: Any) -> None:
        """Record the outcome, and send every node away. Whoever joins later is sent away too."""
        self.phase = Phase.ENDED
        ended = events.GangEnded(self.attempt, str(outcome), str(cause), reason, **more, **self.progress().to_event())
        self.record(ended)
        code = 0 if outcome == Outcome.SUCCEEDED else EXIT_REQUEUE if outcome in (Cause.PREEMPTED, Cause.TIMEOUT) else 1
        self.bye = Bye(ended.outcome, code)
        for node in self.hellos:
            if node not in self.lost:
                self.send(node, self.bye)

    # -- reports before the ranks run

    @_HANDLERS.add
    def _on_way_tried(self, node: int, report: WayTried, now: float) -> None:
        if report.error:
            self._end(Outcome.FAILED, Cause.INFRA, report.error)
        elif self.phase is Phase.CHECKING:
            self._answered(node, now)

    @_HANDLERS.add
    def _on_trouble(self, node: int, report: Trouble, now: float) -> None:
        """End for a node that can't take part: nothing that another start would mend, unless it says so."""
        reason = f"{self._names([node])}: {report.reason}"
        self._end(Outcome.FAILED, report.cause, reason, failed_node=node, tail=report.tail)

    @_HANDLERS.add
    def _on_ready(self, node: int, report: Ready, now: float) -> None:
        self.ranks.ready[node] = report
        if self.phase is Phase.PREPARING:
            self._answered(node, now)

    @_HANDLERS.add
    def _on_handed_over(self, node: int, report: HandedOver, now: float) -> None:
        if self.phase is not Phase.HANDING_OVER or self.lost:
            return
        if report.given:
            self.record(events.HandedOver(self.attempt, offered(self.ranks.ready), report.given))
        if report.failed:
            words = "; ".join(f"{self._names([each])} {said}" for each, said in report.failed)
            self._end(Outcome.FAILED, Cause.INFRA, words)
        else:
            self._answered(node, now)

    # -- reports on ranks

    @_HANDLERS.add
    def _on_rank_ended(self, node: int, report: RankEnded, now: float) -> None:
        # A rank that its launcher has not stopped ended by itself, however late that is heard of. If a node is lost,
        # the others may have ended because of it.
        is_stopping = self.phase is Phase.STOPPING
        after_stop = is_stopping and (bool(self.lost) or report.stopped is not False)
        by_order = is_stopping or bool(report.stopped)  # or by the signal that the agent received
        where = {"node": node, "host": self._host(node), "after_stop": after_stop, "stopped": by_order}
        self._note_exit(read(Culprit, {**to_json(report), **where}))
        self.ranks.hang.standstill.forget(report.rank)
        if report.left == 0:
            self.ranks.done.add(node)
            self.ranks.hang.standstill.drop(node)
        if self.phase is not Phase.RUNNING or report.code == 0:
            return
        self._seek_module(report)
        if report.code == EXIT_REQUEUE:
            self._stop(Cause.PREEMPTED, SAVE_GRACE)  # the others are to stop at their step boundary too
        elif report.victim:
            self.ranks.settle_at = self.ranks.settle_at or now + SETTLE_SECONDS
        else:
            self._stop()

    def _note_exit(self, end: Culprit) -> None:
        node = end.node or 0
        self.ranks.exits.append(end)
        self.ranks.ended_well[node] = self.ranks.ended_well.get(node, True) and end.ended_well

    def _ended_well(self, node: int) -> bool:
        """Tell whether all ranks of the node have exited well; a later loss of the node does not change that."""
        return node in self.ranks.done and self.ranks.ended_well[node]

    @_HANDLERS.add
    def _on_idle(self, node: int, report: RanksIdle, now: float) -> None:
        if not PHASES[self.phase].late:
            self._answered(node, now)

    @_HANDLERS.add
    def _on_signal(self, node: int, report: SignalReceived, now: float) -> None:
        """Stop at a step boundary, as a signal reached an agent, or at once when cancelled with --now.

        A signal after the loss of a node is no reason of its own: srun sends TERM to all others because of that loss.
        """
        cause = Cause.CANCELLED if report.cancelled else Cause.PREEMPTED
        grace = 0.0 if report.now else self.task.grace
        self.record(events.Stopping(cause.value, report.name, node))
        outranks = cause is Cause.CANCELLED and (self.ranks.stopped is not Cause.CANCELLED or grace == 0.0)
        if self.phase is Phase.RUNNING or (self.phase is Phase.STOPPING and outranks):
            self.phase = Phase.RUNNING
            self._stop(cause, grace)
        elif self.phase is not Phase.STOPPING:
            self._end(cause, cause, f"{cause} before the ranks were started")
        elif self.ranks.stopped is Cause.NONE and not self.lost:
            self.ranks.stopped = cause  # whoever ends us now would end a restarted gang as well

    # -- a module that a rank lacks: the others are stopped before they can report it, so every node is asked

    def _seek_module(self, report: RankEnded) -> None:
        module = missing_module_of(report)
        if module and not self.ranks.sought and self.task.nnodes > 1 and self.task.program.kind != "command":
            self.ranks.sought = module  # a `command:` may use another interpreter than the launcher's
            for node in self.hellos:
                self.send(node, FindModule(module))

    @_HANDLERS.add
    def _on_module_sought(self, node: int, report: ModuleSought, now: float) -> None:
        if report.module == self.ranks.sought and not report.is_there:
            self.ranks.lacking.add(node)

    def _where_missing(self, culprit: Culprit) -> Culprit:
        module = missing_module_of(culprit)
        if not module or module != self.ranks.sought:
            return culprit
        own = {each.node for each in self.ranks.exits if each.node is not None and missing_module_of(each) == module}
        words = where_missing(self.task, module, self.ranks.lacking | own, self.ranks.ready, self._host)
        return replace(culprit, lacks=words)

    # -- ranks that stand still

    def _ask_for_stacks(self) -> set[int]:
        for node in self.hellos:
            self.send(node, ReportStacks())
        return set(self.hellos) - set(self.lost)

    @_HANDLERS.add
    def _on_stalled(self, node: int, report: Stalled, now: float) -> None:
        if self.phase is Phase.RUNNING:
            self.ranks.hang.note(node, report, now)
            self._watch_stalls(now)

    def _watch_stalls(self, now: float) -> None:
        if self.phase is Phase.RUNNING:
            for each in self.ranks.hang.look(now):
                facts = (each.rank, round(each.seconds, 1), each.full, each.phase, each.step, each.limit)
                self.record(events.Stalled(self.attempt, *facts))

    @_HANDLERS.add
    def _on_moved(self, node: int, report: Moved, now: float) -> None:
        if self.ranks.hang.standstill.forget(report.rank):
            self.record(events.Moved(self.attempt, report.rank))

    @_HANDLERS.add
    def _on_patience(self, node: int, report: Patience, now: float) -> None:
        self.ranks.hang.standstill.be_patient(node, report.seconds, now)

    @_HANDLERS.add
    def _on_stacks_found(self, node: int, report: StacksFound, now: float) -> None:
        self.ranks.hang.answered(node, report)
        self.record(events.Stacks(self.attempt, report.ranks, report.recorders))
        world = range(sum(hello.nproc for hello in self.hellos.values()))
        if words := self.ranks.hang.explain(world, [each.rank for each in self.ranks.exits]):
            self.record(events.Unjoined(self.attempt, words))

    @_HANDLERS.add
    def _on_waits(self, node: int, report: Waits, now: float) -> None:
        if self.phase is Phase.RUNNING and self.ranks.hang.no_rank_computes(report, now):
            self.record(events.Unjoined(self.attempt, ""))

    @_HANDLERS.add
    def _on_folder_lost(self, node: int, report: FolderLost, now: float) -> None:
        """Note that a node lost the run's folder or a part of it, perhaps with the heartbeats of its ranks."""
        self.folders_lost[node] = report.path
        if report.with_heartbeats:
            longest = float(self.task.hang.get("other", DEFAULT_LIMITS["other"]))
            self.ranks.hang.standstill.unseen[node] = longest
        self.record(events.FolderLost(self._host(node), report.path, node, report.with_heartbeats))

    # -- nodes that do nothing

    @_HANDLERS.add
    def _on_unused(self, node: int, report: Unused, now: float) -> None:
        """Note a node that has been idle for long. Once all are, record it, and end the run if the job wants that."""
        if self.phase is not Phase.RUNNING:
            return
        self.ranks.unused[node] = report
        self.ranks.in_use.discard(node)
        if not self.ranks.in_use:
            self.record(events.Unused(self.attempt, *self._idleness()))
            if self.task.idle.get("do") == "cancel":
                self._stop(Cause.IDLE, self.task.grace)

    @_HANDLERS.add
    def _on_used(self, node: int, report: Used, now: float) -> None:
        if self.ranks.unused.pop(node, None) is not None:
            if not self.ranks.in_use:
                self.record(events.Used(self.attempt, node))
            self.ranks.in_use.add(node)

    def _idleness(self) -> tuple[int, str]:
        """Return for how long all nodes have been idle, and how little they do."""
        use = ", ".join(dict.fromkeys(each.use for _, each in sorted(self.ranks.unused.items())))
        return min((each.seconds for each in self.ranks.unused.values()), default=0), use

    # -- in words

    def _how_idle(self) -> str:
        seconds, use = self._idleness()
        return f"it was idle ({use}) on all nodes for {lasting(seconds)}, and the job says idle.do: cancel"

    def _who_was_lost(self) -> str:
        return gang.who_was_lost(self.lost, self.presence.deserters, self._names)

    def _how_folders_were_lost(self) -> str:
        if not (nodes := sorted(self.folders_lost)):
            return ""
        return f"{self._names(nodes)} lost the run's folder: {self.folders_lost[nodes[0]]} was removed during the run"

    def _what_is_missing(self) -> str:
        late = f"{self._names(sorted(self.waiting))} {PHASES[self.phase].late} within {self.patience:g} s"
        return "; ".join(filter(None, [late, self.strangers()]))

    def _names(self, nodes: list[int]) -> str:
        return nodes_in_words([(node, self._host(node)) for node in nodes])

    def _host(self, node: int) -> str:
        return self.hellos[node].host if node in self.hellos else self.task.hosts[node]


PHASES = {
    Phase.JOINING: Rule("a hello of each node", Leader._check_ways, "did not join"),
    Phase.CHECKING: Rule(
        "each node's try of the way to its neighbour", Leader._prepare, "did not report on the way to its neighbour"
    ),
    Phase.PREPARING: Rule("each node's launcher", Leader._hand_over, "did not get its launcher ready"),
    Phase.HANDING_OVER: Rule("node 0, which gives a checkpoint", Leader._go, "did not hand over the checkpoint"),
    Phase.RUNNING: Rule("the end of each node's ranks", Leader._end_attempt),
    Phase.STOPPING: Rule("the end of each node's ranks, which were told to stop", Leader._end_attempt),
    Phase.ENDED: Rule("nothing", lambda leader, now: None),
}
