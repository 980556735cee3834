"""Runs that are recorded and wait to be started: for another run's end, or for their turn among a sweep's points.

The submit writes `held.json` last. From then on the supervisor starts the run when its time has come, by a program of
its own (`python -m orchestrator.holding RUN`) that has the submitting shell's environment. Whoever starts the run, or
takes it off the list, holds the run's lock; and a start that was cut off is seen through, not done twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends import backend, kind_of
from orchestrator.backends.base import Backend, Scheduler
from orchestrator.errors import BackendError, OrchError, StoreError
from orchestrator.records import FINAL
from orchestrator.store import Record, RunDir
from orchestrator.sweep import sweep_of
from orchestrator.sweeps import runs_named

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from orchestrator.plan import LaunchPlan
    from orchestrator.wire import NodeTask

HELD: Final = "held.json"
CANCELLED: Final = "it was cancelled before it was started"
PATIENCE: Final = 10.0  # an agent or a job that a killed starter had begun shows itself within this time


@dataclass(frozen=True)
class Wait:
    """What a held run waits for, as far as other runs go; `is_vain` when that can't come any more."""

    reason: str
    is_vain: bool = False


# -- on the list, and off it


def keep(environment: Mapping[str, str], secrets: Mapping[str, str]) -> Record:
    """What a later start needs of the submitting process; to be written with mode 0600."""
    return {"environment": dict(environment), "secrets": dict(secrets), "seed": os.urandom(32).hex()}


def is_held(run: RunDir) -> bool:
    """Does the run wait for somebody to start it?"""
    return os.path.exists(f"{run.path}/{HELD}")


def drop(run: RunDir, reason: str) -> bool:
    """Take a run off the list: it ends as cancelled for this reason. False where it has been started, or was dropped.

    Waits for a start that is under way.
    """
    if not is_held(run):
        return False
    with _locked(run):
        if not is_held(run):
            return False
        if _began(run):  # and its starter was killed
            backend(str((run.read("run.json") or {}).get("kind", "local"))).sweep(run)
        run.append_event("dropped", reason=reason)
        (run.path / HELD).unlink()
    return True


def _began(run: RunDir) -> bool:
    """Has a start begun? Under the run's lock: one that was cut off."""
    return (run.path / "handle.json").exists()


@contextlib.contextmanager
def _locked(run: RunDir) -> Iterator[None]:
    with open(run.path / "run.json", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -- whose time has come


def why_it_waits(root: Path, run: RunDir, record: Mapping[str, Any]) -> str:
    """What a run that has not begun waits for, as far as orch knows it; empty where it waits for nothing of ours."""
    if (wait := wait_of(root, record.get("after"))) is not None:
        return wait.reason
    point, sweep = record.get("sweep"), sweep_of(run.run_id)
    if not is_held(run) or sweep is None or not isinstance(point, dict):
        return "will be started at once" if is_held(run) else ""
    return f"waits for its turn: {point.get('parallel') or 1} of {sweep} at a time"


def wait_of(root: Path, after: object) -> Wait | None:
    """What a run waits for by its record's `after`; None where it waits for no other run, or no longer.

    A sweep has succeeded when all its runs have, and has failed with the first of them.
    """
    if not isinstance(after, dict):
        return None
    name, wants = str(after.get("run")), after.get("if")
    ends = {before.run_id: _end_of(before) for before in runs_named(root, name)}
    if wants == "ok" and (bad := next((each for each, end in ends.items() if end not in ("", "succeeded")), None)):
        how = {"cancelled": "was cancelled", "removed": "was removed"}.get(ends[bad], ends[bad])
        return Wait(f"{bad}, after which it was to start, {how}", is_vain=True)
    if all(ends.values()):
        return None
    return Wait(f"waits for {name if name in ends else f'all of {name}'} to {'succeed' if wants == 'ok' else 'end'}")


def _end_of(run: RunDir) -> str:
    """A run's outcome, or `removed`; empty while it has none."""
    try:
        outcome = (run.read("verdict.json") or {}).get("outcome")
    except StoreError:
        outcome = None
    if outcome in FINAL:
        return str(outcome)
    return "" if run.path.exists() else "removed"


def due(root: Path, held: Iterable[tuple[RunDir, Record]], going: Collection[str]) -> list[tuple[RunDir, Wait | None]]:
    """The held runs to act on now: to start, or, with a Wait that is vain, to drop; `going` are the live runs' ids.

    Of a sweep, as many points go at a time as it allows, in their order.
    """
    busy: dict[str | None, int] = {}
    for name in going:
        busy[sweep_of(name)] = busy.get(sweep_of(name), 0) + 1
    found: list[tuple[RunDir, Wait | None]] = []
    waits: dict[str, Wait | None] = {}  # the points of a sweep wait for the same, which is looked at once
    for run, record in sorted(held, key=lambda each: _place_in_line(each[1])):
        after = record.get("after")
        if (key := repr(after)) not in waits:
            waits[key] = wait_of(root, after)
        wait = waits[key]
        if (run.path / "cancel.json").exists():
            wait = Wait(CANCELLED, is_vain=True)
        if wait is not None and wait.is_vain:
            found.append((run, wait))
        elif wait is None:
            point, sweep = record.get("sweep"), sweep_of(run.run_id)
            if sweep is not None and isinstance(point, dict):
                if busy.get(sweep, 0) >= int(point.get("parallel") or 1):
                    continue
                busy[sweep] = busy.get(sweep, 0) + 1
            found.append((run, None))
    return found


def _place_in_line(record: Record) -> int:
    point = record.get("sweep")  # not by time: the points are recorded several at once
    return int(point.get("index", 0)) if isinstance(point, dict) else 0


# -- starting


def start(root: Path, run: RunDir) -> None:
    """Have the run started by a process of its own, in the environment of its submit; returns when that has ended."""
    import subprocess  # noqa: PLC0415 (who only looks at runs starts nothing)

    try:
        kept = (run.read(HELD) or {}).get("environment")
    except StoreError:
        kept = None  # damaged: the start itself says so
    environment = {**(kept if isinstance(kept, dict) else os.environ), "ORCH_HOME": str(root)}
    argv = [sys.executable, "-m", "orchestrator.holding", str(run.path)]
    # A session of its own: who ends the supervisor does not cut a start off.
    subprocess.run(argv, stdin=subprocess.DEVNULL, env=environment, cwd=root, start_new_session=True, check=False)


def start_here(run: RunDir) -> None:
    """Start a held run from this process; nothing is done where somebody has started or dropped it meanwhile.

    BackendError where it can't be told whether an earlier start got through; one that is refused ends the run.
    """
    with _locked(run):
        if not is_held(run) or (run.path / "cancel.json").exists():
            return
        try:
            launch, tasks = _as_recorded(run)
            machine = backend(kind_of(launch.profile))
            if not (_began(run) and _got_through(machine, run)):
                machine.submit(launch, tasks, run)
        except OrchError as error:
            if error.transient and _began(run):
                raise  # it is tried again
            run.append_event("submit_failed", reason=error.message)
        else:
            run.append_event("submitted")
        (run.path / HELD).unlink()


def _as_recorded(run: RunDir) -> tuple[LaunchPlan, tuple[NodeTask, ...]]:
    """The plan and the tasks of a held run; StoreError where they can't be read. The same at each call."""
    import hashlib  # noqa: PLC0415 (who only looks at runs starts nothing)
    import hmac  # noqa: PLC0415

    from orchestrator.plan import LaunchPlan  # noqa: PLC0415 (loads pydantic)

    try:
        held, launch = run.read(HELD) or {}, LaunchPlan.from_json(run.read("plan.json") or {})
        token = hmac.digest(bytes.fromhex(held["seed"]), run.run_id.encode(), hashlib.sha256).hex()
        return launch, tuple(replace(task, token=token, secrets=dict(held["secrets"])) for task in launch.tasks)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"what was recorded of run {run.run_id} can't be started: {error}") from error


def _got_through(machine: Backend, run: RunDir) -> bool:
    """Did the start of a starter that was killed get through? Where it did not, nothing of it is left."""
    import shutil  # noqa: PLC0415 (who only looks at runs starts nothing)

    if (run.read("handle.json") or {}).get("state") == "submitted":
        return True
    if machine.starts_again:
        return False  # its nodes know themselves whether an agent was started there
    begun, nodes = (run.path / "handle.json").stat().st_mtime, (run.read("run.json") or {}).get("nnodes", 1)
    while len(machine.alive(run)) < nodes and time.time() < begun + PATIENCE:
        time.sleep(0.2)  # nothing tells of a process that is about to be: see PATIENCE
    if isinstance(machine, Scheduler) and (opinion := machine.opinion(run)).phase == "unknown":
        raise BackendError(f"run {run.run_id}: {opinion.detail}", transient=True)
    if len(machine.alive(run)) >= nodes:
        return True
    machine.sweep(run)
    shutil.rmtree(run.path / "nodes")
    (run.path / "nodes").mkdir()
    return False


if __name__ == "__main__":
    try:
        start_here(RunDir(Path(sys.argv[1])))
    except OrchError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
