"""Threads that copy what the nodes of an SSH run write, see who lives, and start agents anew; and the last look."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.again import begin_again
from orchestrator.backends.copies import Copy, bring_checkpoint, sole_writer
from orchestrator.backends.hosts import Host, on_all, read_handle, workdir_of
from orchestrator.backends.sending import remote_checkpoints
from orchestrator.errors import BackendError
from orchestrator.starts import Again
from orchestrator.store import RunDir

if TYPE_CHECKING:
    from orchestrator.backends.ssh import SshBackend
    from orchestrator.session import Session

LOOK_SECONDS: Final = 1.0
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 15.0
JOIN_SECONDS: Final = 5.0


class Watching:
    """Threads that look after one run, from the supervisor's first look at it to the last."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.ended, self.changed, self.new_step = threading.Event(), threading.Event(), threading.Event()
        self.steps: list[str] = []
        self.threads: list[threading.Thread] = []

    def begin(self, work: Iterable[Callable[[], None]]) -> None:
        """A thread for each, and one that brings the checkpoints."""
        self.threads = [threading.Thread(target=each, daemon=True) for each in (*work, self._bring_checkpoints)]
        for thread in self.threads:
            thread.start()

    def wait(self, timeout: float) -> None:
        """Return when something has changed, or after `timeout` seconds."""
        self.changed.wait(timeout)
        self.changed.clear()

    def stop(self) -> None:
        """End the threads; a look that is under way is over soon."""
        self.ended.set()
        self.new_step.set()
        for thread in self.threads:
            thread.join(JOIN_SECONDS)

    def has(self, steps: list[str]) -> None:
        """These are the committed checkpoints now."""
        if steps != self.steps:
            self.steps = steps
            self.new_step.set()

    def source(self) -> Session | None:
        """The machine that has the checkpoints; None while there is none."""
        raise NotImplementedError

    def _bring_checkpoints(self) -> None:
        """Copy each committed checkpoint while training goes on, the newest first."""
        while True:
            self.new_step.wait()
            self.new_step.clear()
            if self.ended.is_set():
                return
            with contextlib.suppress(BackendError):  # out of reach: who follows says so, and the next step tries again
                if (session := self.source()) is not None:
                    bring_newest(self.run, session, remote_checkpoints(self.run), self.steps, most=1)


class Watch(Watching):
    """The copying of one run, and its next starts."""

    def __init__(self, run: RunDir, backend: SshBackend) -> None:
        super().__init__(run)
        self.backend = backend
        self.again: threading.Thread | None = None
        record = run.read("run.json") or {}
        self.profile: dict[str, Any] = record.get("profile") or {}
        self.workdir = workdir_of(self.profile)
        self.remote = f"{self.workdir}/runs/{run.run_id}"
        # All of the plan's: this start may have fewer than the next one, and a submit may still be at its first.
        handle = read_handle(run)
        nodes = range(max(record.get("nnodes") or 0, len(handle.hosts) if handle else 0))
        self.begin(functools.partial(self._follow, node) for node in nodes)

    # -- one node

    def _follow(self, node: int) -> None:
        copy, machine = None, None
        pause, more = FIRST_PAUSE, False
        while not self.ended.is_set():
            handle = read_handle(self.run)
            if handle is None or node >= len(handle.hosts):  # not started yet, or left out of this start
                self.ended.wait(LOOK_SECONDS)
                continue
            if copy is None or machine != handle.hosts[node]:
                machine = handle.hosts[node]
                copy = Copy(self.run, node, self.remote, remote_checkpoints(self.run), [0])
            try:
                session = self.backend.session(machine, self.workdir)
                more = copy.look(session, 0.0 if more else LOOK_SECONDS)
                pause = FIRST_PAUSE
                self._saw(node, handle.start, copy.alive, None, "")
            except BackendError as error:
                self._saw(node, handle.start, None, time.time(), error.message)
                self.ended.wait(pause)
                pause = min(LONGEST_PAUSE, pause * 2)
            if node == 0:
                self.has(copy.steps)

    def _saw(self, node: int, start: int, alive: bool | None, away: float | None, why: str) -> None:
        """Record what is known of a node's agent now, where that has changed."""
        name = f"nodes/{node}/seen.json"
        before = self.run.read(name) or {}
        if away is not None and isinstance(before.get("away"), float):
            away = before["away"]  # since when it has been out of reach
        now = {"start": start, "alive": alive, "away": away, "why": why}
        if now != before:
            self.run.node(node).mkdir(parents=True, exist_ok=True)
            self.run.write(name, now)
        self.changed.set()

    def source(self) -> Session | None:
        """Node 0's machine, as it is in this start."""
        handle = read_handle(self.run)
        return self.backend.session(handle.hosts[0], self.workdir) if handle is not None else None

    # -- another start

    def begin_again(self, again: Again) -> None:
        """Start the agents anew in a thread of its own, unless that is under way."""
        if self.again is None or not self.again.is_alive():
            self.again = threading.Thread(target=self._begin_again, args=(again,), daemon=True)
            self.again.start()

    def _begin_again(self, again: Again) -> None:
        try:
            begin_again(self.run, self.backend, again)
        except BackendError as error:
            kind = "start_problem" if error.transient else "submit_failed"
            self.run.append_event(kind, reason=error.message)
            self.ended.wait(LONGEST_PAUSE)


def bring_newest(run: RunDir, session: Session, folder: str, steps: list[str], most: int | None = None) -> None:
    """Copy the newest `most` of these checkpoints that verify, the newest first, and keep as many as the job keeps."""
    here = 0
    for step in sorted(steps, reverse=True):
        target = run.path / "checkpoints" / Path(step).name
        if not (target / "COMMIT").exists():
            if not bring_checkpoint(session, f"{folder}/{step}", target):
                continue
            run.append_event("collected", step=int(target.name.removeprefix("step_")))
        here += 1
        if here == most:
            break
    _keep_newest(run)


def _keep_newest(run: RunDir) -> None:
    import shutil  # noqa: PLC0415 (beside its only use)

    keep = ((run.read("plan.json") or {}).get("tasks") or [{}])[0].get("checkpoint_keep", 3)
    here = sorted(path for path in (run.path / "checkpoints").glob("step_*") if (path / "COMMIT").exists())
    for path in here[: -max(1, keep)]:
        (path / "COMMIT").unlink()  # from here on it is no checkpoint any more
        shutil.rmtree(path)


@contextlib.contextmanager
def log_watch(run: RunDir, backend: SshBackend, ranks: list[int] | None) -> Iterator[None]:
    """While it lasts, the logs of these ranks are copied by this process; at least once."""
    ended = threading.Event()
    handle = read_handle(run)
    threads = []
    remote = f"{workdir_of((run.read('run.json') or {}).get('profile') or {})}/runs/{run.run_id}"
    with sole_writer(run.path, "logs.lock"):
        for node in range(len(handle.hosts)) if handle else ():
            copy = Copy(run, node, remote, "", ranks)
            threads.append(threading.Thread(target=_copy_logs, args=(copy, backend, ended), daemon=True))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join(JOIN_SECONDS)


def _copy_logs(copy: Copy, backend: SshBackend, ended: threading.Event) -> None:
    handle = read_handle(copy.run)
    assert handle is not None
    workdir = copy.remote.rpartition("/runs/")[0]
    while True:
        try:
            more = copy.look(backend.session(handle.hosts[copy.node], workdir), LOOK_SECONDS, only_logs=True)
        except BackendError:
            more = False
            ended.wait(LOOK_SECONDS)
        if ended.is_set() and not more:
            return


def finish(run: RunDir, backend: SshBackend, away: Collection[int]) -> None:
    """Bring all logs, the results and the checkpoints of a run that has ended; then remove its folders on the nodes.

    A node that can't be reached keeps its folder, and the run says so (`left_behind`).
    """
    handle = read_handle(run)
    if handle is None:
        return
    workdir = workdir_of((run.read("run.json") or {}).get("profile") or {})
    remote, checkpoints = f"{workdir}/runs/{run.run_id}", remote_checkpoints(run)

    def one(node: int, host: Host) -> None:
        session = backend.session(host, workdir)
        copy = Copy(run, node, remote, checkpoints, None)
        while copy.look(session, 0.0):
            pass
        if node == 0:
            bring_newest(run, session, checkpoints, copy.steps)

    def remove(_: int, host: Host) -> None:
        backend.session(host, workdir).call("remove", run_dir=remote, run_id=run.run_id)

    with sole_writer(run.path, "collect.lock"):
        if (run.path / "verdict.json").exists():
            return
        hosts = dict(enumerate(handle.hosts))
        _, failed = on_all(one, {node: host for node, host in hosts.items() if node not in away})
        failed |= {node: BackendError(f"{hosts[node].name}: out of reach", transient=True) for node in away}
        _, kept = on_all(remove, {node: host for node, host in hosts.items() if node not in failed})
        for node, error in {**failed, **kept}.items():
            run.append_event("left_behind", left=node, host=hosts[node].name, reason=error.message)
