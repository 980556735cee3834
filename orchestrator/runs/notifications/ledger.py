"""What has to be told of a run, and what has been: marks, the ledger, and the pure rule of what is due.

The supervisor sends it (supervisor/notifications.py), so that no terminal need be open.

Each notification has an id. Before it is sent an intent is written to the run's ledger, after it the outcome. A
supervisor that is killed in between can't know whether it was sent, so the next one sends it again with the same id:
exactly once otherwise, at least once then. A receiver that must not see doubles remembers the ids.
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
MAX_SENDS: Final = 3  # of one notification, should the supervisor be killed each time


@dataclass(frozen=True)
class Notification:
    """One event for one of the job's `notify` entries."""

    id: str
    event: str
    entry: int  # which of the entries
    detail: str = ""


# -- at submit


def hidden_values(entries: Iterable[NotifyEntry], shell: Mapping[str, str], *, is_here: bool = True) -> dict[str, str]:
    """Return the URLs that webhook_env and apprise_env name; UsageError when one is missing or can't be used.

    `is_here`: the supervisor runs on this machine, and so with these packages.
    """
    values = {}
    for entry in entries:
        if name := entry.variable:
            if name not in shell:
                raise UsageError(f"notify needs {name}, which is not set in this shell", f"export {name}=https://...")
            if entry.apprise_env:
                from orchestrator.runs.notifications.apprise_urls import check_urls  # noqa: PLC0415 (what few jobs name)

                check_urls(name, shell[name], is_here=is_here)
            elif not shell[name].startswith(("http://", "https://")) or any(c.isspace() for c in shell[name]):
                raise UsageError(f"notify: {name} holds no http or https address", f"export {name}=https://...")
            values[name] = shell[name]
    return values


def watch(root: Path, run: RunDir, entries: Sequence[NotifyEntry], hidden: Mapping[str, str]) -> None:
    """Have the supervisor watch this run; the hidden URLs stay in a file that only this user can read."""
    if not entries:
        return
    named = {each.variable for each in entries}
    if known := {name: value for name, value in hidden.items() if name in named}:
        run.write(HIDDEN, known, private=True)
    mark(root, NOTIFY, run)


def watched(root: Path) -> list[RunDir]:
    """Return the runs of which something may still have to be told."""
    return marked(root, NOTIFY)


def unwatch(root: Path, run: RunDir) -> None:
    """Return everything has been told: forget the hidden URLs and the mark."""
    (run.path / HIDDEN).unlink(missing_ok=True)
    forget(root, run)


def forget(root: Path, run: RunDir) -> None:
    """Take away the mark of a run."""
    unmark(root, NOTIFY, run)


# -- what is due


def due(
    entries: Sequence[NotifyEntry], run_id: str, outcome: str | None, events: Iterable[Event]
) -> list[Notification]:
    """Return every notification that the run has given reason for so far, in order. Pure."""
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
    """Return the last word of the ledger on each notification, in order."""
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
    """Return what is due and has no outcome in the ledger."""
    last = {line["id"]: line for line in delivered(run)}
    return [
        each
        for each in due(entries, run.run_id, outcome, events)
        if last.get(each.id, {}).get("state") not in FINAL and last.get(each.id, {}).get("sends", 0) < MAX_SENDS
    ]
