"""Runs that are recorded and wait to be started: for another run's end, their turn among a sweep's points, or places.

The submit writes `held.json` last. From then on the supervisor starts the run when its time has come: by a program of
its own (`python -m orchestrator.supervisor.queue RUN`) that has the submitting shell's environment, or itself. Whoever
starts the run, or takes it off the list, holds the run's lock; and a start that was cut off is seen through, not done
twice.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.backends import backend, kind_of
from orchestrator.backends.base import Backend
from orchestrator.errors import BackendError, OrchError, PlacesTakenError, StoreError
from orchestrator.node.system.private import hold_umask, users_umask
from orchestrator.protocol.events import Dropped, SubmitFailed, Submitted
from orchestrator.protocol.files import locked
from orchestrator.protocol.places.tickets import RENEW_SECONDS
from orchestrator.runs.dependencies import CANCELLED, QUEUE, QUEUED, Wait, is_queued, wait_of
from orchestrator.runs.record import Dependency, RunRecord
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import Record, RunDir, check_own, remove_run

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    import threading

    from orchestrator.protocol.task import NodeTask
    from orchestrator.specs.plan import LaunchPlan
PATIENCE: Final = 10.0  # an agent or a job that a killed starter had begun shows itself within this time


# -- on the list, and off it


def keep(environment: Mapping[str, str], secrets: Mapping[str, str]) -> Record:
    """Return what a later start needs of the submitting process; to be written with mode 0600."""
    return {"environment": dict(environment), "secrets": dict(secrets)}


def drop(run: RunDir, reason: str) -> bool:
    """Take a run off the list: it ends as cancelled for this reason. False where it has been started, or was dropped.

    Waits for a start that is under way.
    """
    if not is_queued(run):
        return False
    with _locked(run):
        if not is_queued(run):
            return False
        if _began(run):  # and its starter was killed
            backend(run.record().kind).clean_up(run)
        run.append_event(Dropped(reason))
        (run.path / QUEUED).unlink()
    return True


def take_back(root: Path, run: RunDir) -> None:
    """Remove a run whose sweep could not be put on the list whole, unless its start has begun.

    Waits for a start that is under way.
    """
    with contextlib.suppress(FileNotFoundError), _locked(run):
        if not _began(run):
            remove_run(root, run)


def _began(run: RunDir) -> bool:
    """Has a start begun? Under the run's lock: one that was cut off."""
    return (run.path / "handle.json").exists()


def _waits_for_places(run: RunDir) -> bool:
    return (run.path / QUEUE).exists()


def _locked(run: RunDir) -> contextlib.AbstractContextManager[None]:
    """Let one process at a time start or drop the run; FileNotFoundError for one that was removed."""
    return locked(run.path / "run.json", create=False)


def runnable(
    root: Path, queued: Iterable[tuple[RunDir, RunRecord]], going: Collection[str]
) -> list[tuple[RunDir, Wait | None]]:
    """Return the queued runs to start now, and those to drop because their Wait can never be satisfied.

    `going` has the ids of the live runs. The points of a sweep start in their order, as many at a time as it allows.
    """
    busy: dict[str | None, int] = {}
    for name in going:
        busy[sweep_of(name)] = busy.get(sweep_of(name), 0) + 1
    found: list[tuple[RunDir, Wait | None]] = []
    waits: dict[Dependency | None, Wait | None] = {}  # the points of a sweep wait for the same, which is looked at once
    for run, record in sorted(queued, key=lambda each: _place_in_line(each[1])):
        if record.after not in waits:
            waits[record.after] = wait_of(root, record.after)
        wait = waits[record.after]
        if (run.path / "cancel.json").exists():
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
    return record.point.index if record.point is not None else 0  # not by time: points are recorded several at once


# -- starting


def may_start(run: RunDir) -> bool:
    """Tell whether a queued run has its turn on hosts that it shares with other users, and keep its place there.

    It has not while a host is out of reach. A start that was cut off goes on, or gives back what it holds.
    """
    machine = backend(run.record().kind)
    with _locked(run):  # who drops it takes it out of that queue afterwards
        turn = machine.turn(run)
        if not is_queued(run) or turn is None or _began(run):
            return is_queued(run)
        try:
            return turn.join()
        except BackendError:
            return False


def start(root: Path, run: RunDir) -> None:
    """Have the run started as from its submit's shell, and keep its place meanwhile; returns when that is done.

    By a program of its own, but for a run whose machines are connected to by this process, where that has the same
    environment: they need not be dialled anew for each point of a sweep.
    """
    import threading

    try:
        queued = run.read(QUEUED) or {}
    except StoreError:
        queued = {}  # damaged: the start itself says so
    environment = queued.get("environment")
    environment = dict(environment) if isinstance(environment, dict) else dict(os.environ)
    is_over = threading.Event()
    renewer = threading.Thread(target=_keep_place, args=(run, is_over), daemon=True)
    renewer.start()
    try:
        if not (_can_start_here(run, environment, queued.get("secrets")) and start_here(run, is_last_try=False)):
            _start_by_program(run, {**environment, "ORCH_HOME": str(root)})
    finally:
        is_over.set()
        renewer.join()


def _can_start_here(run: RunDir, environment: Mapping[str, str], secrets: object) -> bool:
    """Has this process, which has none of the submit's secrets, whatever else the start needs of that environment?"""
    if backend(run.record().kind).pool is None:
        return False
    if secrets and _has_packages(run):
        return False  # an index of them may ask for a secret
    hidden = {"ORCH_HOME", *(secrets if isinstance(secrets, dict) else ())}
    ours, theirs = ({name: each[name] for name in each if name not in hidden} for each in (os.environ, environment))
    return ours == theirs


def _has_packages(run: RunDir) -> bool:
    """Has the job an environment of its own? One whose plan is damaged counts as such: its start says so."""
    try:
        job = run.plan().document.get("job")
    except StoreError:
        return True
    return not isinstance(job, Mapping) or job.get("environment") is not None


def _start_by_program(run: RunDir, environment: Mapping[str, str]) -> None:
    import subprocess

    # A session of its own: who ends the supervisor does not cut a start off.
    subprocess.run(
        [sys.executable, "-P", "-m", "orchestrator.supervisor.queue", str(run.path)],
        stdin=subprocess.DEVNULL, env=environment, cwd="/", start_new_session=True, umask=users_umask(), check=False,
    )  # fmt: skip


def _keep_place(run: RunDir, is_over: threading.Event) -> None:
    machine = backend(run.record().kind)
    while (turn := machine.turn(run)) is not None and not is_over.wait(RENEW_SECONDS):
        with contextlib.suppress(BackendError):
            turn.renew()


def start_here(run: RunDir, *, is_last_try: bool = True) -> bool:
    """Start a queued run from this process; nothing is done where somebody has started or dropped it meanwhile.

    Returns False where a machine was out of reach before anything was begun, and this is not the last try: a connection
    that stood may have died. One that is refused ends the run. BackendError where it can't be told whether an earlier
    start got through. StoreError where others may write into its folder.
    """
    check_own(run.path.parent.parent, run)
    with _locked(run):
        if not is_queued(run) or (run.path / "cancel.json").exists():
            return True
        try:
            _give_values(run)
            launch, tasks = recorded_start(run)
            machine = backend(kind_of(launch.profile))
            if not (_began(run) and _got_through(machine, run)):
                machine.submit(launch, tasks, run)
        except PlacesTakenError:
            return True  # it is in the queue for them
        except OrchError as error:
            if error.transient and (_began(run) or _waits_for_places(run)):
                raise  # it is tried again
            if error.transient and not is_last_try:
                return False
            run.append_event(SubmitFailed(error.message))
        else:
            run.append_event(Submitted())
        (run.path / QUEUED).unlink()
    return True


def _give_values(run: RunDir) -> None:
    """Let the trial of a search ask for its values; all other runs have theirs."""
    point = run.record().point
    if point is not None and point.is_trial:
        from orchestrator.supervisor import searching

        searching.give_values(run.root, run)


def recorded_start(run: RunDir) -> tuple[LaunchPlan, tuple[NodeTask, ...]]:
    """Return the plan and the tasks of a queued run; StoreError where they can't be read. The same at each call.

    So the run's credentials are kept with what else its start needs: an earlier starter may have sent them already.
    """
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.transport.credentials import credentials_for, entrusted

    try:
        queued, launch = run.read(QUEUED), LaunchPlan.from_json(dict(run.plan().document))
        if queued is None:
            raise StoreError(f"run {run.run_id} can't be started: its {QUEUED} is gone")
        if "credentials" not in queued:
            queued = {**queued, "credentials": credentials_for(launch.nnodes)}
            run.write(QUEUED, queued, private=True)  # a file of its own from now on: a sweep's points share theirs
        return launch, entrusted(launch.tasks, queued["credentials"], queued["secrets"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"what was recorded of run {run.run_id} can't be started: {error}") from error


def _got_through(machine: Backend, run: RunDir) -> bool:
    """Did the start of a starter that was killed get through? Where it did not, nothing of it is left."""
    import shutil

    if run.handle_status() is HandleStatus.SUBMITTED:
        return True
    if machine.relaunches:
        return False  # its nodes know themselves whether an agent was started there
    begun, nodes = (run.path / "handle.json").stat().st_mtime, max(1, run.record().nnodes)
    while len((sight := machine.look(run)).alive) < nodes and time.time() < begun + PATIENCE:
        time.sleep(0.2)  # nothing tells of a process that is about to be: see PATIENCE
    if sight.scheduler is not None and sight.scheduler.phase == "unknown":
        raise BackendError(f"run {run.run_id}: {sight.scheduler.detail}", transient=True)
    if len(sight.alive) >= nodes:
        return True
    machine.clean_up(run)
    shutil.rmtree(run.path / "nodes")
    (run.path / "nodes").mkdir()
    return False


if __name__ == "__main__":
    hold_umask()
    try:
        start_here(RunDir(Path(sys.argv[1])))
    except OrchError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
