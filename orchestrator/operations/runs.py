"""The verbs, joined up: submit, status, cancel, wait, remove. Nothing here prints or exits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import backend
from orchestrator.backends.base import NodeProof, Scheduler
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
from orchestrator.protocol.events import EventKind
from orchestrator.runs import dependencies
from orchestrator.runs.marks import is_any_to_tell
from orchestrator.runs.record import UNKNOWN
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.runs.store import RunDir, check_own, read_lines, remove_run
from orchestrator.supervisor.reconcile import reconcile, state_of
from orchestrator.supervisor.start import start_supervisor

if TYPE_CHECKING:  # what only looks at runs must not wait for pydantic
    from orchestrator.runs.files.file_cache import FileCache
    from orchestrator.runs.files.logs import Selection
POLL_SECONDS = 0.1  # files on a network file system send no events, so followers look
CANCEL_MARGIN = 10.0
METRICS_BYTES = 32 << 20  # a larger file is not read through for the seconds that saving took


# -- looking


def record_of(run: RunDir) -> dict[str, Any]:
    """What the run was and what it cost so far."""
    from orchestrator.runs.files.samples import newest_samples  # noqa: PLC0415 (a table of runs does without)
    from orchestrator.runs.summary import run_record  # noqa: PLC0415 (as above)

    metrics = run.path / "metrics.jsonl"
    lines = read_lines(metrics) if metrics.exists() and metrics.stat().st_size <= METRICS_BYTES else ()
    return run_record(run.record(), run.events(), run.read("plan.json"), lines, time.time(), newest_samples(run))


def bringing_logs(run: RunDir, selection: Selection) -> contextlib.AbstractContextManager[None]:
    """While it lasts, the chosen logs grow here as they do on their nodes."""
    if come_anyway(run, selection):
        return contextlib.nullcontext()
    try:
        check_own(run.path.parent.parent, run)
    except StoreError:  # another's: what is here can be read, and no machine is asked in his name
        return contextlib.nullcontext()
    return backend(run.record().kind).bringing_logs(run, selection)


def come_anyway(run: RunDir, selection: Selection) -> bool:
    """Tell whether nobody need bring the chosen logs: rank 0's grow here anyway, and all are here at the end."""
    return (run.path / "verdict.json").exists() or (selection.rank in (None, 0) and not selection.takes_several)


def state_or_why_not(run: RunDir, known: FileCache | None = None) -> RunState:
    """One run that can't be read must not hide the others."""
    try:
        return state_of(run, known=known)
    except (StoreError, RunNotFoundError) as error:
        return RunState(run.run_id, UNKNOWN, UNKNOWN, 0.0, RunStatus.UNREADABLE, detail=error.message)


def wait(run: RunDir, on_look: Callable[[RunState], None] | None = None, timeout: float | None = None) -> RunState:
    """The state of the run once it has ended, or after `timeout` seconds; `on_look` sees every state on the way."""
    for state in states(run, timeout):
        if on_look is not None:
            on_look(state)
    return state


def states(run: RunDir, timeout: float | None = None) -> Iterator[RunState]:
    """The state of the run, again and again until it has ended or `timeout` seconds are over; always one at least."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        state = state_of(run)
        yield state
        if state.is_final or (end is not None and time.monotonic() >= end):
            return
        time.sleep(POLL_SECONDS)  # files on a network file system send no events


def exit_code(state: RunState) -> int:
    """The exit code of `wait` and `submit --follow` for a run in this state."""
    return {
        RunStatus.SUCCEEDED: EXIT_SUCCEEDED,
        RunStatus.FAILED: EXIT_RUN_FAILED,
        RunStatus.CANCELLED: EXIT_CANCELLED,
    }.get(state.state, EXIT_NOT_FINISHED)


# -- ending


@dataclass(frozen=True)
class Cancelled:
    """How a cancel went: the run's state after it, and what a look at each of its nodes found."""

    state: RunState
    proofs: tuple[NodeProof, ...] = ()  # none where nothing of the run was ever on a machine of this process
    had_ended: bool = False  # before the cancel, which has done nothing then

    @property
    def said(self) -> str:
        """The state, in words."""
        run_id, state = self.state.run_id, self.state.state
        if self.had_ended:
            return f"{run_id} already finished ({state})"
        if self.state.is_final:
            return f"{run_id} {state}"
        if self.proofs and all(proof.is_unreachable for proof in self.proofs):
            said = "could not be told to stop, as none of its machines is in reach; the cancel is recorded"
            return f"{run_id} {said}, and is passed on when they are back: orch wait {run_id}"
        return f"{run_id} has been told to stop, and has not ended yet ({state}); wait for it: orch wait {run_id}"

    @property
    def is_proven(self) -> bool:
        """Has the run ended, and is nothing of it left?"""
        return self.state.is_final and all(proof.is_clean for proof in self.proofs)


def cancel(root: Path, run: RunDir, *, now: bool) -> Cancelled:
    """Stop a run: at the next step boundary with a checkpoint, or at once; then prove for each node that it is gone.

    The cancel is recorded before any signal, so that a request to be started again is not obeyed after it. A run
    that had ended before is left as it was. Where a full disk takes no record, the run is ended all the same, and
    recorded with the room that this gives; StoreError where that is not enough either.
    """
    from orchestrator.supervisor import queue  # noqa: PLC0415 (a table of runs does without)

    state = state_of(run)
    if state.is_final:
        return Cancelled(state, had_ended=True)
    check_own(root, run)
    record = run.record()
    problem = _record_cancel(run, now=now)
    machine = backend(record.kind)
    if problem is not None and dependencies.is_queued(run):
        raise problem  # nothing has been started that could be ended
    if problem is not None or not queue.drop(run, dependencies.CANCELLED):
        machine.cancel(run)
        # A job that had not begun has nothing to save.
        if not (isinstance(machine, Scheduler) and machine.has_ended(run)):
            wait(run, timeout=(0.0 if now else record.grace) + CANCEL_MARGIN)
    if host := machine.other_machine(run):
        _wait_for_verdict_of(host, run)
        return Cancelled(state_of(run))
    proofs = machine.clean_up(run)
    if problem is not None and (problem := _record_cancel(run, now=now)) is not None:
        left = [f"{name} on {proof.host}" for proof in proofs for name in proof.survivors]
        said = f"still there: {', '.join(left)}" if left else "no process of it is left"
        hint = "make room there, and cancel it once more: else it may be started again, and its verdict is not written"
        raise StoreError(f"run {run.run_id} was ended, {said}; that could not be recorded: {problem.message}", hint)
    reconcile(root, run)
    have_it_told(root)
    return Cancelled(state_of(run), tuple(proofs))


def _wait_for_verdict_of(host: str, run: RunDir) -> None:
    """Return when the supervisor of another machine has ended the run there; BackendError where none does."""
    end = time.monotonic() + CANCEL_MARGIN
    while run.ending() is None:
        if time.monotonic() > end:
            said = f"run {run.run_id} was started on {host}, where nobody has taken up the cancel yet"
            raise BackendError(said, f"cancel it there: ssh {host} orch cancel {run.run_id}")
        time.sleep(POLL_SECONDS)  # the verdict is a file that another machine writes: it sends no events here


def _record_cancel(run: RunDir, *, now: bool) -> StoreError | None:
    """Record that the run is to be cancelled; return the error if the disk has no room for the whole record."""
    try:
        run.record_cancel(now=now)
        run.append_event(EventKind.CANCEL, now=now)
    except StoreError as error:
        run.check_is_there()
        return error
    return None


def have_it_told(root: Path) -> None:
    """A run has its verdict from here: the supervisor, who tells people and trackers, may have died."""
    if is_any_to_tell(root):
        start_supervisor(root)


def remove(root: Path, run: RunDir) -> None:
    """Delete a run that has ended, or that can't be read; UsageError for one that is still going on."""
    check_own(root, run)
    try:
        state = state_of(run)
    except StoreError:
        with contextlib.suppress(StoreError):
            backend("local").clean_up(run)  # all that can be done: it is not known where it ran
        remove_run(root, run)
        return
    if not state.is_final:
        raise UsageError(f"run {run.run_id} is {state.state}", f"cancel it first: orch cancel {run.run_id}")
    reconcile(root, run)
    remove_run(root, run)
