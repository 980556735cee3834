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
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.base import Backend, Check, Finding, Judge, NodeProof, Sight
from orchestrator.backends.batch import job
from orchestrator.backends.batch.advice import BatchAdvice
from orchestrator.backends.batch.site import Site
from orchestrator.backends.hosts import connections, on_each
from orchestrator.backends.settings import (
    WORKDIR,
    need_room,
    remote_folder,
    run_folder,
    starters,
    tls_problem,
    workdir_of,
)
from orchestrator.backends.working_folder import lay_here
from orchestrator.errors import BackendError, UsageError
from orchestrator.outcome.scheduler import SchedulerStatus
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, state_root
from orchestrator.transport.address import HERE, parse_address
from orchestrator.transport.machine import LocalMachine

if TYPE_CHECKING:  # `orch status` must wait neither for pydantic nor for fabric
    from orchestrator.backends.batch.scheduler import Folder, Scheduler
    from orchestrator.backends.mirror.watching import RunWatcher, Source
    from orchestrator.protocol.task import NodeTask
    from orchestrator.specs.plan import LaunchPlan, RunPaths
    from orchestrator.specs.profiles import AnyProfile
    from orchestrator.transport.machine import Machine

NO_TLS: Final = tls_problem("can't speak TLS 1.3")
OTHER_PYTHON: Final = "set `python` in the profile to an interpreter that login and compute nodes share"


class Batch(Backend):
    """The backend for runs that are jobs of one scheduler. They are submitted on this machine (is_remote: False) or on
    a login node (is_remote: True).

    After a requeue the scheduler itself starts the job again, even if no process of orch is alive on this machine.
    """

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None:
        self.scheduler, self.is_remote, self.advice = scheduler, is_remote, BatchAdvice(self)
        self.pool = connections() if is_remote else None
        self._sites: dict[tuple[str, str, bool], Site] = {}
        self._watchers: dict[str, RunWatcher] = {}
        self._lock = threading.Lock()

    # -- where the scheduler's programs run

    def site(self, profile: AnyProfile | None) -> Site:
        """Return the site of a profile: the machine on which the scheduler's programs run. There is one Site
        object for each login node and working folder. Without a login node, `profile` may be None.
        """
        login: str = (getattr(profile, "login", None) or "") if self.is_remote else ""
        workdir = workdir_of(profile) if profile is not None and login else ""
        key = (login, workdir, profile is not None and bool(login) and profile.shared_parent)
        with self._lock:
            if (site := self._sites.get(key)) is None:
                machine = self._login_node(login, workdir, profile) if profile is not None and login else LocalMachine
                site = self._sites[key] = Site(self.scheduler, machine, login or HERE, workdir, shared_parent=key[2])
            return site

    def _login_node(self, login: str, workdir: str, profile: AnyProfile) -> Callable[[], Machine]:
        pool, address = self.pool, replace(parse_address(login), **starters(profile))
        assert pool is not None, "only a remote backend reads login:"
        return lambda: pool.session(address, workdir)

    def site_of(self, run: RunDir) -> Site:
        """Return the site on which the run's job was submitted."""
        return self.site(run.record().profile if self.is_remote else None)

    def agent_python(self, site: Site, python: str, setup: Sequence[str] = (), *, is_alone: bool = True) -> str:
        """Return the interpreter that starts the agents of a job, as checked on the login node: the profile's `python`,
        or the interpreter of that name after the setup lines. If that starts only after the setup lines, return the
        interpreter of orch's server on the login node.

        Raises BackendError if the profile's interpreter can't run the job's tasks. Without a login node nothing is
        checked, because the nodes use orch's own interpreter.
        """
        if not self.is_remote:
            return python
        try:
            self._check_python(site, python, (), is_alone=is_alone)
        except BackendError as error:
            if error.transient or not setup:
                raise
        else:
            return python
        path = self._check_python(site, python, setup, is_alone=is_alone)
        own = str(site.hello()["path"])
        for each in (path, own):
            try:
                self._check_python(site, each, (), is_alone=is_alone)
            except BackendError as error:
                if error.transient or each == own:
                    raise
            else:
                return each
        raise AssertionError

    def _check_python(self, site: Site, python: str, setup: Sequence[str], *, is_alone: bool) -> str:
        """Return the path of this interpreter on the login node after the setup lines. Raises BackendError if it can't
        run the job's tasks.
        """
        try:
            found = site.machine().call("interpreter", python=python, setup=list(setup))[0]
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
        return str(found.get("path") or python)

    # -- starting

    def paths(self, run: RunDir, workdir: str | None, python: str | None) -> RunPaths:
        """Return paths in the profile's `workdir`, which must have the same path on every node, or in orch's state
        folder.
        """
        from orchestrator.specs.plan import RunPaths

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
        folder = run_folder(top, run.run_id)
        self.scheduler.check_folder(folder)
        return RunPaths(folder, f"{folder}/code", f"{top}/inputs", python, python)

    def submit(
        self, plans: Sequence[LaunchPlan], tasks: Sequence[tuple[NodeTask, ...]], runs: Sequence[RunDir]
    ) -> None:
        """Queue the job of one run, or the array of a sweep's runs, whose shared files are written once.

        The handle.json of an array's run names only the array, because the run's id ends with the number of its task in
        the array. So no file has to be written for each run after the scheduler's answer. If the answer with the job's
        number is lost, the job is found later by its name.
        """
        from orchestrator.backends.batch import submission
        from orchestrator.backends.batch.scheduler import Order

        site, home, python = self._ready(plans[0])
        at_site = [self._tasks_at(run, its, home, site.machine()) for run, its in zip(runs, tasks, strict=True)]
        first, by_shell = self.scheduler.filled(submission.plan_at(plans[0], home, python), site.environment())
        array = submission.array_for(runs, orchs_folder(first.tasks[0])) if len(runs) > 1 else None
        order, handle = Order(first, array), RunDir(runs[0].root / "sweeps" / array.sweep) if array else runs[0]
        # From here on the site may have files of the run, which must be fetched or removed later.
        named = {"array": str(handle.path)} if array else {}
        for run in runs:
            run.write("handle.json", {"state": HandleStatus.INTENT, **named})
        if not self.is_remote and array is None:  # the runs of an array create their working folders themselves
            lay_here(runs[0])
        submission.lay(site, order.folder, runs, at_site, own_files=self.is_remote)
        if (queued := submission.queued(site, order)) is not None:
            python = python if python != plans[0].commands[0][0] else ""
            handle.write("handle.json", job.submitted_as(queued[0], by_shell, queued[1], python))
        if self.is_remote:
            for run in runs:
                job.record_status(run, self.scheduler, job.scheduler_status(site, run))

    def _ready(self, plan: LaunchPlan) -> tuple[Site, str, str]:
        """Return the site (the machine with the scheduler's programs), the user's home folder on that machine, and the
        interpreter that starts the agents. Raises BackendError if no job can be submitted on the site.
        """
        site = self.site(plan.profile)
        if self.is_remote:
            hello = site.hello()
            home, folder, free = str(hello["home"]), hello["workdir"], hello["free"]
        else:
            there = self._runs_folder(site, plan)
            home, folder, free = os.path.expanduser("~"), there.top, there.free
        need_room(site.where, folder, free)
        site.need(*self.scheduler.programs)
        python = plan.commands[0][0]
        python = home + python[1:] if python.startswith("~/") else python
        python = self.agent_python(site, python, plan.tasks[0].setup, is_alone=plan.nnodes == 1)
        return site, home, python

    def _tasks_at(self, run: RunDir, tasks: tuple[NodeTask, ...], home: str, machine: Machine) -> tuple[NodeTask, ...]:
        """Install the run's environment on the site. Return the tasks with the environment's interpreter, and with `~`
        expanded as on the site.
        """
        from orchestrator.protocol.task import at_home

        if self.is_remote:
            from orchestrator.backends.mirror.given import with_given_checkpoint

            tasks = with_given_checkpoint(tasks)
        tasks = tuple(at_home(task, home) for task in tasks)
        if run.record().job.environment is None:
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
            if not run.has_begun:
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

    def let_go(self, run: RunDir) -> None:
        """Stop the threads that copy the run's files."""
        with self._lock:
            watcher = self._watchers.pop(run.run_id, None)
        if watcher is not None:
            watcher.stop()

    def _phase_in_queue(self, site: Site, run: RunDir) -> str | None:
        """Record the scheduler's report on a job that has never begun, and return the job's phase; None if the job has
        begun.

        The end of a job that has begun is recorded elsewhere, after all files that the job wrote have been copied.
        """
        status = job.scheduler_status(site, run)
        if job.may_be_requeued(site, run) or (status.phase == "ended" and self._job_has_begun(site, run)):
            return None
        # Record it before any events arrive: events of a job that waits would belong to an earlier start.
        job.record_status(run, self.scheduler, status)
        return status.phase if status.phase != "active" else None

    def _job_has_begun(self, site: Site, run: RunDir) -> bool:
        """Return True if the run's job has written a file. Raises BackendError if the login node is unreachable."""
        folder = self.scheduler.folder
        reply, _ = site.machine().call("has_begun", run_dir=remote_folder(run), folder=folder)
        return bool(reply["begun"])

    def sources(self, run: RunDir, *, present: bool = False) -> list[Source]:
        """Return the login node, which has the files of all nodes; an empty list without a login node."""
        if not self.is_remote or not (present or run.has_begun):
            return []
        from orchestrator.backends.batch.watcher import source_of

        return [source_of(run, self.site_of(run))]

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the argv that runs the command in the run's job, which must be active. With a login node, the argv
        begins with ssh to the login node.
        """
        site = self.site_of(run)
        step = job.step_argv(site, run, node, argv, terminal=terminal)
        if not self.is_remote:
            return step
        assert self.pool is not None, "only a remote backend has a login node"
        return self.pool.over_ssh(parse_address(site.where), step, terminal=terminal)

    def with_python(self, run: RunDir, node: int, argv: Sequence[str]) -> list[str]:
        """Return a command with the interpreter that has started the job's agents."""
        return [job.told(run, self.site_of(run), "python") or argv[0], *argv[1:]]

    # -- ending

    def cancel(self, runs: Sequence[RunDir]) -> None:
        """Send TERM to the agents, which then read the recorded cancel. Jobs that still wait are removed from the
        queue, with one command for all waiting runs of an array.

        If a login node is unreachable, the supervisor repeats the cancel.
        """
        by_site: dict[Site, list[RunDir]] = {}
        for run in runs:
            by_site.setdefault(self.site_of(run), []).append(run)
        for site, its in by_site.items():
            with contextlib.suppress(BackendError) if self.is_remote else contextlib.nullcontext():
                if len(its) > 1:
                    job.cancel_waiting(site, its)
                on_each(partial(self._cancel, site), dict(enumerate(its)))

    def _cancel(self, site: Site, _: int, run: RunDir) -> None:
        if self.is_remote:
            recorded = run.read("cancel.json") or {}
            # `write_file` would make the folder again, although another command may have fetched and removed it.
            site.machine().call("cancel", run_dir=remote_folder(run), node=0, cancel=recorded)
        job.cancel(site, run)
        if self.is_remote and (status := job.scheduler_status(site, run)).phase == "ended":  # the job had not begun
            job.record_status(run, self.scheduler, status)

    def clean_up(self, run: RunDir) -> list[NodeProof]:
        """End the job, and return for each node whether processes remain. If the login node is unreachable, report
        every node as unreachable.
        """
        if not run.has_begun:
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
        is_watched = run.run_id in self._watchers
        self.let_go(run)
        if not self.is_remote or not run.has_begun:
            return
        from orchestrator.backends.mirror.watching import finish

        site = self.site_of(run)
        job.wait_for_end(site, run)  # its batch shell outlives the agents by a moment
        if not is_watched and not self._job_has_begun(site, run):
            site.machine().call("remove", run_dir=remote_folder(run), run_id=run.run_id)
        else:
            finish(run, self.sources(run))

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
                f"--on-node runs a short test job, which orch does not have for {self.scheduler.title}",
                "test the nodes with a job such as hostname: orch submit --follow",
            )
        paths = self.paths(RunDir(state_root() / "runs" / "doctor"), profile.workdir, profile.python)
        launch = plan(Job(name="doctor", command=("true",)), profile, "doctor", paths)
        site = self.site(launch.profile)
        if self.pool is not None:
            self.pool.try_again()
        return self.scheduler.doctor(
            Trial(
                site,
                launch,
                lambda: self.agent_python(site, paths.agent_python, profile.setup),
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
        disk = shutil.disk_usage(top)
        free = disk.free if disk.total else sys.maxsize  # some file systems do not report their size
        return Folder(path, str(top), free, is_writable=os.access(top, os.W_OK))

    def holdings(self, profile: AnyProfile) -> list[dict[str, Any]]:
        """List the scheduler's queues or partitions."""
        return self.scheduler.holdings(self.site(profile))

    def collect_garbage(self, profile: AnyProfile, judge: Judge, *, dry_run: bool) -> list[Finding]:
        """Remove cached files in orch's folder that were not used for a long time. Jobs are not touched, because the
        scheduler itself ends them.
        """
        from orchestrator.backends.environments import tidy_cache

        paths = self.paths(RunDir(state_root() / "runs" / "cache"), profile.workdir, profile.python)
        site = self.site(profile)
        if self.is_remote:
            site.hello()  # it refuses a folder that others may write into
        return [] if dry_run else tidy_cache(site.machine(), str(PurePosixPath(paths.run_dir).parents[1]))


def orchs_folder(task: NodeTask) -> str:
    """Return the path of orch's folder on the machine that stores the run's files."""
    return str(PurePosixPath(task.run_dir).parents[1])
