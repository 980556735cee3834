"""Operations that cancel and remove runs. Nothing in this module prints or exits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.backends import backend_for
from orchestrator.backends.base import NodeProof
from orchestrator.errors import BackendError, StoreError, UsageError
from orchestrator.looking.run import POLL_SECONDS, state_or_why_not, wait
from orchestrator.looking.state import state_of
from orchestrator.protocol.events import Cancel
from orchestrator.runs import dependencies, outbox
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.runs.store import RunDir, check_own, remove_run
from orchestrator.supervisor.background import start_supervisor
from orchestrator.supervisor.reconcile import reconcile

CANCEL_MARGIN = 10.0
AT_ONCE: Final = 16  # number of runs that are cancelled at a time


@dataclass(frozen=True)
class Cancelled:
    """The result of cancelling a run: the run's state afterwards, and the result of the check of each node."""

    state: RunState
    proofs: tuple[NodeProof, ...] = ()  # empty if this process checked no node
    had_ended: bool = False  # the run had ended before, so nothing was done
    record_is_lost: bool = False  # it is unknown on which machines the run was

    @property
    def said(self) -> str:
        """Describe the result in a sentence."""
        run_id, state = self.state.run_id, self.state.state
        if self.record_is_lost:
            return f"{run_id} has lost its record; its processes on this machine were ended"
        if self.had_ended:
            return f"{run_id} already finished ({state})"
        if self.state.is_final:
            return f"{run_id} {state}"
        if self.proofs and all(proof.is_unreachable for proof in self.proofs):
            said = "could not be told to stop, as none of its machines is in reach; the cancel is recorded"
            return f"{run_id} {said}, and is passed on when they are back: orch wait {run_id}"
        why = f": {self.state.detail}" if self.state.detail else ""
        return f"{run_id} has been told to stop, and has not ended yet ({state}{why}); wait for it: orch wait {run_id}"

    @property
    def is_proven(self) -> bool:
        """Return True if the run has ended and no process of it is left."""
        return self.state.is_final and all(proof.is_clean for proof in self.proofs)


def cancel(root: Path, run: RunDir, *, now: bool) -> Cancelled:
    """Stop a run at its next step boundary, with a checkpoint. With `now`, stop it at once. Verify that no process is
    left.

    The request is recorded before any signal is sent, so that nothing starts the run again. If the disk is too full for
    this record, the run is ended first, which frees space. Raises StoreError if the space is still too small. A run
    that has ended is left unchanged.

    If the run's own record is lost or damaged, only its processes on this machine can be ended.
    """
    try:
        is_lost = run.record().is_lost and run.ending() is None
    except StoreError:
        is_lost = True
    state = state_or_why_not(run) if is_lost else state_of(run)
    if is_lost:
        check_own(root, run)
        return Cancelled(state, tuple(backend_for("local").clean_up(run)), record_is_lost=True)
    if state.is_final:
        return Cancelled(state, had_ended=True)
    check_own(root, run)
    problem = _record_cancel(run, now=now)
    if problem is not None and dependencies.is_queued(run):
        raise problem  # nothing has been started that could be ended
    begun, refused = _pass_on([run])
    if refused:
        raise refused[0]
    return _ended(root, run, problem, now=now, is_begun=bool(begun))


def cancel_all(root: Path, runs: Sequence[RunDir], *, now: bool) -> list[Cancelled]:
    """Stop the runs, queued runs first. Return the results of the runs that had not ended before. Runs whose state
    can't be read come last.
    """
    from concurrent.futures import ThreadPoolExecutor

    states = {run: state_or_why_not(run) for run in runs}
    damaged = [run for run, state in states.items() if state.state is RunStatus.UNREADABLE]
    live = [run for run, state in states.items() if not state.is_final and run not in damaged]
    for run in live:
        check_own(root, run)
    problems = {run: _record_cancel(run, now=now) for run in live}  # if the disk is full, each run is still cancelled
    begun, refused = _pass_on(live)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(lambda run: _ended(root, run, problems[run], now=now, is_begun=run in begun), live))
    if refused:  # raised last, because the other runs are ended all the same
        raise refused[0]
    return [*done, *(cancel(root, run, now=now) for run in damaged)]


def _pass_on(runs: Sequence[RunDir]) -> tuple[set[RunDir], list[BackendError]]:
    """Remove the queued runs from orch's queue, and pass the recorded cancels of the other runs on to their agents or
    their scheduler. Return these other runs, and the errors of backends that could not pass a cancel on.
    """
    from orchestrator.supervisor import queue

    begun = {run: run.record().kind for run in runs if not queue.drop(run, dependencies.CANCELLED)}
    refused = list[BackendError]()
    for kind in set(begun.values()):
        try:
            backend_for(kind).cancel([run for run in begun if begun[run] == kind])
        except BackendError as error:
            refused.append(error)
    return set(begun), refused


def _ended(root: Path, run: RunDir, problem: StoreError | None, *, now: bool, is_begun: bool) -> Cancelled:
    """Wait until the cancelled run has ended, end the processes that remain, and return the result.

    problem: the error if the cancel could not be recorded. is_begun: False if the run was still in orch's queue.
    """
    record = run.record()
    backend = backend_for(record.kind)
    if is_begun:
        scheduler = backend.look(run).scheduler
        # a job that was cancelled before its start has ended already, and has no checkpoint to save
        if scheduler is None or scheduler.phase != "ended":
            wait(run, timeout=(0.0 if now else record.grace) + CANCEL_MARGIN)
    if host := backend.look(run).other_machine:
        _wait_for_verdict_of(host, run)
        return Cancelled(state_of(run))
    proofs = backend.clean_up(run)
    if problem is not None and (problem := _record_cancel(run, now=now)) is not None:
        left = [f"{name} on {proof.host}" for proof in proofs for name in proof.survivors]
        said = f"still there: {', '.join(left)}" if left else "no process of it is left"
        hint = (
            "make room on that disk, and cancel the run again; otherwise it may be started again, and its end "
            "is not recorded"
        )
        raise StoreError(f"run {run.run_id} was ended, {said}; the end could not be recorded: {problem.message}", hint)
    verdict = None
    try:
        verdict = reconcile(root, run)
    except BackendError as error:
        if not error.transient:
            raise
        # the state says for which machines the supervisor waits to copy their files
    deliver_news(root)
    if verdict is None and all(proof.is_clean for proof in proofs):
        wait(run, timeout=CANCEL_MARGIN)  # the supervisor has not seen yet that no process is left
    return Cancelled(state_of(run), tuple(proofs))


def _wait_for_verdict_of(host: str, run: RunDir) -> None:
    """Wait until a supervisor on another machine has ended the run. Raises BackendError if that takes too long."""
    end = time.monotonic() + CANCEL_MARGIN
    while run.ending() is None:
        if time.monotonic() > end:
            said = f"run {run.run_id} was started on {host}, and orch on that machine has not acted on the cancel yet"
            raise BackendError(said, f"cancel the run on that machine: ssh {host} orch cancel {run.run_id}")
        time.sleep(POLL_SECONDS)  # another machine writes the verdict, so this machine receives no file event


def _record_cancel(run: RunDir, *, now: bool) -> StoreError | None:
    """Record the request to cancel a run. If it can't be written, for example on a full disk, return the error."""
    try:
        run.record_cancel(now=now)
        run.append_event(Cancel(now))
    except StoreError as error:
        run.check_is_there()
        return error
    return None


def deliver_news(root: Path) -> None:
    """If a notification was not sent yet, or a tracker has not received all data of a run, start the supervisor, which
    sends them.
    """
    if outbox.entered(root):
        start_supervisor(root)


def remove(root: Path, run: RunDir) -> None:
    """Delete a run that has ended or can't be read, also if the disk is full. Raises UsageError for a live run."""
    check_own(root, run)
    try:
        state = state_of(run)
        if not state.is_final:
            raise UsageError(f"run {run.run_id} is {state.state}", f"cancel it first: orch cancel {run.run_id}")
        reconcile(root, run)
    except StoreError:  # its machines are unknown, or the disk has no room for its verdict
        with contextlib.suppress(StoreError):
            backend_for("local").clean_up(run)
    remove_run(root, run)
