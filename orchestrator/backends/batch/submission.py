"""Writes the files of a job on the machine that submits the job, and submits it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from orchestrator.backends.batch.scheduler import Array, Order, RefusedError
from orchestrator.backends.batch.site import array_of
from orchestrator.backends.hosts import on_each
from orchestrator.errors import BackendError, UsageError
from orchestrator.protocol.ranks import RANK_VARIABLES
from orchestrator.protocol.task import NodeTask, at_home
from orchestrator.transport.node_archive import kept_archive

if TYPE_CHECKING:
    from orchestrator.backends.batch.scheduler import Scheduler
    from orchestrator.backends.batch.site import Site
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.plan import LaunchPlan
    from orchestrator.transport.machine import Machine, Output

MOST_SAID: Final = 1000  # characters that a scheduler's command prints when it takes a job


def check_alike(scheduler: Scheduler, plans: Sequence[LaunchPlan]) -> None:
    """Raise UsageError if two of the plans request different resources from the scheduler."""
    first = scheduler.asked(plans[0])
    for plan in plans[1:]:
        if different := [name for name, value in scheduler.asked(plan).items() if value != first[name]]:
            raise UsageError(
                f"the runs of a sweep share one array of {scheduler.title}, but these runs need "
                f"different resources: {', '.join(different)}",
                "submit one sweep for each value of the resources, with --set",
            )


def array_for(runs: Sequence[RunDir], folder: str) -> Array:
    """Return the array of a sweep's runs. `folder` is orch's folder on the machine that submits the jobs."""
    point = runs[0].record().point
    assert point is not None, "only the runs of a sweep are submitted together"
    return Array(point.sweep, f"{folder}/sweeps/{point.sweep}", len(runs), point.parallel)


def plan_at(plan: LaunchPlan, home: str, python: str) -> LaunchPlan:
    """Return the plan, in which `~` is replaced by the home folder, and agents are started by this interpreter."""
    return replace(
        plan,
        tasks=tuple(at_home(task, home) for task in plan.tasks),
        commands=tuple(
            (python, *(home + word[1:] if word.startswith("~/") else word for word in argv[1:]))
            for argv in plan.commands
        ),
    )


def lay(
    site: Site, folder: str, runs: Sequence[RunDir], tasks: Sequence[tuple[NodeTask, ...]], *, own_files: bool
) -> None:
    """Write the agent's program into the job's folder, and the tasks of its nodes into each run's folder.

    own_files: also send the code to the job's folder, and the checkpoint from which a run continues.
    """
    machine, archive = site.machine(), f"{folder}/node.pyz"
    machine.call("write_file", kept_archive(runs[0].root), path=archive)
    if own_files:  # each run of an array copies the code when it starts
        from orchestrator.backends.mirror.upload import send_code

        send_code(machine, runs[0], str(PurePosixPath(folder).parents[1]), f"{folder}/code")

    def one(index: int, run: RunDir) -> None:
        its = tasks[index]
        if own_files:
            _give_checkpoint(machine, run, its[0])
        payload = json.dumps([task.to_json() for task in its]).encode()
        machine.call(
            "prepare_array_run", payload, run_dir=its[0].run_dir, folder=site.scheduler.folder, archive=archive
        )

    on_each(one, dict(enumerate(runs)))


def _give_checkpoint(machine: Machine, run: RunDir, task: NodeTask) -> None:
    from orchestrator.backends.mirror.given import checkpoint_to_give, give

    if (given := checkpoint_to_give(run, task)) is not None:
        give(machine, run, given)


def queued(site: Site, order: Order) -> tuple[str, str] | None:
    """Queue the job. Return its number, and what the scheduler's command printed besides. Return None if the answer was
    lost and the job must be found by its name later.

    Raises BackendError if the scheduler refuses the job.
    """
    told = (each.webhook_env or each.apprise_env for each in order.launch.job.notify)
    machine, hidden = site.machine(), (*RANK_VARIABLES, *order.launch.secret_names, *filter(None, told))

    def put(path: str, data: bytes) -> None:
        machine.call("write_file", data, path=path)

    is_handed_over, printed = False, ""

    def call(argv: Sequence[str]) -> Output:
        nonlocal is_handed_over, printed
        is_handed_over = True
        answer = site.run_submit(argv, hidden)
        printed = f"{answer.err}\n{answer.out}"
        return answer

    try:
        number = site.scheduler.submit(order, put, call)
        return number, _besides(printed, number)
    except BackendError as error:
        if not is_handed_over:
            raise
        is_refused = isinstance(error, RefusedError)
        is_lost = site.scheduler.is_unanswered(error.message) if is_refused else error.transient
        snapshot = site.queue(fresh=True)
        found = site.find(None, order.name, "0" if order.array else "")
        # A scheduler may keep a job that it has refused in its records as a failed job.
        if found is not None and (is_lost or found.phase != "ended"):
            return array_of(found.job_id), ""
        if snapshot.jobs is None and is_lost:
            return None
        raise (site.scheduler.refusal(error.message, order.launch, site) if is_refused else error) from error


def _besides(printed: str, number: str) -> str:
    """Return what a successful command printed besides the line with the job's number, in one line."""
    lines = [" ".join(line.split()) for line in printed.splitlines() if line.strip()]
    own = re.compile(rf"\b{re.escape(number)}\b")
    kept = [re.sub(r"^(sbatch|qsub): ", "", line) for line in lines if not own.search(line)]
    return "; ".join(dict.fromkeys(kept))[:MOST_SAID]
