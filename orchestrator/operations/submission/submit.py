"""orch submit: starts a run, or queues it for the supervisor, and writes notes about it for the user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends import backend_for, kind_of
from orchestrator.backends.base import Backend
from orchestrator.errors import OrchError
from orchestrator.prepare.prepare import Prepared, plan_for
from orchestrator.prepare.record import recorded, snapshot_code
from orchestrator.protocol.events import Cancel, CleanedUp, SubmitFailed, of
from orchestrator.runs import dependencies, outbox
from orchestrator.runs.record import Dependency
from orchestrator.runs.run_id import new_run_id
from orchestrator.runs.start_lock import may_have_left_something
from orchestrator.runs.store import RunDir, make_state_folder, remove_run
from orchestrator.runs.sweeps import runs_named
from orchestrator.supervisor.background import is_attended, start_supervisor
from orchestrator.supervisor.starting import enqueue, may_install_with_secrets, start

if TYPE_CHECKING:  # commands that only read runs must not load pydantic
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.supervisor.handover import Handover


def submit(root: Path, prepared: Prepared, on_awaited: Callable[[list[str]], None] = lambda _: None) -> RunDir:
    """Start a run and return when the start of its agents has begun. From then on, the run needs neither this process
    nor a terminal.

    The run is recorded before anything is started. If the run is refused and leaves nothing behind, the record is
    removed. If the supervisor starts the run, `on_awaited` is called each second with the machines that have not
    answered yet.
    """
    backend, secrets = backend_for(kind_of(prepared.profile)), prepared.environment.secrets
    with (
        cancelled_if_interrupted(root, secrets) as begun,
        _new_supervisor_if_needed(root, backend, prepared) as supervisor,  # connects while the plan is made
    ):
        plan = backend.advice.completed(plan_for(root, prepared, new_run_id(prepared.loaded.job.name)))
        # A scheduler can wait for another run itself. The plan to start then also has this dependency.
        plan_now = plan_to_start_now(root, backend, plan, prepared.after)
        with recorded(root, prepared, plan) as (run, lock), withdrawn_if_refused(root, [run]):
            begun.append(run)
            snapshot_code(prepared, run)
            if plan_now is None:  # the supervisor starts the run when the other run has ended
                enqueue(run, secrets)
            elif supervisor is not None:
                supervisor.start(run, plan_now, secrets, lock, on_awaited)
            else:
                start([run], [plan_now], secrets)
    if supervisor is None:
        start_supervisor(root, without=secrets)
    return run


@contextmanager
def cancelled_if_interrupted(root: Path, secrets: Iterable[str]) -> Iterator[list[RunDir]]:
    """Yield an empty list. If the block is interrupted, for example by Ctrl-C, cancel the runs that it has added to the
    list.

    If another process is starting these runs, that start can't be interrupted, but the agents then obey the recorded
    cancel request.
    """
    begun = list[RunDir]()
    try:
        yield begun
    except OrchError:
        raise  # the code that raised the error has ended the runs
    except BaseException:
        for run in begun:
            # The run is being refused and removed at this moment, or the disk has no room for the event.
            with suppress(OrchError):
                run.record_cancel(now=True)
                run.append_event(Cancel(now=True))
        if begun:
            start_supervisor(root, without=secrets)
        raise


def _new_supervisor_if_needed(
    root: Path, backend: Backend, prepared: Prepared
) -> AbstractContextManager[Handover | None]:
    """If the run needs connections to machines, which a supervisor keeps open, and no supervisor is running, start a
    supervisor that will start the run.
    """
    if backend.pool is None or prepared.after is not None:
        return nullcontext()
    if may_install_with_secrets(prepared.loaded.job.environment, prepared.environment.secrets):
        return nullcontext()
    make_state_folder(root)
    if is_attended(root):
        return nullcontext()
    from orchestrator.supervisor.handover import Handover

    return Handover(root, kind_of(prepared.profile), without=prepared.environment.secrets)


@contextmanager
def withdrawn_if_refused(root: Path, runs: Sequence[RunDir]) -> Iterator[None]:
    """If the block, which submits these runs, raises an OrchError, end the runs' processes and remove the runs.

    A run is kept as failed if some of its processes or files are left on a machine.
    """
    try:
        yield
    except OrchError as error:
        for run in runs:
            _withdraw(root, run, error)
        raise


def _withdraw(root: Path, run: RunDir, error: OrchError) -> None:
    if may_have_left_something(run):
        from orchestrator.operations.runs import deliver_news
        from orchestrator.supervisor.reconcile import reconcile

        run.append_event(SubmitFailed(error.message))
        verdict = reconcile(root, run)
        swept = [event for event in of(run.events(), CleanedUp) if event.node is None]
        if verdict is None or any(event.survivors or event.away for event in swept):
            deliver_news(root)
            return
    outbox.leave(root, run)  # the error was reported to the submitter
    remove_run(root, run)


def plan_to_start_now(root: Path, backend: Backend, launch: LaunchPlan, after: Dependency | None) -> LaunchPlan | None:
    """Return the plan to start now; None if the supervisor must wait for the end of the run in `after` first.

    A scheduler can wait for its own jobs, so the plan then contains the dependency.
    """
    if after is None:
        return launch
    before = [run for run in runs_named(root, after.run) if not (run.path / "verdict.json").exists()]
    if not before or not all(_is_there(run, launch.profile) for run in before):
        return None
    return backend.advice.waiting_for(launch, before, succeeds=after.succeeds)


def _is_there(run: RunDir, profile: AnyProfile) -> bool:
    """Return True if the run is a job of the scheduler that this profile uses."""
    record = run.record()
    is_same = record.kind == kind_of(profile) and record.login == getattr(profile, "login", None)
    return is_same and not dependencies.is_queued(run)


def job_of(run: RunDir) -> str | None:
    """Return the id of the run's job in its scheduler; None without a scheduler."""
    return backend_for(run.record().kind).look(run, recorded=True).job


def why_places_are_lacking(run: RunDir) -> str:
    """Return why a queued run waits for GPUs or slots of shared hosts; "" if it does not wait for them."""
    kept = dependencies.awaited_places(run) if dependencies.is_queued(run) else None
    return str(kept["why"]) if kept is not None else ""


def note_on_profile(run: RunDir) -> str:
    """Return a note about settings that the run's profile should have but lacks; empty if it lacks none."""
    said = backend_for(run.record().kind).advice.unsaid(run)
    return f"note: {said}" if said else ""


def note_on_scheduler(run: RunDir) -> str:
    """Return a note with the scheduler's own messages about the job that it took; empty if it printed none."""
    said = backend_for(run.record().kind).advice.said(run)
    return f"note: {said}" if said else ""


def note_on_queue(run: RunDir) -> str:
    """Return a note if the run may stay in the scheduler's queue forever; empty otherwise."""
    backend = backend_for(run.record().kind)
    if (status := backend.look(run).scheduler) is None or not status.is_stuck:
        return ""
    excess = backend.advice.excess(run)
    return f"note: {status.detail}; the run may never start{f': {excess}' if excess else ''}"
