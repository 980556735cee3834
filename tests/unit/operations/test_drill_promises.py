"""What is promised of a drilled run: one entry a case, what counts as different, and the page that tells it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.operations.debugging.drill_promises import (
    PROMISES,
    Account,
    Freeze,
    Promise,
    Where,
    account,
    differences,
    ledger_of,
    length_of,
    promise_of,
)
from orchestrator.outcome.verdict import Cause, Outcome, Verdict
from orchestrator.protocol.debugging.fault import KILLS, Fault
from orchestrator.runs.state import RunState, RunStatus
from tests.events import event

PAGE = Path(__file__).parents[3] / "docs" / "failures.md"
LINK = 10.0
RANK = promise_of(Fault.RANK, Where.SSH)
SAID = "rank 1 on node 1 (n2) ended with SIGKILL"
KEPT = Account(Outcome.SUCCEEDED, 1, 0.4, SAID, 10, 12.0, (100, ledger_of(100)))


def run(outcome: Outcome = Outcome.SUCCEEDED, reason: str = "") -> RunState:
    verdict = Verdict(outcome, Cause.NONE, reason)
    return RunState("drill-aaaaaa", "drill", "lab", 90.0, RunStatus(outcome.value), ended=130.0, verdict=verdict)


def test_each_fault_has_one_entry_for_each_kind_of_cluster() -> None:
    keys = [(each.fault, each.freeze, each.alone, where) for each in PROMISES for where in each.where]
    assert len(keys) == len(set(keys))
    assert promise_of(Fault.AGENT, Where.SCHEDULER).restarts == 1
    assert promise_of(Fault.AGENT, Where.SCHEDULER, alone=True).restarts == 0
    assert promise_of(Fault.AGENT, Where.SSH, alone=True) == promise_of(Fault.AGENT, Where.SSH)
    for where in Where:
        for fault in KILLS:
            assert where in promise_of(fault, where).where
        for freeze in Freeze:
            assert promise_of(Fault.FREEZE, where, freeze).freeze is freeze


@pytest.mark.parametrize(
    ("seconds", "everything", "expected"),
    [
        (5, False, Freeze.SHORT),
        (5.1, False, None),
        (14.9, False, None),
        (15, False, Freeze.LONG),
        (60, True, Freeze.ALL),
    ],
)
def test_what_a_freeze_is_depends_on_the_time_for_a_link(
    seconds: float, everything: bool, expected: Freeze | None
) -> None:
    assert length_of(seconds, LINK, is_everything=everything) is expected


def test_what_was_promised_differs_in_nothing() -> None:
    assert differences(RANK, KEPT, LINK) == []


@pytest.mark.parametrize(
    ("promise", "changed", "said"),
    [
        (RANK, {"outcome": None}, "the run had not ended 12 s after the fault; promised: succeeded"),
        (RANK, {"outcome": Outcome.FAILED}, "the run ended as failed, and not as succeeded"),
        (
            RANK,
            {"restarts": 2, "ends": (SAID, "")},
            f"the run was started again 2 times, and not 1; attempt 0: {SAID}; attempt 1: its end is not known",
        ),
        (RANK, {"said": "node 1 (n2) was lost"}, "the reported reason is another one: 'node 1 (n2) was lost'"),
        (RANK, {"noticed": None}, "the fault was not noticed; promised: within 10 s"),
        (RANK, {"noticed": 10.1}, "the fault was noticed after 10.1 s; promised: within 10 s"),
        (RANK, {"went_on_from": None}, "the run started from the beginning, and not from a checkpoint"),
        (RANK, {"ledger": None}, "the run's result was not copied to this machine"),
        (
            RANK,
            {"ledger": (100, ledger_of(99))},
            "of its 100 steps one was lost or done twice, as their checksum shows",
        ),
        (RANK, {"left": ("12 (python3) on n2",)}, "left behind: 12 (python3) on n2"),
    ],
)
def test_each_difference_is_a_sentence(promise: Promise, changed: dict[str, Any], said: str) -> None:
    assert differences(promise, replace(KEPT, **changed), LINK) == [said]


def test_a_long_freeze_is_noticed_after_the_time_for_a_link() -> None:
    promise = promise_of(Fault.FREEZE, Where.SSH, Freeze.LONG)
    found = replace(KEPT, said="node 1 (n2) was lost: no heartbeat for 10 s", noticed=14.0)
    assert differences(promise, found, LINK) == []
    assert differences(promise, replace(found, noticed=15.1), LINK) == [
        "the fault was noticed after 15.1 s; promised: within 15 s"
    ]


def test_the_ledger_tells_a_step_that_was_lost_or_doubled_or_out_of_order() -> None:
    def counted(*steps: int) -> int:
        ledger = 0
        for step in steps:
            ledger = (ledger * 31 + step) % 1_000_003
        return ledger

    assert counted(1, 2, 3, 4) == ledger_of(4)
    assert ledger_of(4) not in (counted(1, 2, 4), counted(1, 2, 2, 3, 4), counted(1, 3, 2, 4))
    text = (Path(__file__).parents[3] / "jobs" / "drill.py").read_text()
    assert "model.ledger * 31 + step) % 1_000_003" in text


def test_an_account_of_the_ranks_started_again() -> None:
    culprit = {"rank": 1, "node": 1, "host": "n2", "signal": "SIGKILL", "code": None}
    events = [
        event("go", time=92.0, attempt=0, world_size=2),
        event("attempt_failed", time=100.4, attempt=0, culprit=culprit, cause="infra"),
        event("restart", time=100.6, attempt=1, cause="infra", from_step=10),
    ]
    result = {"steps": 100, "ledger": 7}
    assert account(run(), events, result, 100.0, 140.0) == Account(
        Outcome.SUCCEEDED, 1, pytest.approx(0.4), SAID, 10, 30.0, (100, 7)
    )


def test_an_account_of_other_agents_and_of_a_run_that_ended() -> None:
    why = "node 1 (n2) was lost: no heartbeat for 10 s"
    events = [
        event("lost_node", time=110.0, lost=1),
        event("starting_again", time=112.0, start=1, attempt=1, cause="infra", reason=why, step=20),
    ]
    again = account(run(), events, None, 100.0, 140.0)
    assert (again.noticed, again.said, again.went_on_from) == (10.0, why, 20)
    ended = account(run(Outcome.FAILED, "node 1 (vm) was lost"), events[:1], {"accuracy": 1}, 100.0, 140.0)
    assert (ended.outcome, ended.said, ended.restarts, ended.ledger) == (
        Outcome.FAILED,
        "node 1 (vm) was lost",
        0,
        None,
    )


def test_a_run_of_one_node_that_ended_without_a_word_was_noticed_by_its_verdict() -> None:
    found = account(replace(run(Outcome.FAILED, "vanished"), ended=92.0), [], None, 100.0, 103.0)
    assert (found.noticed, found.took, found.said) == (3.0, 3.0, "vanished")


def test_what_went_wrong_before_the_fault_is_not_its_doing() -> None:
    earlier = [event("restart", time=50.0, attempt=1, cause="infra", from_step=5)]
    assert account(run(), earlier, None, 100.0, 140.0).restarts == 0


# -- the page


def rows() -> list[list[str]]:
    """The cells of the table of drills in docs/failures.md."""
    section = PAGE.read_text().partition("## Drills\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines][1:]


def test_the_page_has_a_row_for_each_promise_and_no_other() -> None:
    told = [(what, does, tuple(where.split(", "))) for what, does, where, *_ in rows()]
    promised = [(each.what, _with_end(each), tuple(map(str, each.where))) for each in PROMISES]
    assert told == promised


def _with_end(promise: Promise) -> str:
    return f"{promise.does}; {promise.outcome}, restarts: {promise.restarts}"


def test_each_row_has_its_sentence_and_a_time_for_each_kind_of_cluster() -> None:
    for promise, (*_, noticed, said) in zip(PROMISES, rows(), strict=True):
        if promise.says:
            assert re.search(promise.says, said.strip("`")), said
            times = re.findall(r"(local|ssh|slurm) (\d+\.\d) s", noticed)
            assert [where for where, _ in times] == list(map(str, promise.where))
            assert all(float(each) <= promise.seconds(LINK) for _, each in times)
        else:
            assert (noticed, said) == ("-", "-")
