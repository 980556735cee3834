"""The outbox: the runs with undelivered news (events, metrics, verdicts), and a journal of each receiver's deliveries.

    ROOT/outbox/RUN                     an empty file, removed when everything was delivered
    ROOT/runs/RUN/outbox/RECEIVER.json  the journal of one receiver
    ROOT/runs/RUN/outbox_secrets.json   variables of the submitting shell, for receivers and for masking; mode 0600

Receivers are the job's notifications and trackers. The supervisor delivers (supervisor/outbox.py), so no terminal needs
to be open. The journal is written after a delivery. If the supervisor is killed in between, the next supervisor
delivers the same news again, so a receiver must recognise repeated news.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from orchestrator.errors import StoreError
from orchestrator.protocol.files import write_json
from orchestrator.runs.store import Record, RunDir

OUTBOX: Final = "outbox"
SECRETS: Final = "outbox_secrets.json"


class Receiver(Protocol):
    """A receiver of one run's news (events, metrics, verdicts), such as a tracker. Only one thread at a time delivers
    to a receiver.
    """

    name: str

    def has_news(self, *, has_ended: bool) -> bool:
        """Return whether anything must be delivered to this receiver. Return False if the delivery was given up."""

    def deliver(self) -> str:
        """Deliver all undelivered news (events, metrics, verdicts). Return the reason if the delivery must be repeated,
        or "" if everything was delivered.

        Raises OrchError or OSError if the run can't be read, or if the journal can't be written.
        """


# -- the marks


def enter(root: Path, run: RunDir, secrets: Mapping[str, str]) -> None:
    """Add a run to the outbox. Raises StoreError if that fails.

    `secrets` has the shell's variables that the receivers need, and the variables whose values must be masked in what
    is delivered.
    """
    if secrets:
        run.write(SECRETS, dict(secrets), private=True)
    try:
        for folder in (run.path / OUTBOX, root / OUTBOX):
            folder.mkdir(mode=0o700, exist_ok=True)
        (root / OUTBOX / run.run_id).touch()
    except OSError as error:
        raise StoreError(f"{error.filename or root / OUTBOX} can't be written: {error.strerror}") from error


def entered(root: Path) -> list[RunDir]:
    """Return the runs in the outbox, sorted by name. Entries of runs that were removed or never recorded get deleted
    from the outbox.
    """
    try:
        names = [entry.name for entry in os.scandir(root / OUTBOX)]
    except FileNotFoundError:
        return []
    found = []
    for name in sorted(names):
        if (root / "runs" / name / "run.json").exists():
            found.append(RunDir(root / "runs" / name))
        elif not (root / "live" / name).exists():
            (root / OUTBOX / name).unlink(missing_ok=True)
    return found


def leave(root: Path, run: RunDir) -> None:
    """Remove a run and its secrets from the outbox."""
    (run.path / SECRETS).unlink(missing_ok=True)
    (root / OUTBOX / run.run_id).unlink(missing_ok=True)


def secrets_of(run: RunDir) -> dict[str, str]:
    """Return the variables that `enter` stored. Raises StoreError if they can't be read."""
    return {name: value for name, value in (run.read(SECRETS) or {}).items() if isinstance(value, str)}


# -- the journal


def journal_of(run: RunDir, receiver: str) -> Record:
    """Return a receiver's journal. If the journal is missing or damaged, it is empty, and everything is delivered
    again.
    """
    try:
        return run.read(f"{OUTBOX}/{receiver}.json") or {}
    except StoreError:
        return {}


def write_journal(run: RunDir, receiver: str, journal: Record, *, durable: bool) -> None:
    """Replace a receiver's journal atomically. Raises StoreError if it can't be written."""
    path = run.path / OUTBOX / f"{receiver}.json"
    try:
        write_json(path, journal, durable=durable)
    except OSError as error:
        raise StoreError(f"{path} can't be written: {error.strerror}") from error
