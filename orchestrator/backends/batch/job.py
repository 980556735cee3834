"""Finds a run's job in the scheduler, determines the job's state, and signals or ends the job.

The run's own files are read from its folder on this machine. With a login node, they were copied into that folder
before.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from orchestrator.backends.base import NodeProof
from orchestrator.backends.batch.site import SNAPSHOT_SECONDS, array_of
from orchestrator.errors import BackendError, StoreError
from orchestrator.outcome.scheduler import JobEnd, SchedulerStatus
from orchestrator.protocol.events import AgentEnded, AgentStarted, BatchJob, last_of, of
from orchestrator.protocol.quantities import duration
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import Record, RunDir

if TYPE_CHECKING:  # commands that only read runs must not wait for pydantic
    from orchestrator.backends.batch.scheduler import ByShell, Job, Scheduler
    from orchestrator.backends.batch.site import Site
    from orchestrator.protocol.events import Event
    from orchestrator.specs.plan import LaunchPlan

ROUNDS: Final = 5  # how often a waiting job is looked at before the caller continues
TICK: Final = 0.1  # seconds: file timestamps can lag the write by this much
MINUTE: Final = 60.0
LAST_BYTES: Final = 1 << 20  # at the end of a log, in which the last line is searched


class Ident(NamedTuple):
    """The identity of a run's job, read from the run's folder."""

    folder: RunDir  # the folder with the job's handle: the run's own folder, or that of its sweep
    name: str
    task: str  # the run's number in the array of that name; "" if the run belongs to no array
    job_id: str | None  # None if the answer of the submit was lost


def ident_of(run: RunDir, site: Site) -> Ident:
    """Return the identity of the run's job: from handle.json, or else from the files that the job has written.

    The number of an array is read once and serves all of its runs.
    """
    array = _handle_of(run).get("array")
    if not isinstance(array, str):
        return Ident(run, run.run_id, "", _number(run, site.scheduler))
    if (known := site.arrays.get(array)) is None:
        folder = RunDir(Path(array))
        known = Ident(folder, folder.run_id, "", _number(folder, site.scheduler))
        if known.job_id is not None:
            site.arrays[array] = known
    task = run.run_id.rpartition(".")[2]
    return known._replace(task=task, job_id=f"{known.job_id}_{task}" if known.job_id is not None else None)


def _end_of_agents(run: RunDir) -> float:
    """Return the time at which the last agent of the newest start ended; infinity if an agent has not ended."""
    now = _newest_start(run)
    begun, ended = of(now, AgentStarted), of(now, AgentEnded)
    if not ended or {event.node for event in begun} - {event.node for event in ended}:
        return math.inf
    return max(event.time for event in ended)


def job_of(site: Site, run: RunDir, *, fresh: bool = False, ident: Ident | None = None) -> tuple[str, Job | None]:
    """Return the phase of the run's job (one of the phases in SchedulerStatus) and the job. The job is None if it is
    unknown.
    """
    snapshot = site.queue(fresh=fresh)
    if snapshot.jobs is None:
        return "unknown", None
    folder, name, task, job_id = ident or ident_of(run, site)
    job = site.find(job_id, name, task)
    if job is None and job_id is not None and (since := _cancelled_since(run, folder)) is not None:
        # A queue that lacks a cancelled job proves its end, so no query is needed for each run of a cancelled sweep.
        if site.queue(since=min(since, time.time())).jobs is None:  # a file server's clock may be ahead
            return "unknown", None
        if (job := site.find(job_id, name, task)) is None:
            return "ended", None
    if job is None and job_id is not None:
        try:
            job = site.ended(job_id, name, None, lambda: _end_of_agents(run))
        except BackendError as error:
            snapshot.problem = error.message
            return "unknown", None
        return ("ended", job) if job is None else (job.phase, job)
    return ("none", None) if job is None else (job.phase, job)


def _cancelled_since(run: RunDir, folder: RunDir) -> float | None:
    """Return the earliest time at which a snapshot of the queue shows reliably whether a cancelled run has a job.
    Return None if orch did not cancel the run.

    A cancel may be recorded while the job is still being submitted. A snapshot from before the end of the submission
    may lack the job.
    """
    try:
        return max(os.stat(path).st_mtime for path in (f"{run.path}/cancel.json", f"{folder.path}/handle.json")) + TICK
    except FileNotFoundError:
        return None


def scheduler_status(site: Site, run: RunDir, ident: Ident | None = None) -> SchedulerStatus:
    """Return the scheduler's report on the run's job."""
    ident = ident or ident_of(run, site)
    phase, job = job_of(site, run, ident=ident)
    kind = site.scheduler
    changed = _other_limit(run, kind, job) if job is not None else ""
    if phase == "waiting" and job is not None:
        job = site.with_reason(job)
        has_run = job.is_deferred and _has_run(run, kind)
        said = "; ".join(filter(None, [job.why_it_waits(has_run=has_run), changed]))
        return SchedulerStatus(phase, said, is_stuck=job.is_stuck, changed=changed)
    if phase == "active" and job is not None:
        said = f"{kind.title} job {job.job_id} is {job.state} on {job.nodes or 'its nodes'}"
        said = "; ".join(filter(None, [said, changed]))
        return SchedulerStatus(phase, said, is_suspended=job.is_suspended, changed=changed)
    if phase == "unknown":
        return SchedulerStatus(phase, f"{kind.title} can't be asked: {site.queue().problem}")
    if phase == "ended" and run.is_cancelled:  # also for a job that waited for its next start
        return SchedulerStatus(phase, outcome="cancelled")
    if job is None or job.ending is JobEnd.COMPLETED:
        return SchedulerStatus(phase)
    with contextlib.suppress(BackendError):  # without more details, the state in the queue is used
        job = site.ended(job.job_id, ident.name, job) or job
    reason = job.how_it_ended(site.user_name(job.by))
    if job.ending is JobEnd.FAILED:
        reason += _last_words(run, job.job_id, kind)
    return SchedulerStatus.of_end(job.ending, reason)


def _other_limit(run: RunDir, kind: Scheduler, job: Job) -> str:
    """Return a sentence if the job's time limit is not the limit that the run asked for; "" otherwise."""
    record = run.record()
    asked = record.job.resources.time or getattr(record.profile, "time", None)
    if job.limit is None or not asked or abs(job.limit - asked) < MINUTE:  # schedulers count in minutes
        return ""
    return f"{kind.title} gives the job {duration(job.limit)}, not the {duration(asked)} that the run asked for"


def step_argv(site: Site, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
    """Return the argv that runs a command on a node of the run's job. Raises BackendError if the job is not active."""
    phase, job = job_of(site, run)
    if phase == "waiting":  # it may have begun since the queue was last seen
        phase, job = job_of(site, run, fresh=True)
    if job is None or phase != "active":
        words = "waits for its nodes" if phase == "waiting" else "has ended, and its nodes are not the run's any more"
        raise BackendError(f"the {site.scheduler.title} job of run {run.run_id} {words}")
    start, given = last_of(run.events(), BatchJob), job.hosts
    hosts = start.hosts if start is not None else ()
    if given and not set(hosts) & set(given):  # no start was recorded since the job got these machines
        hosts = given
    host = hosts[node] if node < len(hosts) else job.nodes
    return site.scheduler.step(job.job_id, node, host, argv, terminal=terminal)


def after(site: Site, launch: LaunchPlan, runs: Sequence[RunDir], *, succeeds: bool) -> LaunchPlan | None:
    """Return the plan, changed so that its job waits for these runs; None if a run's job has ended or is unknown.

    If several runs belong to one array, the new job waits for the whole array, which is written as the array's number
    and `[]`.
    """
    found = [job_of(site, run) for run in runs]
    numbers = [job.job_id for phase, job in found if job is not None and phase in ("waiting", "active")]
    if len(numbers) < len(runs):
        return None
    if len(numbers) > 1:
        whole = (f"{array_of(number)}[]" if "_" in number else number for number in numbers)
        numbers = list(dict.fromkeys(whole))
    return site.scheduler.after(launch, numbers, succeeds=succeeds)


def wait_in_queue(site: Site, run: RunDir, timeout: float) -> None:
    """Wait `timeout` seconds, or several times as long while the job waits in the queue. Return early if the run is
    cancelled.
    """
    for _ in range(ROUNDS):
        release_requeued(site, run)
        time.sleep(timeout)  # a scheduler sends no message, and files on a shared folder send no events
        if job_of(site, run)[0] != "waiting" or run.is_cancelled:
            return


def release_requeued(site: Site, run: RunDir) -> None:
    """Ask the scheduler to start a requeued job earlier than its delayed start time."""
    phase, job = job_of(site, run)
    if phase == "waiting" and job is not None and job.is_deferred and _has_run(run, site.scheduler):
        site.hasten(job)


def may_be_requeued(site: Site, run: RunDir) -> bool:
    """Return True if the job waits for a start time that its profile does not set. A requeued job waits in this way."""
    phase, job = job_of(site, run)
    is_later = phase == "waiting" and job is not None and job.is_deferred
    return is_later and not site.scheduler.begins_later(run.record().profile)


def cancel(site: Site, run: RunDir) -> None:
    """Send TERM to the agents, which then read the recorded cancel. If the job waits, or its processes can't act on a
    signal because the scheduler has suspended them, end the job.
    """
    phase, job = job_of(site, run)
    if job is not None and job.takes_signals:
        site.cancel(site.scheduler.cancel(job.job_id, "TERM"), job.job_id)
    elif job is not None and phase != "ended":
        site.cancel(site.scheduler.cancel(job.job_id), job.job_id)
        site.queue(fresh=True)  # so that the user's command need not wait for the next query


def cancel_waiting(site: Site, runs: Sequence[RunDir]) -> None:
    """If a run's job has not begun, remove it from the queue. One command removes all such jobs of an array."""
    for number in {array_of(number) for run in runs if (number := ident_of(run, site).job_id) is not None}:
        site.cancel(site.scheduler.cancel_waiting(number), number)
    site.queue(fresh=True)  # as in `cancel`


def end(site: Site, run: RunDir) -> list[NodeProof]:
    """End the job. Return for each node whether processes remain, as the scheduler and the node's agent report.

    If all agents of the job have ended, the job is not cancelled, because the scheduler would report a success as
    cancelled.
    """
    phase, job = job_of(site, run)
    if phase != "ended":  # a job that has ended stays so
        phase, job = job_of(site, run, fresh=True)
    left = ""
    if job is not None and phase in ("waiting", "active") and not _goes_by_itself(run, phase):
        try:
            if job.takes_signals:  # otherwise ranks that ignore TERM last until the scheduler itself sends KILL
                site.cancel(site.scheduler.cancel(job.job_id, "KILL"), job.job_id)
            site.cancel(site.scheduler.cancel(job.job_id), job.job_id)
            phase, job = wait_for_end(site, run)
        except BackendError as error:  # the server answered before, but not now
            site.snapshot.problem, phase, job = error.message, "unknown", None
        left = (
            f"{site.scheduler.title} job {job.job_id} ({job.state})" if job and phase in ("waiting", "active") else ""
        )
    unknown = f"{site.scheduler.title} can't be asked: {site.snapshot.problem}" if phase == "unknown" else ""
    events, nodes = _newest_start(run), range(max(1, run.record().nnodes))
    return [_proof(node, [each for each in events if each.node == node], left, unknown=unknown) for node in nodes]


def _newest_start(run: RunDir) -> list[Event]:
    from orchestrator.outcome.restart import newest_start

    return newest_start(run.events())


def wait_for_end(site: Site, run: RunDir) -> tuple[str, Job | None]:
    """Wait until the job has ended, for at most the scheduler's `end_seconds`. Return (phase, job)."""
    stop = time.monotonic() + site.scheduler.end_seconds
    phase, job = job_of(site, run)
    if phase != "ended":  # a job that has ended stays so
        phase, job = job_of(site, run, fresh=True)
    while phase in ("waiting", "active") and time.monotonic() < stop:
        time.sleep(SNAPSHOT_SECONDS / 2)  # a scheduler sends no message when a job ends, so it is polled
        phase, job = job_of(site, run, fresh=True)
    return phase, job


# -- facts about the job in the run's folder


def submitted_as(job_id: str, by_shell: ByShell, said: str, python: str) -> Record:
    """Return the content of handle.json for a queued job: its number, the options that environment variables of the
    shell have set, what the scheduler printed when it took the job, and the interpreter that starts the agents.
    """
    more = {"by_shell": by_shell, "said": said, "python": python}
    return {"state": HandleStatus.SUBMITTED, "job": job_id, **{name: each for name, each in more.items() if each}}


def told(run: RunDir, site: Site, name: str) -> str:
    """Return a text of the job's handle.json: `said` or `python` (see `submitted_as`); "" if it has none."""
    found = _handle_of(ident_of(run, site).folder).get(name)
    return found if isinstance(found, str) else ""


def given_by_shell(run: RunDir, site: Site) -> ByShell:
    """Return the options that environment variables of the shell have set for the run's job."""
    found = _handle_of(ident_of(run, site).folder).get("by_shell")
    return found if isinstance(found, dict) else {}


def _handle_of(folder: RunDir) -> Record:
    """Return the handle of a run or an array. It is empty if the file is missing or damaged, because the job can also
    be found by its name.

    The handle is cached, because each look at a run reads it several times, and all runs of an array read the same
    handle.
    """
    try:
        return folder.made_of("handle.json", _read_handle)
    except StoreError:
        return {}


def _read_handle(folder: RunDir) -> Record:
    return folder.read("handle.json") or {}


def _number(folder: RunDir, kind: Scheduler) -> str | None:
    recorded = _handle_of(folder).get("job")
    if not isinstance(recorded, str):
        named = (path.name.split(".")[1] for path in (folder.path / kind.folder).glob("*.*.*.log"))
        recorded = max((name for name in named if name.isdecimal()), key=int, default=None)
    return recorded


def _goes_by_itself(run: RunDir, phase: str) -> bool:
    if phase == "waiting" or run.is_cancelled:
        return False
    now = _newest_start(run)
    started = {event.node for event in of(now, AgentStarted)}
    ended = {event.node for event in of(now, AgentEnded)}
    return bool(started) and started <= ended


def _has_run(run: RunDir, kind: Scheduler) -> bool:
    try:
        names = os.listdir(f"{run.path}/{kind.folder}")
    except FileNotFoundError:
        return False
    return any(name.endswith(".log") and name.count(".") > 2 for name in names)


def _last_words(run: RunDir, job_id: str, kind: Scheduler) -> str:
    """Return the last log line of the last start: from its agents, or else from its batch shell, which may have failed
    before the agents started.
    """
    from orchestrator.protocol.reading import read_part

    logs = sorted((run.path / kind.folder).glob(f"*.{job_id}.*.log"))  # agent, batch
    newest = {path.name.partition(".")[0]: _start_of(path) for path in sorted(logs, key=_start_of)}
    for path in (path for path in logs if _start_of(path) == newest[path.name.partition(".")[0]]):
        try:
            text = read_part(path, -LAST_BYTES, LAST_BYTES, run.path).decode(errors="replace")
        except OSError:
            continue
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if said := [line for line in lines if not line.startswith(kind.chatter)]:
            return f"; {path.name}: {said[-1][:300]}"
    return ""


def _start_of(log: Path) -> int:
    """Return START, the number of the job's start, from the name of a log: `agent.JOB.START.NODE.log` or
    `batch.JOB.START.log`.
    """
    number = log.name.split(".")[2]
    return int(number) if number.isdecimal() else 0


def _proof(node: int, own: Sequence[Event], left: str, *, unknown: str) -> NodeProof:
    """Return the result of the clean-up of one node, from the last events of its agent. If the job has not ended yet,
    `left` names the job.

    unknown: the reason why the scheduler does not answer; "" if it answers. If it does not answer, the node counts as
    unreachable, unless its agent has reported its end.
    """
    agent, end = last_of(own, AgentStarted), last_of(own, AgentEnded)
    host, ended, survivors = agent.host if agent is not None else "?", 0, [left] if left else []
    if end is not None:
        ended = end.swept
        survivors = [
            *(f"process {pid}" for pid in end.survivors), *(f"container {each}" for each in end.containers), *survivors,
        ]  # fmt: skip
    return NodeProof(node, host, ended, tuple(survivors), bool(unknown) and end is None, unknown)


# -- the scheduler's last report on a run behind a login node, recorded so that `orch status` contacts no machine


def record_status(run: RunDir, kind: Scheduler, status: SchedulerStatus) -> None:
    """Record the scheduler's report with its time."""
    before, now = run.read(f"{kind.folder}.json") or {}, asdict(status)
    if {**before, "time": None} != {**now, "time": None} or status.phase == "none":
        run.write(f"{kind.folder}.json", {**now, "time": time.time()})


def recorded_status(run: RunDir, kind: Scheduler) -> SchedulerStatus | None:
    """Return the last recorded report; None if there is none, or if the report is older than the submit and says that
    there is no job.
    """
    seen = run.read(f"{kind.folder}.json")
    if seen is None or (seen["phase"] == "none" and _is_submitted_since(run, seen["time"])):
        return None
    return SchedulerStatus(**{name: value for name, value in seen.items() if name != "time"})


def _is_submitted_since(run: RunDir, when: float) -> bool:
    try:
        return (run.path / "handle.json").stat().st_mtime > when
    except OSError:
        return False
