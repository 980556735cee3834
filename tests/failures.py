"""Writes what follows from the table of failures into docs/failures.md: the cause and the budget of each row.

`make failures` runs it. A row of the page and a rule of `outcome/rules.py` belong together if the row's first cell is
the rule's `what`. A row without a rule describes something that ends no run. The other cells are written by hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from orchestrator.outcome.rules import RULES
from orchestrator.outcome.verdict import Cause

PAGE = Path(__file__).parents[1] / "docs" / "failures.md"
HEAD = "| what happens | what orch does | cause | the sentence of `orch why` | tested on |\n|---|---|---|---|---|\n"
END = "\n\nEverything but success"


def cause_in_words(cause: Cause) -> str:
    """The cell: the cause as `orch why` prints it, which is also its budget if it has one."""
    return cause.replace("_", " ") + ("" if cause.budget else " (no budget)")


def causes() -> dict[str, str]:
    """The cell of each row that has a rule."""
    found: dict[str, dict[str, None]] = {}
    for rule in RULES:
        if rule.what and rule.cause:
            found.setdefault(rule.what, {})[cause_in_words(rule.cause)] = None
    return {what: ", ".join(words) for what, words in found.items()}


def _row(*cells: str) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def generated(page: str) -> str:
    """The page with the table's causes as the rules have them, and a row for each rule that has none yet."""
    before, _, rest = page.partition(HEAD)
    rows, _, after = rest.partition(END)
    known, lines = causes(), []
    for row in rows.splitlines():
        what, does, _, sentence, where = [cell.strip() for cell in re.split(r" \|(?= |$)", row[1:])[:5]]
        lines.append(_row(what, does, known.pop(what, "none"), sentence, where))
    lines += [_row(what, "", cause, "", "") for what, cause in known.items()]
    return before + HEAD + "\n".join(lines) + END + after


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(generated(PAGE.read_text()))
    else:
        sys.stdout.write(generated(PAGE.read_text()))
