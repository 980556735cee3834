"""Decides which notifications of a run are due, and records in a journal which of them were sent.

Each notification has an id. The journal has an entry before a notification is sent, and another with the outcome. If a
supervisor is killed in between, the next supervisor can't know whether the notification was sent, and sends it again
with the same id. So each notification is sent exactly once or, after such a kill, more than once. Receivers can detect
repeats by the id.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from orchestrator.errors import UsageError
from orchestrator.protocol.events import Event, Restart, Stalled, StartingAgain, Unused
from orchestrator.runs.outbox import journal_of, write_journal
from orchestrator.runs.record import NotifyEntry
from orchestrator.runs.state import drop_invalid_fields
from orchestrator.runs.store import Record, RunDir

if TYPE_CHECKING:
    from apprise import Apprise

NOTIFICATIONS: Final = "notifications"  # the receiver's name
FINAL: Final = ("sent", "failed")
MAX_SENDS: Final = 3  # attempts to send one notification, if the supervisor is killed at each attempt
INSTALL: Final = "pip install 'orchrun[notify]'"
_EXAMPLE: Final = "as in ntfy://topic or mailtos://user:password@example.org; see apprise's list of services"
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "id": (str,), "event": (str,), "entry": (int,), "state": (str,), "time": (int, float), "sends": (int,),
    "problem": (str,),
}  # fmt: skip


@dataclass(frozen=True)
class Notification:
    """An event of a run that must be sent to the receiver of one of the job's `notify` entries."""

    id: str
    event: str
    entry: int  # index of the entry
    detail: str = ""


# -- at submit


def hidden_values(
    entries: Iterable[NotifyEntry], shell: Mapping[str, str], *, is_supervised_here: bool = True
) -> dict[str, str]:
    """Return the URLs in the variables that webhook_env and apprise_env name. Raises UsageError if a variable is
    missing or can't be used.

    With `is_supervised_here`, the supervisor will use this process's packages, so the URLs for apprise are checked now.
    """
    values = {}
    for entry in entries:
        if name := entry.variable:
            if name not in shell:
                raise UsageError(f"notify needs {name}, which is not set in this shell", f"export {name}=https://...")
            if entry.apprise_env:
                if is_supervised_here:
                    _check_urls(name, shell[name])
            elif not shell[name].startswith(("http://", "https://")) or any(c.isspace() for c in shell[name]):
                raise UsageError(f"notify: {name} is not an http or https address", f"export {name}=https://...")
            values[name] = shell[name]
    return values


def _check_urls(variable: str, text: str) -> None:
    """Raise UsageError if apprise is not installed, or if it does not accept one of the URLs. The error does not
    contain the URLs.
    """
    if find_spec("apprise") is None:
        raise UsageError(
            "notify: apprise_env needs the package apprise in orch's environment, and it is not installed", INSTALL
        )
    _, refused = channels(text)
    if refused or not text.split():
        which = f"URL {refused[0]} of {len(text.split())} in {variable}" if refused else variable
        raise UsageError(f"notify: {which} is not a URL that apprise knows", _EXAMPLE)


def channels(text: str) -> tuple[Apprise, list[int]]:
    """Return apprise's receivers for URLs separated by spaces, and the positions of URLs that apprise does not accept.

    These URLs contain passwords, so apprise's own log is disabled.
    """
    import logging

    import apprise

    logging.getLogger("apprise").disabled = True
    found = apprise.Apprise()
    return found, [number for number, url in enumerate(text.split(), 1) if not found.add(url)]


# -- due notifications


def due(
    entries: Sequence[NotifyEntry], run_id: str, outcome: str | None, events: Iterable[Event]
) -> list[Notification]:
    """Return every notification that is due so far, in order."""
    happened: dict[str, tuple[str, str]] = {}
    for event in events:
        if isinstance(event, StartingAgain) or (isinstance(event, Restart) and event.node == 0):
            words = f"attempt {event.attempt} after {event.cause}"
            happened[f"restarted/{event.attempt}"] = ("restarted", words)
        elif isinstance(event, Stalled) and event.full:
            where = f"rank {event.rank} stands still in {event.phase} at step {event.step}"
            happened.setdefault(f"hung/{event.attempt}", ("hung", where))
        elif isinstance(event, Unused):
            happened.setdefault(f"idle/{event.attempt}", ("idle", f"all nodes are idle: {event.use}"))
    if outcome is not None:
        happened[outcome] = (outcome, "")
    return [
        Notification(f"{run_id}/{name}/{number}", event, number, detail)
        for name, (event, detail) in happened.items()
        for number, entry in enumerate(entries)
        if event in entry.on
    ]


# -- the journal


def delivered(run: RunDir) -> list[Record]:
    """Return the journal's latest entry for each notification, in the order in which they were first sent."""
    kept = journal_of(run, NOTIFICATIONS).get("notifications")
    entries = [drop_invalid_fields(each, _KINDS) for each in kept] if isinstance(kept, list) else []
    return [each for each in entries if {"id", "state"} <= each.keys()]


def note(run: RunDir, each: Notification, state: str, problem: str = "") -> None:
    """Write to the journal that a notification is being sent, was sent, or failed."""
    entries = {entry["id"]: entry for entry in delivered(run)}
    sends = entries.get(each.id, {}).get("sends", 0) + (state == "intent")
    entry = {"id": each.id, "event": each.event, "entry": each.entry, "state": state, "time": round(time.time(), 3)}
    entries[each.id] = {**entry, "sends": sends, **({"problem": problem} if problem else {})}
    write_journal(run, NOTIFICATIONS, {"notifications": list(entries.values())}, durable=True)


def undelivered(
    entries: Sequence[NotifyEntry], run: RunDir, outcome: str | None, events: Iterable[Event]
) -> list[Notification]:
    """Return the notifications that are due and still have to be sent: the journal has no outcome, and fewer than
    MAX_SENDS attempts.
    """
    last = {entry["id"]: entry for entry in delivered(run)}
    return [
        each
        for each in due(entries, run.run_id, outcome, events)
        if last.get(each.id, {}).get("state") not in FINAL and last.get(each.id, {}).get("sends", 0) < MAX_SENDS
    ]
