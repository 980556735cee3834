"""Brings a run to its verdict (the judged result) in passes. Each pass observes the run, decides on actions and carries
them out.

Each action may be repeated, also by several commands at once, because the run's folder records which actions were done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from orchestrator.backends import backend_for
from orchestrator.backends.base import Backend
from orchestrator.outcome.verdict import Verdict
from orchestrator.protocol.events import CleanedUp, Dropped, FoundLost, StartingAgain
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.missing_files import explained
from orchestrator.runs.record import RunRecord
from orchestrator.runs.state import Ending
from orchestrator.runs.store import RunDir, check_own, retire, tidy
from orchestrator.supervisor.decide import Action, CleanUp, Drop, Finish, PassOn, RecordLost, StartAgents, decide
from orchestrator.supervisor.observe import Observation, observe

ROUNDS: Final = 4  # rounds in a pass; each observes the effects of the previous round


def reconcile(root: Path, run: RunDir) -> Verdict | None:
    """Carry out the actions that the run needs now. Return the run's verdict (the judged result), or None if the run
    has not ended.
    """
    check_own(root, run)
    return Reconciler(root, run).run_once()


class Reconciler:
    """Reconciles one run in passes. Each pass reads only the files that have changed."""

    def __init__(self, root: Path, run: RunDir, may_act: Callable[[], bool] = lambda: True) -> None:
        self.root, self.run, self.may_act = root, run, may_act
        self._known = FileCache()
        self._seen: Observation | None = None
        self._actions: tuple[Action, ...] = ()

    def record(self) -> RunRecord:
        """Return the run's record. It is read again only if it has changed."""
        return self._known.of_file(f"{self.run.path}/run.json", self.run.record)

    def run_once(self) -> Verdict | None:
        """Carry out the actions that the run needs now. Return the run's verdict (the judged result), or None if the
        run has not ended.
        """
        record = self.record()
        if (ending := self._known.of_file(f"{self.run.path}/verdict.json", self.run.ending, None)) is not None:
            retire(self.root, self.run)
            return ending.verdict
        if record.is_lost:
            return None
        backend, done = backend_for(record.kind), tuple[Action, ...]()
        for _ in range(ROUNDS):
            if (seen := observe(self.run, record, self._known)) != self._seen:
                self._seen, self._actions = seen, decide(seen)
            if self._actions == done:  # the actions changed nothing, so another pass tries again
                return None
            done = self._actions
            for action in done:
                if not self.may_act():
                    return None
                if (verdict := act(self.root, self.run, backend, action)) is not None:
                    return verdict
            if not any(isinstance(action, RecordLost | Drop | CleanUp) for action in done):
                return None
        return None

    @property
    def why_unable(self) -> str:
        """Return why this machine can do nothing for the run, as the last pass has seen; "" if it can."""
        return self._seen.evidence.why_unable if self._seen is not None else ""


def act(root: Path, run: RunDir, backend: Backend, action: Action) -> Verdict | None:
    """Carry out an action. Return the run's verdict (the judged result) if the action ends the run, else None."""
    match action:
        case RecordLost(reason):
            run.append_event(FoundLost(reason))
            backend.clean_up(run)
        case Drop(reason):
            run.append_event(Dropped(reason))
        case CleanUp():
            backend.clean_up(run)
        case PassOn(is_cancelled, lost):
            if is_cancelled:
                backend.cancel([run])
            if lost:
                backend.tell_losses(run, lost)
        case StartAgents(start, is_new):
            if is_new:  # the start is recorded before it begins
                backend.clean_up(run)
                run.append_event(StartingAgain(**asdict(start)))
            backend.relaunch(run, start)
        case Finish(verdict, ended):
            told = explained(run, verdict)
            _finish(root, run, backend, Ending(told, ended or time.time()))
            return told
    return None


def _finish(root: Path, run: RunDir, backend: Backend, ending: Ending) -> None:
    """Remove everything that the run has left on its machines, write its verdict, and mark the run as ended."""
    proofs = backend.clean_up(run)
    backend.collect(run)
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
