"""orch submit: start a run, or leave its start to the supervisor; and what to say of it."""

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
from orchestrator.protocol.events import EventKind
from orchestrator.runs import dependencies
from orchestrator.runs.notifications.ledger import forget
from orchestrator.runs.record import Dependency
from orchestrator.runs.run_id import new_run_id
from orchestrator.runs.store import RunDir, make_state_folder, remove_run
from orchestrator.runs.sweeps import runs_named
from orchestrator.supervisor.start import is_attended, start_supervisor
from orchestrator.transport.credentials import credentials_for, entrusted

if TYPE_CHECKING:  # what only looks at runs must not wait for pydantic
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.supervisor.handover import Handover


def submit(root: Path, prepared: Prepared, on_awaited: Callable[[list[str]], None] = lambda _: None) -> RunDir:
    """Start a run and return when its agents are on their way; what follows needs neither this process nor a terminal.

    The run is recorded before anything is started. One that is refused is none: it leaves no trace.
    `on_awaited` is told each second which machines' first answer is awaited, where the supervisor starts the run.
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
    """Start a recorded run, or leave that to the supervisor; one that is refused is removed."""
    try:
        snapshot_code(prepared, run)
    except OrchError:
        remove_run(root, run)  # nothing was started: it leaves no trace
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
    run.append_event(EventKind.SUBMITTED)
    if supervisor is None:
        start_supervisor(root, without=secrets)


@contextmanager
def ended_if_interrupted(root: Path, secrets: Iterable[str]) -> Iterator[list[RunDir]]:
    """Have runs ended whose submit is interrupted before all agents were started: those put into the yielded list.

    In a notebook its process lives on, and would count as being at it.
    """
    begun = list[RunDir]()
    try:
        yield begun
    except OrchError:
        raise  # who raised it has seen to the runs
    except BaseException:
        from orchestrator.supervisor import queue  # noqa: PLC0415 (few submits are interrupted)

        for run in reversed(begun):  # what waits is taken off the list before a start that is under way is waited for
            # It is refused and removed at this moment, or there is no room to say so.
            with suppress(OrchError, FileNotFoundError):
                if not queue.drop(run, "its submit was interrupted"):
                    run.append_event(EventKind.SUBMIT_INTERRUPTED)
        if begun:
            start_supervisor(root, without=secrets)
        raise


def _supervisor_to_start_it(
    root: Path, machine: Backend, prepared: Prepared
) -> AbstractContextManager[Handover | None]:
    """Start the supervisor now, where it is to start the run: none is at work, and it keeps the connections."""
    if machine.pool is None or prepared.after is not None:
        return nullcontext()
    if prepared.loaded.job.environment is not None and prepared.environment.secrets:
        return nullcontext()  # an index of packages may ask for one of them, and the supervisor is to have none
    make_state_folder(root)
    if is_attended(root):
        return nullcontext()
    from orchestrator.supervisor.handover import Handover  # noqa: PLC0415 (a run on this machine does without)

    return Handover(root, kind_of(dict(prepared.profile)), without=prepared.environment.secrets)


def withdraw(root: Path, run: RunDir, error: OrchError) -> None:
    """End what was started of a run that was refused, and remove it; one of which something is left stays as failed."""
    from orchestrator.operations.runs import have_it_told  # noqa: PLC0415 (what a submit that works does without)
    from orchestrator.supervisor.reconcile import reconcile  # noqa: PLC0415 (as above)

    run.append_event(EventKind.SUBMIT_FAILED, reason=error.message)
    verdict = reconcile(root, run)
    swept = [event for event in run.events() if event["kind"] == EventKind.CLEANED_UP and "node" not in event]
    if verdict is None or any(event.get("survivors") or event.get("away") for event in swept):
        have_it_told(root)
        return
    forget(root, run)  # its submitter has been told
    remove_run(root, run)


def enqueue(root: Path, run: RunDir, prepared: Prepared) -> None:
    """Leave the start of a recorded run to the supervisor, until what it waits for has come.

    StoreError where that can't be written: then it is no run.
    """
    from orchestrator.supervisor import queue  # noqa: PLC0415 (few runs have to wait)

    try:
        run.append_event(EventKind.QUEUED)
        run.write(dependencies.QUEUED, queue.keep(os.environ, prepared.environment.secrets), private=True)
    except StoreError:
        remove_run(root, run)
        raise
    start_supervisor(root, without=prepared.environment.secrets)


def as_queued(root: Path, machine: Backend, launch: LaunchPlan, after: Dependency | None) -> LaunchPlan | None:
    """The plan as it is handed over now, where it may be: its scheduler can wait itself for runs of its own.

    None where orch has to wait.
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
    """Has the run been handed to the same scheduler as this profile's runs?"""
    record = run.record()
    is_same = record.kind == kind_of(profile) and record.login == profile.get("login")
    return is_same and not dependencies.is_queued(run)


def job_of(run: RunDir) -> str | None:
    """Return the number of the scheduler's job that the run has become; None without a scheduler."""
    return backend(run.record().kind).look(run, recorded=True).job


def wait_for_places(run: RunDir) -> str:
    """What a run that has just been queued waits for, as far as that is places of shared hosts; else empty."""
    kept = dependencies.queue_place(run) if dependencies.is_queued(run) else None
    return str(kept["why"]) if kept is not None else ""


def note_on_profile(run: RunDir) -> str:
    """What the run's profile leaves open that it should say, in one line; empty where that is nothing."""
    said = backend(run.record().kind).unsaid(run)
    return f"note: {said}" if said else ""


def note_on_queue(run: RunDir) -> str:
    """What may keep a run in its queue for ever, in one line; empty where nothing is known to."""
    machine = backend(run.record().kind)
    if (status := machine.look(run).scheduler) is None or not status.is_stuck:
        return ""
    excess = machine.excess(run)
    return f"note: {status.detail}; it may never start{f': {excess}' if excess else ''}"
