"""The supervisor: a background process that attends live runs until their verdicts (the judged results) are written.
Each machine that shares a state folder has at most one, and each run has only one (`runs/claims.py`).

`orch submit` starts it, and it ends when no run is live. It can be killed at any point and started again, because its
whole state is in the run directories, and each of its actions may be repeated.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends import backend_for
from orchestrator.errors import BackendError, OrchError, StoreError
from orchestrator.looking.state import check_kind
from orchestrator.runs import claims, dependencies
from orchestrator.runs.record import RunRecord
from orchestrator.runs.reducer import left_outputs
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.store import RunDir, check_own, is_live, live_runs, newest_runs, remove_run
from orchestrator.supervisor import queue, searching
from orchestrator.supervisor.background import supervisor_lock
from orchestrator.supervisor.reconcile import Reconciler
from orchestrator.supervisor.searching import SearchStopper

if TYPE_CHECKING:
    from orchestrator.supervisor.outbox import Outbox

WAIT_SECONDS = 1.0
UNABLE_SECONDS = 15.0  # so long must a reason last before this machine offers a run to other machines
LONGEST_PAUSE = 15.0  # seconds of the longest pause after repeated errors
LONGEST_REST = 0.25  # seconds of the longest pause after a pass over a run


def supervise(root: Path, start_again: Callable[[], object] = lambda: None) -> None:
    """Supervise the live runs that no other machine looks after, until there is none. Return at once if a supervisor is
    running on this machine. `start_again` is called if this process was stopped for so long that it may have lost its
    runs.
    """
    from orchestrator.supervisor.heartbeat import Heartbeat
    from orchestrator.supervisor.outbox import Outbox
    from orchestrator.transport.machine import Machine

    check_own(root)
    unreadable: set[str] = set()
    records: dict[str, RunRecord] = {}
    one_ended = threading.Event()
    outbox, stopper = Outbox(root, one_ended.set), SearchStopper(root)
    while _has_work(root, _to_look_after(root, unreadable, records), outbox):
        with contextlib.ExitStack() as held:
            if not held.enter_context(supervisor_lock(root)):
                return
            heartbeat = Heartbeat(root, start_again)
            Machine.check = staticmethod(heartbeat.check)
            held.callback(setattr, Machine, "check", staticmethod(lambda: None))
            held.callback(heartbeat.ended.set)
            _supervise(root, unreadable, records, outbox, stopper, one_ended)
        # This loop's condition detects a run that was recorded just before the lock was released.


def _has_work(root: Path, runs: list[RunDir], outbox: Outbox) -> bool:
    """Return True if this machine looks after runs or has news to send, or may have to take a run again, because the
    machine that has the run can't do its work.
    """
    return bool(runs) or outbox.has_work() or any(claims.claim_of(run).why_unable for run in live_runs(root))


def _to_look_after(root: Path, unreadable: set[str], records: dict[str, RunRecord]) -> list[RunDir]:
    """Return the live runs that no other machine looks after. A run is skipped and reported once if its record can't be
    read or may be another user's.

    `records` is a cache, so that the records of hundreds of runs are read only once.
    """
    found, mine, now = [], dict[str, bool](), claims.now_of(root)
    for run in live_runs(root):
        name = sweep_of(run.run_id) or run.run_id
        if name not in mine:
            mine[name] = claims.may_take(run, claims.claim_of(run), now)
        if not mine[name]:
            continue
        try:
            if run.run_id not in unreadable:
                check_own(root, run)
            if run.run_id not in records and run.run_id not in unreadable and not (record := run.record()).is_lost:
                check_kind(run, record)
                records[run.run_id] = record
        except StoreError as error:
            print(f"{run.run_id}: {error}", file=sys.stderr, flush=True)
            unreadable.add(run.run_id)
        if run.run_id in records:
            found.append(run)
    for gone in records.keys() - {run.run_id for run in found}:
        del records[gone]
    return found


def _supervise(
    root: Path,
    unreadable: set[str],
    records: dict[str, RunRecord],
    outbox: Outbox,
    stopper: SearchStopper,
    one_ended: threading.Event,
) -> None:
    at_work: dict[str, threading.Thread] = {}
    pauses: dict[str, float] = {}  # seconds, for the runs whose last work ended in an error
    while _has_work(root, runs := _to_look_after(root, unreadable, records), outbox):
        idle = [run for run in runs if run.run_id not in at_work or not at_work[run.run_id].is_alive()]
        queued = {run.run_id for run in runs if dependencies.is_queued(run)}
        waiting = [(run, records[run.run_id]) for run in idle if run.run_id in queued]
        going = {run.run_id for run in runs} - {run.run_id for run, _ in waiting}
        work = [(run, partial(_look_after, root, run)) for run in idle if run.run_id not in queued]
        work += [(run, partial(_begin, root, run, wait)) for run, wait in queue.runnable(root, waiting, going)]
        for run, act in work:
            thread = threading.Thread(target=_work, args=(run, act, one_ended, pauses), daemon=True)
            at_work[run.run_id] = thread
            thread.start()
        outbox.poll()
        stopper.poll((run, records[run.run_id]) for run in runs if run.run_id in going)
        one_ended.wait(WAIT_SECONDS)
        one_ended.clear()
    if keep := os.environ.get("ORCH_KEEP_RUNS", "").strip():
        prune(root, int(keep) if keep.isdigit() else 0)


def _look_after(root: Path, run: RunDir) -> None:
    """Attend one run until its verdict (the judged result) is written. Return early if another machine has taken the
    run, or if the run is queued, because `orch submit` may queue a run after it has recorded the run.
    """
    reconciler = Reconciler(root, run, lambda: claims.is_ours(run))
    begun = time.monotonic()
    able = begun
    while is_live(root, run) and not dependencies.is_queued(run) and reconciler.run_once() is None:
        able = able if reconciler.why_unable else time.monotonic()
        if not _still_ours(run, reconciler.why_unable, time.monotonic() - able):
            backend_for(reconciler.record().kind).let_go(run)
            return
        time.sleep(min(LONGEST_REST, time.monotonic() - begun))  # so passes over many nodes use at most half a core
        backend_for(reconciler.record().kind).wait(run, WAIT_SECONDS)
        begun = time.monotonic()
    point = reconciler.record().point
    if point is not None and point.is_trial and not is_live(root, run):
        searching.record_ends(root, point.sweep)


def _still_ours(run: RunDir, why_unable: str, seconds: float) -> bool:
    """Return False if another machine has taken the run. If this machine was unable for long enough, offer the run to
    other machines. The points of a sweep have one claim, so one point that this machine can't reach does not offer it.
    """
    if sweep_of(run.run_id) or (why_unable and seconds < UNABLE_SECONDS):
        return claims.is_ours(run)
    return claims.report(run, why_unable)


def _begin(root: Path, run: RunDir, unsatisfiable: dependencies.Wait | None) -> None:
    """Start a queued run whose turn has come. If its wait can never end, remove it from the queue."""
    if unsatisfiable is not None:
        queue.drop(run, unsatisfiable.reason)
        return
    if queue.may_start(run):
        queue.start_queued(root, run)
    if dependencies.is_queued(run):
        if why := claims.claim_of(run).why_unable:
            raise BackendError(why)
        time.sleep(WAIT_SECONDS)  # then it is tried again, because no event reports that hosts have room


def _work(run: RunDir, act: Callable[[], None], ended: threading.Event, pauses: dict[str, float]) -> None:
    """Call `act`, the work for one run. Each run has a separate thread for this, so that a slow machine delays no other
    run.

    After an error, wait before the work is repeated. The pause grows with each error, because the cause, such as a full
    disk, may be gone later.
    """
    begun = time.monotonic()
    try:
        if not claims.take(run, claims.claim_of(run)):
            return
        act()
        pauses.pop(run.run_id, None)
    except Exception as error:  # noqa: BLE001 (after any error the other runs continue, and the log stays small)
        said = str(error) if isinstance(error, OrchError | OSError) else f"{type(error).__name__}: {error!s:.500}"
        print(f"{run.run_id}: {said}", file=sys.stderr, flush=True)
        if isinstance(error, BackendError) and run.run_id in pauses and not sweep_of(run.run_id):
            claims.report(run, said)  # a first error may be a single broken connection
        longer = min(LONGEST_PAUSE, 2 * pauses.get(run.run_id, WAIT_SECONDS / 2))
        pauses[run.run_id] = WAIT_SECONDS if time.monotonic() - begun > LONGEST_PAUSE else longer
        time.sleep(pauses[run.run_id])  # no event reports that a machine answers again, or that a disk has room
    finally:
        ended.set()


def prune(root: Path, keep: int) -> list[RunDir]:
    """Remove ended runs except the newest `keep`. Return the removed runs. If `keep` is 0, nothing is removed.

    A run whose outputs are only on its machines is kept, because only its record tells where they are.
    """
    check_own(root)
    removed = []
    for run in newest_runs(root)[keep:] if keep else []:
        if (run.path / "verdict.json").exists() and not left_outputs(run.events()):
            remove_run(root, run)
            removed.append(run)
    return removed
