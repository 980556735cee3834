"""The account of a run's end, for somebody who was not there: what was reached, what is lost, and how to go on."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.outcome.restart import times_used
from orchestrator.outcome.verdict import Outcome
from orchestrator.protocol.frozen import Value
from orchestrator.runs.files.logs import beat_of
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir


class Account(Value):
    """The account of a run's end. Steps are None if they are unknown."""

    ended: float | None
    last_step: int | None
    """The last step that rank 0 of the newest attempt reported."""
    checkpoint: str
    """The name of the newest checkpoint on this machine; "" if there is none."""
    checkpoint_step: int | None
    next: str
    """The sentence that orch does not start the run again, with the reason if a limit of `retry` is the reason; "" if
    the run succeeded.
    """
    command: str
    """The command to go on: it fetches the checkpoint of a run that succeeded ("" if it has none), and continues any
    other run.
    """

    @property
    def lost_steps(self) -> int | None:
        """Return how many steps since the newest checkpoint are lost, or None if this is unknown."""
        if self.last_step is None or (self.checkpoint_step is None and self.checkpoint):
            return None
        return max(0, self.last_step - (self.checkpoint_step or 0))

    def to_json(self) -> dict[str, Any]:
        """Return the account as JSON types."""
        return {**asdict(self), "lost_steps": self.lost_steps}


def account_of(run: RunDir, state: RunState) -> Account | None:
    """Return the account of a run's end, or None if the run has not ended."""
    if state.verdict is None or not state.is_final:
        return None
    from orchestrator.runs.files.checkpoints import saved_by

    try:
        newest = next(iter(saved_by(run)), None)
    except (OSError, OrchError):  # a damaged record names no checkpoints
        newest = None
    step = (beat_of(run, state.attempt) or {}).get("step")
    succeeded = state.verdict.outcome is Outcome.SUCCEEDED
    if succeeded:
        command = f"orch pull {run.run_id}" if newest is not None else ""
    else:
        command = f"orch submit --from {run.run_id}" + (f" --resume {run.run_id}" if newest is not None else "")
    return Account(
        ended=state.ended,
        last_step=step if type(step) is int else None,
        checkpoint=os.path.basename(newest.path) if newest is not None else "",
        checkpoint_step=newest.step if newest is not None and newest.is_counted else None,
        next="" if succeeded else f"orch does not start this run again{_why_not(run, state)}",
        command=command,
    )


def _why_not(run: RunDir, state: RunState) -> str:
    """Return the budget that forbids another start, as the end of a sentence; "" if no budget does."""
    if state.verdict is None or state.verdict.outcome is not Outcome.FAILED:
        return ""
    cause, allowed = state.verdict.cause.budget, run.record().retry
    budget = allowed.get(cause or "")
    if cause is None or budget is None or times_used(run.events(), cause) < budget:
        return ""
    if budget == 0:
        return f": its job allows no restart after this cause (retry.{cause} is 0)"
    return f": the restarts that its job allows after this cause are used up (retry.{cause} is {budget})"
