"""The files of a job, written on the machine that submits it, and the submit itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.backends.batch.scheduler import Array, Order, RefusedError
from orchestrator.backends.batch.site import array_of
from orchestrator.backends.remote.hosts import all_of, on_all
from orchestrator.errors import BackendError
from orchestrator.protocol.ranks import RANK_VARIABLES
from orchestrator.protocol.task import NodeTask, at_home, task_json
from orchestrator.transport.node_archive import kept_archive

if TYPE_CHECKING:
    from orchestrator.backends.batch.site import Site
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.transport.machine import Machine, Output


def plan_at(plan: LaunchPlan, home: str) -> LaunchPlan:
    """Return the plan with `~` as the machine has it."""
    return replace(
        plan,
        tasks=tuple(at_home(task, home) for task in plan.tasks),
        commands=tuple(
            tuple(home + word[1:] if word.startswith("~/") else word for word in argv) for argv in plan.commands
        ),
    )


def send_own_files(machine: Machine, run: RunDir, task: NodeTask) -> None:
    """Send a login node the run's code and the checkpoint that it continues from."""
    from orchestrator.backends.remote.given import checkpoint_to_give, give
    from orchestrator.backends.remote.upload import send_code

    send_code(machine, run, str(PurePosixPath(task.run_dir).parents[1]), task.code_dir)
    if (given := checkpoint_to_give(run, task)) is not None:
        give(machine, run, given)


def lay_run(machine: Machine, run: RunDir, tasks: Sequence[NodeTask]) -> None:
    """Write what the job of a run needs: the agent, and the task of each node."""
    top = tasks[0].run_dir
    machine.call("write_file", kept_archive(run.root), path=f"{top}/node.pyz")
    for task in tasks:
        machine.call("write_file", task_json(task), path=f"{top}/nodes/{task.node_rank}/task.json")


def lay_array(
    site: Site, array: Array, runs: Sequence[RunDir], tasks: Sequence[tuple[NodeTask, ...]], *, own_files: bool
) -> None:
    """Write what the tasks of an array share, and what each run has for itself. own_files: also send its code."""
    machine, archive, folder = site.machine(), f"{array.folder}/node.pyz", site.scheduler.folder
    machine.call("write_file", kept_archive(runs[0].root), path=archive)

    def one(index: int, run: RunDir) -> None:
        its = tasks[index]
        if own_files:
            send_own_files(machine, run, its[0])
        payload = json.dumps([task.to_json() for task in its]).encode()
        machine.call("prepare_array_run", payload, run_dir=its[0].run_dir, folder=folder, archive=archive)

    one(0, runs[0])  # after this the code is there, and is copied for the other runs
    _, failed = on_all(one, dict(list(enumerate(runs))[1:]))
    if failed:
        raise all_of(failed)


def queued(site: Site, plan: LaunchPlan, array: Array | None = None) -> str | None:
    """Queue the job, and return its number; None if the answer was lost and the job can be found only later.

    Raises BackendError if the scheduler refuses the job.
    """
    machine, order = site.machine(), Order(plan, array)
    hidden = (*RANK_VARIABLES, *plan.secret_names)

    def put(path: str, data: bytes) -> None:
        machine.call("write_file", data, path=path)

    is_handed_over = False

    def call(argv: Sequence[str]) -> Output:
        nonlocal is_handed_over
        is_handed_over = True
        return site.run_submit(argv, hidden)

    try:
        return site.scheduler.submit(order, put, call)
    except BackendError as error:
        if not is_handed_over:
            raise
        is_refused = isinstance(error, RefusedError)
        is_lost = site.scheduler.is_unanswered(error.message) if is_refused else error.transient
        snapshot = site.queue(fresh=True)
        found = site.find(None, order.name, "0" if array else "")
        # A scheduler may keep a job that it has refused in its records as a failed job.
        if found is not None and (is_lost or found.phase != "ended"):
            return array_of(found.job_id)
        if snapshot.jobs is None and is_lost:
            return None
        raise (site.scheduler.refusal(error.message, plan, site) if is_refused else error) from error
