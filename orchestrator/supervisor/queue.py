"""Starts queued runs. A queued run waits for another run's end, for its turn among a sweep's points, or for places on
shared hosts.

The file `held.json` puts a run into the queue. From then on the supervisor starts the run when its turn has come. A
process that starts the run, or removes it from the queue, holds the lock of the run's start. An interrupted start is
completed and not repeated.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.backends import backend_for
from orchestrator.errors import BackendError, OrchError, StoreError
from orchestrator.node.system.private import users_umask
from orchestrator.protocol.events import Dropped, NotRestored, SubmitFailed
from orchestrator.protocol.places.tickets import RENEW_SECONDS
from orchestrator.runs import claims
from orchestrator.runs.dependencies import (
    AWAITED_PLACES,
    CANCELLED,
    VALUES_FOR_START,
    Wait,
    awaited_places,
    is_queued,
    wait_of,
)
from orchestrator.runs.record import Dependency, RunRecord
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.start_lock import being_started
from orchestrator.runs.store import RunDir, check_own
from orchestrator.supervisor.starting import may_install_with_secrets, start

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    import threading

    from orchestrator.backends.places.waiting import Waiting
    from orchestrator.runs.store import Record
    from orchestrator.specs.plan import LaunchPlan
PROGRAM: Final = (sys.executable, "-P", "-m", "orchestrator.supervisor", "start")


def drop(run: RunDir, reason: str) -> bool:
    """Remove a run from the queue, which ends it as cancelled. Return False if it was started or removed before.

    If a process is starting the run at the moment, wait until that start has ended.
    """
    if not is_queued(run):
        return False
    with being_started(run):
        if not is_queued(run):
            return False
        if run.has_begun:  # the process that began the start was killed
            backend_for(run.record().kind).clean_up(run)
        run.append_event(Dropped(reason))
        (run.path / VALUES_FOR_START).unlink()
    return True


def runnable(
    root: Path, queued: Iterable[tuple[RunDir, RunRecord]], going: Collection[str]
) -> list[tuple[RunDir, Wait | None]]:
    """Return a list of (queued run, reason). The reason is None for a run to start now. Otherwise it says why the wait
    can never end, so the run must be removed from the queue.

    `going` has the ids of the live runs. The points (runs) of a sweep start in order, and the sweep limits how many of
    them run at a time.
    """
    busy: dict[str | None, int] = {}
    for name in going:
        busy[sweep_of(name)] = busy.get(sweep_of(name), 0) + 1
    found: list[tuple[RunDir, Wait | None]] = []
    waits: dict[Dependency | None, Wait | None] = {}  # all points of a sweep have the same dependency
    for run, record in sorted(queued, key=lambda each: _place_in_line(each[1])):
        if record.after not in waits:
            waits[record.after] = wait_of(root, record.after)
        wait = waits[record.after]
        if run.is_cancelled:
            wait = Wait(CANCELLED, is_unsatisfiable=True)
        if wait is not None and wait.is_unsatisfiable:
            found.append((run, wait))
        elif wait is None:
            sweep = sweep_of(run.run_id)
            if sweep is not None and record.point is not None:
                if busy.get(sweep, 0) >= record.point.at_a_time:
                    continue
                busy[sweep] = busy.get(sweep, 0) + 1
            found.append((run, None))
    return found


def _place_in_line(record: RunRecord) -> int:
    # The index is used and not the time, because several points may be recorded at the same time.
    return record.point.index if record.point is not None else 0


# -- starting


def may_start(run: RunDir) -> bool:
    """Return True if it is the queued run's turn on hosts that it shares with other users. Renew its tickets on these
    hosts.

    While a host is unreachable, it is not the run's turn. But a run whose start was interrupted may always start again,
    because that start must be completed or must release its places.
    """
    with being_started(run):  # a process that drops the run waits for this lock, and then removes these tickets
        waiting = _waiting(run)
        if not is_queued(run) or waiting is None or run.has_begun:
            return is_queued(run)
        try:
            may_start = waiting.join()
        except BackendError as error:
            claims.report(run, error.message)
            return False
        claims.report(run, "")
        return may_start


def start_queued(root: Path, run: RunDir) -> None:
    """Start a queued run with the environment of its submission. Renew its tickets in the hosts' queues until the start
    has ended.

    Usually a new process starts the run. But if this process has connections to the run's machines and the same
    environment, it starts the run itself, so that the points of a sweep share the connections.
    """
    import threading

    try:
        held = run.read(VALUES_FOR_START) or {}
    except StoreError:
        held = {}  # the start itself reports the damaged file
    is_over = threading.Event()
    renewer = threading.Thread(target=_keep_place, args=(run, is_over), daemon=True)
    renewer.start()
    try:
        if not (_can_start_here(run, held) and start_here(run, is_last_try=False)):
            _start_by_program(root, run, held)
    finally:
        is_over.set()
        renewer.join()


def _can_start_here(run: RunDir, held: Mapping[str, object]) -> bool:
    """Return True if this process has the environment that the start needs, and the start needs no secrets."""
    if backend_for(run.record().kind).pool is None or _installs_with_secrets(run, held):
        return False
    ours, theirs = ({name: each[name] for name in each if name != "ORCH_HOME"}
                    for each in (os.environ, _environment(held)))  # fmt: skip
    return ours == theirs


def _environment(held: Mapping[str, object]) -> Mapping[str, str]:
    kept = held.get("environment")
    return kept if isinstance(kept, Mapping) else os.environ


def _installs_with_secrets(run: RunDir, held: Mapping[str, object]) -> bool:
    """Return True if the start may need secrets to install packages. If the run's plan is damaged, the job counts as a
    job with packages, and the start reports the damage.
    """
    try:
        job = run.plan().document.get("job")
    except StoreError:
        job = None
    environment = job.get("environment") if isinstance(job, Mapping) else "unknown"
    return may_install_with_secrets(environment, held.get("secrets"))


def _start_by_program(root: Path, run: RunDir, held: Mapping[str, object]) -> None:
    import subprocess

    umask = held.get("umask")
    # The program has its own session, so that a signal to the supervisor's terminal does not interrupt the start.
    subprocess.run(
        [*PROGRAM, str(run.path)], stdin=subprocess.DEVNULL, env={**_environment(held), "ORCH_HOME": str(root)},
        cwd="/", start_new_session=True, umask=umask if isinstance(umask, int) else users_umask(), check=False,
    )  # fmt: skip


def _keep_place(run: RunDir, is_over: threading.Event) -> None:
    while (waiting := _waiting(run)) is not None and not is_over.wait(RENEW_SECONDS):
        with contextlib.suppress(BackendError):
            waiting.renew()


def _waiting(run: RunDir) -> Waiting | None:
    """Return the run's entry in the queue for GPUs or slots on its hosts; None if the run is not in such a queue."""
    if awaited_places(run) is None:
        return None
    from orchestrator.backends.places.waiting import Waiting

    return Waiting.recorded(backend_for(run.record().kind).pool, run)


def start_by_this_program(run: RunDir) -> None:
    """Start a queued run from a process that exists only for this start.

    The process first restores the environment of the run's submission.
    """
    from orchestrator.supervisor.surroundings import restore

    # the start itself reports a damaged file
    with contextlib.suppress(StoreError, AttributeError, KeyError, TypeError, ValueError):
        held = run.read(VALUES_FOR_START) or {}
        if _installs_with_secrets(run, held):
            os.environ.update(held["secrets"])
        if lost := restore(held):
            run.append_event(NotRestored(lost))
    start_here(run)


def start_here(run: RunDir, *, is_last_try: bool = True) -> bool:
    """Start a queued run from this process, unless another process has started it or removed it from the queue.

    A refused start ends the run. If a machine was unreachable before anything was started, an old connection may have
    failed. In this case, return False so that the caller tries again, unless `is_last_try` is True. Raises BackendError
    if it is unknown whether an interrupted start has started all agents, and StoreError if other users may write into
    the run's folder.
    """
    check_own(run.root, run)
    with being_started(run):
        if not is_queued(run) or run.is_cancelled:
            return True
        try:
            _give_values(run)
            plan, held = recorded_start(run)
            start([run], [plan], held["secrets"], held["credentials"])
        except OrchError as error:
            if error.transient and (run.has_begun or (run.path / AWAITED_PLACES).exists()):
                raise  # the supervisor tries again
            if error.transient and not is_last_try:
                return False
            if isinstance(error, BackendError) and claims.is_away(run):  # the machine of the submit may be able to
                claims.report(run, error.message)
                return True
            run.append_event(SubmitFailed(error.message))
            (run.path / VALUES_FOR_START).unlink()
    return True


def _give_values(run: RunDir) -> None:
    """If the run is a trial of a search, let the search choose its values. All other runs have their values already."""
    point = run.record().point
    if point is not None and point.is_trial:
        from orchestrator.supervisor import searching

        searching.give_values(run.root, run)


def recorded_start(run: RunDir) -> tuple[LaunchPlan, Record]:
    """Return the plan of a queued run and the content of its `held.json`, with the credentials of the start.

    The first call adds the credentials to the file. Later calls return the same credentials, because an interrupted
    start may already have sent them to machines. Raises StoreError if the plan or the file can't be read.
    """
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.transport.credentials import credentials_for

    try:
        held, plan = run.read(VALUES_FOR_START), LaunchPlan.from_json(dict(run.plan().document))
        if held is None:
            raise StoreError(f"run {run.run_id} can't be started: its file {VALUES_FOR_START} is missing")
        if "credentials" not in held:
            held = {**held, "credentials": credentials_for(plan.nnodes)}
            # The file was a link to the file that all points of a sweep share, and is now the run's own.
            run.write(VALUES_FOR_START, held, private=True)
        return plan, {**held, "secrets": dict(held["secrets"])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"the record of run {run.run_id} is damaged, so it can't be started: {error}") from error
