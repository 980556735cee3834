"""The table of promises: how a run should end after each fault of a drill.

This module also compares a run's end with its promise, and has no side effects. docs/failures.md has a row for each
entry of the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from orchestrator.outcome.sentences import culprit_in_words
from orchestrator.outcome.verdict import Outcome
from orchestrator.protocol.debugging.fault import Fault
from orchestrator.protocol.events import AttemptFailed, Event, FoundLost, GaveUp, LostNode, Restart, StartingAgain, of
from orchestrator.runs.state import RunState

KILL_SECONDS: Final = 10.0  # the time in which the kill of a process is noticed
WAKING_SECONDS: Final = 5.0  # a silence is noticed within this time after limits.link; two heartbeats take less
SHORT: Final = 0.5  # a freeze of at most this many times limits.link has no consequences


class Where(StrEnum):
    """The kinds of clusters. After the loss of a node, orch reacts differently on each kind."""

    LOCAL = "local"
    SSH = "ssh"
    SCHEDULER = "slurm"


class Freeze(StrEnum):
    """The cases of a freeze, in which processes are stopped for a time: short, long, or on all machines of the run."""

    SHORT = "for less than half of limits.link"
    LONG = "for longer than limits.link"
    ALL = "all machines of the run, for any time"


@dataclass(frozen=True)
class Promise:
    """The promised outcome of a fault on some kinds of clusters. The error message must match the pattern `says`.

    A promise for runs on one node (`alone`) takes precedence over a promise for any run.
    """

    fault: Fault
    where: tuple[Where, ...]
    outcome: Outcome
    restarts: int
    does: str
    says: str = ""
    freeze: Freeze | None = None
    alone: bool = False

    @property
    def what(self) -> str:
        """Return a phrase for the fault, in the words of docs/failures.md."""
        if self.freeze is not None:
            return f"{self.fault} {self.freeze}"
        return f"KILL of {_ARTICLES[self.fault]}{', the only one' if self.alone else ''}"

    def seconds(self, link: float) -> float:
        """Return the number of seconds within which the fault must be noticed."""
        return link + WAKING_SECONDS if self.freeze is Freeze.LONG else KILL_SECONDS


_ARTICLES: Final = {
    Fault.RANK: "a rank",
    Fault.LAUNCHER: "a launcher",
    Fault.AGENT: "an agent",
    Fault.NODE: "all of the run's processes on a node",
    Fault.SUPERVISOR: "the supervisor",
}
_ALL: Final = (Where.LOCAL, Where.SSH, Where.SCHEDULER)
_AGAIN: Final = (Where.SSH, Where.SCHEDULER)
_LOST: Final = r"node \d+ \(.+\) was lost: its agent closed the connection|vanished without a word"
_SILENT: Final = r"(was lost|lost node 0): no heartbeat for \d+ s"

_NOBODY_ASKS: Final = "no other agent can request another start from Slurm; the run ends"
_ENDED: Final = r"Slurm job \d+: its batch script failed with exit code 137"

PROMISES: Final = (
    Promise(
        Fault.RANK, _ALL, Outcome.SUCCEEDED, 1, "the same agents start all ranks again, from the newest checkpoint",
        r"rank \d+ on node \d+ \(.+\) ended with SIGKILL$",
    ),
    Promise(
        Fault.LAUNCHER, _ALL, Outcome.SUCCEEDED, 1,
        "its ranks die with it; the same agents start all ranks again, from the newest checkpoint",
        r"ended with SIGKILL: LauncherLost: the launcher of this node was killed by SIGKILL",
    ),
    Promise(Fault.AGENT, (Where.LOCAL,), Outcome.FAILED, 0, "its launcher and ranks die; the run ends", _LOST),
    Promise(
        Fault.AGENT, _AGAIN, Outcome.SUCCEEDED, 1,
        "its launcher and ranks die; new agents continue from the newest checkpoint", _LOST,
    ),
    Promise(Fault.NODE, (Where.LOCAL,), Outcome.FAILED, 0, "the run ends", _LOST),
    Promise(Fault.NODE, _AGAIN, Outcome.SUCCEEDED, 1, "new agents continue from the newest checkpoint", _LOST),
    Promise(Fault.AGENT, (Where.SCHEDULER,), Outcome.FAILED, 0, _NOBODY_ASKS, _ENDED, alone=True),
    Promise(Fault.NODE, (Where.SCHEDULER,), Outcome.FAILED, 0, _NOBODY_ASKS, _ENDED, alone=True),
    Promise(
        Fault.SUPERVISOR, _ALL, Outcome.SUCCEEDED, 0, "the run continues; the next command starts another supervisor"
    ),
    Promise(Fault.FREEZE, _ALL, Outcome.SUCCEEDED, 0, "the run continues where it was", freeze=Freeze.SHORT),
    Promise(Fault.FREEZE, _ALL, Outcome.SUCCEEDED, 0, "the run continues where it was", freeze=Freeze.ALL),
    Promise(Fault.FREEZE, (Where.LOCAL,), Outcome.FAILED, 0, "the run ends", _SILENT, Freeze.LONG),
    Promise(
        Fault.FREEZE, _AGAIN, Outcome.SUCCEEDED, 1,
        "new agents continue from the newest checkpoint", _SILENT, Freeze.LONG,
    ),
)  # fmt: skip


def promise_of(fault: Fault, where: Where, freeze: Freeze | None = None, *, alone: bool = False) -> Promise:
    """Return the promise for this fault on this kind of cluster, for a run on one node (`alone`) or on several."""
    found = [each for each in PROMISES if (each.fault, each.freeze) == (fault, freeze) and where in each.where]
    return next(each for wanted in (alone, False) for each in found if each.alone is wanted)


def length_of(seconds: float, link: float, *, is_everything: bool) -> Freeze | None:
    """Return the case to which a freeze of this length belongs; None if it can't be predicted whether the freeze leads
    to a restart.
    """
    if is_everything:
        return Freeze.ALL
    if seconds <= SHORT * link:
        return Freeze.SHORT
    return Freeze.LONG if seconds >= link + WAKING_SECONDS else None


@dataclass(frozen=True)
class Account:
    """The observed behaviour of a run after a fault. A drill compares it with the promise.

    Times are seconds since the fault.
    """

    outcome: Outcome | None  # None if the run had not ended when the drill stopped waiting
    restarts: int
    noticed: float | None
    said: str
    went_on_from: int | None
    took: float
    ledger: tuple[int, int] | None = None  # (number of steps, checksum of the steps) in the run's result
    left: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()  # how each attempt except the last ended


_NOTICED: Final = (AttemptFailed, LostNode, GaveUp, FoundLost, StartingAgain)


def account(
    state: RunState, events: Iterable[Event], result: Mapping[str, Any] | None, at: float, now: float,
    left: tuple[str, ...] = (),
) -> Account:  # fmt: skip
    """Return the Account of a run for a fault at the time `at`, from the run's events, state and result."""
    after = [event for event in events if event.time >= at - 1.0]  # nodes' clocks may differ by this much
    noticed = min((event.time for event in after if isinstance(event, _NOTICED)), default=None)
    ended = state.ended if state.ended and state.ended > at else now
    if noticed is None and state.verdict and state.verdict.outcome is Outcome.FAILED:
        noticed = ended  # no agent was left, so the supervisor noticed the fault when it ended the run
    again = [event for event in after if isinstance(event, Restart | StartingAgain)]
    step = (again[-1].from_step if isinstance(again[-1], Restart) else again[-1].step) if again else None
    counted = result if result is not None and {"steps", "ledger"} <= result.keys() else None
    return Account(
        outcome=state.verdict.outcome if state.verdict else None,
        restarts=len(again),
        noticed=None if noticed is None else max(0.0, noticed - at),
        said=_said(state, after),
        went_on_from=step,
        took=ended - at,
        ledger=(int(counted["steps"]), int(counted["ledger"])) if counted is not None else None,
        left=left,
        ends=tuple(attempt.end for attempt in state.attempts[:-1]),
    )


def _said(state: RunState, after: list[Event]) -> str:
    """Return the reported reason of a relaunch or, if there was none, of a failed attempt or of the run's end."""
    for again in of(after, StartingAgain):
        return again.reason
    for failed in of(after, AttemptFailed):
        return culprit_in_words(failed.culprit)
    return state.verdict.reason if state.verdict else state.detail


def ledger_of(steps: int) -> int:
    """Return the checksum that jobs/drill.py computes if it does this number of steps in order and repeats none."""
    ledger = 0
    for step in range(1, steps + 1):
        ledger = (ledger * 31 + step) % 1_000_003
    return ledger


def differences(promise: Promise, found: Account, link: float) -> list[str]:
    """Return a sentence for each difference between what happened and the promise."""
    if found.outcome is None:
        return [f"the run had not ended {found.took:.0f} s after the fault; promised: {promise.outcome}"]
    wrong = []
    if found.outcome != promise.outcome:
        wrong.append(f"the run ended as {found.outcome}, and not as {promise.outcome}")
    if found.restarts != promise.restarts:
        ends = "".join(f"; attempt {number}: {end or 'its end is not known'}" for number, end in enumerate(found.ends))
        wrong.append(f"the run was started again {found.restarts} times, and not {promise.restarts}{ends}")
    if promise.says and re.search(promise.says, found.said) is None:
        wrong.append(f"the reported reason is another one: '{found.said}'")
    limit = promise.seconds(link)
    if promise.says and (found.noticed is None or found.noticed > limit):
        how = "was not noticed" if found.noticed is None else f"was noticed after {found.noticed:.1f} s"
        wrong.append(f"the fault {how}; promised: within {limit:.0f} s")
    if promise.restarts and found.restarts and not found.went_on_from:
        wrong.append("the run started from the beginning, and not from a checkpoint")
    if promise.outcome is Outcome.SUCCEEDED and found.outcome is Outcome.SUCCEEDED:
        if found.ledger is None:
            wrong.append("the run's result was not copied to this machine")
        elif found.ledger[1] != ledger_of(found.ledger[0]):
            wrong.append(f"of its {found.ledger[0]} steps one was lost or done twice, as their checksum shows")
    return [*wrong, *(f"left behind: {each}" for each in found.left)]
