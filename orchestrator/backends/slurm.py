"""Slurm, through submitit: one job a run, one task a node, in each of which the same agent runs as everywhere.

The run directory lies on a folder that login and compute nodes share, so what the agents write is read where it lies.
Slurm's word is a second opinion beside it: orchestrator.opinion.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.base import NodeProof
from orchestrator.backends.slurm_client import LOOK_SECONDS, Client, Here
from orchestrator.backends.slurm_errors import is_unanswered, refusal
from orchestrator.backends.slurm_state import JobLine, how_it_ended, why_it_waits
from orchestrator.backends.terminal import in_allocation
from orchestrator.errors import BackendError, StoreError, UsageError
from orchestrator.opinion import Opinion
from orchestrator.starts import newest_start
from orchestrator.store import RunDir, write_durably
from orchestrator.wire import RANK_VARIABLES, NodeTask

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from orchestrator.backends.laying import Order
    from orchestrator.plan import LaunchPlan, Place
    from orchestrator.starts import Again

END_SECONDS: Final = 40.0  # Slurm's KillWait, 30 s by default, and some more
FOLDER: Final = "slurm"
OUTCOMES: Final = {"TIMEOUT": "timeout", "DEADLINE": "timeout", "PREEMPTED": "preempted"}  # the rest is infra


class SlurmBackend:
    """A run as one Slurm job of this user."""

    starts_again = False  # Slurm starts the job again, with nobody of ours there: the batch script asks it to
    collects = False  # the nodes write to the run directory itself

    def __init__(self) -> None:
        self.client = Client(Here())

    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """The run directory, in `workdir` where the profile has one; every node has to see it at the same path."""
        from orchestrator.plan import Place  # noqa: PLC0415 (loads pydantic)

        folder = run.path
        if workdir is not None:
            base = Path(workdir).expanduser()
            if not base.is_absolute():
                raise UsageError(f"workdir is '{workdir}'", "write it from the root: /shared/me/orch, or ~/orch")
            folder = base / "runs" / run.run_id
        inputs = folder.parent.parent / "inputs"
        return Place(str(folder), str(folder / "code"), str(inputs), sys.executable, sys.executable)

    def script(self, launch: LaunchPlan) -> str:
        """The batch script that a submit of this plan hands to sbatch; needs no Slurm."""
        from submitit.slurm.slurm import _make_sbatch_string  # noqa: PLC0415 (60 ms)

        from orchestrator.backends.slurm_script import parameters, step  # noqa: PLC0415 (loads pydantic)

        folder = f"{launch.tasks[0].run_dir}/{FOLDER}"
        command = f"{step(launch, launch.commands[0][0])} -u -m submitit.core._submit {shlex.quote(folder)}"
        return str(_make_sbatch_string(command=command, folder=folder, **parameters(launch)))

    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Queue the job. The intent is durable before, and a job whose number was lost is found by its name."""
        from orchestrator.archive import node_archive  # noqa: PLC0415 (only a submit needs it)

        self.client.need("sbatch", "srun", "squeue", "scancel")
        write_durably(run.path / "node.pyz", node_archive())
        (run.path / FOLDER).mkdir(exist_ok=True)
        for task in tasks:
            run.node(task.node_rank).mkdir(parents=True, exist_ok=True)
            path = run.node(task.node_rank) / "task.json"
            write_durably(path, json.dumps(task.to_json()).encode(), private=True)
        run.write("handle.json", {"state": "intent"})
        if (job_id := _sbatch(plan, run, self.client)) is not None:
            run.write("handle.json", {"state": "submitted", "job": job_id})

    def alive(self, run: RunDir) -> Mapping[int, bool | None]:
        """All nodes alike, as the job is: None while it waits or Slurm can't be asked; none where there is no job."""
        phase = self._job(run)[0]
        if phase == "none":
            return {}
        lives = {"active": True, "ended": False}.get(phase)
        nodes = (run.read("run.json") or {}).get("nnodes", 1)
        return dict.fromkeys(range(nodes), lives)

    def opinion(self, run: RunDir) -> Opinion:
        """What Slurm says of the run's job."""
        phase, job = self._job(run)
        if phase == "waiting" and job is not None:
            return Opinion(phase, why_it_waits(job), is_stuck=job.is_stuck)
        if phase == "active" and job is not None:
            return Opinion(phase, f"Slurm job {job.job_id} is {job.state} on {job.nodes or 'its nodes'}")
        if phase == "unknown":
            return Opinion(phase, f"Slurm can't be asked: {self.client.queue().problem}")
        if job is None or job.state == "COMPLETED" or (run.path / "cancel.json").exists():
            return Opinion(phase)  # nothing that the run's own files don't tell
        job = self.client.ended(job.job_id, run.run_id, job) or job
        reason = how_it_ended(job, self.client.user_name(job.by))
        if job.state == "FAILED":
            reason += _last_words(run, job.job_id)
        outcome = "cancelled" if job.state == "CANCELLED" else "failed"
        return Opinion(phase, outcome=outcome, cause=OUTCOMES.get(job.state, "infra"), reason=reason)

    def waiting_for(self, run: RunDir, *, succeeds: bool) -> str | None:
        """A dependency as sbatch takes it; None where the run's job isn't known."""
        phase, job = self._job(run)
        if job is None or phase not in ("waiting", "active"):
            return None
        return f"{'afterok' if succeeds else 'afterany'}:{job.job_id}"

    def hosts(self, run: RunDir) -> list[str] | None:
        """As their agents call themselves: Slurm chooses the nodes."""
        return None

    def wait(self, run: RunDir, timeout: float) -> None:
        """Let time pass: neither Slurm nor a shared folder tells when something happens. Hurries what was requeued."""
        phase, job = self._job(run)
        if phase == "waiting" and job is not None and job.reason == "BeginTime" and _has_run(run):
            self.client.hurry(job)
        time.sleep(timeout)

    def cancel(self, run: RunDir) -> None:
        """TERM to the agents, who find the recorded cancel; a job that still waits is taken out of the queue."""
        phase, job = self._job(run)
        if job is not None and phase == "waiting":
            self.client.scancel(job.job_id)
        elif job is not None and phase == "active":
            self.client.scancel(job.job_id, "--signal=TERM")

    def start_again(self, run: RunDir, again: Again) -> None:
        """Never asked for: see `starts_again`."""
        raise BackendError(f"run {run.run_id} is a Slurm job: Slurm starts it again")

    def collect(self, run: RunDir) -> None:
        """There is nothing elsewhere."""

    def bringing_logs(self, run: RunDir, ranks: list[int] | None) -> contextlib.AbstractContextManager[None]:
        """They are here already."""
        return contextlib.nullcontext()

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """As one more step of the run's job, while that is running."""
        phase, job = self._job(run)
        if job is None or phase != "active":
            words = (
                "waits for its nodes" if phase == "waiting" else "has ended, and its nodes are not the run's any more"
            )
            raise BackendError(f"the Slurm job of run {run.run_id} {words}")
        return in_allocation(job.job_id, node, argv, terminal=terminal)

    def lay_out(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """In the run directory itself, which every node sees."""
        from orchestrator.backends.laying import lay_out  # noqa: PLC0415 (only a replay needs it)

        return lay_out(run, name, checkpoint, order, "python3")

    def sweep(self, run: RunDir) -> list[NodeProof]:
        """End the job, and prove it by what Slurm and the nodes' agents say.

        A job whose agents have all ended goes by itself: to cancel it would have Slurm call a success cancelled.
        """
        phase, job = self._job(run, fresh=True)
        left = ""
        if job is not None and phase in ("waiting", "active") and not self._goes_by_itself(run, phase):
            self.client.scancel(job.job_id, "--signal=KILL")
            self.client.scancel(job.job_id)
            end = time.monotonic() + END_SECONDS
            while phase in ("waiting", "active") and time.monotonic() < end:
                time.sleep(LOOK_SECONDS / 2)  # Slurm tells nobody of a job's end: it has to be asked
                phase, job = self._job(run, fresh=True)
            left = f"Slurm job {job.job_id} ({job.state})" if job and phase in ("waiting", "active") else ""
        return _proofs(run, left)

    def _goes_by_itself(self, run: RunDir, phase: str) -> bool:
        if phase == "waiting" or (run.path / "cancel.json").exists():
            return False
        now = newest_start(run.events())
        started = {event.get("node") for event in now if event.get("kind") == "agent_started"}
        ended = {event.get("node") for event in now if event.get("kind") == "agent_ended"}
        return bool(started) and started <= ended

    def _job(self, run: RunDir, *, fresh: bool = False) -> tuple[str, JobLine | None]:
        """(phase, the job): the phases of an Opinion."""
        look = self.client.queue(fresh=fresh)
        if look.jobs is None:
            return "unknown", None
        job_id = _job_id(run)
        job = self.client.find(job_id, run.run_id)
        if job is None and job_id is not None:
            job = self.client.ended(job_id, run.run_id, None)
            return ("ended", job) if job is None else (job.phase, job)
        return ("none", None) if job is None else (job.phase, job)


@contextlib.contextmanager
def _environment(hidden: tuple[str, ...]) -> Iterator[None]:
    """sbatch hands the caller's variables on: without secrets, ours, or those of a job around this command."""
    around = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_") if "SLURM_JOB_ID" in os.environ else ()
    strange = ("ORCH_", "SUBMITIT_", *around)
    kept = dict(os.environ)
    for name in kept:
        if name in RANK_VARIABLES or name in hidden or name.startswith(strange):
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)


def _sbatch(plan: LaunchPlan, run: RunDir, client: Client) -> str | None:
    """The number of the queued job; None where only its name can find it, later; BackendError where it is refused."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415 (60 ms)
    from submitit.slurm.slurm import SlurmExecutor  # noqa: PLC0415

    from orchestrator.backends.slurm_script import parameters, step  # noqa: PLC0415 (loads pydantic)

    argv = plan.commands[0]
    executor = SlurmExecutor(folder=f"{plan.tasks[0].run_dir}/{FOLDER}", python=step(plan, argv[0]))
    executor.update_parameters(**parameters(plan))
    try:
        # submitit prints what sbatch says; here it becomes the error's own words.
        with _environment(plan.secret_names), contextlib.redirect_stderr(io.StringIO()):
            return str(executor.submit(os.execv, argv[0], list(argv)).job_id)
    except (FailedJobError, FailedSubmissionError) as error:
        look = client.queue(fresh=True)
        if (job := client.find(None, run.run_id)) is not None:  # it was taken, and only the answer was lost
            return job.job_id
        if look.jobs is None and is_unanswered(str(error)):
            return None
        raise refusal(str(error), plan.profile, plan.time_limit) from error


def _job_id(run: RunDir) -> str | None:
    """The number of the run's job: from the handle, else from the pickle that the job itself has named after it."""
    try:
        recorded = (run.read("handle.json") or {}).get("job")
    except StoreError:  # damaged: the pickle's name says it as well
        recorded = None
    if isinstance(recorded, str):
        return recorded
    named = [path.name.partition("_")[0] for path in (run.path / FOLDER).glob("*_submitted.pkl")]
    return max((name for name in named if name.isdecimal()), key=int, default=None)


def _has_run(run: RunDir) -> bool:
    return any((run.path / FOLDER).glob("batch.*.log"))


def _last_words(run: RunDir, job_id: str) -> str:
    """The last line of the newest log of agents or batch shell, for a job that failed before ours could speak."""
    logs = [path for name in ("agent", "batch") for path in (run.path / FOLDER).glob(f"{name}.{job_id}.*.log")]
    for path in sorted(logs, key=lambda path: path.stat().st_mtime, reverse=True):
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
        if said := [line for line in lines if not line.startswith("submitit INFO")]:
            return f"; {path.name}: {said[-1][:300]}"
    return ""


def _proofs(run: RunDir, left: str) -> list[NodeProof]:
    """One proof a node, from its agent's last words; `left` is what Slurm has not ended yet."""
    record: dict[str, Any] = run.read("run.json") or {}
    hosts: dict[int, str] = {}
    ends: dict[int, Mapping[str, Any]] = {}
    for event in newest_start(run.events()):
        node = event.get("node")
        if isinstance(node, int) and event.get("kind") == "agent_started":
            hosts[node] = str(event.get("host"))
        elif isinstance(node, int) and event.get("kind") == "agent_ended":
            ends[node] = event
    proofs = []
    for node in range(record.get("nnodes", 1)):
        said = ends.get(node, {})
        stuck = tuple(f"process {pid}" for pid in said.get("survivors") or ())
        stuck += tuple(f"container {each}" for each in said.get("containers") or ())
        ended = said.get("swept", 0)
        proofs.append(NodeProof(node, hosts.get(node, "?"), ended if isinstance(ended, int) else 0,
                                (*stuck, *([left] if left else []))))  # fmt: skip
    return proofs
