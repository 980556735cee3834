"""The list of runs: a small row for each run, and the rows that are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.runs.labels import NO_LABELS, Labels
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.views.facts import Facts


@dataclass(frozen=True)
class RunRow:
    """One run in a list."""

    run_id: str
    name: str
    profile: str
    state: RunStatus
    created: float
    started: float | None = None
    ended: float | None = None
    world_size: int | None = None
    restarts: int = 0
    sweep: str | None = None
    note: str = ""  # the most important fact about the run
    place: str = ""  # the rank and the node that failed; the note ends with this text
    labels: Labels = NO_LABELS
    facts: Facts = ()  # only for the web page

    @property
    def is_final(self) -> bool:
        """Return True if the run has ended."""
        return self.state.final

    def has(self, words: Iterable[str]) -> bool:
        """Return True if all of the casefolded words are in the id, name, profile, state or note."""
        said = " ".join((self.run_id, self.name, self.profile, self.state, self.note)).casefold()
        return all(word in said for word in words)


@dataclass(frozen=True)
class RunsView:
    """The runs that are shown, newest first."""

    rows: tuple[RunRow, ...]
    total: int
    states: Mapping[str, int]  # number of all runs in each state
    unread: int = 0  # number of older runs that were not read yet


def row_of(state: RunState, note: str, labels: Labels = NO_LABELS, facts: Facts = ()) -> RunRow:
    """Return the row of a run."""
    place = state.verdict.why_and_where[1] if state.verdict is not None else ""
    return RunRow(
        state.run_id, state.name, state.profile, state.state, state.created, state.started, state.ended,
        state.world_size, state.restarts, sweep_of(state.run_id), note, place, labels, facts,
    )  # fmt: skip


def runs_view(rows: Iterable[RunRow], words: str = "", *, unread: int = 0) -> RunsView:
    """Return the rows that have all of `words`, and the counts of all rows."""
    rows, asked = tuple(rows), words.casefold().split()
    found = tuple(row for row in rows if row.has(asked)) if asked else rows
    return RunsView(found, len(rows) + unread, Counter(str(row.state) for row in rows), unread)
