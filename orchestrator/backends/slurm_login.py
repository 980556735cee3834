"""Slurm through a login node: the job is submitted, asked after and ended there, and what it writes is copied here.

Nothing is installed on the login node: orch's own server runs Slurm's programs, and submitit's side of the task travels
with the run. The supervisor records what Slurm says (`slurm.json`), so that looking at runs here asks no machine.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.address import parse_address
from orchestrator.backends import slurm_job as job
from orchestrator.backends.base import NodeProof
from orchestrator.backends.hosts import remote_folder, task_json, workdir_of
from orchestrator.backends.slurm_client import Answer, Client
from orchestrator.backends.slurm_errors import refusal
from orchestrator.backends.slurm_script import FOLDER
from orchestrator.backends.slurm_state import job_id_of
from orchestrator.backends.terminal import over_ssh
from orchestrator.errors import BackendError, UsageError
from orchestrator.opinion import Opinion
from orchestrator.store import RunDir
from orchestrator.wire import NodeTask, at_home

if TYPE_CHECKING:  # `orch status` must wait neither for pydantic nor for fabric
    from pathlib import Path

    from orchestrator.backends.laying import Order
    from orchestrator.backends.slurm_watching import LoginWatch
    from orchestrator.plan import LaunchPlan, Place
    from orchestrator.session import Session, Ways
    from orchestrator.starts import Again

SEEN: Final = "slurm.json"
TRAVEL_SECONDS: Final = 10.0
SUBMIT_SECONDS: Final = 120.0
MIN_PYTHON: Final = (3, 10)  # of submitit
NO_SLURM: Final = "name a machine in login: on which sbatch is on PATH, if only for login shells"
HIDDEN: Final = ("SQUEUE_", "SACCT_", "SBATCH_")


class There:
    """Slurm's programs on a login node."""

    def __init__(self, backend: LoginBackend, login: str, workdir: str) -> None:
        self.backend, self.login, self.workdir = backend, login, workdir
        self.where, self.number = login, -1

    @property
    def session(self) -> Session:
        """The open session; BackendError where the login node can't be reached."""
        return self.backend.session(self.login, self.workdir)

    def run(self, argv: Sequence[str], stdin: str, timeout: float) -> Answer:
        """As in Way."""
        plain = {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}
        reply, out = self.session.call(
            "command", stdin.encode(), timeout=timeout + TRAVEL_SECONDS, argv=list(argv), patience=timeout, env=plain,
            hide=HIDDEN,
        )  # fmt: skip
        if reply["code"] is None:
            raise BackendError(f"{self.login}: {argv[0]} did not answer for {timeout:g} s", transient=True)
        return Answer(reply["code"], out.decode("utf-8", "replace"), reply["err"])

    def missing(self, names: Sequence[str]) -> list[str]:
        """As in Way."""
        return list(self.session.call("missing_commands", names=list(names))[0]["missing"])

    def user(self) -> int:
        """As in Way."""
        if self.number < 0:
            self.number = int(self.session.call("hello", workdir=self.workdir)[0]["uid"])
        return self.number


class LoginBackend:
    """A run as one Slurm job of this user's on another machine's Slurm."""

    starts_again = False
    collects = True

    def __init__(self) -> None:
        self._ways: Ways | None = None
        self._clients: dict[tuple[str, str], Client] = {}
        self._watches: dict[str, LoginWatch] = {}
        self._lock = threading.Lock()

    def session(self, login: str, workdir: str) -> Session:
        """The open session with a login node."""
        with self._lock:
            if self._ways is None:
                from orchestrator.session import Ways  # noqa: PLC0415 (loads fabric)

                self._ways = Ways()
        return self._ways.session(parse_address(login), workdir)

    def client(self, profile: Mapping[str, Any]) -> Client:
        """Slurm as a profile's login node has it."""
        key = (str(profile["login"]), workdir_of(profile))
        with self._lock:
            return self._clients.setdefault(key, Client(There(self, *key)))

    def client_of(self, run: RunDir) -> Client:
        """The Slurm that has the run's job."""
        return self.client((run.read("run.json") or {}).get("profile") or {})

    def session_of(self, run: RunDir) -> Session:
        """The open session with the run's login node."""
        profile = (run.read("run.json") or {}).get("profile") or {}
        return self.session(profile["login"], workdir_of(profile))

    # -- starting

    def place(self, run: RunDir, workdir: str | None, python: str | None) -> Place:
        """A folder of the run in orch's folder on the login node, which every node has to see at the same path."""
        from orchestrator.plan import Place  # noqa: PLC0415 (loads pydantic)

        top = workdir or "~/.orch"
        if not top.startswith(("/", "~/")):
            raise UsageError(f"workdir is '{workdir}'", "write it from the root: /shared/me/orch, or ~/orch")
        folder = f"{top}/runs/{run.run_id}"
        return Place(folder, f"{folder}/code", f"{top}/inputs", python or "python3", python or "python3")

    def script(self, launch: LaunchPlan) -> str:
        """The batch script that a submit of this plan hands to sbatch, but for `~`, which it knows by then."""
        from orchestrator.backends.slurm import batch_script  # noqa: PLC0415 (loads submitit)

        return batch_script(launch, (f"{launch.tasks[0].run_dir}/submitit.pyz",))

    def submit(self, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir) -> None:
        """Send what the job needs, and queue it; a job whose number was lost is found by its name."""
        from orchestrator.backends.sending import with_given_checkpoint  # noqa: PLC0415 (loads fabric)

        client, workdir = self.client(plan.profile), workdir_of(plan.profile)
        session = self.session(plan.profile["login"], workdir)
        home = session.call("hello", workdir=workdir)[0]["home"]
        client.need("sbatch", "srun", "squeue", "scancel", hint=NO_SLURM)
        plan = replace(
            plan,
            tasks=tuple(at_home(task, home) for task in plan.tasks),
            commands=tuple(tuple(_at_home(word, home) for word in argv) for argv in plan.commands),
        )
        _check_python(session, plan.commands[0][0])
        tasks = tuple(at_home(task, home) for task in with_given_checkpoint(tasks))
        run.write("handle.json", {"state": "intent"})  # from here on there may be something to bring back or remove
        script = self._send(session, plan, tasks, run, workdir)
        if (number := _sbatch(client, script, plan)) is not None:
            run.write("handle.json", {"state": "submitted", "job": number})
        self.record(run, job.opinion_of(client, run))

    def _send(self, session: Session, plan: LaunchPlan, tasks: tuple[NodeTask, ...], run: RunDir, workdir: str) -> str:
        """Lay out the run's folder on the login node; the path of the batch script there."""
        from orchestrator.archive import node_archive, submitit_archive  # noqa: PLC0415 (only a submit needs it)
        from orchestrator.backends.copies import give_checkpoint  # noqa: PLC0415 (loads fabric)
        from orchestrator.backends.sending import checkpoint_to_give, send_code  # noqa: PLC0415 (loads fabric)
        from orchestrator.backends.slurm import pickled  # noqa: PLC0415 (loads submitit)

        top = tasks[0].run_dir
        script = f"{top}/{FOLDER}/submission.sh"
        send_code(session, run, workdir, tasks[0].code_dir)
        if (given := checkpoint_to_give(run, tasks[0])) is not None:
            give_checkpoint(session, given[0], f"{given[1]}/{given[0].name}")
        for path, data in {
            "node.pyz": node_archive(),
            "submitit.pyz": submitit_archive(),
            f"{FOLDER}/task.pkl": pickled(plan),
            **{f"nodes/{task.node_rank}/task.json": task_json(task) for task in tasks},
        }.items():
            session.call("put", data, path=f"{top}/{path}")
        session.call("put", self.script(plan).encode(), path=script)
        return script

    # -- looking

    def watch(self, run: RunDir) -> LoginWatch:
        """The threads that copy what the run writes; started when first asked for."""
        from orchestrator.backends.slurm_watching import LoginWatch  # noqa: PLC0415 (loads fabric)

        with self._lock:
            if run.run_id not in self._watches:
                self._watches[run.run_id] = LoginWatch(run, self)
            return self._watches[run.run_id]

    def record(self, run: RunDir, opinion: Opinion) -> None:
        """Keep what Slurm says, with when it did."""
        before, now = run.read(SEEN) or {}, asdict(opinion)
        if {**before, "time": None} != {**now, "time": None} or opinion.phase == "none":
            run.write(SEEN, {**now, "time": time.time()})

    def opinion(self, run: RunDir) -> Opinion:
        """What Slurm said when the supervisor asked it last; after a submit that was cut off, what it says now."""
        seen = run.read(SEEN)
        if seen is None and not _was_begun(run):
            return Opinion("none")
        if seen is None or (seen["phase"] == "none" and _is_queued_since(run, seen["time"])):
            return job.opinion_of(self.client_of(run), run)
        return Opinion(**{name: value for name, value in seen.items() if name != "time"})

    def waiting_for(self, runs: Sequence[RunDir], *, succeeds: bool) -> str | None:
        """A dependency as sbatch takes it; None where a run's job isn't known."""
        return job.dependency(self.client_of(runs[0]), runs, succeeds=succeeds)

    def alive(self, run: RunDir) -> Mapping[int, bool | None]:
        """All nodes alike, as the job was when Slurm was asked last."""
        return job.alive_by(self.opinion(run).phase, run)

    def hosts(self, run: RunDir) -> list[str] | None:
        """As their agents call themselves: Slurm chooses the nodes."""
        return None

    def wait(self, run: RunDir, timeout: float) -> None:
        """Copy what is new until something has changed, or for `timeout` seconds."""
        self.watch(run).wait(timeout)

    @contextlib.contextmanager
    def bringing_logs(self, run: RunDir, ranks: list[int] | None) -> Iterator[None]:
        """While it lasts, the logs of these ranks (None: of all) are copied here too."""
        from orchestrator.backends.slurm_watching import log_watch  # noqa: PLC0415 (loads fabric)

        with log_watch(run, self, ranks):
            yield

    def reach(self, run: RunDir, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
        """By ssh to the login node, and there as one more step of the run's job, while that is running."""
        profile = (run.read("run.json") or {}).get("profile") or {}
        step = job.step_argv(self.client(profile), run, node, argv, terminal=terminal)
        return over_ssh(parse_address(profile["login"]), step, terminal=terminal)

    def lay_out(self, run: RunDir, node: int, name: str, checkpoint: Path | None, order: Order) -> list[str]:
        """In a folder beside the runs' on the login node, which every node sees; the run's own may be gone."""
        from orchestrator.backends.sending import lay_out  # noqa: PLC0415 (loads fabric)

        return lay_out(
            self.session_of(run), run, workdir_of((run.read("run.json") or {})["profile"]), name, checkpoint, order
        )

    # -- ending

    def cancel(self, run: RunDir) -> None:
        """Leave the recorded cancel where the agents find it, then TERM to them, or out of the queue.

        Where the login node is out of reach, whoever concludes the run does it.
        """
        with contextlib.suppress(BackendError):
            client = self.client_of(run)
            recorded = run.read("cancel.json") or {}
            # Unlike `put`, it makes no folder anew: another command may have brought all home and removed it.
            self.session_of(run).call("cancel", run_dir=remote_folder(run), node=0, cancel=recorded)
            job.cancel(client, run)

    def start_again(self, run: RunDir, again: Again) -> None:
        """Never asked for: Slurm starts the job again, with nobody of ours there."""
        raise BackendError(f"run {run.run_id} is a Slurm job: Slurm starts it again")

    def sweep(self, run: RunDir) -> list[NodeProof]:
        """End the job, and prove it; with the login node out of reach, no node can be looked at."""
        if not _was_begun(run):
            return []
        client = self.client_of(run)
        proofs = job.end(client, run)
        opinion = job.opinion_of(client, run)
        self.record(run, opinion)
        return [replace(proof, is_away=True) for proof in proofs] if opinion.phase == "unknown" else proofs

    def collect(self, run: RunDir) -> None:
        """Bring what is not here yet, then remove the run's folder there; BackendError where it is out of reach."""
        from orchestrator.backends.slurm_watching import finish  # noqa: PLC0415 (loads fabric)

        with self._lock:
            watch = self._watches.pop(run.run_id, None)
        if watch is not None:
            watch.stop()
        if _was_begun(run):
            finish(run, self)


def _was_begun(run: RunDir) -> bool:
    """Was anything sent, so that something may be there?"""
    return (run.path / "handle.json").exists()


def _is_queued_since(run: RunDir, when: float) -> bool:
    """Was a job submitted after that look, so that it could not be seen?"""
    try:
        return (run.path / "handle.json").stat().st_mtime > when
    except OSError:
        return False


def _at_home(word: str, home: str) -> str:
    return home + word[1:] if word.startswith("~/") else word


def _check_python(session: Session, python: str) -> None:
    """BackendError where the interpreter of the nodes, as the login node sees it, is too old for submitit."""
    found = session.call("interpreter", python=python)[0]["python"]
    if tuple(map(int, found.split(".")[:2])) < MIN_PYTHON:
        raise BackendError(
            f"{session.address.host}: {python} is Python {found}; submitit needs 3.10 or newer",
            "set python: in the profile to an interpreter that login and compute nodes share",
        )


def _sbatch(client: Client, script: str, plan: LaunchPlan) -> str | None:
    """The number of the queued job; None where only its name can find it, later; BackendError where it is refused."""
    try:
        answer = client.call("sbatch", script, timeout=SUBMIT_SECONDS)
    except BackendError:
        look = client.queue(fresh=True)
        if (found := client.find(None, plan.run_id)) is not None:  # it was taken, and only the answer was lost
            return found.job_id
        if look.jobs is None:
            return None
        raise
    if answer.code != 0 or (number := job_id_of(answer.out)) is None:
        raise refusal(answer.err or answer.out, plan.profile, plan.time_limit, client.way.where)
    return number
