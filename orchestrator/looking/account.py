"""The account of a run's end, for somebody who was not there: what was reached, what is lost, and how to go on."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.errors import OrchError
from orchestrator.outcome.restart import times_used
from orchestrator.outcome.verdict import Outcome
from orchestrator.protocol.frozen import Value
from orchestrator.runs.files.logs import beat_of
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir

if TYPE_CHECKING:
    from orchestrator.runs.files.checkpoints import Checkpoint


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
    """The command to go on: it fetches the checkpoint of a run that succeeded, and continues any other run; "" if there
    is no such command.
    """

    lost_steps: int | None
    """The steps after the newest checkpoint."""

    def to_json(self) -> dict[str, Any]:
        """Return the account as JSON types."""
        return asdict(self)


def account_of(run: RunDir, state: RunState) -> Account | None:
    """Return the account of a run's end, or None if the run has not ended."""
    if state.verdict is None or not state.is_final:
        return None
    newest, step = _newest(run), (beat_of(run, state.attempt) or {}).get("step")
    last = step if type(step) is int else None
    saved = newest.step if newest is not None and newest.order[0] >= 0 else None
    succeeded = state.verdict.outcome is Outcome.SUCCEEDED
    return Account(
        ended=state.ended,
        last_step=last,
        checkpoint=newest.path.name if newest is not None else "",
        checkpoint_step=saved,
        next="" if succeeded else f"orch does not start this run again{_why_not(run, state)}",
        command=_command(run, succeeded=succeeded, has_checkpoint=newest is not None),
        lost_steps=_lost(state, last, saved, has_checkpoint=newest is not None),
    )


def _newest(run: RunDir) -> Checkpoint | None:
    """Return the newest checkpoint that the run has saved and that is on this machine. A job with `training` can be
    resumed from orch's own format only.
    """
    from orchestrator.runs.files.checkpoints import all_of

    try:
        trains = run.record().job_document.get("training") is not None
        found = [each for each in all_of(run) if each.is_whole and each.run in ("", run.run_id)]
        return max((each for each in found if not trains or each.format == "orch"), key=lambda each: each.order)
    except (OSError, OrchError, ValueError):  # there is no checkpoint, or a damaged record names none
        return None


def _lost(state: RunState, last: int | None, saved: int | None, *, has_checkpoint: bool) -> int | None:
    """Return the steps after the newest checkpoint. They are unknown if a machine may still have a checkpoint, or if
    the run began at the step of another run's checkpoint.
    """
    if last is None or (saved is None and (has_checkpoint or state.left)):
        return None
    began_later = any(each.offered or each.resumed_from for each in state.attempts)
    return None if saved is None and began_later else max(0, last - (saved or 0))


def _command(run: RunDir, *, succeeded: bool, has_checkpoint: bool) -> str:
    point = run.record().point
    if succeeded:
        return f"orch pull {run.run_id}" if has_checkpoint else ""
    if point is not None and point.is_trial and not point.values:  # its search has not chosen its values
        return ""
    return f"orch submit --from {run.run_id}" + (f" --resume {run.run_id}" if has_checkpoint else "")


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
