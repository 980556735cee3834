"""Slurm through a login node: the job is submitted, asked after and ended there, and what it writes is copied here.

Nothing is installed on the login node: orch's own server runs Slurm's programs, and submitit's side of the task travels
with the run. The supervisor records what Slurm says (`slurm.json`), so that looking at runs here asks no machine.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orchestrator.backends.base import NodeProof
from orchestrator.backends.remote.hosts import connections
from orchestrator.backends.settings import SlurmSettings, profile_of, remote_folder, workdir_of
from orchestrator.backends.slurm import job
from orchestrator.backends.slurm.client import NO_TLS, Client
from orchestrator.backends.slurm.environment import filled
from orchestrator.backends.slurm.login.node import LoginNode
from orchestrator.backends.slurm.login.recorded_status import record_status, recorded_status
from orchestrator.backends.slurm.parse import job_id_of
from orchestrator.backends.slurm.partitions import refused
from orchestrator.backends.slurm.scheduler import SlurmScheduler, check_folder
from orchestrator.backends.slurm.script import FOLDER, Array, options_in
from orchestrator.errors import BackendError, UsageError
from orchestrator.protocol.task import NodeTask, at_home, task_json
from orchestrator.runs.scheduler_status import SchedulerStatus
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir
from orchestrator.transport.openssh import over_ssh

if TYPE_CHECKING:  # `orch status` must wait neither for pydantic nor for fabric
    from pathlib import Path

    from orchestrator.backends.remote.mirror import RunWatcher
    from orchestrator.backends.replay_stage import Order
    from orchestrator.backends.slurm.doctor import Folder
    from orchestrator.runs.files.logs import Selection
    from orchestrator.specs.plan import LaunchPlan, Place
    from orchestrator.transport.machine import Machine
    from orchestrator.transport.pool import ConnectionPool

SUBMIT_SECONDS: Final = 120.0
MIN_PYTHON: Final = (3, 10)  # of submitit
NO_SLURM: Final = "name a machine in login: on which sbatch is on PATH, if only for login shells"


class LoginBackend(SlurmScheduler):
    """A run as one Slurm job of this user's on another machine's Slurm, and a sweep as one array."""

    is_remote = True
    pool: ConnectionPool

    def __init__(self) -> None:
        self.pool = connections()
        self._clients: dict[tuple[str, str, bool], tuple[LoginNode, Client]] = {}
        self._watchers: dict[str, RunWatcher] = {}
        self._lock = threading.Lock()

    def login(self, settings: SlurmSettings) -> LoginNode:
        """Return a profile's login node."""
        return self._known(settings)[0]

    def client(self, settings: SlurmSettings) -> Client:
        """Return Slurm as a profile's login node has it."""
        return self._known(settings)[1]

    def _known(self, settings: SlurmSettings) -> tuple[LoginNode, Client]:
        key = (settings.login, settings.workdir, settings.shared_parent)
        with self._lock:
            if key not in self._clients:
                login = LoginNode(self.pool, settings.login, settings.workdir, shared_parent=settings.shared_parent)
                self._clients[key] = login, Client(login)
            return self._clients[key]

    def login_of(self, run: RunDir) -> LoginNode:
        """Return the run's login node."""
        return self.login(SlurmSettings.of(profile_of(run)))

    def runs_folder(self, settings: SlurmSettings, launch: LaunchPlan) -> Folder:
        """Return the folder of all runs, as the login node has it; BackendError where that is out of reach."""
        from orchestrator.backends.slurm.doctor import Folder  # noqa: PLC0415 (`orch status` does without)

        hello = self.login(settings).hello()
        return Folder(f"{hello['workdir']}/runs", hello["workdir"], hello["free"])

    def cache_of(self, settings: SlurmSettings, workdir: str | None) -> tuple[Machine, str]:
        """Return the login node, and orch's folder there."""
        login = self.login(settings)
        login.hello()  # what others may write into is refused
        return login.session(), settings.workdir

    def check_python(self, settings: SlurmSettings, python: str, *, is_alone: bool = True) -> None:
        """Ask the login node for the interpreter, a name on its PATH or a path."""
        _check_python(self.login(settings), python, is_alone=is_alone)

    # -- starting

    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """Return a folder in orch's folder on the login node, which every node has to see at the same path."""
        from orchestrator.specs.plan import Place  # noqa: PLC0415 (loads pydantic)

        top = workdir or "~/.orch"
        if not top.startswith(("/", "~/")):
            raise UsageError(f"workdir is '{workdir}'", "write it from the root: /shared/me/orch, or ~/orch")
        check_folder(top)
        folder = f"{top}/runs/{run.run_id}"
        return Place(folder, f"{folder}/code", f"{top}/inputs", python or "python3", python or "python3")

    def script(self, launch: LaunchPlan) -> str:
        """Return the batch script that a submit of this plan hands to sbatch, but for `~`, which it knows by then."""
        from orchestrator.backends.slurm.backend import batch_script  # noqa: PLC0415 (loads submitit)

        return batch_script(launch, launch.commands[0][:1], (f"{launch.tasks[0].run_dir}/submitit.pyz",))

    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Send what the job needs, and queue it; a job whose number was lost is found by its name."""
        settings = SlurmSettings.of(plan.profile)
        login, client = self._known(settings)
        home = self._ready(plan, settings)
        plan, by_shell = filled(_plan_at(plan, home), login.environment())
        tasks = _tasks_at(run, tasks, home, login.session(), settings)
        # From here on there may be something to bring back or remove.
        run.write("handle.json", {"state": HandleStatus.INTENT})
        script = self._send(login.session(), plan, tasks, run, settings.workdir)
        if (number := _sbatch(client, [*options_in(self.script(plan)), script], plan)) is not None:
            run.write("handle.json", job.submitted_as(number, plan, by_shell))
        record_status(run, job.scheduler_status(client, run))

    def submit_all(
        self, plans: Sequence[LaunchPlan], tasks: Sequence[tuple[NodeTask, ...]], runs: Sequence[RunDir], folder: Path,
        parallel: int | None,
    ) -> None:  # fmt: skip
        """Send what the runs need, and queue them as one array, at most so many at a time; as `submit`, for all."""
        from orchestrator.backends.slurm.login.array import array_of, send_array, send_runs  # noqa: PLC0415 (loads fabric)

        settings = SlurmSettings.of(plans[0].profile)
        login, client = self._known(settings)
        home = self._ready(plans[0], settings)
        session = login.session()
        plans = [_plan_at(plan, home) for plan in plans]
        tasks = [_tasks_at(run, its, home, session, settings) for run, its in zip(runs, tasks, strict=True)]
        array = array_of(plans, folder.name, parallel)
        for run in runs:
            run.write("handle.json", {"state": HandleStatus.INTENT, "array": str(folder)})
        first, by_shell = filled(plans[0], login.environment())
        words = send_array(session, array, first, runs[0].root)
        send_runs(session, array, runs, tasks, settings.workdir)
        if (number := _sbatch(client, words, first, array)) is not None:
            RunDir(folder).write("handle.json", job.submitted_as(number, first, by_shell))
        for run in runs:
            record_status(run, job.scheduler_status(client, run))

    def check_alike(self, plans: Sequence[LaunchPlan]) -> None:
        """Raise UsageError where two of the plans would ask sbatch for different things."""
        from orchestrator.backends.slurm.array import check_alike  # noqa: PLC0415 (only a submit needs it)

        check_alike(plans)

    def _ready(self, plan: LaunchPlan, settings: SlurmSettings) -> str:
        """Return the user's home on the login node, where that has all that a submit needs; else BackendError."""
        login, client = self._known(settings)
        home: str = login.hello()["home"]
        client.need("sbatch", "srun", "squeue", "scancel", hint=NO_SLURM)
        self.check_python(settings, _at_home(plan.commands[0][0], home), is_alone=plan.nnodes == 1)
        return home

    def _send(self, session: Machine, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir, workdir: str) -> str:
        """Send the run's folder to the login node; return the path of the batch script there."""
        from orchestrator.backends.remote.given import checkpoint_to_give, give  # noqa: PLC0415 (loads fabric)
        from orchestrator.backends.remote.upload import send_code  # noqa: PLC0415 (loads fabric)
        from orchestrator.backends.slurm.backend import pickled  # noqa: PLC0415 (loads submitit)
        from orchestrator.transport.node_archive import kept_archive, submitit_archive  # noqa: PLC0415 (only a submit needs it)

        top = tasks[0].run_dir
        script = f"{top}/{FOLDER}/submission.sh"
        send_code(session, run, workdir, tasks[0].code_dir)
        if (given := checkpoint_to_give(run, tasks[0])) is not None:
            give(session, run, given)
        for path, data in {
            "node.pyz": kept_archive(run.root),
            "submitit.pyz": submitit_archive(),
            f"{FOLDER}/task.pkl": pickled(plan.commands[0]),
            **{f"nodes/{task.node_rank}/task.json": task_json(task) for task in tasks},
        }.items():
            session.call("write_file", data, path=f"{top}/{path}")
        session.call("write_file", self.script(plan).encode(), path=script)
        return script

    # -- looking

    def watcher(self, run: RunDir) -> RunWatcher:
        """Return the threads that copy what the run writes; started when first asked for."""
        from orchestrator.backends.slurm.login.watcher import watch  # noqa: PLC0415 (loads fabric)

        login, client = self.login_of(run), self.client_of(run)
        with self._lock:
            if run.run_id not in self._watchers:
                self._watchers[run.run_id] = watch(run, login, client)
            return self._watchers[run.run_id]

    def scheduler_status(self, run: RunDir) -> SchedulerStatus:
        """Return what Slurm said when the supervisor asked last; after a submit that was cut off, what it says now."""
        if (seen := recorded_status(run)) is not None:
            return seen
        return job.scheduler_status(self.client_of(run), run) if _was_begun(run) else SchedulerStatus("none")

    def wait(self, run: RunDir, timeout: float) -> None:
        """Copy what is new until something has changed, or for `timeout` seconds; longer while nothing has begun.

        Of a sweep's runs, thousands may wait in the queue: only what has begun has threads of its own.
        """
        if run.run_id in self._watchers or (phase := self._phase_in_queue(run)) is None:
            self.watcher(run).wait(timeout)
        elif phase != "ended":
            job.wait_in_queue(self.client_of(run), run, timeout)

    def _phase_in_queue(self, run: RunDir) -> str | None:
        """Return the phase of a job that has never begun, and record what Slurm says; None for one that has.

        What Slurm says of a job's end is recorded when all that was written before is here.
        """
        client = self.client_of(run)
        status = job.scheduler_status(client, run)
        if job.may_be_requeued(client, run) or (status.phase == "ended" and self._has_begun(run)):
            return None
        record_status(run, status)  # before events come: of a job that waits they would be of a start before
        return status.phase if status.phase != "active" else None

    def _has_begun(self, run: RunDir) -> bool:
        """Ask the login node whether the run's job has written anything; BackendError where it is out of reach."""
        begun: bool = self.login_of(run).session().call("has_begun", run_dir=remote_folder(run))[0]["begun"]
        return begun

    @contextlib.contextmanager
    def bringing_logs(self, run: RunDir, selection: Selection) -> Iterator[None]:
        """Have the chosen logs copied here too, while it lasts."""
        from orchestrator.backends.remote.mirror import watching_logs  # noqa: PLC0415 (loads fabric)
        from orchestrator.backends.slurm.login.watcher import source_of  # noqa: PLC0415 (as above)

        with watching_logs(run, [source_of(run, self.login_of(run))], selection):
            yield

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return ssh to the login node, and there one more step of the run's job, while that is running."""
        step = job.step_argv(self.client_of(run), run, node, argv, terminal=terminal)
        return over_ssh(self.login_of(run).address, step, terminal=terminal)

    def stage_replay(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """Use a folder beside the runs' on the login node, which every node sees; the run's own may be gone."""
        from orchestrator.backends.remote.upload import stage_replay  # noqa: PLC0415 (loads fabric)

        return stage_replay(self.login_of(run).session(), run, workdir_of(profile_of(run)), name, checkpoint, order)

    # -- ending

    def cancel(self, run: RunDir) -> None:
        """Leave the recorded cancel where the agents find it, then TERM to them, or out of the queue.

        Where the login node is out of reach, whoever reconciles the run does it.
        """
        with contextlib.suppress(BackendError):
            client = self.client_of(run)
            recorded = run.read("cancel.json") or {}
            # Unlike `write_file`, it makes no folder anew: another command may have brought all home and removed it.
            self.login_of(run).session().call("cancel", run_dir=remote_folder(run), node=0, cancel=recorded)
            job.cancel(client, run)
            if (status := job.scheduler_status(client, run)).phase == "ended":  # it had not begun
                record_status(run, status)

    def cancel_waiting(self, runs: Sequence[RunDir]) -> None:
        """Take what has not begun out of the queue; out of reach, whoever reconciles each run does it."""
        with contextlib.suppress(BackendError):
            job.cancel_waiting(self.client_of(runs[0]), runs)

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """End the job, and prove it; with the login node out of reach, no node can be looked at."""
        if not _was_begun(run):
            return []
        client = self.client_of(run)
        proofs = job.end(client, run)
        asked = job.scheduler_status(client, run)
        record_status(run, asked)
        return [replace(proof, is_unreachable=True) for proof in proofs] if asked.phase == "unknown" else proofs

    def collect(self, run: RunDir) -> None:
        """Bring what is not here yet, then remove the run's folder there; BackendError where it is out of reach."""
        from orchestrator.backends.remote.mirror import finish  # noqa: PLC0415 (loads fabric)
        from orchestrator.backends.slurm.login.watcher import source_of  # noqa: PLC0415 (as above)

        with self._lock:
            watcher = self._watchers.pop(run.run_id, None)
        if watcher is not None:
            watcher.stop()
        if _was_begun(run):
            job.wait_for_end(self.client_of(run), run)  # its batch shell outlives the agents by a moment
            if watcher is None and not self._has_begun(run):
                self.login_of(run).session().call("remove", run_dir=remote_folder(run), run_id=run.run_id)
            else:
                finish(run, [source_of(run, self.login_of(run))])

    def bring_outputs(self, run: RunDir) -> None:
        """Bring the outputs that are still on the login node; once the run has ended, remove its folder there."""
        from orchestrator.backends.remote.mirror import bring_outputs  # noqa: PLC0415 (loads fabric)
        from orchestrator.backends.slurm.login.watcher import source_of  # noqa: PLC0415 (as above)

        if _was_begun(run):
            bring_outputs(run, [source_of(run, self.login_of(run))])


def _was_begun(run: RunDir) -> bool:
    """Tell whether anything was sent, so that something may be there."""
    return (run.path / "handle.json").exists()


def _plan_at(plan: LaunchPlan, home: str) -> LaunchPlan:
    """Return the plan with `~` as the login node has it."""
    return replace(
        plan,
        tasks=tuple(at_home(task, home) for task in plan.tasks),
        commands=tuple(tuple(_at_home(word, home) for word in argv) for argv in plan.commands),
    )


def _tasks_at(
    run: RunDir, tasks: tuple[NodeTask, ...], home: str, session: Machine, settings: SlurmSettings
) -> tuple[NodeTask, ...]:
    """Return the tasks as they are sent: with `~` as the login node has it, and the run's environment there."""
    from orchestrator.backends.environments import with_environment  # noqa: PLC0415 (only a submit needs it)
    from orchestrator.backends.remote.given import with_given_checkpoint  # noqa: PLC0415 (loads fabric)

    found = tuple(at_home(task, home) for task in with_given_checkpoint(tasks))
    return with_environment(run, found, {0: session}, settings.workdir)


def _at_home(word: str, home: str) -> str:
    return home + word[1:] if word.startswith("~/") else word


def _check_python(login: LoginNode, python: str, *, is_alone: bool) -> None:
    """Raise BackendError where the nodes' interpreter, as the login node sees it, can't run submitit or the agents."""
    hint = "set python: in the profile to an interpreter that login and compute nodes share"
    try:
        found = login.session().call("interpreter", python=python)[0]
    except BackendError as error:
        raise BackendError(error.message, error.hint or hint, transient=error.transient) from error
    problem = ""
    if tuple(map(int, found["python"].split(".")[:2])) < MIN_PYTHON:
        problem = f"is Python {found['python']}; submitit needs 3.10 or newer"
    elif not is_alone and not found["tls"]:
        problem = NO_TLS
    if problem:
        raise BackendError(f"{login.address.host}: {python} {problem}", hint)


def _sbatch(client: Client, words: Sequence[str], plan: LaunchPlan, array: Array | None = None) -> str | None:
    """Queue the job by sbatch with these words, and return its number. None if it can be found only by name, later.

    Raises BackendError if Slurm refuses it.
    """
    name, task = (array.sweep, "0") if array else (plan.run_id, "")
    try:
        answer = client.call("sbatch", *words, timeout=SUBMIT_SECONDS)
    except BackendError:
        snapshot = client.queue(fresh=True)
        if (found := client.find(None, name, task)) is not None:  # it was taken, and only the answer was lost
            return found.job_id.partition("_")[0]
        if snapshot.jobs is None:
            return None
        raise
    if answer.code != 0 or (number := job_id_of(answer.out)) is None:
        raise refused(answer.err or answer.out, client, plan)
    return number
