"""The backend that runs jobs of a batch scheduler. A run is a job, a sweep is an array, and each node has one task,
which becomes the agent.

The scheduler's programs run either on this machine or on a login node. On this machine, the run's folder is on a file
system that this machine and the nodes share. With a login node, the run's folder is on a file system that the login
node and the nodes share. The supervisor then copies the files to this machine and records the scheduler's reports, so
that `look` contacts no machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Final

from orchestrator.backends.base import Backend, Check, CheckResult, Finding, Judge, NodeProof, Sight
from orchestrator.backends.batch import job
from orchestrator.backends.batch.site import Site
from orchestrator.backends.settings import WORKDIR, remote_folder, workdir_of
from orchestrator.errors import BackendError, UsageError
from orchestrator.runs.scheduler_status import SchedulerStatus
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, state_root
from orchestrator.transport.address import HERE, parse_address
from orchestrator.transport.machine import LocalMachine

if TYPE_CHECKING:  # `orch status` must wait neither for pydantic nor for fabric
    from orchestrator.backends.batch.scheduler import Folder, Scheduler
    from orchestrator.backends.mirror.watching import RunWatcher
    from orchestrator.backends.replay_stage import Order as ReplayOrder
    from orchestrator.protocol.task import NodeTask
    from orchestrator.runs.files.logs import Selection
    from orchestrator.runs.job_use import JobUse
    from orchestrator.specs.plan import LaunchPlan, Place
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.transport.machine import Machine

NO_TLS: Final = "can't speak TLS 1.3, by which the nodes of a run authenticate one another"
OTHER_PYTHON: Final = "set `python` in the profile to an interpreter that login and compute nodes share"


class Batch(Backend):
    """The backend for runs that are jobs of one scheduler. They are submitted on this machine (is_remote: False) or on
    a login node (is_remote: True).

    After a requeue the scheduler itself starts the job again, even if no process of orch is alive on this machine.
    """

    takes_sweeps: ClassVar[bool] = True

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None:
        self.scheduler, self.is_remote = scheduler, is_remote
        if is_remote:
            from orchestrator.backends.hosts import connections

            self.pool = connections()
        self._sites: dict[tuple[str, str, bool], Site] = {}
        self._watchers: dict[str, RunWatcher] = {}
        self._lock = threading.Lock()

    # -- where the scheduler's programs run

    def site(self, profile: Mapping[str, Any]) -> Site:
        """Return the site of a profile: the machine on which the scheduler's programs run. Each machine has one Site
        object.
        """
        login = str(profile.get("login") or "") if self.is_remote else ""
        workdir = workdir_of(profile) if login else ""
        key = (login, workdir, bool(login and profile.get("shared_parent")))
        with self._lock:
            if (site := self._sites.get(key)) is None:
                machine = self._login_node(login, workdir) if login else LocalMachine
                site = self._sites[key] = Site(self.scheduler, machine, login or HERE, workdir, shared_parent=key[2])
            return site

    def _login_node(self, login: str, workdir: str) -> Callable[[], Machine]:
        pool, address = self.pool, parse_address(login)
        assert pool is not None, "only a remote backend reads login:"
        return lambda: pool.session(address, workdir)

    def site_of(self, run: RunDir) -> Site:
        """Return the site on which the run's job was submitted."""
        return self.site(run.record().profile if self.is_remote else {})

    def check_python(self, site: Site, python: str, *, is_alone: bool = True) -> None:
        """Raise BackendError if the nodes' Python interpreter can't run the job's tasks, as checked on the login node.

        Without a login node nothing is checked, because the nodes use orch's own interpreter.
        """
        if not self.is_remote:
            return
        try:
            found = site.machine().call("interpreter", python=python)[0]
        except BackendError as error:
            if error.transient:
                raise
            raise BackendError(error.message, error.hint or OTHER_PYTHON) from error
        problem = ""
        who, *least = self.scheduler.needs_python
        if tuple(map(int, found["python"].split(".")[:2])) < tuple(least):
            problem = f"is Python {found['python']}; {who} needs {'.'.join(map(str, least))} or newer"
        elif not is_alone and not found["tls"]:
            problem = NO_TLS
        if problem:
            raise BackendError(f"{parse_address(site.where).host}: {python} {problem}", OTHER_PYTHON)

    # -- starting

    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """Return the run's folder: in the profile's `workdir`, which must have the same path on every node, or in
        orch's state folder.
        """
        from orchestrator.specs.plan import Place

        top = workdir if workdir is None or self.is_remote else os.path.expanduser(workdir)
        if top is not None and not top.startswith(("/", "~/")):
            raise UsageError(
                f"workdir must be an absolute path, and it is '{workdir}'",
                "write a path such as /shared/me/orch or ~/orch",
            )
        if self.is_remote:  # `~` is expanded on the login node
            top, python = top or WORKDIR, python or "python3"
        else:
            top, python = top or str(run.path.parents[1]), sys.executable
        folder = f"{top}/runs/{run.run_id}"
        self.scheduler.check_folder(folder)
        return Place(folder, f"{folder}/code", f"{top}/inputs", python, python)

    def script(self, launch: LaunchPlan) -> str:
        """Return the batch script that orch would pass to the scheduler for this plan. `~` is not expanded yet."""
        return self.scheduler.script(launch)

    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Queue the run's job. If the scheduler's answer with the job's number is lost, the job is found later by
        its name.
        """
        self._submit([plan], [tasks], [run], None, None)

    def submit_all(
        self, plans: Sequence[LaunchPlan], tasks: Sequence[tuple[NodeTask, ...]], runs: Sequence[RunDir], folder: Path,
        parallel: int | None,
    ) -> None:  # fmt: skip
        """Queue the runs as one array. Their shared files are written once, and each run has a folder of its own.

        The handle.json of a run names only the array, because the run's id ends with the number of its task in the
        array. So no file has to be written for each run after the scheduler's answer.
        """
        self._submit(plans, tasks, runs, folder, parallel)

    def _submit(
        self, plans: Sequence[LaunchPlan], tasks: Sequence[tuple[NodeTask, ...]], runs: Sequence[RunDir],
        sweep: Path | None, parallel: int | None,
    ) -> None:  # fmt: skip
        """Queue one job, which is either the array of a sweep or the job of one run."""
        from orchestrator.backends.batch import submission
        from orchestrator.backends.batch.scheduler import Array, Order

        site, home = self._ready(plans[0])
        at_site = [self._tasks_at(run, its, home, site.machine()) for run, its in zip(runs, tasks, strict=True)]
        first, by_shell = self.scheduler.filled(submission.plan_at(plans[0], home), site.environment())
        top = f"{orchs_folder(first.tasks[0])}/sweeps"
        array = Array(sweep.name, f"{top}/{sweep.name}", len(runs), parallel) if sweep else None
        order, handle = Order(first, array), RunDir(sweep) if sweep else runs[0]
        # From here on the site may have files of the run, which must be fetched or removed later.
        named = {"array": str(sweep)} if sweep else {}
        for run in runs:
            run.write("handle.json", {"state": HandleStatus.INTENT, **named})
        submission.lay(site, order.folder, runs, at_site, own_files=self.is_remote)
        if (number := submission.queued(site, order)) is not None:
            handle.write("handle.json", job.submitted_as(number, by_shell))
        if self.is_remote:
            for run in runs:
                job.record_status(run, self.scheduler, job.scheduler_status(site, run))

    def check_alike(self, plans: Sequence[LaunchPlan]) -> None:
        """Raise UsageError if two of the plans request different resources from the scheduler."""
        first = self.scheduler.asked(plans[0])
        for plan in plans[1:]:
            if different := [name for name, value in self.scheduler.asked(plan).items() if value != first[name]]:
                raise UsageError(
                    f"the runs of a sweep share one array of {self.scheduler.title}, but these runs need "
                    f"different resources: {', '.join(different)}",
                    "submit one sweep for each value of the resources, with --set",
                )

    def _ready(self, plan: LaunchPlan) -> tuple[Site, str]:
        """Return the site (the machine with the scheduler's programs) and the user's home folder on that machine.
        Raises BackendError if no job can be submitted on it.
        """
        site = self.site(plan.profile)
        home = str(site.hello()["home"]) if self.is_remote else os.path.expanduser("~")
        site.need(*self.scheduler.programs)
        python = plan.commands[0][0]
        self.check_python(site, home + python[1:] if python.startswith("~/") else python, is_alone=plan.nnodes == 1)
        return site, home

    def _tasks_at(self, run: RunDir, tasks: tuple[NodeTask, ...], home: str, machine: Machine) -> tuple[NodeTask, ...]:
        """Install the run's environment on the site. Return the tasks with the environment's interpreter, and with `~`
        expanded as on the site.
        """
        from orchestrator.protocol.task import at_home

        if self.is_remote:
            from orchestrator.backends.mirror.given import with_given_checkpoint

            tasks = with_given_checkpoint(tasks)
        tasks = tuple(at_home(task, home) for task in tasks)
        if run.record().job.get("environment") is None:
            return tasks
        from orchestrator.backends.environments import with_environment

        return with_environment(run, tasks, {0: machine}, orchs_folder(tasks[0]))

    # -- looking

    def look(self, run: RunDir, *, recorded: bool = False) -> Sight:
        """Return the scheduler's report on the run's job. All agents count as alive while the job is active."""
        ident = job.ident_of(run, self.site_of(run))
        if recorded:
            return Sight(job=ident.job_id)
        status = self.scheduler_status(run, ident)
        return Sight(status.alive(max(1, run.record().nnodes)), job=ident.job_id, scheduler=status)

    def scheduler_status(self, run: RunDir, ident: job.Ident | None = None) -> SchedulerStatus:
        """Return the scheduler's report on the run's job. If the scheduler can't be queried, the report says so.

        With a login node, return the report that the supervisor has recorded. Query the scheduler only if the
        submission has begun and no report is recorded yet.
        """
        if self.is_remote:
            if (seen := job.recorded_status(run, self.scheduler)) is not None:
                return seen
            if not _was_begun(run):
                return SchedulerStatus("none")
        return job.scheduler_status(self.site_of(run), run, ident)

    def wait(self, run: RunDir, timeout: float) -> None:
        """Wait `timeout` seconds, or several times as long while the job waits in the queue.

        With a login node, also copy new files, and return when one has changed. The copying threads start only once the
        job has begun, because thousands of runs of a sweep may be in the queue.
        """
        site = self.site_of(run)
        if not self.is_remote:
            job.wait_in_queue(site, run, timeout)
        elif run.run_id in self._watchers or (phase := self._phase_in_queue(site, run)) is None:
            self.watcher(run).wait(timeout)
        elif phase != "ended":
            job.wait_in_queue(site, run, timeout)

    def watcher(self, run: RunDir) -> RunWatcher:
        """Return the watcher, whose threads copy the run's files. The first call starts the threads."""
        from orchestrator.backends.batch.watcher import watch

        site = self.site_of(run)
        with self._lock:
            if run.run_id not in self._watchers:
                self._watchers[run.run_id] = watch(run, site)
            return self._watchers[run.run_id]

    def _phase_in_queue(self, site: Site, run: RunDir) -> str | None:
        """Record the scheduler's report on a job that has never begun, and return the job's phase; None if the job has
        begun.

        The end of a job that has begun is recorded elsewhere, after all files that the job wrote have been copied.
        """
        status = job.scheduler_status(site, run)
        if job.may_be_requeued(site, run) or (status.phase == "ended" and self._has_begun(site, run)):
            return None
        # Record it before any events arrive: events of a job that waits would belong to an earlier start.
        job.record_status(run, self.scheduler, status)
        return status.phase if status.phase != "active" else None

    def _has_begun(self, site: Site, run: RunDir) -> bool:
        """Return True if the run's job has written a file. Raises BackendError if the login node is unreachable."""
        folder = self.scheduler.folder
        reply, _ = site.machine().call("has_begun", run_dir=remote_folder(run), folder=folder)
        return bool(reply["begun"])

    def bringing_logs(self, run: RunDir, selection: Selection) -> AbstractContextManager[None]:
        """While the context lasts, copy the chosen logs from the login node as they grow."""
        if not self.is_remote:
            return contextlib.nullcontext()
        from orchestrator.backends.batch.watcher import source_of
        from orchestrator.backends.mirror.watching import watching_logs

        return watching_logs(run, [source_of(run, self.site_of(run))], selection)

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the argv that runs the command in the run's job, which must be active. With a login node, the argv
        begins with ssh to the login node.
        """
        site = self.site_of(run)
        step = job.step_argv(site, run, node, argv, terminal=terminal)
        if not self.is_remote:
            return step
        from orchestrator.transport.openssh import over_ssh

        return over_ssh(parse_address(site.where), step, terminal=terminal)

    def stage_replay(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: ReplayOrder) -> list[str]:
        """Put the files for a replay of one rank into the run's folder. With a login node, put them into a new folder
        next to the run's folder, because the run's folder may be removed.
        """
        if not self.is_remote:
            from orchestrator.backends.replay_stage import stage_replay as stage

            return stage(run, name, checkpoint, order, "python3")
        from orchestrator.backends.mirror.upload import stage_replay

        machine = self.site_of(run).machine()
        return stage_replay(machine, run, workdir_of(run.record().profile), name, checkpoint, order)

    # -- ending

    def cancel(self, run: RunDir) -> None:
        """Send TERM to the agents, which then read the recorded cancel. If the job still waits, take it out of the
        queue.

        If the login node is unreachable, the supervisor repeats the cancel.
        """
        site = self.site_of(run)
        with self._unless_away():
            if self.is_remote:
                recorded = run.read("cancel.json") or {}
                # `write_file` would make the folder again, although another command may have fetched and removed it.
                site.machine().call("cancel", run_dir=remote_folder(run), node=0, cancel=recorded)
            job.cancel(site, run)
            if self.is_remote and (status := job.scheduler_status(site, run)).phase == "ended":  # it had not begun
                job.record_status(run, self.scheduler, status)

    def cancel_waiting(self, runs: Sequence[RunDir]) -> None:
        """If a run's job has not begun, remove it from the queue. One command removes all such jobs of an array."""
        with self._unless_away():
            job.cancel_waiting(self.site_of(runs[0]), runs)

    def _unless_away(self) -> AbstractContextManager[None]:
        """If the jobs are submitted on a login node, suppress a BackendError within the block, because the supervisor
        repeats the work for each run. Otherwise, suppress nothing.
        """
        return contextlib.suppress(BackendError) if self.is_remote else contextlib.nullcontext()

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """End the job, and return for each node whether processes remain. If the login node is unreachable, report
        every node as unreachable.
        """
        if not _was_begun(run):
            return []
        site = self.site_of(run)
        proofs = job.end(site, run)
        if not self.is_remote:
            return proofs
        status = job.scheduler_status(site, run)
        job.record_status(run, self.scheduler, status)
        return [replace(proof, is_unreachable=True) for proof in proofs] if status.phase == "unknown" else proofs

    def collect(self, run: RunDir) -> None:
        """Copy the files that are only on the login node, then remove the run's folder on the login node."""
        with self._lock:
            watcher = self._watchers.pop(run.run_id, None)
        if watcher is not None:
            watcher.stop()
        if not self.is_remote or not _was_begun(run):
            return
        from orchestrator.backends.batch.watcher import source_of
        from orchestrator.backends.mirror.watching import finish

        site = self.site_of(run)
        job.wait_for_end(site, run)  # its batch shell outlives the agents by a moment
        if watcher is None and not self._has_begun(site, run):
            site.machine().call("remove", run_dir=remote_folder(run), run_id=run.run_id)
        else:
            finish(run, [source_of(run, site)])

    def bring_outputs(self, run: RunDir) -> None:
        """Copy to this machine all outputs that exist only on the login node. If the run has ended, remove its folder
        from the login node.
        """
        if self.is_remote and _was_begun(run):
            from orchestrator.backends.batch.watcher import source_of
            from orchestrator.backends.mirror.watching import bring_outputs

            bring_outputs(run, [source_of(run, self.site_of(run))])

    # -- what the scheduler knows

    def completed(self, launch: LaunchPlan, *, by_shell: bool = False) -> LaunchPlan:
        """Return the plan, completed with the values that only the scheduler knows; unchanged if the scheduler does
        not answer.
        """
        with contextlib.suppress(BackendError):
            launch = self.scheduler.completed(launch, lambda: self.site(launch.profile))
        return self.scheduler.filled(launch, os.environ)[0] if by_shell and not self.is_remote else launch

    def would_take(self, launch: LaunchPlan) -> CheckResult:
        """Check whether the scheduler would accept the plan, without submitting it. Raises BackendError if the
        scheduler can't be queried.
        """
        site = self.site(launch.profile)
        site.need(self.scheduler.programs[0])
        return self.scheduler.would_take(self.scheduler.filled(launch, site.environment())[0], site)

    def waiting_for(self, launch: LaunchPlan, runs: Sequence[RunDir], *, succeeds: bool) -> LaunchPlan | None:
        """Return the plan, changed so that its job waits for these runs; None if the scheduler can't wait for all of
        them.
        """
        return job.after(self.site_of(runs[0]), launch, runs, succeeds=succeeds)

    def used(self, run: RunDir) -> JobUse | None:
        """Return what the run's job used, according to the scheduler's accounting; None before the run has a job."""
        site = self.site_of(run)
        ident = job.ident_of(run, site)
        return None if ident.job_id is None else site.used(ident.job_id, ident.name)

    def unsaid(self, run: RunDir) -> str:
        """Return a sentence about a setting that the run's profile should have but lacks; "" if it lacks none."""
        return self.scheduler.unsaid(run.record(), job.given_by_shell(run, self.site_of(run)))

    def excess(self, run: RunDir) -> str:
        """Return, in numbers, what the run requests beyond its queue's limits; "" if the request is within the limits,
        or if the scheduler can't be queried.
        """
        site = self.site_of(run)
        try:
            return self.scheduler.excess(run.record(), job.given_by_shell(run, site), site)
        except BackendError:
            return ""

    # -- a profile

    def doctor(self, profile: AnyProfile, *, on_node: bool) -> list[Check]:
        """Check whether a run with the profile could be submitted. With `on_node`, also submit a short job that checks
        a node.
        """
        from orchestrator.backends.batch.scheduler import Trial
        from orchestrator.specs.job import Job
        from orchestrator.specs.plan import plan

        if on_node and not self.scheduler.looks_on_nodes:
            raise UsageError(
                "--on-node works only with Slurm, where it runs a short test job",
                "test the nodes with a job such as hostname: orch submit --follow",
            )
        place = self.place(RunDir(state_root() / "runs" / "doctor"), profile.workdir, profile.python)
        launch = plan(Job(name="doctor", command=("true",)), profile, "doctor", place)
        site = self.site(launch.profile)
        return self.scheduler.doctor(
            Trial(
                site,
                launch,
                lambda: self.check_python(site, place.agent_python),
                lambda: self._runs_folder(site, launch),
                on_node,
            )
        )

    def _runs_folder(self, site: Site, launch: LaunchPlan) -> Folder:
        """Return the folder of all runs. If the folder is missing, free space and permissions are those of the nearest
        existing parent.
        """
        from orchestrator.backends.batch.scheduler import Folder

        if self.is_remote:
            hello = site.hello()
            return Folder(f"{hello['workdir']}/runs", hello["workdir"], hello["free"])
        top = Path(launch.tasks[0].run_dir)
        path = str(top.parent)
        while not os.path.exists(top):  # or is hidden in another user's folder
            top = top.parent
        return Folder(path, str(top), shutil.disk_usage(top).free, is_writable=os.access(top, os.W_OK))

    def holdings(self, profile: AnyProfile) -> list[dict[str, Any]]:
        """List the scheduler's queues or partitions."""
        return self.scheduler.holdings(self.site(profile.to_json()))

    def collect_garbage(self, profile: AnyProfile, judge: Judge, *, dry_run: bool) -> list[Finding]:
        """Remove cached files in orch's folder that were not used for a long time. Jobs are not touched, because the
        scheduler itself ends them.
        """
        from orchestrator.backends.environments import tidy_cache

        place = self.place(RunDir(state_root() / "runs" / "cache"), profile.workdir, profile.python)
        site = self.site(profile.to_json())
        if self.is_remote:
            site.hello()  # it refuses a folder that others may write into
        return [] if dry_run else tidy_cache(site.machine(), str(PurePosixPath(place.run_dir).parents[1]))


def orchs_folder(task: NodeTask) -> str:
    """Return the path of orch's folder on the machine that stores the run's files."""
    return str(PurePosixPath(task.run_dir).parents[1])


def _was_begun(run: RunDir) -> bool:
    """Return True if the submission of the run has begun. Files of the run may then be on the login node."""
    return (run.path / "handle.json").exists()
