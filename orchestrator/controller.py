"""The verbs, joined up: submit, status, cancel, wait, remove. Nothing here prints or exits."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import holding, notify
from orchestrator.backends import backend, kind_of
from orchestrator.backends.base import Backend, NodeProof, Scheduler
from orchestrator.conclude import conclude, state_of
from orchestrator.errors import (
    EXIT_CANCELLED,
    EXIT_NOT_FINISHED,
    EXIT_RUN_FAILED,
    EXIT_SUCCEEDED,
    OrchError,
    StoreError,
    UsageError,
)
from orchestrator.node.processes import identify
from orchestrator.preparing import Prepared, plan_for
from orchestrator.records import RunState
from orchestrator.store import (
    RunDir,
    create_run,
    new_run_id,
    read_lines,
    remove_run,
)
from orchestrator.supervisor import start_supervisor
from orchestrator.sweeps import runs_named

if TYPE_CHECKING:  # what only looks at runs must not wait for pydantic
    from orchestrator.logs import Selection
    from orchestrator.plan import LaunchPlan

RECORD_VERSION = 1
POLL_SECONDS = 0.1  # files on a network file system send no events, so followers look
CANCEL_MARGIN = 10.0
METRICS_BYTES = 32 << 20  # a larger file is not read through for the seconds that saving took


def submit(root: Path, prepared: Prepared) -> RunDir:
    """Start a run and return when its agents are on their way; what follows needs neither this process nor a terminal.

    The run is recorded before anything is started. When starting fails it is recorded as failed, and swept.
    """
    loaded = prepared.loaded
    machine = backend(kind_of(dict(prepared.profile)))
    run_id = new_run_id(loaded.job.name)
    launch = plan_for(root, prepared, run_id)
    queued = as_queued(root, machine, launch, prepared.after)
    run = record_run(root, prepared, launch)
    try:
        _snapshot(prepared, run)
    except OrchError:
        remove_run(root, run)  # nothing was started: it leaves no trace
        raise
    if queued is None:
        hold(root, run, prepared)
        return run
    launch = queued
    token = os.urandom(32).hex()
    tasks = tuple(replace(task, token=token, secrets=prepared.environment.secrets) for task in launch.tasks)
    try:
        machine.submit(launch, tasks, run)
    except OrchError as error:
        run.append_event("submit_failed", reason=error.message)
        conclude(root, run)
        _have_it_told(root)
        raise
    run.append_event("submitted")
    start_supervisor(root, without=prepared.environment.secrets)
    return run


def record_run(
    root: Path, prepared: Prepared, launch: LaunchPlan, own: dict[str, Any] | None = None, *, indexed: bool = True
) -> RunDir:
    """Make the run known, with its plan; `own` is added to its record. One that can't be leaves no trace."""
    folder = shared_folder(backend(kind_of(launch.profile)), launch)
    run = create_run(root, launch.run_id, {**_record(prepared, launch), **(own or {})}, folder, indexed=indexed)
    try:
        notify.arm(root, run, launch.job, prepared.hidden)
        run.write("plan.json", launch.to_json())
    except OrchError:
        remove_run(root, run)
        raise
    return run


def hold(root: Path, run: RunDir, prepared: Prepared) -> None:
    """Leave the start of a recorded run to the supervisor, until what it waits for has come."""
    run.append_event("held")
    run.write(holding.HELD, holding.keep(os.environ, prepared.environment.secrets), private=True)
    start_supervisor(root, without=prepared.environment.secrets)


def as_queued(root: Path, machine: Backend, launch: LaunchPlan, after: dict[str, str] | None) -> LaunchPlan | None:
    """The plan as it is handed over now, where it may be: its scheduler can wait itself for runs of its own.

    None where orch has to wait.
    """
    if after is None:
        return launch
    before = [run for run in runs_named(root, after["run"]) if not (run.path / "verdict.json").exists()]
    if not before or not isinstance(machine, Scheduler) or not all(_is_there(run, launch.profile) for run in before):
        return None
    waits = machine.waiting_for(before, succeeds=after["if"] == "ok")
    if waits is None:
        return None
    own = launch.profile["sbatch"].get("dependency")
    sbatch = {**launch.profile["sbatch"], "dependency": f"{own},{waits}" if own else waits}
    return replace(launch, profile={**launch.profile, "sbatch": sbatch})


def _is_there(run: RunDir, profile: Mapping[str, Any]) -> bool:
    """Has the run been handed to the same scheduler as this profile's runs?"""
    record = run.read("run.json") or {}
    login = (record.get("profile") or {}).get("login")
    return record.get("kind") == kind_of(profile) and login == profile.get("login") and not holding.is_held(run)


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
    machine = backend((run.read("run.json") or {}).get("kind", "local"))
    opinion = machine.opinion(run) if isinstance(machine, Scheduler) else None
    return f"note: {opinion.detail}; it may never start" if opinion is not None and opinion.is_stuck else ""


def shared_folder(machine: Backend, launch: LaunchPlan) -> str | None:
    """Where the run directory itself has to lie, because a job's nodes write to it."""
    return launch.tasks[0].run_dir if isinstance(machine, Scheduler) and not machine.collects else None


def _record(prepared: Prepared, launch: LaunchPlan) -> dict[str, Any]:
    from orchestrator import __version__  # noqa: PLC0415 (next to its only use)

    me = identify(os.getpid())
    return {
        "version": RECORD_VERSION,
        "orch": __version__,
        "run_id": launch.run_id,
        "name": launch.name,
        "kind": kind_of(launch.profile),
        "profile_name": prepared.profile.name + (" (rehearsal)" if prepared.rehearsed else ""),
        "created": time.time(),
        "submitter": {"pid": os.getpid(), "started": me.started if me else 0, "host": os.uname().nodename},
        "nnodes": launch.nnodes,
        "hosts": [task.host for task in launch.tasks],
        "world_size": launch.world_size,
        "grace": launch.tasks[0].grace,
        "job": launch.job,
        "profile": launch.profile,
        "job_file": str(prepared.loaded.job_path),
        "profile_file": str(prepared.loaded.profile_path),
        "code_dir": str(prepared.loaded.code_dir),
        "given": list(prepared.given),
        "waits": prepared.waits,
        "after": prepared.after,
        "repeats": prepared.repeats.run_id if prepared.repeats else None,
        "python": sys.version.split()[0],
    }


def _snapshot(prepared: Prepared, run: RunDir) -> None:
    facts = copy_code(prepared, run)
    run.write("code.json", {"files": facts.pop("listing")})
    run.append_event("snapshot", **facts)


def copy_code(prepared: Prepared, run: RunDir) -> dict[str, Any]:
    """Copy the code: the folder as it is now, or, for a repeated run, what that run was sent; the copy's facts."""
    if prepared.repeats is not None:
        from orchestrator import repeat  # noqa: PLC0415 (loads pydantic)

        return repeat.copy_code(prepared.repeats, run)
    from orchestrator.snapshot import take  # noqa: PLC0415 (only a submit needs it)

    code = prepared.loaded.job.code
    return asdict(take(prepared.loaded.code_dir, run.path / "code", code.ignore, code.max_size))


# -- looking


def record_of(run: RunDir) -> dict[str, Any]:
    """What the run was and what it cost so far."""
    from orchestrator.runrecord import run_record  # noqa: PLC0415 (a table of runs does without)

    metrics = run.path / "metrics.jsonl"
    lines = read_lines(metrics) if metrics.exists() and metrics.stat().st_size <= METRICS_BYTES else ()
    return run_record(run.read("run.json") or {}, run.events(), run.read("plan.json"), lines, time.time())


def bringing_logs(run: RunDir, selection: Selection) -> contextlib.AbstractContextManager[None]:
    """While it lasts, the chosen logs grow here as they do on their nodes; rank 0's do so anyway."""
    if (run.path / "verdict.json").exists() or (selection.rank in (None, 0) and not selection.takes_several):
        return contextlib.nullcontext()
    kind = (run.read("run.json") or {}).get("kind", "local")
    return backend(kind).bringing_logs(run, None if selection.takes_several else [selection.rank or 0])


def state_or_why_not(run: RunDir) -> RunState:
    """One run that can't be read must not hide the others."""
    try:
        return state_of(run)
    except StoreError as error:
        return RunState(run.run_id, "?", "?", 0.0, "unreadable", detail=error.message)


def wait(run: RunDir, on_look: Callable[[RunState], None] | None = None, timeout: float | None = None) -> RunState:
    """The state of the run once it has ended, or after `timeout` seconds; `on_look` sees every state on the way."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        state = state_of(run)
        if on_look is not None:
            on_look(state)
        if state.is_final or (end is not None and time.monotonic() >= end):
            return state
        time.sleep(POLL_SECONDS)


def exit_code(state: RunState) -> int:
    """The exit code of `wait` and `submit --follow` for a run in this state."""
    return {"succeeded": EXIT_SUCCEEDED, "failed": EXIT_RUN_FAILED, "cancelled": EXIT_CANCELLED}.get(
        state.state, EXIT_NOT_FINISHED
    )


# -- ending


def cancel(root: Path, run: RunDir, *, now: bool) -> tuple[RunState, list[NodeProof]]:
    """Stop a run: at the next step boundary with a checkpoint, or at once; then prove for each node that it is gone.

    The cancel is recorded before any signal, so that a request to be started again is not obeyed after it. A run
    that had ended before is left as it was.
    """
    state = state_of(run)
    if state.is_final:
        return state, []
    record = {"kind": "local", **(run.read("run.json") or {})}
    run.write("cancel.json", {"now": now, "time": time.time()})
    run.append_event("cancel", now=now)
    machine = backend(record["kind"])
    if not holding.drop(run, holding.CANCELLED):
        machine.cancel(run)
        wait(run, timeout=(0.0 if now else float(record.get("grace", 30.0))) + CANCEL_MARGIN)
    proofs = machine.sweep(run)
    conclude(root, run)
    _have_it_told(root)
    return state_of(run), proofs


def _have_it_told(root: Path) -> None:
    """A run has its verdict from here: the supervisor, who sends the notifications, may have died."""
    if notify.watched(root):
        start_supervisor(root)


def remove(root: Path, run: RunDir) -> None:
    """Delete a run that has ended, or that can't be read; UsageError for one that is still going on."""
    try:
        state = state_of(run)
    except StoreError:
        with contextlib.suppress(StoreError):
            backend("local").sweep(run)  # all that can be done: it is not known where it ran
        remove_run(root, run)
        return
    if not state.is_final:
        raise UsageError(f"run {run.run_id} is {state.state}", f"cancel it first: orch cancel {run.run_id}")
    conclude(root, run)
    remove_run(root, run)
