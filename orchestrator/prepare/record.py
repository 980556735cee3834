"""Records a prepared request as a run: creates its folder, and writes its plan and the copy of its code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import backend_for, kind_of
from orchestrator.node.system.processes import identify
from orchestrator.prepare.prepare import Prepared, can_read_code_folder, files_to_send
from orchestrator.protocol.cancelling import keep_room_for_cancel
from orchestrator.protocol.code_baseline import write_baseline
from orchestrator.protocol.events import Snapshot
from orchestrator.runs import outbox
from orchestrator.runs.record import SweepPoint
from orchestrator.runs.start_lock import being_started
from orchestrator.runs.store import RunDir, create_run, remove_run
from orchestrator.specs.kinds import kind_named

if TYPE_CHECKING:  # commands that only read runs must not load pydantic
    from orchestrator.specs.plan import LaunchPlan

RECORD_VERSION = 1


@contextmanager
def recorded(root: Path, prepared: Prepared, launch: LaunchPlan) -> Iterator[tuple[RunDir, int]]:
    """Record the run, and hold its start lock during the block. Yield (the run, the lock's file descriptor).

    If the run can't be recorded, everything that was written for it is removed.
    """
    with ExitStack() as held:
        locks = list[int]()
        run = record_run(root, prepared, launch, lambda run: locks.append(held.enter_context(being_started(run))))
        yield run, locks[0]


def record_run(
    root: Path,
    prepared: Prepared,
    launch: LaunchPlan,
    hold_start: Callable[[RunDir], object],
    point: SweepPoint | None = None,
    *,
    indexed: bool = True,
) -> RunDir:
    """Record the run with its plan and, if there is one, its point of a sweep. If this fails, nothing of the run is
    left.

    `hold_start` is called with the run before other processes can see it, and takes the run's start lock.
    """
    place = {"sweep": point.to_json()} if point is not None else {}
    folder = None if backend_for(kind_of(launch.profile)).is_remote else launch.tasks[0].run_dir
    record = {**_record(prepared, launch), **place}
    run = create_run(root, launch.run_id, record, folder, indexed=indexed, hold_start=hold_start)
    try:
        if launch.job.notify or launch.job.track:
            outbox.enter(root, run, {**prepared.environment.secrets, **prepared.hidden})
        run.write("plan.json", launch.to_json())
        keep_room_for_cancel(run.path)
        _record_environment(prepared, run)
    except BaseException:  # also after an interrupt: nothing has been started, so the record can be removed
        remove_run(root, run)
        raise
    return run


def _record(prepared: Prepared, launch: LaunchPlan) -> dict[str, Any]:
    from orchestrator.version import __version__

    me = identify(os.getpid())
    return {
        "version": RECORD_VERSION,
        "orch": __version__,
        "run_id": launch.run_id,
        "name": launch.name,
        "kind": kind_of(launch.profile),
        "scheduler": kind_named(launch.profile.kind).scheduler,
        "is_remote": backend_for(kind_of(launch.profile)).is_remote,
        "profile_name": prepared.profile.name + (" (rehearsal)" if prepared.rehearsed else ""),
        "created": time.time(),
        "submitter": {"pid": os.getpid(), "started": me.started if me else 0, "host": os.uname().nodename},
        "nnodes": launch.nnodes,
        "hosts": [task.host for task in launch.tasks],
        "world_size": launch.world_size,
        "grace": launch.tasks[0].grace,
        "job": launch.job.to_json(),
        "profile": launch.profile.to_json(),
        "job_file": str(prepared.loaded.job_path),
        "profile_file": str(prepared.loaded.profile_path),
        "code_dir": str(prepared.loaded.code_dir),
        "given": list(prepared.given),
        "waits": prepared.waits,
        "after": prepared.after.to_json() if prepared.after else None,
        "repeats": prepared.repeats.run_id if prepared.repeats else None,
        "python": sys.version.split()[0],
    }


def snapshot_code(prepared: Prepared, run: RunDir) -> None:
    """Copy the code for the run, and record the list of the copied files."""
    from orchestrator.node.server.outputs import baseline

    facts, code_dir = copy_code(prepared, run), str(run.path / "code")
    write_baseline(code_dir, baseline(code_dir))  # later, files that differ from the baseline were written by ranks
    run.write("code.json", {"files": facts.pop("listing")})
    run.append_event(Snapshot(**facts))


def _record_environment(prepared: Prepared, run: RunDir) -> None:
    """If the job has a lock for its Python environment, record the lock."""
    if prepared.lock is None:
        return
    from orchestrator.environments.packages import record_lock

    record_lock(run, prepared.lock, prepared.repeats)


def copy_code(prepared: Prepared, run: RunDir) -> dict[str, Any]:
    """Copy the code folder or, for a repeated run, the code of the earlier run. Return facts about the copy, such as
    its files.
    """
    facts = _copied(prepared, run)
    ignored = facts.pop("ignored", None)  # a repeated run does not have this fact
    if can_read_code_folder(prepared):
        from orchestrator.runs.files.code_snapshot import lay_ignored

        code = prepared.loaded.job.code
        facts["linked"] = lay_ignored(prepared.loaded.code_dir, run.path / "code", code.ignore, code.max_size, ignored)
    if not facts.get("linked"):
        facts.pop("linked", None)
    if not (facts.get("left_out") or {}).get("files"):
        facts.pop("left_out", None)
    return facts


def _copied(prepared: Prepared, run: RunDir) -> dict[str, Any]:
    if prepared.repeats is not None:
        from orchestrator.prepare import repeat

        return repeat.copy_code(prepared.repeats, run)
    from orchestrator.runs.files.code_snapshot import take

    code = prepared.loaded.job.code
    named = files_to_send(prepared)
    return asdict(take(prepared.loaded.code_dir, run.path / "code", code.ignore, code.max_size, named))
