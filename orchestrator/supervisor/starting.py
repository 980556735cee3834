"""Starts a run. These processes call the function `start`:

- The command `orch submit`, for a run that starts at once. Agents on this machine inherit the user's environment,
  umask, limits, affinity and control group. A scheduler's commands run in the same environment.
- A new supervisor, for a run that starts at once and needs connections to machines (`handover`). The supervisor keeps
  the connections for its later work.
- The supervisor, for a queued run whose turn has come (`queue`). It restores the environment in which the run was
  submitted.

If agents are lost, the supervisor starts new agents with `Backend.relaunch`.
`runs/start_lock.py` describes what follows if a process dies during a start.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.backends import backend_for, kind_of
from orchestrator.errors import BackendError, PlacesTakenError
from orchestrator.protocol.events import Queued, Submitted
from orchestrator.runs.dependencies import VALUES_FOR_START, is_queued
from orchestrator.runs.start_lock import SHOWS_ITSELF_SECONDS, has_started_all
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir
from orchestrator.transport.credentials import credentials_for, with_credentials

if TYPE_CHECKING:  # a submission of files that were read before must not wait for pydantic
    from orchestrator.backends.base import Backend
    from orchestrator.specs.plan import LaunchPlan


def start(
    runs: Sequence[RunDir],
    plans: Sequence[LaunchPlan],
    secrets: Mapping[str, str],
    credentials: str | None = None,
    folder: str | None = None,
) -> None:
    """Start all agents of a recorded run, submit its job, or queue the run for places on its machines. Several runs,
    which are points of a sweep, become one array of their scheduler.

    The caller holds the lock of the runs' start (`being_started`). Raises OrchError if the start is refused. The caller
    then ends the runs, or tries again. `credentials` are those of an interrupted start, or None for new credentials.
    `folder` is the folder in which the runs were submitted, or None for this process's folder.
    """
    backend, first = backend_for(kind_of(plans[0].profile)), runs[0]
    if not (first.has_begun and _settle_interrupted_start(backend, first)):
        pairs = [credentials_for(plan.nnodes) if credentials is None else credentials for plan in plans]
        tasks = [with_credentials(plan.tasks, pair, secrets) for plan, pair in zip(plans, pairs, strict=True)]
        try:  # the backend writes handle.json before and after it starts the agents
            backend.submit(plans, tasks, runs)
        except PlacesTakenError:  # the run has a place in the queue of its machines
            enqueue(first, secrets, folder)
            return
    for run in runs:
        run.append_event(Submitted())
        (run.path / VALUES_FOR_START).unlink(missing_ok=True)


def enqueue(run: RunDir, secrets: Mapping[str, str], folder: str | None = None) -> None:
    """Queue a recorded run. The values of this process that the later start needs are written to a file of mode 0600.

    From then on the supervisor starts the run, even if this process ends. `folder` is the folder in which the run was
    submitted. Raises StoreError if the file can't be written.
    """
    if not is_queued(run):
        run.append_event(Queued())
        run.write(VALUES_FOR_START, values_for_later(secrets, folder), private=True)


def values_for_later(secrets: Mapping[str, str], folder: str | None = None) -> dict[str, object]:
    """Return the values of this process that a later start needs, secrets included, for a file of mode 0600."""
    from orchestrator.supervisor.surroundings import surroundings

    return {**surroundings(secrets, folder), "secrets": dict(secrets)}


def may_install_with_secrets(environment: object, secrets: object) -> bool:
    """Return True if a start may need the run's secrets to install packages, because a package index may need one. The
    supervisor's own process never has these secrets.

    environment: the job's section `environment`; None if the job has no such section.
    """
    return environment is not None and bool(secrets)


def _settle_interrupted_start(backend: Backend, run: RunDir) -> bool:
    """Return True if an interrupted start has started all agents. Otherwise remove the remains of those agents, so that
    all agents can be started again.

    Wait up to SHOWS_ITSELF_SECONDS for agents that are about to exist.
    """
    if (status := run.handle_status()) is HandleStatus.SUBMITTED:
        return True
    if backend.relaunches:
        return False  # a new start keeps the agents that it finds on the machines
    until, sight = (run.path / "handle.json").stat().st_mtime + SHOWS_ITSELF_SECONDS, backend.look(run)
    while not (is_done := has_started_all(status, len(sight.alive), run.record().nnodes)) and time.time() < until:
        time.sleep(0.2)  # no event reports a process that is about to exist
        sight = backend.look(run)
    if sight.scheduler is not None and sight.scheduler.phase == "unknown":
        raise BackendError(f"run {run.run_id}: {sight.scheduler.detail}", transient=True)
    if is_done:
        return True
    backend.clean_up(run)
    shutil.rmtree(run.path / "nodes")
    os.mkdir(run.path / "nodes")
    return False
