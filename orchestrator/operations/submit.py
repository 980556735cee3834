"""orch submit: start a run, or leave its start to the supervisor; and what to say of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestrator.backends import backend, kind_of
from orchestrator.backends.base import Backend, Scheduler
from orchestrator.errors import (
    OrchError,
)
from orchestrator.operations.runs import _have_it_told
from orchestrator.prepare.prepare import Prepared, plan_for
from orchestrator.prepare.record import record_run, snapshot_code
from orchestrator.protocol.events import EventKind
from orchestrator.runs import dependencies
from orchestrator.runs.record import Dependency
from orchestrator.runs.run_id import new_run_id
from orchestrator.runs.store import RunDir, remove_run
from orchestrator.runs.sweeps import runs_named
from orchestrator.supervisor import queue
from orchestrator.supervisor.reconcile import reconcile
from orchestrator.supervisor.supervisor import start_supervisor
from orchestrator.transport.credentials import credentials_for, entrusted

if TYPE_CHECKING:  # what only looks at runs must not wait for pydantic
    from orchestrator.specs.plan import LaunchPlan


def submit(root: Path, prepared: Prepared) -> RunDir:
    """Start a run and return when its agents are on their way; what follows needs neither this process nor a terminal.

    The run is recorded before anything is started. When starting fails it is recorded as failed, and cleaned up.
    """
    loaded = prepared.loaded
    machine = backend(kind_of(dict(prepared.profile)))
    run_id = new_run_id(loaded.job.name)
    launch = plan_for(root, prepared, run_id)
    queued = as_queued(root, machine, launch, prepared.after)
    run = record_run(root, prepared, launch)
    try:
        snapshot_code(prepared, run)
    except OrchError:
        remove_run(root, run)  # nothing was started: it leaves no trace
        raise
    if queued is None:
        enqueue(root, run, prepared)
        return run
    launch = queued
    tasks = entrusted(launch.tasks, credentials_for(launch.nnodes), prepared.environment.secrets)
    try:
        machine.submit(launch, tasks, run)
    except OrchError as error:
        run.append_event(EventKind.SUBMIT_FAILED, reason=error.message)
        reconcile(root, run)
        _have_it_told(root)
        raise
    run.append_event(EventKind.SUBMITTED)
    start_supervisor(root, without=prepared.environment.secrets)
    return run


def enqueue(root: Path, run: RunDir, prepared: Prepared) -> None:
    """Leave the start of a recorded run to the supervisor, until what it waits for has come."""
    run.append_event(EventKind.QUEUED)
    run.write(dependencies.QUEUED, queue.keep(os.environ, prepared.environment.secrets), private=True)
    start_supervisor(root, without=prepared.environment.secrets)


def as_queued(root: Path, machine: Backend, launch: LaunchPlan, after: Dependency | None) -> LaunchPlan | None:
    """The plan as it is handed over now, where it may be: its scheduler can wait itself for runs of its own.

    None where orch has to wait.
    """
    if after is None:
        return launch
    before = [run for run in runs_named(root, after.run) if not (run.path / "verdict.json").exists()]
    if not before or not isinstance(machine, Scheduler) or not all(_is_there(run, launch.profile) for run in before):
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


def notes_on_request(prepared: Prepared, profile: str) -> list[str]:
    """Return what the user may not expect of a request, a line each; `profile` is what it was asked for by."""
    from orchestrator.runs.redaction import looks_secret  # noqa: PLC0415 (a table of runs does without)
    from orchestrator.specs.loader import shadowed_profile  # noqa: PLC0415 (loads pydantic)

    notes = []
    if (own := shadowed_profile(profile, Path.cwd())) is not None:
        notes.append(f"note: {prepared.loaded.profile_path} is taken, and not your own profile of that name ({own})")
    if passed := [name for name in prepared.environment.passed if looks_secret(name)]:
        names = ", ".join(passed)
        notes.append(
            f"note: pass_env takes {names} along, into the run's plan as well; as secrets: they are kept nowhere"
        )
    addresses = [each.webhook or prepared.hidden.get(each.webhook_env or "", "") for each in prepared.loaded.job.notify]
    for host in dict.fromkeys(urlsplit(each).hostname for each in addresses if each.startswith("http://")):
        if host not in ("localhost", "127.0.0.1", "::1"):
            notes.append(
                f"note: notify tells {host} by http: who is on the way reads it, and the address; write https://"
            )
    return notes


def note_on_supervisor(prepared: Prepared) -> str:
    """What waits while this machine is off, in one line; empty where nothing does."""
    if getattr(prepared.profile, "login", None):
        return "note: this machine may go off, and the run goes on; its logs and checkpoints come when it is back"
    if prepared.profile.kind != "ssh":
        return ""
    what = "replacing a lost node by a spare" if prepared.profile.spares else "another start after the loss of a node"
    return f"note: this machine may go off, and the run goes on; only {what} waits for it"


def note_on_queue(run: RunDir) -> str:
    """What may keep a run in its queue for ever, in one line; empty where nothing is known to."""
    machine = backend(run.record().kind)
    status = machine.scheduler_status(run) if isinstance(machine, Scheduler) else None
    return f"note: {status.detail}; it may never start" if status is not None and status.is_stuck else ""
