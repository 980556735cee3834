"""The account of a run's end: the last step, the newest checkpoint, what is lost, and the command to go on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.render.runs import account_facts
from orchestrator.looking.account import account_of
from orchestrator.looking.state import state_of
from orchestrator.outcome.verdict import Cause, Outcome, Verdict
from orchestrator.protocol.events import StartingAgain
from orchestrator.runs.state import AttemptSummary, Ending
from orchestrator.runs.store import RunDir, create_run
from tests.unit.backends.mirror.test_checkpoints import checkpoint

NEVER = "orch does not start this run again"


def ended_run(
    root: Path, outcome: Outcome, cause: Cause = Cause.NONE, *, step: int | None = 240, kind: str = "local", **job: Any
) -> RunDir:
    run = create_run(root, "r-234567", {"nnodes": 1, "kind": kind, "job": job})
    run.write("plan.json", {"tasks": [{"checkpoint_dir": str(run.path / "checkpoints")}]})
    folder = run.path / "nodes/0/attempt_0"
    folder.mkdir(parents=True)
    if step is not None:
        (folder / "beat_0").write_text(json.dumps({"step": step}))
    run.write("verdict.json", Ending(Verdict(outcome, cause, "why"), 1000.0).to_json())
    return run


@pytest.mark.parametrize("kind", ["local", "ssh"])
def test_a_failed_run_with_a_checkpoint_says_what_is_lost_and_how_to_resume(tmp_path: Path, kind: str) -> None:
    run = ended_run(tmp_path, Outcome.FAILED, Cause.USER_ERROR, kind=kind, retry={"user_error": 0})
    checkpoint(run.path / "checkpoints", 200, b"weights")
    found = account_of(run, state_of(run))
    assert found is not None
    assert (found.ended, found.last_step, found.checkpoint_step, found.lost_steps) == (1000.0, 240, 200, 40)
    assert found.next == f"{NEVER}: its job allows no restart after this cause (retry.user_error is 0)"
    assert found.command == "orch submit --from r-234567 --resume r-234567"
    facts = account_facts(found, 1060.0)
    assert facts["checkpoint"] == f"{found.checkpoint}; 40 steps after it are lost"
    assert facts["ended"].endswith("1 min 00 s ago")


@pytest.mark.parametrize(
    ("outcome", "cause", "retry", "restarts", "next_", "command"),
    [
        (Outcome.SUCCEEDED, Cause.NONE, {}, 0, "", ""),
        (Outcome.CANCELLED, Cause.NONE, {}, 0, NEVER, "orch submit --from r-234567"),
        (Outcome.FAILED, Cause.INFRA, {"infra": 3}, 1, NEVER, "orch submit --from r-234567"),
        (Outcome.FAILED, Cause.INFRA, {"infra": 2}, 2,
         f"{NEVER}: the restarts that its job allows after this cause are used up (retry.infra is 2)",
         "orch submit --from r-234567"),
        (Outcome.FAILED, Cause.NO_PROGRESS, {"infra": 0}, 0, NEVER, "orch submit --from r-234567"),
    ],
)  # fmt: skip
def test_what_follows_and_the_command_to_go_on(
    tmp_path: Path, outcome: Outcome, cause: Cause, retry: dict[str, int], restarts: int, next_: str, command: str
) -> None:
    run = ended_run(tmp_path, outcome, cause, step=None, retry=retry)
    for number in range(restarts):
        run.append_event(StartingAgain(start=number + 1, attempt=number + 1, cause=cause, reason="lost"))
    found = account_of(run, state_of(run))
    assert found is not None
    assert (found.next, found.command, found.last_step, found.lost_steps) == (next_, command, None, None)


def test_a_run_that_has_not_ended_has_no_account(tmp_path: Path) -> None:
    run = create_run(tmp_path, "r-234567", {"nnodes": 1, "kind": "local"})
    assert account_of(run, state_of(run)) is None
    assert account_facts(None, 0.0) == {}


def test_what_a_run_lost_is_unknown_if_it_began_at_another_runs_checkpoint(tmp_path: Path) -> None:
    run = ended_run(tmp_path, Outcome.FAILED, Cause.USER_ERROR)
    state = replace(state_of(run), attempts=(AttemptSummary(0, offered="/other/step_200"),))
    found = account_of(run, state)
    assert found is not None
    assert (found.last_step, found.checkpoint, found.lost_steps) == (240, "", None)


def test_a_trial_without_values_has_no_command(tmp_path: Path) -> None:
    run = ended_run(tmp_path, Outcome.CANCELLED)
    point = {"id": "s", "index": 0, "values": {}, "parallel": None, "is_trial": True}
    run.write("run.json", {**(run.read("run.json") or {}), "sweep": point})
    found = account_of(run, state_of(run))
    assert found is not None
    assert (found.next, found.command) == (NEVER, "")
