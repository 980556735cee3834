"""How a run stands and how it is brought to its end: its state, its verdict, another start, the sweep after it.

All of it may be done twice, and by several commands at once: what has been done is in the run's own directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.backends import backend, is_known
from orchestrator.backends.base import Backend, Scheduler
from orchestrator.errors import StoreError
from orchestrator.fold import fold
from orchestrator.holding import is_held, wait_of, why_it_waits
from orchestrator.node.processes import Process, is_alive
from orchestrator.opinion import joined
from orchestrator.records import FINAL, RunState, Verdict, mended
from orchestrator.starts import AGAIN, Again, last_attempt, newest_start, next_start, pending_start
from orchestrator.store import RunDir, retire, tidy

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
    check_kind(run, record)
    if kept is not None:
        record |= _nodes_now(run, backend(record["kind"]))
        state, verdict = fold(record, run.events(), {}, rank0_done=True), Verdict.from_json(kept)
        gone = {"starting": "lost", "running": "lost"}
        nodes = tuple(replace(node, state=gone.get(node.state, node.state)) for node in state.nodes)
        ended = kept.get("ended")
        ended = float(ended) if isinstance(ended, int | float) else state.ended
        return replace(state, state=verdict.outcome, verdict=verdict, ended=ended, nodes=nodes)
    machine = backend(record["kind"])
    state = _own_state(run, record, machine, alive)
    if machine.collects and state.verdict is not None:
        return replace(state, state="stopping", verdict=None, detail="bringing back its logs and checkpoints")
    if state.state == "pending" and (why := why_it_waits(_root_of(run), run, record)):
        return replace(state, detail="; ".join(filter(None, [why, state.detail])))
    return state


def check_kind(run: RunDir, record: Mapping[str, Any]) -> None:
    """StoreError where this version has no backend for the run: nothing can be told of it."""
    kind = record.get("kind")
    if isinstance(kind, str) and not is_known(kind):
        said = f"{run.path / 'run.json'} says that the run is of kind {kind!r}, which this orch doesn't know"
        raise StoreError(said, "it was damaged, or a newer orch wrote it")


def _root_of(run: RunDir) -> Path:
    return run.path.parent.parent


def _own_state(
    run: RunDir, record: Mapping[str, Any], machine: Backend, alive: Mapping[int, bool | None] | None = None
) -> RunState:
    """The state as the events tell it, with the verdict that it would get now."""
    # Who lives first: of an agent that is gone, all events are there.
    opinion = asked.opinion(run) if (asked := _as_scheduler(record["kind"])) is not None else None
    if alive is None:
        alive = machine.alive(run) if opinion is None else opinion.alive(record["nnodes"])
    events = run.events()
    record = {**record, **_nodes_now(run, machine)}
    state = fold(record, events, alive, rank0_done=_rank0_is_done(run, events))
    if opinion is not None and not any(event["kind"] == "submit_failed" for event in events):
        return joined(state, opinion)
    return _unless_it_goes_on(record, events, state) if machine.starts_again else state


@cache
def _as_scheduler(kind: str) -> Scheduler | None:
    """The backend as what it is besides; a Protocol is compared member by member, and there may be hundreds of runs."""
    machine = backend(kind)
    return machine if isinstance(machine, Scheduler) else None


def _nodes_now(run: RunDir, machine: Backend) -> dict[str, Any]:
    """What replaces the record's nodes where a later start has others, or fewer."""
    hosts = machine.hosts(run)
    return {"hosts": hosts, "nnodes": len(hosts)} if hosts else {}


def _rank0_is_done(run: RunDir, events: Iterable[Mapping[str, Any]]) -> bool:
    """Is rank 0's marker there, and that of the newest attempt? One that can't be read counts as that."""
    try:
        marker = run.read("rank0.done")
    except StoreError:
        return True
    return marker is not None and marker.get("attempt") in (last_attempt(events), None)


def _unless_it_goes_on(record: Mapping[str, Any], events: list[dict[str, Any]], state: RunState) -> RunState:
    """The state with no verdict yet where the run is to be started again, and with its own where that has no point."""
    after = following(record, events, state)
    if after is None or state.verdict is None:
        return state
    if isinstance(after, str):
        return replace(state, verdict=replace(state.verdict, cause="no_progress", reason=after))
    return replace(state, state="restarting", verdict=None, ended=None, detail=f"start {after.start}: {after.reason}")


def following(record: Mapping[str, Any], events: list[dict[str, Any]], state: RunState) -> Again | str | None:
    """The start that follows this end, a sentence why another has no point, or None."""
    if (verdict := state.verdict) is None or verdict.outcome != "failed":
        return None
    lost = any(node.state == "lost" for node in state.nodes)
    job = record.get("job")
    retry = job.get("retry") if isinstance(job, dict) else None
    return next_start(retry if isinstance(retry, dict) else {}, events, verdict.cause, verdict.reason, lost=lost)


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
    _notice_vain(run, record, machine)
    if not isinstance(machine, Scheduler) and _is_overdue(run):  # a job may wait long for its next start
        machine.sweep(run)
    if machine.starts_again:
        _start_again(run, record, machine)
    state = _own_state(run, record, machine)
    if state.verdict is None:
        return None
    proofs = machine.sweep(run)
    machine.collect(run)
    tidy(run)
    survivors = [name for proof in proofs for name in proof.survivors]
    away = [proof.host for proof in proofs if proof.is_away]
    run.append_event(
        "swept",
        ended=sum(proof.ended for proof in proofs),
        survivors=survivors,
        hosts=[proof.host for proof in proofs if not proof.is_away],
        away=away,
    )
    run.write("verdict.json", {**state.verdict.to_json(), "ended": state.ended or time.time()})
    retire(root, run)
    return state.verdict


def _start_again(run: RunDir, record: Mapping[str, Any], machine: Backend) -> None:
    """Decide on another start where the run's end calls for one, and see it through; recorded before it is done."""
    alive = machine.alive(run)  # before the events, as above
    events = run.events()
    record = {**record, **_nodes_now(run, machine)}
    state = fold(record, events, alive, rank0_done=_rank0_is_done(run, events))
    if isinstance(after := following(record, events, state), Again):
        machine.sweep(run)
        run.append_event(AGAIN, **asdict(after))
    if (decided := pending_start(run.events())) is not None:
        machine.start_again(run, decided)


def _notice_lost(run: RunDir, record: Mapping[str, Any], machine: Backend) -> None:
    """Record that not all agents will ever report: the submit died before it had started all; those are ended."""
    started = len(machine.alive(run))
    if started >= max(1, record["nnodes"]) or (started and _was_submitted(run)):
        return
    if _is_being_submitted(record) or is_held(run):  # in this order: a submit may end by holding the run
        return
    if _may_turn_up(run) or pending_start(run.events()) is not None:
        return
    if not any(event["kind"] == "found_lost" for event in run.events()):
        what = f"{started} of {record['nnodes']} agents" if started else "an agent"
        run.append_event("found_lost", reason=f"the submit ended before it had started {what}")
        machine.sweep(run)


def _notice_vain(run: RunDir, record: Mapping[str, Any], machine: Backend) -> None:
    """Drop a job that waits in its scheduler's queue for another run, when that has not ended as it had to."""
    if not isinstance(machine, Scheduler) or not record.get("after"):
        return
    wait = wait_of(_root_of(run), record["after"])
    if wait is None or not wait.is_vain or machine.opinion(run).phase != "waiting":
        return
    if not any(event["kind"] in ("agent_started", "dropped") for event in run.events()):
        run.append_event("dropped", reason=wait.reason)


def _was_submitted(run: RunDir) -> bool:
    """Did the backend say that every agent was started? Where its word is damaged, it counts as said."""
    try:
        return (run.read("handle.json") or {}).get("state") == "submitted"
    except StoreError:
        return True


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
    if not any(event.get("kind") in LAST_WORDS and event.get("node") == 0 for event in newest_start(run.events())):
        return False
    try:  # when the words arrived: node 0's own clock may be hours off
        return time.time() - (run.node(0) / "events.jsonl").stat().st_mtime > OVERDUE_SECONDS
    except OSError:
        return False


def _is_being_submitted(record: Mapping[str, Any]) -> bool:
    """Is the process that recorded the run still at it? On another machine, only its age can tell."""
    submitter = record.get("submitter") or {}
    if submitter.get("host") == os.uname().nodename:
        return is_alive(Process(submitter.get("pid", 0), submitter.get("started", 0)))
    return bool(time.time() - record["created"] < SUBMIT_PATIENCE)
