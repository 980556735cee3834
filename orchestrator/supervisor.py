"""One background process per user while runs are live: gives each run its verdict, sweeps what it left, retires it.

It can die at any point and be started again: everything it knows is in the run directories, and everything it does
may be done twice. `orch submit` starts it; it ends when no run is live.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import backend
from orchestrator.backends.base import Backend
from orchestrator.errors import OrchError, StoreError
from orchestrator.node.processes import Process, is_alive
from orchestrator.records import FINAL, RunState, Verdict, fold, mended
from orchestrator.store import RunDir, live_runs, newest_runs, remove_run, retire, state_root, tidy

if TYPE_CHECKING:
    from orchestrator.courier import Courier

WAIT_SECONDS = 1.0
COURIER_SECONDS = 0.05  # between looks at what is still being sent, when no run is live
OVERDUE_SECONDS = 25.0  # the leader itself lingers for at most 21
LAST_WORDS = ("agent_ended", "gave_up")
AGENT_PATIENCE = 10.0  # how long an agent may take from its start to its first words
SUBMIT_PATIENCE = 60.0  # how long a submit may take between recording a run and starting its agents
EMPTY_RECORD: dict[str, Any] = {"nnodes": 0, "created": 0.0, "kind": "local"}  # where a field has been lost


def state_of(run: RunDir, alive: Mapping[int, bool | None] | None = None) -> RunState:
    """The run's state now; reads, never writes. A run that has its verdict is not looked at again."""
    record = run.read("run.json")
    kept = _kept_verdict(run)
    if record is None and kept is None:
        reason = "its record run.json is not there: a submit or an rm was interrupted"
        return RunState(run.run_id, "?", "?", 0.0, "failed", verdict=Verdict("failed", "infra", reason))
    record = {**EMPTY_RECORD, **mended(record or {}), "run_id": run.run_id}
    if kept is not None:
        state, verdict = fold(record, run.events(), {}, rank0_done=True), Verdict.from_json(kept)
        gone = {"starting": "lost", "running": "lost"}
        nodes = tuple(replace(node, state=gone.get(node.state, node.state)) for node in state.nodes)
        ended = kept.get("ended")
        ended = float(ended) if isinstance(ended, int | float) else state.ended
        return replace(state, state=verdict.outcome, verdict=verdict, ended=ended, nodes=nodes)
    living = backend(record["kind"]).alive(run) if alive is None else alive
    return fold(record, run.events(), living, rank0_done=(run.path / "rank0.done").exists())


def _kept_verdict(run: RunDir) -> dict[str, Any] | None:
    """The verdict as it was written; None where it is lost or damaged, and the events have to tell it again."""
    try:
        kept = run.read("verdict.json")
    except StoreError:
        return None
    return kept if kept is not None and kept.get("outcome") in FINAL else None


def conclude(root: Path, run: RunDir) -> Verdict | None:
    """Write the verdict of a run that has ended, after sweeping what it left; None while it is still going on."""
    record = run.read("run.json")
    if record is None:
        return None
    record = {**EMPTY_RECORD, **mended(record)}
    machine = backend(record["kind"])
    _notice_lost(run, record, machine)
    _finish_cancel(run, machine)
    if _is_overdue(run):
        machine.sweep(run)
    state = state_of(run)
    if state.verdict is None:
        return None
    proofs = machine.sweep(run)
    tidy(run)
    survivors = [name for proof in proofs for name in proof.survivors]
    run.append_event(
        "swept", ended=sum(proof.ended for proof in proofs), survivors=survivors, hosts=[proof.host for proof in proofs]
    )
    run.write("verdict.json", {**state.verdict.to_json(), "ended": state.ended or time.time()})
    retire(root, run)
    return state.verdict


def _notice_lost(run: RunDir, record: Mapping[str, Any], machine: Backend) -> None:
    """Record that no agent will ever report: the submit died before it started any."""
    if machine.alive(run) or _is_being_submitted(record) or _may_turn_up(run):
        return
    if not any(event["kind"] == "found_lost" for event in run.events()):
        run.append_event("found_lost", reason="the submit ended before it had started an agent")


def _may_turn_up(run: RunDir) -> bool:
    """Was an agent about to be started just now? One that was says so itself, a moment later."""
    try:
        return time.time() - (run.path / "handle.json").stat().st_mtime < AGENT_PATIENCE
    except OSError:
        return False


def _finish_cancel(run: RunDir, machine: Backend) -> None:
    """Pass a recorded cancel on to the agents, where the command that recorded it died before it had."""
    if not (run.path / "cancel.json").exists():
        return
    if not any(event.get("kind") == "signal" and event.get("cancelled") for event in run.events()):
        machine.cancel(run)


def _is_overdue(run: RunDir) -> bool:
    """Did node 0 leave long ago? Agents leave together: one that is still there is frozen, or dials in vain."""
    ends = [event.get("time") for event in run.events() if event.get("kind") in LAST_WORDS and event.get("node") == 0]
    return any(isinstance(end, float | int) and time.time() - end > OVERDUE_SECONDS for end in ends)


def _is_being_submitted(record: Mapping[str, Any]) -> bool:
    """Is the process that recorded the run still at it? On another machine, only its age can tell."""
    submitter = record.get("submitter") or {}
    if submitter.get("host") == socket.gethostname():
        return is_alive(Process(submitter.get("pid", 0), submitter.get("started", 0)))
    return bool(time.time() - record["created"] < SUBMIT_PATIENCE)


def supervise(root: Path) -> None:
    """Look after all live runs until there are none; returns at once when another supervisor does so already."""
    from orchestrator.courier import Courier  # noqa: PLC0415 (`orch status` sends nothing)

    unreadable: set[str] = set()
    courier = Courier(root, state_of)
    while _to_look_after(root, unreadable) or courier.has_work():
        with _lock(root) as held:
            if not held:
                return
            _supervise(root, unreadable, courier)
        # A run that was recorded while the lock was let go is seen by this loop's condition.


def _to_look_after(root: Path, unreadable: set[str]) -> list[RunDir]:
    """The live runs but for those whose record can't be read, which are reported once and must not stop the others."""
    found = []
    for run in live_runs(root):
        try:
            if run.run_id not in unreadable and run.read("run.json") is not None:
                found.append(run)
        except StoreError as error:
            print(f"{run.run_id}: {error}", file=sys.stderr, flush=True)
            unreadable.add(run.run_id)
    return found


def _supervise(root: Path, unreadable: set[str], courier: Courier) -> None:
    while (runs := _to_look_after(root, unreadable)) or courier.has_work():
        for run in runs:
            try:
                conclude(root, run)
            except OrchError as error:
                print(f"{run.run_id}: {error}", file=sys.stderr, flush=True)
        courier.look()
        runs = _to_look_after(root, unreadable)
        if not runs:
            time.sleep(COURIER_SECONDS)
        for run in runs:
            try:
                kind = (run.read("run.json") or EMPTY_RECORD).get("kind", "local")
                backend(kind).wait(run, WAIT_SECONDS / len(runs))
            except OrchError as error:
                print(f"{run.run_id}: {error}", file=sys.stderr, flush=True)
                time.sleep(WAIT_SECONDS)
    if keep := os.environ.get("ORCH_KEEP_RUNS", "").strip():
        prune(root, int(keep) if keep.isdigit() else 0)


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
