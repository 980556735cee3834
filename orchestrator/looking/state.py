"""Determines the state of a run. It writes nothing, and loads no code of the supervisor."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from orchestrator.backends import backend_for, is_known
from orchestrator.backends.base import Backend
from orchestrator.errors import OrchError, StoreError
from orchestrator.looking.evidence import Evidence, gather, state_from, with_hosts_now
from orchestrator.outcome.judge import of_lost_record
from orchestrator.outcome.verdict import NodeStatus
from orchestrator.protocol.events import GaveUp, LostNode, StartingAgain
from orchestrator.runs.claims import claim_of
from orchestrator.runs.dependencies import why_it_waits
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.record import RunRecord
from orchestrator.runs.reducer import reduce
from orchestrator.runs.state import Ending, RunState, RunStatus
from orchestrator.runs.store import DELETED, RunDir, why_full

SIGNS_OF_LOSS: Final = (LostNode, GaveUp, StartingAgain)


def state_of(run: RunDir, known: FileCache | None = None) -> RunState:
    """Return the run's state. If the run's verdict (its final result) is recorded, only files of the run are read.

    If the cache `known` is given, only event files that have changed are read again.
    """
    record, ending = run.record(), run.ending()
    if record.is_lost and ending is None:
        run.check_is_there()
        return RunState(
            run.run_id, record.name, record.profile_name, 0.0, RunStatus.FAILED, verdict=of_lost_record(DELETED)
        )
    check_kind(run, record)
    backend = backend_for(record.kind)
    if ending is not None:
        sight = backend.look(run, recorded=True)
        return replace(_ended(with_hosts_now(record, sight), run, ending, known), job=sight.job)
    evidence = gather(run, record, known)
    state = replace(_recovering(state_from(evidence), evidence, run, backend), job=evidence.job)
    run.check_is_there()  # checked last, because a run that was removed meanwhile looks like a run without events
    if full := why_full(run.root):
        state = replace(state, detail="; ".join(filter(None, [full, state.detail])))
    claim = claim_of(run)
    if claim.why_unable:
        said = f"{claim.host} looks after the run and can't do its work: {claim.why_unable}; to move the run, call any "
        state = replace(state, detail=f"{said}orch command on a machine that can")
    if backend.is_remote and state.verdict is not None:
        detail = full or "; ".join(["bringing back its logs, outputs and checkpoints", *_awaited(state, record)])
        return replace(state, state=RunStatus.FINISHING, verdict=None, detail=detail)
    if state.verdict is not None:  # the run has ended, and its verdict is not recorded yet
        from orchestrator.runs.missing_files import explained

        return replace(state, verdict=explained(run, state.verdict))
    if state.state == RunStatus.PENDING and (why := why_it_waits(run.root, run, record)):
        return replace(state, detail="; ".join(filter(None, [why, state.detail])))
    return state


def _awaited(state: RunState, record: RunRecord) -> list[str]:
    """Return for which machines an ended run waits, because their files could not be copied yet."""
    if not state.left:
        return []
    hosts, reasons = ", ".join(each.host for each in state.left), "; ".join(each.reason for each in state.left)
    seconds = record.profile_document.get("node_wait") or 0
    return [f"waiting for {hosts} ({reasons}), at most {seconds:g} s; orch cancel {state.run_id} ends the wait"]


def _recovering(state: RunState, evidence: Evidence, run: RunDir, backend: Backend) -> RunState:
    """Return the state. If nodes were lost and the supervisor can relaunch agents, the state includes the recovery."""
    if not any(isinstance(event, SIGNS_OF_LOSS) for event in evidence.events):
        return state
    if (reserves := backend.reserves(run)) is None:
        return state
    from orchestrator.runs.files.checkpoints import saved_by
    from orchestrator.runs.restarts.recovery import Newest, recovery_of

    def newest() -> Newest | None:
        try:
            saved = next(iter(saved_by(run)), None)
        except (OSError, StoreError):
            return None
        return Newest(os.path.basename(saved.path), saved.time) if saved is not None else None

    recovery = recovery_of(evidence.record, evidence.events, state, reserves, newest)
    is_to_restart = recovery is not None and recovery.restarts
    return replace(state, recovery=recovery, state=RunStatus.RESTARTING if is_to_restart else state.state)


def _ended(record: RunRecord, run: RunDir, ending: Ending, known: FileCache | None = None) -> RunState:
    """Return the state of a run whose verdict (final result) is recorded. All other fields of the state follow from the
    run's events.
    """
    state, verdict = reduce(record, run.events(known), {}, rank0_done=True), ending.verdict
    silent = (NodeStatus.STARTING, NodeStatus.JOINED, NodeStatus.RUNNING)  # their agents exited without a last event
    nodes = tuple(replace(node, state=NodeStatus.LOST) if node.state in silent else node for node in state.nodes)
    ended = state.ended if ending.ended is None else ending.ended
    return replace(state, state=RunStatus(verdict.outcome.value), verdict=verdict, ended=ended, nodes=nodes)


def check_kind(run: RunDir, record: RunRecord) -> None:
    """Raise StoreError if this orch has no backend for the run's kind of profile, so that it can't read the state."""
    try:
        known = is_known(record.kind)
    except OrchError as error:  # the package that adds the kind is broken; other runs are shown all the same
        raise StoreError(error.message, error.hint) from error
    if not known:
        said = f"{run.path / 'run.json'} says that the run is of kind {record.kind!r}, which this orch doesn't know"
        raise StoreError(
            said,
            "install the package that adds this kind; if no package adds it, the file is damaged or a "
            "newer orch wrote it",
        )
