"""Slurm, through submitit: one job a run, one task a node, in each of which the same agent runs as everywhere.

The run directory lies on a folder that login and compute nodes share, so what the agents write is read where it lies.
Slurm's word is a scheduler's status beside it: orchestrator.runs.scheduler_status.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.backends.base import NodeProof
from orchestrator.backends.settings import SlurmSettings
from orchestrator.backends.slurm import job
from orchestrator.backends.slurm.client import Client, LocalRunner
from orchestrator.backends.slurm.environment import filled, is_strange
from orchestrator.backends.slurm.errors import is_unanswered
from orchestrator.backends.slurm.partitions import refused
from orchestrator.backends.slurm.scheduler import SlurmScheduler, check_folder
from orchestrator.backends.slurm.script import FOLDER, Array, command_of, options_in, parameters, step
from orchestrator.errors import UsageError
from orchestrator.node.system.private import as_the_user
from orchestrator.protocol.ranks import RANK_VARIABLES
from orchestrator.protocol.task import NodeTask, task_json
from orchestrator.runs.scheduler_status import SchedulerStatus
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, state_root, write_durably
from orchestrator.transport.machine import LocalMachine, Machine

if TYPE_CHECKING:  # `orch status` must not wait for pydantic
    from orchestrator.backends.replay_stage import Order
    from orchestrator.backends.slurm.doctor import Folder
    from orchestrator.specs.plan import LaunchPlan, Place


SAFE_PATH: Final = "-P"  # a task starts in the folder of the submit: nothing is to be imported from there


class SlurmBackend(SlurmScheduler):
    """A run as one Slurm job of this user. The nodes write to the run directory itself.

    Slurm starts a job again, with nobody of ours there: the batch script asks it to.
    """

    def __init__(self) -> None:
        self.slurm = Client(LocalRunner())

    def client(self, settings: SlurmSettings) -> Client:
        """Return Slurm as this machine has it."""
        return self.slurm

    def runs_folder(self, settings: SlurmSettings, launch: LaunchPlan) -> Folder:
        """Return the folder of all runs; of its room and rights, the nearest folder above that exists is asked."""
        from orchestrator.backends.slurm.doctor import Folder  # noqa: PLC0415 (`orch status` does without)

        top = Path(launch.tasks[0].run_dir)
        path = str(top.parent)
        while not os.path.exists(top):  # or not to be seen, as in another user's folder
            top = top.parent
        return Folder(path, str(top), shutil.disk_usage(top).free, is_writable=os.access(top, os.W_OK))

    def cache_of(self, settings: SlurmSettings, workdir: str | None) -> tuple[Machine, str]:
        """Return this machine, and the folder that the runs' folder is in."""
        place = self.place(RunDir(state_root() / "runs" / "cache"), workdir, None)
        return LocalMachine(), str(Path(place.run_dir).parent.parent)

    # -- starting

    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """Return the run directory, in `workdir` where the profile has one; every node has to see it at that path."""
        from orchestrator.specs.plan import Place  # noqa: PLC0415 (loads pydantic)

        folder = run.path
        if workdir is not None:
            base = Path(workdir).expanduser()
            if not base.is_absolute():
                raise UsageError(f"workdir is '{workdir}'", "write it from the root: /shared/me/orch, or ~/orch")
            folder = base / "runs" / run.run_id
        check_folder(str(folder))
        inputs = folder.parent.parent / "inputs"
        return Place(str(folder), str(folder / "code"), str(inputs), sys.executable, sys.executable)

    def script(self, launch: LaunchPlan) -> str:
        """Return the batch script that a submit of this plan hands to sbatch; needs no Slurm."""
        return batch_script(launch, (launch.commands[0][0], SAFE_PATH), ("-m", "submitit.core._submit"))

    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Queue the job. The intent is durable before, and a job whose number was lost is found by its name."""
        from orchestrator.transport.node_archive import kept_archive  # noqa: PLC0415 (only a submit needs it)

        self.slurm.need("sbatch", "srun", "squeue", "scancel")
        if plan.job["environment"] is not None:
            from orchestrator.backends.environments import with_environment  # noqa: PLC0415 (most jobs have none)

            tasks = with_environment(run, tasks, {0: LocalMachine()}, _workdir(tasks))
        write_durably(run.path / "node.pyz", kept_archive(run.root))
        (run.path / FOLDER).mkdir(exist_ok=True)
        for task in tasks:
            run.node(task.node_rank).mkdir(parents=True, exist_ok=True)
            path = run.node(task.node_rank) / "task.json"
            write_durably(path, task_json(task), private=True)
        plan, by_shell = filled(plan, os.environ)
        run.write("handle.json", {"state": HandleStatus.INTENT})
        if (job_id := _sbatch(plan, self.slurm)) is not None:
            run.write("handle.json", job.submitted_as(job_id, plan, by_shell))

    def submit_all(
        self, plans: Sequence[LaunchPlan], tasks: Sequence[tuple[NodeTask, ...]], runs: Sequence[RunDir], folder: Path,
        parallel: int | None,
    ) -> None:  # fmt: skip
        """Queue the points of a sweep as one array, at most so many at a time; as `submit`, for all of them."""
        from orchestrator.backends.environments import with_environment  # noqa: PLC0415 (only a submit needs it)
        from orchestrator.backends.slurm.array import prepare_runs  # noqa: PLC0415 (only a submit needs it)

        self.slurm.need("sbatch", "srun", "squeue", "scancel")
        here = {0: LocalMachine()}
        tasks = [with_environment(run, its, here, _workdir(its)) for run, its in zip(runs, tasks, strict=True)]
        array = Array(folder.name, str(folder), len(runs), parallel)
        prepare_runs(array, runs, tasks)
        first, by_shell = filled(plans[0], os.environ)
        if (job_id := _sbatch(first, self.slurm, array)) is not None:
            handle = job.submitted_as(job_id, first, by_shell)
            write_durably(folder / "handle.json", json.dumps(handle).encode())

    def check_alike(self, plans: Sequence[LaunchPlan]) -> None:
        """Raise UsageError where two of the plans would ask sbatch for different things."""
        from orchestrator.backends.slurm.array import check_alike  # noqa: PLC0415 (only a submit needs it)

        check_alike(plans)

    # -- looking

    def scheduler_status(self, run: RunDir) -> SchedulerStatus:
        """Return what Slurm says of the run's job."""
        return job.scheduler_status(self.slurm, run)

    def wait(self, run: RunDir, timeout: float) -> None:
        """Let time pass: neither Slurm nor a shared folder tells when something happens. Releases what was requeued.

        While the job waits in the queue it is `timeout` several times, unless it is cancelled.
        """
        job.wait_in_queue(self.slurm, run, timeout)

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the command as one more step of the run's job, while that is running."""
        return job.step_argv(self.slurm, run, node, argv, terminal=terminal)

    def stage_replay(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """Use the run directory itself, which every node sees."""
        from orchestrator.backends.replay_stage import stage_replay  # noqa: PLC0415 (only a replay needs it)

        return stage_replay(run, name, checkpoint, order, "python3")

    # -- ending

    def cancel(self, run: RunDir) -> None:
        """Send TERM to the agents, or take the job out of the queue."""
        job.cancel(self.slurm, run)

    def cancel_waiting(self, runs: Sequence[RunDir]) -> None:
        """Take what has not begun out of the queue, by one scancel for each array or job."""
        job.cancel_waiting(self.slurm, runs)

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """End the job, and prove it."""
        return job.end(self.slurm, run)


def _workdir(tasks: Sequence[NodeTask]) -> str:
    """Return the folder that all nodes see, in which the runs are."""
    return str(Path(tasks[0].run_dir).parent.parent)


def batch_script(launch: LaunchPlan, python: Sequence[str], entry: Sequence[str], array: Array | None = None) -> str:
    """Return the batch script of a plan; `entry` follows the interpreter, and starts submitit's side of each task.

    With an array, the script of all its runs, of which the plan is one.
    """
    from submitit.slurm.slurm import _make_sbatch_string  # noqa: PLC0415 (60 ms)

    folder = f"{array.folder if array else launch.tasks[0].run_dir}/{FOLDER}"
    command = f"{step(launch, python, array)} -u {shlex.join([*entry, folder])}"
    return str(_make_sbatch_string(command=command, folder=folder, **parameters(launch, array)))


def pickled(argv: Sequence[str]) -> bytes:
    """Return what submitit's side of a task loads and calls: it becomes the agent, by this command.

    Its interpreter may be a name, for the nodes to find on their PATH.
    """
    import pickle  # noqa: PLC0415 (only a submit needs it)

    from submitit.core.utils import DelayedSubmission  # noqa: PLC0415 (60 ms)

    return pickle.dumps(DelayedSubmission(os.execvp, argv[0], list(argv)))


@contextlib.contextmanager
def _environment(hidden: tuple[str, ...]) -> Iterator[None]:
    """Remove secrets, orch's own variables and options of Slurm's programs from the variables that sbatch passes on."""
    kept = dict(os.environ)
    for name in kept:
        if name in RANK_VARIABLES or name in hidden or name.startswith(("ORCH_", "SUBMITIT_")) or is_strange(name):
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)


def _sbatch(plan: LaunchPlan, client: Client, array: Array | None = None) -> str | None:
    """Queue the job; return its number, None where only its name can find it, later. BackendError on a refusal."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415 (60 ms)
    from submitit.slurm.slurm import SlurmExecutor  # noqa: PLC0415

    argv, folder, name, task = plan.commands[0], plan.tasks[0].run_dir, plan.run_id, ""
    if array is not None:
        argv, folder, name, task = command_of(array, plan), array.folder, array.sweep, "0"

    class Executor(SlurmExecutor):
        """Passes the options to sbatch on the command line too."""

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return ["sbatch", *options_in(submission_file_path.read_text()), str(submission_file_path)]

    executor = Executor(folder=f"{folder}/{FOLDER}", python=step(plan, (argv[0], SAFE_PATH), array))
    executor.update_parameters(**parameters(plan, array))
    try:
        # submitit prints what sbatch says; here it becomes the error's own words. A job gets the umask of its sbatch.
        with _environment(plan.secret_names), as_the_user(), contextlib.redirect_stderr(io.StringIO()):
            return str(executor.submit(os.execvp, argv[0], list(argv)).job_id)
    except (FailedJobError, FailedSubmissionError) as error:
        snapshot = client.queue(fresh=True)
        is_lost = is_unanswered(str(error))
        found = client.find(None, name, task)
        # Slurm keeps a job that it has refused in its records as a failed job.
        if found is not None and (is_lost or found.phase != "ended"):
            return found.job_id.partition("_")[0]
        if snapshot.jobs is None and is_lost:
            return None
        raise refused(str(error), client, plan) from error
