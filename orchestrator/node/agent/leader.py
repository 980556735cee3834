"""The decisions of node 0's agent for the gang: when the ranks start, which failure counts, and whether to retry. The
module does no I/O.

The table PHASES at the end of the module lists the phases, and what follows each. Handlers take the nodes' reports. The
present time (seconds, monotonic) is an argument of the methods. `send` sends orders, and `record` writes events.
"""

from __future__ import annotations

from typing import Any, Callable

from orchestrator.node.agent import hang
from orchestrator.node.agent.attempt import Attempt
from orchestrator.node.agent.fitness import checkpoint_to_resume, checksum_for, nodes_lacking_checkpoint, unfit
from orchestrator.node.agent.phases import Course, Phase, Row, Stage
from orchestrator.node.agent.presence import Presence
from orchestrator.node.agent.roster import Roster
from orchestrator.outcome import gang, restart, rules
from orchestrator.outcome.ends import Blame, blame_of
from orchestrator.outcome.rule import Rule
from orchestrator.outcome.verdict import Cause, Outcome
from orchestrator.protocol import events, messages
from orchestrator.protocol.gang import Hello
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.task import NodeTask
from orchestrator.protocol.typed import Handlers

SETTLE_SECONDS = 1.5  # how long to wait for the cause of a failure that another end may have caused
FAILURE_GRACE = 2.0  # short, because the other ranks hang in a collective and can't react to TERM
SAVE_GRACE = 1800.0  # long, because rank 0 may save or transfer a checkpoint after the others have stopped
RANKS_RUN = (Phase.RUNNING, Phase.STOPPING)
_HANDLERS = Handlers(messages.Report)


class Leader:
    """The state of one gang, from the first node's hello message until all nodes were ordered to leave.

    `progress` returns the run's progress. `strangers` returns a sentence about peers that could not authenticate
    themselves.
    """

    def __init__(
        self, task: NodeTask, *, send: Callable[[int, messages.Order], None], record: Callable[[events.Event], None],
        progress: Callable[[], Progress], strangers: Callable[[], str], started: float,
    ) -> None:  # fmt: skip
        self.task, self.send, self.record, self.progress, self.strangers = task, send, record, progress, strangers
        self.stage = Stage.begin(Phase.JOINING, range(task.nnodes), started, task.join_timeout)
        self.time_limit = started + task.time_limit if task.time_limit else None
        self.presence, self.roster = Presence(started, task.link_timeout), Roster(task)
        self.course = Course(task.attempt, (), (progress(),))
        self.current = self._new_attempt()
        self.bye: messages.Bye | None = None

    @property
    def phase(self) -> Phase:
        """Return the gang's present phase."""
        return self.stage.phase

    @property
    def attempt(self) -> int:
        """Return the number of the present attempt."""
        return self.course.attempt

    def _new_attempt(self) -> Attempt:
        search = hang.HangSearch(self.task.hang, self.attempt, self._send_all, self.record)
        return Attempt(self.roster, search, in_use=self.roster.nodes)

    # -- what happens to the gang

    def joined(self, hello: Hello, now: float, reached_at: str = "") -> None:
        """Add a node that has authenticated itself and sent its hello message. `reached_at` is the address at which the
        node has reached node 0.
        """
        node = hello.node_rank
        self.roster.add(hello, reached_at)
        self.presence.seen[node] = now
        self.record(events.Joined(node, hello.host, hello.nproc))
        if self.bye is not None:
            self.send(node, self.bye)
        elif self.phase is Phase.JOINING:
            self._answered(node, now)

    def received(self, node: int, report: messages.Report, now: float) -> None:
        """Handle a report from a node that has joined. Ignore a report about an earlier attempt."""
        self.presence.seen[node] = now
        kind = type(report)
        if self.phase is Phase.ENDED or (isinstance(report, messages.OfAttempt) and report.attempt != self.attempt):
            return
        if kind in _HANDLERS:
            _HANDLERS[kind](self, node, report, now)
        elif kind in hang.HANDLERS and (self.phase is Phase.RUNNING or kind not in hang.WHILE_RANKS_RUN):
            hang.HANDLERS[kind](self.current.hang, node, report, now)
            self.current.hang.explain(self.roster, self.current.exits)

    def left(self, node: int, reason: str, now: float) -> None:
        """Mark a node as lost, because its connection is closed."""
        self._count_out(node, reason, now)
        self._end_before_the_ranks(now)

    def tick(self, now: float) -> None:
        """Handle all time-outs that have passed."""
        if self.phase is Phase.ENDED:
            self.presence.ticked = now
            return
        self._notice_sleep(now)
        if self.phase is Phase.RUNNING:
            self.current.hang.look(now)
        for node, reason in self.presence.silent(now):
            self._count_out(node, reason, now)
        self._end_before_the_ranks(now)
        if PHASES[self.phase].late and now >= self.stage.deadline and not self.presence.lost:
            who, seconds = self.roster.names(sorted(self.stage.waiting)), self.stage.patience
            late = f"{who} {PHASES[self.phase].late} within {seconds:g} s"
            self._fail(rules.NOT_JOINED, "; ".join(filter(None, [late, self.strangers()])))
        elif self.phase is not Phase.RUNNING:
            return
        elif self.current.settle_at is not None and now >= self.current.settle_at:
            self._stop()
        elif self.current.hang.is_known(now, self.presence.lost):
            self.current.note(self.current.hang.culprit(self.roster.host_of))
            self._stop()
        elif self.time_limit is not None and now >= self.time_limit:
            self.record(events.TimeLimit(self.task.time_limit or 0))
            self._stop(Cause.TIMEOUT, self.task.grace)

    def _notice_sleep(self, now: float) -> None:
        """Extend all deadlines if this process was stopped or suspended since the last call, because it could not
        read messages.
        """
        late = self.presence.pause(now)
        if late:
            self.record(events.Slept(round(late, 1)))
            self.stage = self.stage._replace(deadline=self.stage.deadline + late)
            self.time_limit = self.time_limit and self.time_limit + late
            self.current.settle_at = self.current.settle_at and self.current.settle_at + late
            self.current.hang.slept(late)

    def _count_out(self, node: int, reason: str, now: float) -> None:
        if self.phase is Phase.ENDED or node in self.presence.lost:
            return
        self._notice_sleep(now)  # a connection may end between two ticks
        slept = self.presence.lose(node, reason, now)
        self.current.lose(node)
        self.record(events.LostNode(node, self.task.hosts[node], reason, slept))
        if self.phase in RANKS_RUN:
            if not self.current.ended_well(node):  # if its ranks have all exited with 0, the loss does not matter
                self._stop()
            self._answered(node, now)

    def _end_before_the_ranks(self, now: float) -> None:
        """If nodes were lost while no ranks run, end the gang. First wait until it is known which nodes were lost at
        the same time.
        """
        if PHASES[self.phase].late and self.presence.lost and self.presence.is_settled(now):
            self._fail(rules.LOST, self.presence.who_was_lost(self.roster.names))

    # -- phases

    def _answered(self, node: int, now: float) -> None:
        """Record that a node has answered. Once all nodes have answered, continue with the next step of this phase."""
        self.stage = self.stage._replace(waiting=self.stage.waiting - {node})
        if not self.stage.waiting and (self.phase in RANKS_RUN or not self.presence.lost):
            PHASES[self.phase].then(self, now)

    def _check_connections(self, now: float) -> None:
        """Order each node to test its connection to the next node, so that a firewall between two nodes is reported
        before a rank hangs.
        """
        if self.task.nnodes == 1:
            self._prepare(now)
            return
        self.stage = self.stage.after(Phase.CHECKING, self.roster.nodes)  # the deadline for joining still applies
        for node in self.roster.hellos:
            self.send(node, self.roster.check_for(node))

    def _prepare(self, now: float) -> None:
        """Request each node to prepare its launcher for the next attempt."""
        self.stage = Stage.begin(Phase.PREPARING, self.roster.nodes, now, self.task.join_timeout)
        self.current = self._new_attempt()
        self._send_all(messages.Prepare(self.attempt, self.roster.store_addr()))

    def _hand_over(self, now: float) -> None:
        """If the ranks can start, order node 0 to send the checkpoint to the nodes that lack it."""
        if (problem := unfit(self.task, self.current.ready, self.roster)) is not None:
            self._fail(rules.UNFIT, problem.reason, failed_node=problem.node)
        elif not (lacking := nodes_lacking_checkpoint(self.current.ready)):
            self._go(now)
        else:
            self.stage = Stage.begin(Phase.HANDING_OVER, {0}, now, SAVE_GRACE)
            checkpoint = checkpoint_to_resume(self.current.ready)
            self.send(0, messages.HandOver(self.attempt, checkpoint, self.roster.servers(lacking)))

    def _go(self, now: float) -> None:
        """Assign rank numbers to the nodes, and start the ranks on all nodes."""
        self.stage = self.stage.after(Phase.RUNNING, self.roster.nodes)
        bindings, port = self.roster.bindings(), self.current.ready[0].port
        resume_from = checkpoint_to_resume(self.current.ready)
        checksum = checksum_for(self.task, self.current.ready)
        nproc, world = tuple(each.nproc for each in bindings), bindings[0].world_size
        self.record(events.Go(self.attempt, world, port, nproc, resume_from or None))
        for each in bindings:
            addr = self.roster.master_addr(each.node_rank)
            self.send(each.node_rank, messages.Go(self.attempt, each, addr, port, resume_from, checksum))

    def _stop(self, cause: Cause = Cause.NONE, grace: float = FAILURE_GRACE, *, outranks: bool = False) -> None:
        """Order the ranks to stop at a step boundary. The cause NONE means that a failure is the reason.

        If the ranks are already stopping, they get a new order only if `outranks` is True, which means that the new
        cause has a higher priority.
        """
        if self.phase is Phase.RUNNING or outranks:
            self.stage, self.current.stopped = self.stage._replace(phase=Phase.STOPPING), cause
            self._send_all(messages.Stop(self.attempt, grace))

    def _end_attempt(self, now: float) -> None:
        """Decide what follows an attempt whose ranks have all ended: the end of the gang, or a new attempt with the
        same agents.
        """
        saved, ranks = self.progress(), self.current
        end = gang.end_of(
            gang.EndedAttempt(
                ranks.exits, all(map(ranks.ended_well, self.roster.hellos)), ranks.stopped,
                self.presence.who_was_lost(self.roster.names), not all(map(ranks.ended_well, self.presence.lost)),
                self.roster.how_folders_were_lost(),
                ranks.how_idle(), self.task.retry, self.course.restarts, restart.stalled(self.course.begun_at, saved),
                self.task.has_spares,
            )
        )  # fmt: skip
        if end.culprit is not None:
            culprit = ranks.with_lacking(end.culprit)
            self.record(events.AttemptFailed(self.attempt, culprit, end.failure.value, **saved.to_event()))
        if not end.again:
            self._end(end.outcome, end.cause, end.reason)
            return
        self.course = self.course.again(end.cause, saved)
        self.record(events.Restart(self.attempt, end.cause.value, saved.known_step))
        self._prepare(now)

    def _fail(self, rule: Rule, reason: str, **more: Any) -> None:
        """End the gang because of a failure that no rank has caused."""
        self._end(Outcome.FAILED, rule.cause, reason, **more)

    def _end(self, outcome: str, cause: str, reason: str, **more: Any) -> None:
        """Record the outcome, and order every node to leave. A node that joins later gets the same order."""
        self.stage = self.stage._replace(phase=Phase.ENDED)
        ended = events.GangEnded(self.attempt, str(outcome), str(cause), reason, **more, **self.progress().to_event())
        self.record(ended)
        again = outcome in (Cause.PREEMPTED, Cause.TIMEOUT)
        self.bye = messages.Bye(ended.outcome, 0 if outcome == Outcome.SUCCEEDED else EXIT_REQUEUE if again else 1)
        self._send_all(self.bye)

    def _send_all(self, order: messages.Order) -> set[int]:
        """Send an order to all nodes that have joined and are not lost. Return these nodes."""
        for node in (nodes := [each for each in self.roster.hellos if each not in self.presence.lost]):
            self.send(node, order)
        return set(nodes)

    # -- reports before the ranks run

    @_HANDLERS.add
    def _on_way_tried(self, node: int, report: messages.WayTried, now: float) -> None:
        if report.error:
            self._fail(rules.CANT_REACH, report.error)
        elif self.phase is Phase.CHECKING:
            self._answered(node, now)

    @_HANDLERS.add
    def _on_trouble(self, node: int, report: messages.Trouble, now: float) -> None:
        """End the gang because a node can't take part. The failure counts as permanent, unless the report allows a
        retry.
        """
        reason = f"{self.roster.names([node])}: {report.reason}"
        self._end(Outcome.FAILED, report.cause, reason, failed_node=node, tail=report.tail)

    @_HANDLERS.add
    def _on_ready(self, node: int, report: messages.Ready, now: float) -> None:
        self.current.ready[node] = report
        if self.phase is Phase.PREPARING:
            self._answered(node, now)

    @_HANDLERS.add
    def _on_handed_over(self, node: int, report: messages.HandedOver, now: float) -> None:
        if self.phase is not Phase.HANDING_OVER or self.presence.lost:
            return
        if report.given:
            self.record(events.HandedOver(self.attempt, checkpoint_to_resume(self.current.ready), report.given))
        if report.failed:
            words = "; ".join(f"{self.roster.names([each])} {said}" for each, said in report.failed)
            self._fail(rules.CANT_REACH, words)
        else:
            self._answered(node, now)

    # -- reports while the ranks run

    @_HANDLERS.add
    def _on_rank_ended(self, node: int, report: messages.RankEnded, now: float) -> None:
        self.current.note_report(node, report)
        # If the rank's program had ended, the other ranks may still save their results.
        if self.phase is not Phase.RUNNING or report.code == 0 or report.finished:
            return
        if module := self.current.seeks(report):
            self._send_all(messages.FindModule(module))
        if report.code == EXIT_REQUEUE:
            self._stop(grace=SAVE_GRACE)  # the ranks of the other nodes must stop at a step boundary too
        elif blame_of(report) > Blame.FAILED:
            self.current.settle_at = self.current.settle_at or now + SETTLE_SECONDS
        else:
            self._stop()

    @_HANDLERS.add
    def _on_module_sought(self, node: int, report: messages.ModuleSought, now: float) -> None:
        if report.module == self.current.sought and not report.is_there:
            self.current.lacking.add(node)

    @_HANDLERS.add
    def _on_idle(self, node: int, report: messages.RanksIdle, now: float) -> None:
        if self.phase in RANKS_RUN:
            self._answered(node, now)

    @_HANDLERS.add
    def _on_signal(self, node: int, report: messages.SignalReceived, now: float) -> None:
        """Stop the ranks at a step boundary after a signal to an agent. If the signal comes from `orch cancel --now`,
        stop them at once.

        A signal that arrives after the loss of a node is ignored, because srun sends TERM to all other nodes after a
        loss.
        """
        cause = Cause.CANCELLED if report.cancelled else Cause.PREEMPTED
        grace = 0.0 if report.now else self.task.grace
        self.record(events.Stopping(cause.value, report.name, node))
        outranks = cause is Cause.CANCELLED and (self.current.stopped is not Cause.CANCELLED or grace == 0.0)
        if self.phase is Phase.RUNNING or (self.phase is Phase.STOPPING and outranks):
            self._stop(cause, grace, outranks=outranks)
        elif self.phase is not Phase.STOPPING:
            self._end(cause, cause, f"{cause} before the ranks were started")
        elif self.current.stopped is Cause.NONE and not self.presence.lost:
            self.current.stopped = cause  # a signal during a stop also prevents another attempt

    @_HANDLERS.add
    def _on_folder_lost(self, node: int, report: messages.FolderLost, now: float) -> None:
        """Record that a node lost the run's folder or a part of it. The heartbeats of its ranks may be lost too."""
        self.roster.folders_lost[node] = report.path
        if report.with_heartbeats:
            self.current.hang.lose_heartbeats(node)
        self.record(events.FolderLost(self.roster.host_of(node), report.path, node, report.with_heartbeats))

    @_HANDLERS.add
    def _on_unused(self, node: int, report: messages.Unused, now: float) -> None:
        """Record that a node has been idle for the time limit. If all nodes are idle now, record this too, and end
        the run if the job requests it.
        """
        if self.phase is not Phase.RUNNING or not self.current.note_unused(node, report):
            return
        self.record(events.Unused(self.attempt, *self.current.idleness()))
        if self.task.idle.get("do") == "cancel":
            self._stop(Cause.IDLE, self.task.grace)

    @_HANDLERS.add
    def _on_used(self, node: int, report: messages.Used, now: float) -> None:
        if self.current.note_used(node):
            self.record(events.Used(self.attempt, node))


PHASES = {
    Phase.JOINING: Row(Leader._check_connections, "did not join"),
    Phase.CHECKING: Row(Leader._prepare, "did not report on the way to its neighbour"),
    Phase.PREPARING: Row(Leader._hand_over, "did not get its launcher ready"),
    Phase.HANDING_OVER: Row(Leader._go, "did not hand over a checkpoint"),  # node 0 gives it to the others
    Phase.RUNNING: Row(Leader._end_attempt),
    Phase.STOPPING: Row(Leader._end_attempt),
    Phase.ENDED: Row(lambda leader, now: None),
}
