"""The table of failures: each rule can apply, the page is generated from it, and each kind of event is known to it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from orchestrator import outcome
from orchestrator.outcome import rules
from orchestrator.outcome.rule import Rule, Seen
from orchestrator.outcome.rules import RULES, blamed, cause_of, rule_of
from orchestrator.outcome.verdict import Cause, Party
from orchestrator.protocol import events
from orchestrator.protocol.events import KINDS, Event
from tests.events import culprit
from tests.failures import PAGE, causes, generated

FOLDER = Path(outcome.__file__).parent

# The events that say nothing about how a run ended. Every other event is read by a rule.
NO_EVIDENCE = frozenset({
    # what was done before the ranks started, and with what
    events.Snapshot, events.Queued, events.Environment, events.Submitted, events.NotRestored,
    events.Clock, events.BatchJob, events.CantReach, events.Strangers, events.InContainer, events.LauncherImported,
    events.LauncherStarted, events.ReachedLeader, events.Listening, events.HandedOver,
    # how the next start gets its machines, which it has decided by then
    events.Replaced, events.WaitingForHosts, events.StartProblem,
    # what is observed of ranks that run: the leader blames a rank by an exit report of its own
    events.FirstStepsSeen, events.Stalled, events.Moved, events.Stacks, events.Unjoined, events.Unused, events.Used,
    events.TimeLimit,
    # what was lost without an effect on the ranks
    events.LauncherLogError, events.ReportFailed, events.LauncherKilled, events.LauncherGone, events.SamplingFailed,
    events.MetricsUnread, events.DiskFull, events.SecondCopyFailed,
    # files that are copied here
    events.LeftBehind, events.OutputsLeft, events.OutputsBrought,
})  # fmt: skip


def test_the_committed_page_has_the_causes_of_the_rules() -> None:
    page = PAGE.read_text()
    assert generated(page) == page, "make failures"


def test_a_new_rule_gets_a_row_whose_other_cells_are_to_be_written() -> None:
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith("| a rank raises |"))
    page = generated(PAGE.read_text().replace(f"{row}\n", ""))
    assert "\n| a rank raises | | user error | | |\n" in page
    assert generated(page) == page


def test_each_row_has_one_cause_and_each_cause_a_rule() -> None:
    assert [what for what, words in causes().items() if "," in words] == []
    decided = {rule.cause for rule in RULES}
    assert set(Cause) - decided == {Cause.STOPPED_EARLY}  # a success, and a search's own cancel


def consumed() -> set[type[Event]]:
    """The classes of events that the package reads."""
    trees = [ast.parse(path.read_text()) for path in FOLDER.glob("*.py")]
    found = {alias.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
             for alias in node.names if node.module == "orchestrator.protocol.events"}  # fmt: skip
    return {cls for cls in KINDS.values() if cls.__name__ in found}


def test_each_event_that_can_be_written_is_evidence_or_is_named_as_none() -> None:
    assert consumed() | NO_EVIDENCE == set(KINDS.values())
    assert not consumed() & NO_EVIDENCE


@pytest.mark.parametrize(
    ("exit_report", "party"),
    [
        ({"code": 1, "error": {"type": "ValueError", "message": "boom"}}, Party.RANK),
        (
            {"code": 1, "error": {"type": "RuntimeError", "message": "CUDA error: uncorrectable ECC error"}},
            Party.MACHINE,
        ),
        ({"code": 1, "error": {"type": "RuntimeError", "message": "Connection closed by peer"}}, Party.NODE),
        ({"signal": "SIGKILL", "error": {"type": "LauncherLost", "message": "killed by SIGKILL"}}, Party.NODE),
    ],
)
def test_the_rule_of_a_failure_names_the_party_to_blame(exit_report: dict[str, object], party: Party) -> None:
    assert rule_of(Seen.of(culprit(**exit_report))).culprit is party


@pytest.mark.parametrize(
    ("words", "cause", "party"),
    [
        ("all of the agents' rendezvous ports are taken, by mallory", Cause.INFRA, Party.MACHINE),
        ("node 1 (n2) was lost: no heartbeat for 10 s", Cause.INFRA, Party.NODE),
        ("node 0 (vm): setup line 2 failed: module load cuda", Cause.USER_ERROR, Party.USER),
        ("stopped by SIGUSR2 from Slurm (time limit near)", Cause.PREEMPTED, Party.SCHEDULER),
        ("its time limit was reached", Cause.TIMEOUT, Party.USER),
        ("", Cause.NONE, Party.NOBODY),
    ],
)
def test_the_party_to_blame_for_an_end_that_no_rank_caused(words: str, cause: Cause, party: Party) -> None:
    assert blamed(words, cause) is party


def test_a_rule_whose_words_are_not_said_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new rule can stand anywhere in the table, also before those of its cause."""
    new = Rule("", Cause.INFRA, Party.MACHINE, pattern="the new words")
    monkeypatch.setattr(rules, "RULES", (new, *RULES))
    assert blamed("node 1 (n2) was lost: no heartbeat for 10 s", Cause.INFRA) is Party.NODE
    assert blamed("the new words", Cause.INFRA) is Party.MACHINE


def test_a_note_of_nccl_on_a_retry_does_not_outweigh_an_error_of_the_program() -> None:
    error = {"type": "DistBackendError", "message": "Error while creating shared memory segment /dev/shm/nccl-a"}
    tail = ["NCCL INFO socketStartConnect: Connect to 10.0.0.2 failed : Connection refused, retrying"]
    assert cause_of(culprit(code=1, error=error, tail=tail)) is Cause.USER_ERROR


@pytest.mark.parametrize("words", ["input train.csv can't be fetched", "worker can't reach node 3", "node 1 was lost"])
def test_what_a_program_says_is_not_taken_for_orchs_own_words(words: str) -> None:
    assert cause_of(culprit(code=1, error={"type": "RuntimeError", "message": words})) is Cause.USER_ERROR
    assert cause_of(culprit(code=1, tail=[words])) is Cause.USER_ERROR
