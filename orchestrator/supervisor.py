"""One background process per user while runs are live: gives each run its verdict, sweeps what it left, retires it.

It can die at any point and be started again: everything it knows is in the run directories, and everything it does
may be done twice. `orch submit` starts it; it ends when no run is live.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import holding
from orchestrator.backends import backend
from orchestrator.conclude import EMPTY_RECORD, check_kind, conclude, state_of
from orchestrator.errors import OrchError, StoreError
from orchestrator.store import Record, RunDir, is_any_live, is_live, live_runs, newest_runs, remove_run, state_root

if TYPE_CHECKING:
    from orchestrator.courier import Courier

WAIT_SECONDS = 1.0
COURIER_SECONDS = 0.05  # between looks at what is still being sent, when no run is live


def supervise(root: Path) -> None:
    """Look after all live runs until there are none; returns at once when another supervisor does so already."""
    from orchestrator.courier import Courier  # noqa: PLC0415 (`orch status` sends nothing)

    unreadable: set[str] = set()
    courier = Courier(root, state_of)
    while _to_look_after(root, unreadable, {}) or courier.has_work():
        with _lock(root) as held:
            if not held:
                return
            _supervise(root, unreadable, courier)
        # A run that was recorded while the lock was let go is seen by this loop's condition.


def _to_look_after(root: Path, unreadable: set[str], held: dict[str, Record]) -> list[RunDir]:
    """The live runs but for those whose record can't be read, which are reported once and must not stop the others.

    The records of those that are held are put into `held`, and the others taken out of it.
    """
    found = []
    for run in live_runs(root):
        try:
            waits = holding.is_held(run)
            if not waits:
                held.pop(run.run_id, None)
            if waits and run.run_id in held:  # there may be hundreds: they are read once
                found.append(run)
            elif run.run_id not in unreadable and (record := run.read("run.json")) is not None:
                check_kind(run, record)
                found.append(run)
                if waits:
                    held[run.run_id] = record
        except StoreError as error:
            print(f"{run.run_id}: {error}", file=sys.stderr, flush=True)
            unreadable.add(run.run_id)
    return found


def _supervise(root: Path, unreadable: set[str], courier: Courier) -> None:
    at_work: dict[str, threading.Thread] = {}
    held: dict[str, Record] = {}
    one_ended = threading.Event()
    while (runs := _to_look_after(root, unreadable, held)) or courier.has_work():
        idle = [run for run in runs if run.run_id not in at_work or not at_work[run.run_id].is_alive()]
        waiting = [(run, held[run.run_id]) for run in idle if run.run_id in held]
        going = {run.run_id for run in runs} - {run.run_id for run, _ in waiting}
        work = [(run, partial(_look_after, root, run)) for run in idle if run.run_id not in held]
        work += [(run, partial(_begin, root, run, wait)) for run, wait in holding.due(root, waiting, going)]
        for run, act in work:
            thread = threading.Thread(target=_work, args=(run, act, one_ended), daemon=True)
            at_work[run.run_id] = thread
            thread.start()
        courier.look()
        one_ended.wait(COURIER_SECONDS if courier.has_work() else WAIT_SECONDS)
        one_ended.clear()
    if keep := os.environ.get("ORCH_KEEP_RUNS", "").strip():
        prune(root, int(keep) if keep.isdigit() else 0)


def _look_after(root: Path, run: RunDir) -> None:
    """Bring one run to its verdict, unless it is held: one that was just being recorded may turn out to be."""
    while is_live(root, run) and not holding.is_held(run) and conclude(root, run) is None:
        backend((run.read("run.json") or EMPTY_RECORD).get("kind", "local")).wait(run, WAIT_SECONDS)


def _begin(root: Path, run: RunDir, vain: holding.Wait | None) -> None:
    """Start a held run whose time has come, or drop one that waits in vain."""
    if vain is not None:
        holding.drop(run, vain.reason)
        return
    holding.start(root, run)
    if holding.is_held(run):
        time.sleep(WAIT_SECONDS)  # it is tried again then, as below


def _work(run: RunDir, act: Callable[[], None], ended: threading.Event) -> None:
    """Do what a run needs; it has a thread of its own, so that a slow machine holds up no other run."""
    try:
        act()
    except OrchError as error:
        print(f"{run.run_id}: {error}", file=sys.stderr, flush=True)
        time.sleep(WAIT_SECONDS)  # it is begun again then: a full disk, say, may have been emptied
    finally:
        ended.set()


def prune(root: Path, keep: int) -> list[RunDir]:
    """Remove finished runs beyond the newest `keep`; nothing when that is 0. The removed are returned."""
    removed = []
    for run in newest_runs(root)[keep:] if keep else []:
        if (run.path / "verdict.json").exists():
            remove_run(root, run)
            removed.append(run)
    return removed


@contextlib.contextmanager
def _lock(root: Path) -> Iterator[bool]:
    with open(root / "supervisor.lock", "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def attended_root() -> Path:
    """The folder of all runs, whose live ones are looked after: a supervisor that was killed is started anew."""
    root = state_root()
    if is_any_live(root):
        with contextlib.suppress(PermissionError):  # another user's runs may be looked at all the same
            with _lock(root) as is_free:
                pass
            if is_free:
                start_supervisor(root, without=_secret_names(root))
    return root


def _secret_names(root: Path) -> set[str]:
    """What the live runs call secret: their supervisor is to know nothing of it."""
    names: set[str] = set()
    for run in live_runs(root):
        with contextlib.suppress(StoreError):
            names.update(map(str, (run.read("plan.json") or {}).get("secret_names") or ()))
    return names


def start_supervisor(root: Path, without: Iterable[str] = ()) -> None:
    """Start the background process, unless one runs; it outlives the terminal, and needs nobody's secrets."""
    import subprocess  # noqa: PLC0415 (who only looks at runs starts nothing)

    hidden = set(without)
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"ORCH_HOME": str(root)}
    with open(root / "supervisor.log", "ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.supervisor"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=root,
            start_new_session=True,
        )
    child.returncode = 0  # nobody waits for it here


if __name__ == "__main__":
    supervise(state_root())
