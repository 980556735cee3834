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

from orchestrator.backends import slurm_job as job
from orchestrator.backends.base import NodeProof
from orchestrator.backends.slurm_client import Client, Here
from orchestrator.backends.slurm_errors import is_unanswered, refusal
from orchestrator.backends.slurm_script import FOLDER, Array, command_of, parameters, step
from orchestrator.errors import BackendError, UsageError
from orchestrator.opinion import Opinion
from orchestrator.store import RunDir, write_durably
from orchestrator.wire import RANK_VARIABLES, NodeTask

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from orchestrator.backends.laying import Order
    from orchestrator.plan import LaunchPlan, Place
    from orchestrator.starts import Again


ROUNDS: Final = 5  # of a wait for a job in the queue, of which there may be hundreds: each is looked at less often


class SlurmBackend:
    """A run as one Slurm job of this user."""

    starts_again = False  # Slurm starts the job again, with nobody of ours there: the batch script asks it to
    collects = False  # the nodes write to the run directory itself

    def __init__(self) -> None:
        self.slurm = Client(Here())

    def client(self, profile: Mapping[str, Any]) -> Client:
        """Slurm as this machine has it."""
        return self.slurm

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
        return batch_script(launch, ("-m", "submitit.core._submit"))

    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Queue the job. The intent is durable before, and a job whose number was lost is found by its name."""
        from orchestrator.archive import node_archive  # noqa: PLC0415 (only a submit needs it)

        self.slurm.need("sbatch", "srun", "squeue", "scancel")
        write_durably(run.path / "node.pyz", node_archive())
        (run.path / FOLDER).mkdir(exist_ok=True)
        for task in tasks:
            run.node(task.node_rank).mkdir(parents=True, exist_ok=True)
            path = run.node(task.node_rank) / "task.json"
            write_durably(path, json.dumps(task.to_json()).encode(), private=True)
        run.write("handle.json", {"state": "intent"})
        if (job_id := _sbatch(plan, self.slurm)) is not None:
            run.write("handle.json", {"state": "submitted", "job": job_id})

    def submit_all(
        self, plans: Sequence[LaunchPlan], tasks: Sequence[tuple[NodeTask, ...]], runs: Sequence[RunDir], folder: Path,
        parallel: int | None,
    ) -> None:  # fmt: skip
        """Queue the points of a sweep as one array, at most so many at a time; as `submit`, for all of them."""
        from orchestrator.backends.slurm_array import lay_out  # noqa: PLC0415 (only a submit needs it)

        self.slurm.need("sbatch", "srun", "squeue", "scancel")
        array = Array(folder.name, str(folder), len(runs), parallel)
        lay_out(array, runs, tasks)
        if (job_id := _sbatch(plans[0], self.slurm, array)) is not None:
            write_durably(folder / "handle.json", json.dumps({"state": "submitted", "job": job_id}).encode())

    def check_alike(self, plans: Sequence[LaunchPlan]) -> None:
        """UsageError where two of the plans would ask sbatch for different things."""
        from orchestrator.backends.slurm_array import check_alike  # noqa: PLC0415 (only a submit needs it)

        check_alike(plans)

    def cancel_waiting(self, runs: Sequence[RunDir]) -> None:
        """One scancel for each array or job that has runs among these."""
        for number in {number.partition("_")[0] for run in runs if (number := job.job_id_of(run)) is not None}:
            self.slurm.scancel(number, "--state=PENDING")

    def alive(self, run: RunDir) -> Mapping[int, bool | None]:
        """All nodes alike, as the job is."""
        return job.alive_by(job.job_of(self.slurm, run)[0], run)

    def opinion(self, run: RunDir) -> Opinion:
        """What Slurm says of the run's job."""
        return job.opinion_of(self.slurm, run)

    def waiting_for(self, runs: Sequence[RunDir], *, succeeds: bool) -> str | None:
        """A dependency as sbatch takes it; None where a run's job isn't known."""
        return job.dependency(self.slurm, runs, succeeds=succeeds)

    def hosts(self, run: RunDir) -> list[str] | None:
        """As their agents call themselves: Slurm chooses the nodes."""
        return None

    def wait(self, run: RunDir, timeout: float) -> None:
        """Let time pass: neither Slurm nor a shared folder tells when something happens. Hurries what was requeued.

        While the job waits in the queue it is `timeout` several times, unless it is cancelled.
        """
        for _ in range(ROUNDS):
            job.hurry(self.slurm, run)
            time.sleep(timeout)
            if job.job_of(self.slurm, run)[0] != "waiting" or (run.path / "cancel.json").exists():
                return

    def cancel(self, run: RunDir) -> None:
        """TERM to the agents, or out of the queue."""
        job.cancel(self.slurm, run)

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
        return job.step_argv(self.slurm, run, node, argv, terminal=terminal)

    def lay_out(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """In the run directory itself, which every node sees."""
        from orchestrator.backends.laying import lay_out  # noqa: PLC0415 (only a replay needs it)

        return lay_out(run, name, checkpoint, order, "python3")

    def sweep(self, run: RunDir) -> list[NodeProof]:
        """End the job, and prove it."""
        return job.end(self.slurm, run)


def batch_script(launch: LaunchPlan, entry: Sequence[str]) -> str:
    """The batch script of a plan; `entry` follows the interpreter, and starts submitit's side of each task."""
    from submitit.slurm.slurm import _make_sbatch_string  # noqa: PLC0415 (60 ms)

    folder = f"{launch.tasks[0].run_dir}/{FOLDER}"
    command = f"{step(launch, launch.commands[0][0])} -u {shlex.join([*entry, folder])}"
    return str(_make_sbatch_string(command=command, folder=folder, **parameters(launch)))


def pickled(launch: LaunchPlan) -> bytes:
    """What submitit's side of a task loads and calls: it becomes the agent."""
    import pickle  # noqa: PLC0415 (only a submit needs it)

    from submitit.core.utils import DelayedSubmission  # noqa: PLC0415 (60 ms)

    argv = launch.commands[0]
    return pickle.dumps(DelayedSubmission(os.execv, argv[0], list(argv)))


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


def _sbatch(plan: LaunchPlan, client: Client, array: Array | None = None) -> str | None:
    """The number of the queued job; None where only its name can find it, later; BackendError where it is refused."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415 (60 ms)
    from submitit.slurm.slurm import SlurmExecutor  # noqa: PLC0415

    argv, folder, name, task = plan.commands[0], plan.tasks[0].run_dir, plan.run_id, ""
    if array is not None:
        argv, folder, name, task = command_of(array, plan), array.folder, array.sweep, "0"
    executor = SlurmExecutor(folder=f"{folder}/{FOLDER}", python=step(plan, argv[0], array))
    executor.update_parameters(**parameters(plan, array))
    try:
        # submitit prints what sbatch says; here it becomes the error's own words.
        with _environment(plan.secret_names), contextlib.redirect_stderr(io.StringIO()):
            return str(executor.submit(os.execv, argv[0], list(argv)).job_id)
    except (FailedJobError, FailedSubmissionError) as error:
        look = client.queue(fresh=True)
        if (found := client.find(None, name, task)) is not None:  # it was taken, and only the answer was lost
            return found.job_id.partition("_")[0]
        if look.jobs is None and is_unanswered(str(error)):
            return None
        raise refusal(str(error), plan.profile, plan.time_limit) from error
