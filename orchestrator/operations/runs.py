"""Operations on runs: state, wait, cancel, remove. Nothing here prints or exits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import backend
from orchestrator.backends.base import NodeProof
from orchestrator.errors import (
    EXIT_CANCELLED,
    EXIT_NOT_FINISHED,
    EXIT_RUN_FAILED,
    EXIT_SUCCEEDED,
    BackendError,
    RunNotFoundError,
    StoreError,
    UsageError,
)
from orchestrator.protocol.events import Cancel
from orchestrator.runs import dependencies
from orchestrator.runs.marks import is_any_to_tell
from orchestrator.runs.record import UNKNOWN
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.runs.store import RunDir, check_own, read_lines, remove_run
from orchestrator.supervisor.reconcile import reconcile, state_of
from orchestrator.supervisor.start import start_supervisor

if TYPE_CHECKING:  # commands that only read runs must not load pydantic
    from orchestrator.runs.files.file_cache import FileCache
    from orchestrator.runs.files.logs import Selection
POLL_SECONDS = 0.1  # a network file system may send no events, so followers poll
CANCEL_MARGIN = 10.0
METRICS_BYTES = 32 << 20  # a larger file is not read for the time that saving took


# -- reading


def record_of(run: RunDir) -> dict[str, Any]:
    """Return the run's whole record as JSON types, with the hours that it has used so far."""
    from orchestrator.runs.files.samples import newest_samples
    from orchestrator.runs.summary import run_record

    metrics = run.path / "metrics.jsonl"
    lines = read_lines(metrics) if metrics.exists() and metrics.stat().st_size <= METRICS_BYTES else ()
    return run_record(run.record(), run.events(), run.read("plan.json"), lines, time.time(), newest_samples(run))


def bringing_logs(run: RunDir, selection: Selection) -> contextlib.AbstractContextManager[None]:
    """Return a context in which the selected logs are copied here as they grow on their nodes."""
    if come_anyway(run, selection):
        return contextlib.nullcontext()
    try:
        check_own(run.path.parent.parent, run)
    except StoreError:  # another user's run: local copies can be read, but no machine is contacted in that user's name
        return contextlib.nullcontext()
    return backend(run.record().kind).bringing_logs(run, selection)


def come_anyway(run: RunDir, selection: Selection) -> bool:
    """Tell whether the selected logs are copied here anyway: rank 0's always are, and all are after the end."""
    return (run.path / "verdict.json").exists() or (selection.rank in (None, 0) and not selection.takes_several)


def state_or_why_not(run: RunDir, known: FileCache | None = None) -> RunState:
    """Return the run's state, or the state UNREADABLE with the reason, so that it does not hide other runs."""
    try:
        return state_of(run, known=known)
    except (StoreError, RunNotFoundError) as error:
        return RunState(run.run_id, UNKNOWN, UNKNOWN, 0.0, RunStatus.UNREADABLE, detail=error.message)


def wait(run: RunDir, on_look: Callable[[RunState], None] | None = None, timeout: float | None = None) -> RunState:
    """Wait for the run's end or `timeout` seconds, and return its state. `on_look` receives every state on the way."""
    for state in states(run, timeout):
        if on_look is not None:
            on_look(state)
    return state


def states(run: RunDir, timeout: float | None = None) -> Iterator[RunState]:
    """Yield the run's state until it has ended or `timeout` seconds have passed, at least once."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        state = state_of(run)
        yield state
        if state.is_final or (end is not None and time.monotonic() >= end):
            return
        time.sleep(POLL_SECONDS)  # a network file system may send no events


def exit_code(state: RunState) -> int:
    """Return the exit code of `wait` and `submit --follow` for a run in this state."""
    return {
        RunStatus.SUCCEEDED: EXIT_SUCCEEDED,
        RunStatus.FAILED: EXIT_RUN_FAILED,
        RunStatus.CANCELLED: EXIT_CANCELLED,
    }.get(state.state, EXIT_NOT_FINISHED)


# -- ending


@dataclass(frozen=True)
class Cancelled:
    """The result of a cancel: the run's state after it, and a check of each node."""

    state: RunState
    proofs: tuple[NodeProof, ...] = ()  # empty if nothing of the run was ever on a machine of this process
    had_ended: bool = False  # before the cancel, which then did nothing
    record_is_lost: bool = False  # nothing tells on which machines the run was

    @property
    def said(self) -> str:
        """Describe the result."""
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
        """Tell whether the run has ended and nothing of it is left."""
        return self.state.is_final and all(proof.is_clean for proof in self.proofs)


def cancel(root: Path, run: RunDir, *, now: bool) -> Cancelled:
    """Stop a run at its next step boundary, with a checkpoint, or at once with `now`. Then verify that nothing is left.

    The cancel is recorded before any signal, so that a later request for a restart is not obeyed. A run that had ended
    is left unchanged. If a full disk has no room for the record, the run is ended first, which frees space. Raises
    StoreError if that is not enough. If the record of a run is lost, only its processes on this machine can be ended.
    """
    from orchestrator.supervisor import queue

    state, record = state_of(run), run.record()
    if record.is_lost and run.ending() is None:
        check_own(root, run)
        return Cancelled(state, tuple(backend("local").clean_up(run)), record_is_lost=True)
    if state.is_final:
        return Cancelled(state, had_ended=True)
    check_own(root, run)
    problem = _record_cancel(run, now=now)
    machine = backend(record.kind)
    if problem is not None and dependencies.is_queued(run):
        raise problem  # nothing has been started that could be ended
    if problem is not None or not queue.drop(run, dependencies.CANCELLED):
        machine.cancel(run)
        scheduler = machine.look(run).scheduler
        if scheduler is None or scheduler.phase != "ended":  # a job that had not begun has nothing to save
            wait(run, timeout=(0.0 if now else record.grace) + CANCEL_MARGIN)
    if host := machine.look(run).other_machine:
        _wait_for_verdict_of(host, run)
        return Cancelled(state_of(run))
    proofs = machine.clean_up(run)
    if problem is not None and (problem := _record_cancel(run, now=now)) is not None:
        left = [f"{name} on {proof.host}" for proof in proofs for name in proof.survivors]
        said = f"still there: {', '.join(left)}" if left else "no process of it is left"
        hint = "make room there, and cancel it again; otherwise it may be started again, and its verdict is not written"
        raise StoreError(f"run {run.run_id} was ended, {said}; that could not be recorded: {problem.message}", hint)
    reconcile(root, run)
    have_it_told(root)
    return Cancelled(state_of(run), tuple(proofs))


def _wait_for_verdict_of(host: str, run: RunDir) -> None:
    """Wait until a supervisor on another machine has ended the run. Raises BackendError if none does."""
    end = time.monotonic() + CANCEL_MARGIN
    while run.ending() is None:
        if time.monotonic() > end:
            said = f"run {run.run_id} was started on {host}, where nobody has taken up the cancel yet"
            raise BackendError(said, f"cancel it there: ssh {host} orch cancel {run.run_id}")
        time.sleep(POLL_SECONDS)  # another machine writes the verdict, which sends no events here


def _record_cancel(run: RunDir, *, now: bool) -> StoreError | None:
    """Record the cancel of a run. Return the error if the disk has no room for the whole record."""
    try:
        run.record_cancel(now=now)
        run.append_event(Cancel(now))
    except StoreError as error:
        run.check_is_there()
        return error
    return None


def have_it_told(root: Path) -> None:
    """Start the supervisor, which sends notifications and feeds trackers, if there are any to send."""
    if is_any_to_tell(root):
        start_supervisor(root)


def remove(root: Path, run: RunDir) -> None:
    """Delete a run that has ended or can't be read. Raises UsageError for a live run."""
    check_own(root, run)
    try:
        state = state_of(run)
    except StoreError:
        with contextlib.suppress(StoreError):
            backend("local").clean_up(run)  # nothing else can be done, because it is not known where the run was
        remove_run(root, run)
        return
    if not state.is_final:
        raise UsageError(f"run {run.run_id} is {state.state}", f"cancel it first: orch cancel {run.run_id}")
    reconcile(root, run)
    remove_run(root, run)
