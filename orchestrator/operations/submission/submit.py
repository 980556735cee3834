"""orch submit: starts a run or queues it for the supervisor, and provides notes about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import backend, kind_of
from orchestrator.backends.base import Backend
from orchestrator.errors import OrchError, PlacesTakenError, StoreError
from orchestrator.prepare.prepare import Prepared, plan_for
from orchestrator.prepare.record import record_run, snapshot_code
from orchestrator.protocol.events import CleanedUp, Queued, SubmitFailed, SubmitInterrupted, Submitted, of
from orchestrator.runs import dependencies
from orchestrator.runs.notifications.ledger import forget
from orchestrator.runs.record import Dependency
from orchestrator.runs.run_id import new_run_id
from orchestrator.runs.store import RunDir, make_state_folder, remove_run
from orchestrator.runs.sweeps import runs_named
from orchestrator.supervisor.start import is_attended, start_supervisor
from orchestrator.transport.credentials import credentials_for, entrusted

if TYPE_CHECKING:  # commands that only read runs must not load pydantic
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.supervisor.handover import Handover


def submit(root: Path, prepared: Prepared, on_awaited: Callable[[list[str]], None] = lambda _: None) -> RunDir:
    """Start a run and return when its agents are being started. The run then needs neither this process nor a terminal.

    The run is recorded before anything is started. A refused submit that left nothing behind is not recorded. If the
    supervisor starts the run, `on_awaited` is called each second with the machines that have not answered yet.
    """
    machine = backend(kind_of(dict(prepared.profile)))
    with (
        ended_if_interrupted(root, prepared.environment.secrets) as begun,
        _supervisor_to_start_it(root, machine, prepared) as supervisor,
    ):
        launch = machine.completed(plan_for(root, prepared, new_run_id(prepared.loaded.job.name)))
        queued = as_queued(root, machine, launch, prepared.after)
        run = record_run(root, prepared, launch)
        begun.append(run)
        _start(root, machine, prepared, run, queued, supervisor, on_awaited)
        return run


def _start(
    root: Path,
    machine: Backend,
    prepared: Prepared,
    run: RunDir,
    queued: LaunchPlan | None,
    supervisor: Handover | None,
    on_awaited: Callable[[list[str]], None],
) -> None:
    """Start a recorded run, or queue it for the supervisor. A refused run is removed."""
    try:
        snapshot_code(prepared, run)
    except OrchError:
        remove_run(root, run)  # nothing was started, so no trace is left
        raise
    if queued is None:
        enqueue(root, run, prepared)
        return
    secrets = prepared.environment.secrets
    try:
        if supervisor is not None:
            supervisor.start(run, queued, secrets, on_awaited)
        else:
            machine.submit(queued, entrusted(queued.tasks, credentials_for(queued.nnodes), secrets), run)
    except PlacesTakenError:
        enqueue(root, run, prepared)
        return
    except OrchError as error:
        withdraw(root, run, error)
        raise
    run.append_event(Submitted())
    if supervisor is None:
        start_supervisor(root, without=secrets)


@contextmanager
def ended_if_interrupted(root: Path, secrets: Iterable[str]) -> Iterator[list[RunDir]]:
    """End the runs in the yielded list if the submit is interrupted before all their agents were started.

    This is needed in a notebook, whose process stays alive and would count as still submitting.
    """
    begun = list[RunDir]()
    try:
        yield begun
    except OrchError:
        raise  # the code that raised the error has ended the runs
    except BaseException:
        from orchestrator.supervisor import queue

        for run in reversed(begun):  # queued runs are dropped before waiting for a start in progress
            # The run is being refused and removed at this moment, or the disk has no room for the event.
            with suppress(OrchError, FileNotFoundError):
                if not queue.drop(run, "its submit was interrupted"):
                    run.append_event(SubmitInterrupted())
        if begun:
            start_supervisor(root, without=secrets)
        raise


def _supervisor_to_start_it(
    root: Path, machine: Backend, prepared: Prepared
) -> AbstractContextManager[Handover | None]:
    """Start the supervisor now if it is to start the run. This is so if none runs and the run needs its connections."""
    if machine.pool is None or prepared.after is not None:
        return nullcontext()
    if prepared.loaded.job.environment is not None and prepared.environment.secrets:
        return nullcontext()  # a package index may need one of the secrets, which the supervisor must not have
    make_state_folder(root)
    if is_attended(root):
        return nullcontext()
    from orchestrator.supervisor.handover import Handover

    return Handover(root, kind_of(dict(prepared.profile)), without=prepared.environment.secrets)


def withdraw(root: Path, run: RunDir, error: OrchError) -> None:
    """End what was started of a refused run, and remove the run. If something is left of it, it is kept as failed."""
    from orchestrator.operations.runs import have_it_told
    from orchestrator.supervisor.reconcile import reconcile

    run.append_event(SubmitFailed(error.message))
    verdict = reconcile(root, run)
    swept = [event for event in of(run.events(), CleanedUp) if event.node is None]
    if verdict is None or any(event.survivors or event.away for event in swept):
        have_it_told(root)
        return
    forget(root, run)  # the error was reported to the submitter
    remove_run(root, run)


def enqueue(root: Path, run: RunDir, prepared: Prepared) -> None:
    """Queue a recorded run. The supervisor starts it when what it waits for has happened.

    Raises StoreError if that can't be written; the run is removed then.
    """
    from orchestrator.supervisor import queue

    try:
        run.append_event(Queued())
        run.write(dependencies.QUEUED, queue.keep(os.environ, prepared.environment.secrets), private=True)
    except StoreError:
        remove_run(root, run)
        raise
    start_supervisor(root, without=prepared.environment.secrets)


def as_queued(root: Path, machine: Backend, launch: LaunchPlan, after: Dependency | None) -> LaunchPlan | None:
    """Return the plan to hand over now: there is nothing to wait for, or the scheduler itself can wait for its jobs.

    None if orch has to wait.
    """
    if after is None:
        return launch
    before = [run for run in runs_named(root, after.run) if not (run.path / "verdict.json").exists()]
    if not before or not all(_is_there(run, launch.profile) for run in before):
        return None
    waits = machine.waiting_for(before, succeeds=after.succeeds)
    if waits is None:
        return None
    own = launch.profile["sbatch"].get("dependency")
    sbatch = {**launch.profile["sbatch"], "dependency": f"{own},{waits}" if own else waits}
    return replace(launch, profile={**launch.profile, "sbatch": sbatch})


def _is_there(run: RunDir, profile: Mapping[str, Any]) -> bool:
    """Tell whether the run was handed to the same scheduler as this profile's runs."""
    record = run.record()
    is_same = record.kind == kind_of(profile) and record.login == profile.get("login")
    return is_same and not dependencies.is_queued(run)


def job_of(run: RunDir) -> str | None:
    """Return the number of the scheduler's job that the run has become; None without a scheduler."""
    return backend(run.record().kind).look(run, recorded=True).job


def wait_for_places(run: RunDir) -> str:
    """Return what a run that was just queued waits for, if it waits for places of shared hosts; else ""."""
    kept = dependencies.queue_place(run) if dependencies.is_queued(run) else None
    return str(kept["why"]) if kept is not None else ""


def note_on_profile(run: RunDir) -> str:
    """Return a note on settings that the run's profile should have; empty if there are none."""
    said = backend(run.record().kind).unsaid(run)
    return f"note: {said}" if said else ""


def note_on_queue(run: RunDir) -> str:
    """Return a note if the run may stay in the scheduler's queue forever; empty if nothing suggests it."""
    machine = backend(run.record().kind)
    if (status := machine.look(run).scheduler) is None or not status.is_stuck:
        return ""
    excess = machine.excess(run)
    return f"note: {status.detail}; it may never start{f': {excess}' if excess else ''}"
