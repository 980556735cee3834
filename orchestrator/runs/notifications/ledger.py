"""Records which notifications of a run were sent, and decides by a pure rule which are due.

The supervisor sends them (supervisor/notifications.py), so no terminal needs to be open.

Each notification has an id. An intent is written to the run's ledger before it is sent, and the outcome after it.
If a supervisor is killed in between, the next one can't know whether it was sent, and sends it again with the same
id. So each notification is sent exactly once, or at least once after a kill. Receivers can detect repeats by the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.protocol.events import EventKind
from orchestrator.runs.marks import NOTIFY, mark, marked, unmark
from orchestrator.runs.record import NotifyEntry
from orchestrator.runs.state import Event
from orchestrator.runs.store import Record, RunDir, read_lines

LEDGER: Final = "notify.jsonl"
HIDDEN: Final = "notify_secrets.json"
FINAL: Final = ("sent", "failed")
MAX_SENDS: Final = 3  # sends of one notification, if the supervisor is killed each time


@dataclass(frozen=True)
class Notification:
    """One event for one of the job's `notify` entries."""

    id: str
    event: str
    entry: int  # index of the entry
    detail: str = ""


# -- at submit


def hidden_values(entries: Iterable[NotifyEntry], shell: Mapping[str, str], *, is_here: bool = True) -> dict[str, str]:
    """Return the URLs that webhook_env and apprise_env name. Raises UsageError if one is missing or can't be used.

    `is_here`: the supervisor runs on this machine, and so with these packages.
    """
    values = {}
    for entry in entries:
        if name := entry.variable:
            if name not in shell:
                raise UsageError(f"notify needs {name}, which is not set in this shell", f"export {name}=https://...")
            if entry.apprise_env:
                from orchestrator.runs.notifications.apprise_urls import check_urls

                check_urls(name, shell[name], is_here=is_here)
            elif not shell[name].startswith(("http://", "https://")) or any(c.isspace() for c in shell[name]):
                raise UsageError(f"notify: {name} holds no http or https address", f"export {name}=https://...")
            values[name] = shell[name]
    return values


def watch(root: Path, run: RunDir, entries: Sequence[NotifyEntry], hidden: Mapping[str, str]) -> None:
    """Mark the run, so that the supervisor watches it.

    Secret URLs are stored in a file that only this user can read.
    """
    if not entries:
        return
    named = {each.variable for each in entries}
    if known := {name: value for name, value in hidden.items() if name in named}:
        run.write(HIDDEN, known, private=True)
    mark(root, NOTIFY, run)


def watched(root: Path) -> list[RunDir]:
    """Return the runs with notifications that may not have been sent."""
    return marked(root, NOTIFY)


def unwatch(root: Path, run: RunDir) -> None:
    """Remove the secret URLs and the mark, after everything was sent."""
    (run.path / HIDDEN).unlink(missing_ok=True)
    forget(root, run)


def forget(root: Path, run: RunDir) -> None:
    """Remove the mark of a run."""
    unmark(root, NOTIFY, run)


# -- what is due


def due(
    entries: Sequence[NotifyEntry], run_id: str, outcome: str | None, events: Iterable[Event]
) -> list[Notification]:
    """Return every notification that is due so far, in order. Pure."""
    happened: dict[str, tuple[str, str]] = {}
    for event in events:
        attempt = event.get("attempt")
        if event.get("kind") == EventKind.RELAUNCH or (
            event.get("kind") == EventKind.RESTART and event.get("node") == 0
        ):
            happened[f"restarted/{attempt}"] = ("restarted", f"attempt {attempt} after {event.get('cause')}")
        elif event.get("kind") == EventKind.STALL and event.get("full") is True:
            where = f"rank {event.get('rank')} stands still in {event.get('phase')} at step {event.get('step')}"
            happened.setdefault(f"hung/{attempt}", ("hung", where))
        elif event.get("kind") == EventKind.UNUSED:
            happened.setdefault(f"idle/{attempt}", ("idle", f"all nodes are idle: {event.get('use')}"))
    if outcome is not None:
        happened[outcome] = (outcome, "")
    return [
        Notification(f"{run_id}/{name}/{number}", event, number, detail)
        for name, (event, detail) in happened.items()
        for number, entry in enumerate(entries)
        if event in entry.on
    ]


def delivered(run: RunDir) -> list[Record]:
    """Return the ledger's last entry on each notification, in order."""
    last: dict[str, Record] = {}
    for line in read_lines(run.path / LEDGER):
        if isinstance(line.get("id"), str) and isinstance(line.get("state"), str):
            before = last.get(line["id"], {})
            sends = before.get("sends", 0) + (line["state"] == "intent")
            last[line["id"]] = {**line, "sends": sends}
    return list(last.values())


def undelivered(
    entries: Sequence[NotifyEntry], run: RunDir, outcome: str | None, events: Iterable[Event]
) -> list[Notification]:
    """Return the notifications that are due and have no outcome in the ledger."""
    last = {line["id"]: line for line in delivered(run)}
    return [
        each
        for each in due(entries, run.run_id, outcome, events)
        if last.get(each.id, {}).get("state") not in FINAL and last.get(each.id, {}).get("sends", 0) < MAX_SENDS
    ]
