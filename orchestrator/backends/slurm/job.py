"""A run's Slurm job: found, judged, signalled and ended, over a client that may be another machine's.

The run's own files are read where they lie, or where they have been copied to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.base import NodeProof
from orchestrator.backends.settings import SlurmSettings, profile_of
from orchestrator.backends.slurm.client import SNAPSHOT_SECONDS, Client
from orchestrator.backends.slurm.environment import hiding
from orchestrator.backends.slurm.parse import JobLine, how_it_ended, why_it_waits
from orchestrator.backends.slurm.script import FOLDER
from orchestrator.errors import BackendError, StoreError
from orchestrator.protocol.reading import read_part
from orchestrator.runs.job_use import JobUse
from orchestrator.runs.restarts.relaunch import newest_start
from orchestrator.runs.scheduler_status import SchedulerStatus
from orchestrator.runs.state import Event, HandleStatus
from orchestrator.runs.store import Record, RunDir

if TYPE_CHECKING:  # commands that only read runs must not wait for pydantic
    from orchestrator.backends.slurm.environment import Filled
    from orchestrator.specs.plan import LaunchPlan

END_SECONDS: Final = 40.0  # Slurm's KillWait, 30 s by default, and some more
ROUNDS: Final = 5  # of a wait for a job in the queue, of which there may be hundreds: each is looked at less often
OUTCOMES: Final = {"TIMEOUT": "timeout", "DEADLINE": "timeout", "PREEMPTED": "preempted"}  # the rest is infra
TICK: Final = 0.1  # seconds: more than by which a file's time may be before its writing
SUSPENDED: Final = ("SUSPENDED", "STOPPED")  # its nodes are its own, and its processes are stopped
LAST_BYTES: Final = 1 << 20  # the last bytes of a log, which are searched for its last line
NO_SUBMITIT: Final = "No module named 'submitit"


def job_of(client: Client, run: RunDir, *, fresh: bool = False) -> tuple[str, JobLine | None]:
    """Return (phase, the job): the phases of an SchedulerStatus."""
    snapshot = client.queue(fresh=fresh)
    if snapshot.jobs is None:
        return "unknown", None
    folder, name, task = _named(run)
    job_id = _number_in(client, folder, task)
    job = client.find(job_id, name, task)
    if job is None and job_id is not None and (since := _cancelled_since(run, folder)) is not None:
        # Nobody knows more of its end than a queue that lacks it: a sweep that waits costs no question for each run.
        if client.queue(since=min(since, time.time())).jobs is None:  # a file server's clock may be ahead
            return "unknown", None
        if (job := client.find(job_id, name, task)) is None:
            return "ended", None
    if job is None and job_id is not None:
        try:
            job = client.ended(job_id, name, None)
        except BackendError as error:
            snapshot.problem = error.message
            return "unknown", None
        return ("ended", job) if job is None else (job.phase, job)
    return ("none", None) if job is None else (job.phase, job)


def _cancelled_since(run: RunDir, folder: RunDir) -> float | None:
    """Return from when on Slurm's queue tells whether a run that orch cancelled has a job; None of any other run.

    A cancel may be before the submit's end: a queue from before the job was handed over says nothing of it.
    """
    try:
        return max(os.stat(path).st_mtime for path in (f"{run.path}/cancel.json", f"{folder.path}/handle.json")) + TICK
    except FileNotFoundError:
        return None


def scheduler_status(client: Client, run: RunDir) -> SchedulerStatus:
    """Return what Slurm says of the run's job."""
    phase, job = job_of(client, run)
    if phase == "waiting" and job is not None:
        return SchedulerStatus(phase, why_it_waits(job, has_run=_has_run(run)), is_stuck=job.is_stuck)
    if phase == "active" and job is not None:
        said = f"Slurm job {job.job_id} is {job.state} on {job.nodes or 'its nodes'}"
        return SchedulerStatus(phase, said, is_suspended=job.state in SUSPENDED)
    if phase == "unknown":
        return SchedulerStatus(phase, f"Slurm can't be asked: {client.queue().problem}")
    if phase == "ended" and (run.path / "cancel.json").exists():  # also where it waited for its next start
        return SchedulerStatus(phase, outcome="cancelled")
    if job is None or job.state == "COMPLETED":
        return SchedulerStatus(phase)  # nothing that the run's own files don't tell
    job = client.ended(job.job_id, _named(run)[1], job) or job
    reason = how_it_ended(job, client.user_name(job.by))
    if job.state == "FAILED":
        reason += _last_words(run, job.job_id)
    outcome = "cancelled" if job.state == "CANCELLED" else "failed"
    return SchedulerStatus(phase, outcome=outcome, cause=OUTCOMES.get(job.state, "infra"), reason=reason)


def step_argv(client: Client, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
    """Return what runs a command as one more step of the run's job; BackendError where that isn't running."""
    phase, job = job_of(client, run)
    if phase == "waiting":  # as it was seen last: its agents may have spoken meanwhile
        phase, job = job_of(client, run, fresh=True)
    if job is None or phase != "active":
        words = "waits for its nodes" if phase == "waiting" else "has ended, and its nodes are not the run's any more"
        raise BackendError(f"the Slurm job of run {run.run_id} {words}")
    return in_allocation(job.job_id, node, argv, terminal=terminal)


def in_allocation(job_id: str, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
    """Return the argv that runs a command as one more step of a Slurm job that runs, on the node of this number in it.

    The step shares the node with the agent's own. Pure.
    """
    words = [
        "srun",
        f"--jobid={job_id}",
        "--export=ALL",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--relative={node}",
        "--mem=0",
    ]
    # Buffered, Slurm sends whole lines only, for which a program's bytes need not wait.
    return hiding([*words, *(["--pty"] if terminal else ["--quiet", "--unbuffered"]), *argv])


def dependency(client: Client, runs: Sequence[RunDir], *, succeeds: bool) -> str | None:
    """Return the dependency on the runs' jobs as sbatch takes it; None where one is over or isn't known.

    Several runs of one array are its own number: the whole array is waited for.
    """
    found = [job_of(client, run) for run in runs]
    numbers = [job.job_id for phase, job in found if job is not None and phase in ("waiting", "active")]
    if len(numbers) < len(runs):
        return None
    if len(numbers) > 1:
        numbers = list(dict.fromkeys(number.partition("_")[0] for number in numbers))
    return ":".join(["afterok" if succeeds else "afterany", *numbers])


def wait_in_queue(client: Client, run: RunDir, timeout: float) -> None:
    """Let `timeout` seconds pass, several times while the job waits in the queue, unless it is cancelled."""
    for _ in range(ROUNDS):
        release_requeued(client, run)
        time.sleep(timeout)  # Slurm tells nobody of a change, and files on a shared folder send no events
        if job_of(client, run)[0] != "waiting" or (run.path / "cancel.json").exists():
            return


def release_requeued(client: Client, run: RunDir) -> None:
    """Have a job that was requeued start soon."""
    phase, job = job_of(client, run)
    if phase == "waiting" and job is not None and job.reason == "BeginTime" and _has_run(run):
        client.release_requeued(job)


def may_be_requeued(client: Client, run: RunDir) -> bool:
    """Tell whether a job waits as one does that Slurm starts again, and no `begin` of the profile explains that."""
    phase, job = job_of(client, run)
    is_later = phase == "waiting" and job is not None and job.reason == "BeginTime"
    return is_later and "begin" not in SlurmSettings.of(profile_of(run)).sbatch


def cancel(client: Client, run: RunDir) -> None:
    """Send TERM to the agents, who find the recorded cancel; take a job that still waits out of the queue."""
    phase, job = job_of(client, run)
    if job is not None and phase == "waiting":
        client.scancel(job.job_id)
        client.queue(fresh=True)  # who cancelled it need not wait until somebody asks again
    elif job is not None and phase == "active":
        client.scancel(job.job_id, "--signal=TERM")


def cancel_waiting(client: Client, runs: Sequence[RunDir]) -> None:
    """Take what has not begun out of the queue, by one scancel for each array or job."""
    for number in {number.partition("_")[0] for run in runs if (number := job_id_of(run)) is not None}:
        client.scancel(number, "--state=PENDING")
    client.queue(fresh=True)  # as in `cancel`


def end(client: Client, run: RunDir) -> list[NodeProof]:
    """End the job, and prove it by what Slurm and the nodes' agents say.

    A job whose agents have all ended goes by itself: to cancel it would have Slurm call a success cancelled.
    """
    phase, job = job_of(client, run)
    if phase != "ended":  # a job that is over stays so
        phase, job = job_of(client, run, fresh=True)
    left = ""
    if job is not None and phase in ("waiting", "active") and not _goes_by_itself(run, phase):
        try:
            client.scancel(job.job_id, "--signal=KILL")
            client.scancel(job.job_id)
            phase, job = wait_for_end(client, run)
        except BackendError as error:  # the controller answered before, but not now
            client.snapshot.problem, phase, job = error.message, "unknown", None
        left = f"Slurm job {job.job_id} ({job.state})" if job and phase in ("waiting", "active") else ""
    is_unknown = phase == "unknown" and _may_have_a_job(run)
    unknown = f"Slurm can't be asked: {client.snapshot.problem}" if is_unknown else ""
    said: dict[Any, list[Event]] = {}
    for event in newest_start(run.events()):
        said.setdefault(event.get("node"), []).append(event)
    nodes = range(max(1, run.record().nnodes))
    return [_proof(node, said.get(node, []), left, unknown=unknown) for node in nodes]


def _may_have_a_job(run: RunDir) -> bool:
    """Tell whether sbatch may have taken the run. The handle is written before sbatch is called."""
    return (_named(run)[0].path / "handle.json").exists()


def wait_for_end(client: Client, run: RunDir) -> tuple[str, JobLine | None]:
    """Return as `job_of`, once the job waits and runs no more, or after END_SECONDS."""
    stop = time.monotonic() + END_SECONDS
    phase, job = job_of(client, run)
    if phase != "ended":  # a job that is over stays so
        phase, job = job_of(client, run, fresh=True)
    while phase in ("waiting", "active") and time.monotonic() < stop:
        time.sleep(SNAPSHOT_SECONDS / 2)  # Slurm tells nobody of a job's end: it has to be asked
        phase, job = job_of(client, run, fresh=True)
    return phase, job


def job_id_of(run: RunDir) -> str | None:
    """Return the number of the run's job: from the handle, else from what the job itself has named after it."""
    folder, _, task = _named(run)
    return _task(_number(folder), task)


def submitted_as(job_id: str, launch: LaunchPlan, by_shell: Filled) -> Record:
    """Return the handle of a job that Slurm has: its number, and the options that the shell has set."""
    values = {**launch.profile["sbatch"], **launch.profile}
    given = {option: {"value": values[option], "by": variable} for option, variable in by_shell.items()}
    return {"state": HandleStatus.SUBMITTED, "job": job_id, **({"by_shell": given} if given else {})}


def given_by_shell(run: RunDir) -> dict[str, dict[str, str]]:
    """Return the value and the variable of each option that the shell has set for the run's job."""
    found = _handle_of(_named(run)[0]).get("by_shell")
    return found if isinstance(found, dict) else {}


def used_by(client: Client, run: RunDir) -> JobUse | None:
    """Return what Slurm's accounting says that the run's job has used; None before it has a job."""
    folder, name, task = _named(run)
    job_id = _task(_number(folder), task)
    return None if job_id is None else client.used(job_id, name)


def _named(run: RunDir) -> tuple[RunDir, str, str]:
    """Return (folder of the run's job, the job's name, the run's number in that array, or nothing)."""
    array = _handle_of(run).get("array")
    if not isinstance(array, str):
        return run, run.run_id, ""
    return RunDir(Path(array)), Path(array).name, run.run_id.rpartition(".")[2]


def _handle_of(folder: RunDir) -> Record:
    """Return the handle of a run or an array; empty before there is one, and where it is damaged: names tell as well.

    It is asked for several times at each look, and an array's at each of its runs.
    """
    try:
        return folder.made_of("handle.json", _read_handle)
    except StoreError:
        return {}


def _read_handle(folder: RunDir) -> Record:
    return folder.read("handle.json") or {}


def _number_in(client: Client, folder: RunDir, task: str) -> str | None:
    """Return as `_number`; an array's, once it is known, is not read again for each of its runs."""
    if not task:
        return _number(folder)
    if (known := client.arrays.get(folder.path)) is None and (known := _number(folder)) is not None:
        client.arrays[folder.path] = known
    return _task(known, task)


def _task(number: str | None, task: str) -> str | None:
    return f"{number}_{task}" if number and task else number


def _number(folder: RunDir) -> str | None:
    recorded = _handle_of(folder).get("job")
    if not isinstance(recorded, str):
        files = folder.path / FOLDER
        named = [path.name.partition("_")[0] for path in files.glob("*_submitted.pkl")]
        named += [path.name.split(".")[1] for path in files.glob("*.*.*.log")]
        recorded = max((name for name in named if name.isdecimal()), key=int, default=None)
    return recorded


def _goes_by_itself(run: RunDir, phase: str) -> bool:
    if phase == "waiting" or (run.path / "cancel.json").exists():
        return False
    now = newest_start(run.events())
    started = {event.get("node") for event in now if event.get("kind") == "agent_started"}
    ended = {event.get("node") for event in now if event.get("kind") == "agent_ended"}
    return bool(started) and started <= ended


def _has_run(run: RunDir) -> bool:
    try:
        names = os.listdir(f"{run.path}/{FOLDER}")
    except FileNotFoundError:
        return False
    return any(name.endswith(".log") and name.count(".") > 2 for name in names)


def _last_words(run: RunDir, job_id: str) -> str:
    """Return the last line of the last start's agents, else of its batch shell: it failed before ours could speak."""
    logs = sorted((run.path / FOLDER).glob(f"*.{job_id}.*.log"))  # agent, batch
    start = max((_start_of(path) for path in logs), default=0)
    for path in (path for path in logs if _start_of(path) == start):
        try:
            text = read_part(path, -LAST_BYTES, LAST_BYTES, run.path).decode(errors="replace")
        except OSError:
            continue
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if any(NO_SUBMITIT in line for line in lines):
            return "; the interpreter that submitted it has no submitit on the nodes: install orch where they see it"
        if said := [line for line in lines if not line.startswith("submitit INFO")]:
            return f"; {path.name}: {said[-1][:300]}"
    return ""


def _start_of(log: Path) -> int:
    """Return the start in `agent.JOB.START.NODE.log` and `batch.JOB.START.log`."""
    number = log.name.split(".")[2]
    return int(number) if number.isdecimal() else 0


def _proof(node: int, own: Sequence[Event], left: str, *, unknown: str) -> NodeProof:
    """Return the state of one node from its agent's last events. `left` names the job that Slurm has not ended yet.

    unknown: the reason why Slurm does not answer. A node's state is then unknown unless its agent reported its end.
    """
    hosts = [str(event.get("host")) for event in own if event.get("kind") == "agent_started"]
    ends = [event for event in own if event.get("kind") == "agent_ended"]
    said: Mapping[str, Any] = ends[-1] if ends else {}
    stuck = tuple(f"process {pid}" for pid in said.get("survivors") or ())
    stuck += tuple(f"container {each}" for each in said.get("containers") or ())
    ended = said.get("swept", 0)
    survivors = (*stuck, *([left] if left else []))
    host = hosts[-1] if hosts else "?"
    return NodeProof(node, host, ended if isinstance(ended, int) else 0, survivors, bool(unknown) and not ends, unknown)
