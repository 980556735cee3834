"""The table of failures: each rule can apply, the page is generated from it, and each kind of event is known to it."""

from __future__ import annotations

import ast
from pathlib import Path

from orchestrator import outcome
from orchestrator.outcome.no_evidence import NO_EVIDENCE
from orchestrator.outcome.rules import RULES
from orchestrator.outcome.verdict import Cause
from orchestrator.protocol.events import KINDS, EventKind
from tests.failures import PAGE, causes, generated

FOLDER = Path(outcome.__file__).parent


def test_the_committed_page_has_the_causes_of_the_rules() -> None:
    page = PAGE.read_text()
    assert generated(page) == page, "make failures"


def test_a_new_rule_gets_a_row_whose_other_cells_are_to_be_written() -> None:
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith("| a rank raises |"))
    assert "| a rank raises | | user error | | |" in generated(PAGE.read_text().replace(f"{row}\n", ""))


def test_each_row_has_one_cause_and_each_cause_a_rule() -> None:
    assert [what for what, words in causes().items() if "," in words] == []
    decided = {rule.cause for rule in RULES} - {None}
    assert set(Cause) - decided == {Cause.NONE, Cause.STOPPED_EARLY}  # a success, and a search's own cancel


def consumed() -> set[str]:
    """The kinds of events that the package reads."""
    trees = [ast.parse(path.read_text()) for path in FOLDER.glob("*.py")]
    found = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == "EventKind"}
    return {getattr(EventKind, name) for name in names}


def test_each_event_that_can_be_written_is_evidence_or_is_named_as_none() -> None:
    assert consumed() | NO_EVIDENCE == KINDS
    assert not consumed() & NO_EVIDENCE
