"""How a run stands, and how it is brought to its end: observe it, decide, act, until there is nothing to be done now.

All that is done may be done twice, and by several commands at once: what was done is in the run's own directory.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from orchestrator.backends import backend, is_known
from orchestrator.backends.base import Backend
from orchestrator.errors import OrchError, StoreError
from orchestrator.protocol.events import CleanedUp, Dropped, FoundLost, GaveUp, LostNode, StartingAgain
from orchestrator.runs.dependencies import why_it_waits
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.record import RunRecord
from orchestrator.runs.reducer import reduce
from orchestrator.runs.state import Cause, Ending, NodeStatus, Outcome, RunState, RunStatus, Verdict
from orchestrator.runs.store import DELETED, RunDir, check_own, retire, tidy, why_full
from orchestrator.supervisor.decide import (
    Action,
    CleanUp,
    Drop,
    Finish,
    PassOnCancel,
    RecordLost,
    StartAgents,
    decide,
    state_from,
)
from orchestrator.supervisor.observe import Evidence, Observation, gather, observe, with_hosts_now

SIGNS_OF_LOSS: Final = (LostNode, GaveUp, StartingAgain)
ROUNDS: Final = 4  # of a pass: what is recorded or ended in one is seen by the next


def state_of(run: RunDir, known: FileCache | None = None) -> RunState:
    """Return the run's state now; reads, never writes. A run that has its verdict is not looked at again.

    With a cache, only the events are read again that have changed.
    """
    record, ending = run.record(), run.ending()
    if record.is_lost and ending is None:
        run.check_is_there()
        reason = "its record run.json is not there: a submit or an rm was interrupted, or its folder was deleted"
        verdict = Verdict(Outcome.FAILED, Cause.INFRA, reason, hint=DELETED)
        return RunState(run.run_id, record.name, record.profile_name, 0.0, RunStatus.FAILED, verdict=verdict)
    check_kind(run, record)
    machine = backend(record.kind)
    if ending is not None:
        sight = machine.look(run, recorded=True)
        return replace(_ended(with_hosts_now(record, sight), run, ending, known), job=sight.job)
    evidence = gather(run, record, known)
    state = replace(_recovering(state_from(evidence), evidence, run, machine), job=evidence.job)
    run.check_is_there()  # after all was read: one removed meanwhile looks like one that has said nothing yet
    if full := why_full(run.root):
        state = replace(state, detail="; ".join(filter(None, [full, state.detail])))
    if machine.is_remote and state.verdict is not None:
        detail = full or "bringing back its logs, outputs and checkpoints"
        return replace(state, state=RunStatus.FINISHING, verdict=None, detail=detail)
    if state.verdict is not None:  # the run has ended, and its verdict is not recorded yet
        return replace(state, verdict=_explained(run, state.verdict))
    if state.state == RunStatus.PENDING and (why := why_it_waits(run.root, run, record)):
        return replace(state, detail="; ".join(filter(None, [why, state.detail])))
    return state


def _recovering(state: RunState, evidence: Evidence, run: RunDir, machine: Backend) -> RunState:
    """Return the state with what is lost, and what is done about it, where the supervisor starts agents anew."""
    if not any(isinstance(event, SIGNS_OF_LOSS) for event in evidence.events):
        return state
    if (reserves := machine.reserves(run)) is None:
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
    """Return the state of a run that has its verdict: the rest is told by its events."""
    state, verdict = reduce(record, run.events(known), {}, rank0_done=True), ending.verdict
    silent = (NodeStatus.STARTING, NodeStatus.JOINED, NodeStatus.RUNNING)  # their agents left without their last words
    nodes = tuple(replace(node, state=NodeStatus.LOST) if node.state in silent else node for node in state.nodes)
    ended = state.ended if ending.ended is None else ending.ended
    return replace(state, state=verdict.outcome.status, verdict=verdict, ended=ended, nodes=nodes)


def check_kind(run: RunDir, record: RunRecord) -> None:
    """Raise StoreError where this version has no backend for the run: nothing can be told of it."""
    try:
        known = is_known(record.kind)
    except OrchError as error:  # the package that adds the kind is broken; other runs are shown all the same
        raise StoreError(error.message, error.hint) from error
    if not known:
        said = f"{run.path / 'run.json'} says that the run is of kind {record.kind!r}, which this orch doesn't know"
        raise StoreError(
            said, "install the package that adds this kind; else the file was damaged, or a newer orch wrote it"
        )


def reconcile(root: Path, run: RunDir) -> Verdict | None:
    """Do what the run needs now; its verdict once that is written, None while it is still going on."""
    check_own(root, run)
    return Reconciler(root, run).run_once()


class Reconciler:
    """Brings one run to its end in as many passes as that takes; one in which nothing has changed reads no file."""

    def __init__(self, root: Path, run: RunDir) -> None:
        self.root, self.run = root, run
        self._known = FileCache()
        self._seen: Observation | None = None
        self._actions: tuple[Action, ...] = ()

    def record(self) -> RunRecord:
        """Return the run's record; it is read once for as long as it stays as it is."""
        return self._known.of_file(f"{self.run.path}/run.json", self.run.record)

    def run_once(self) -> Verdict | None:
        """Do what the run needs now; its verdict once that is written, None while it is still going on."""
        record = self.record()
        if record.is_lost:
            return None
        machine, done = backend(record.kind), tuple[Action, ...]()
        for _ in range(ROUNDS):
            if (seen := observe(self.run, record, self._known)) != self._seen:
                self._seen, self._actions = seen, decide(seen)
            if self._actions == done:  # it did not help: another pass tries again
                return None
            done = self._actions
            for action in done:
                if (verdict := act(self.root, self.run, machine, action)) is not None:
                    return verdict
            if not any(isinstance(action, RecordLost | Drop | CleanUp) for action in done):
                return None
        return None


def act(root: Path, run: RunDir, machine: Backend, action: Action) -> Verdict | None:
    """Do one thing; the verdict where that ended the run."""
    match action:
        case RecordLost(reason):
            run.append_event(FoundLost(reason))
            machine.clean_up(run)
        case Drop(reason):
            run.append_event(Dropped(reason))
        case CleanUp():
            machine.clean_up(run)
        case PassOnCancel():
            machine.cancel(run)
        case StartAgents(start, is_new):
            if is_new:  # recorded before it is done
                machine.clean_up(run)
                run.append_event(StartingAgain(**asdict(start)))
            machine.relaunch(run, start)
        case Finish(verdict, ended):
            told = _explained(run, verdict)
            _finish(root, run, machine, Ending(told, ended or time.time()))
            return told
    return None


def _explained(run: RunDir, verdict: Verdict) -> Verdict:
    """Return the verdict. If a rank did not find a file or a module, a hint names its place on this machine."""
    if verdict.outcome is not Outcome.FAILED or verdict.rank is None:
        return verdict
    from orchestrator.runs.missing_files import with_missing_file
    from orchestrator.runs.nearby_file import with_nearby_file
    from orchestrator.runs.nearby_module import with_nearby_module

    code_dir = run.record().code_dir
    told = with_missing_file(run, verdict)
    for explain in (with_nearby_file, with_nearby_module):
        if told is verdict:  # else a hint that is more certain was found
            told = explain(verdict, code_dir)
    return told


def _finish(root: Path, run: RunDir, machine: Backend, ending: Ending) -> None:
    """Leave nothing of the run anywhere else, then write its verdict; after that it is not looked at again."""
    proofs = machine.clean_up(run)
    machine.collect(run)
    tidy(run)
    run.append_event(
        CleanedUp(
            ended=sum(proof.ended for proof in proofs),
            survivors=tuple(name for proof in proofs for name in proof.survivors),
            hosts=tuple(proof.host for proof in proofs if not proof.is_unreachable),
            away=tuple(proof.host for proof in proofs if proof.is_unreachable),
        )
    )
    run.write("verdict.json", ending.to_json())
    retire(root, run)
