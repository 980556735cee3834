"""Collects the secret values to mask in everything that leaves this machine. The values come from the records of runs
and from the environment of this process.

The supervisor's own environment does not contain the secrets of runs. So a private file in the run's folder stores the
secrets until the supervisor has sent everything to the trackers and to the receivers of notifications.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import StoreError
from orchestrator.runs.outbox import secrets_of
from orchestrator.runs.record import NotifyEntry, PlanRecord
from orchestrator.runs.redaction import Redaction, redaction
from orchestrator.runs.store import RunDir


def redaction_of(*runs: RunDir) -> Redaction:
    """Return the Redaction for a document about these runs, which masks the secrets of all of them."""
    plans = [_plan(run) for run in runs]
    names = {name for plan in plans for name in plan.secret_names}
    kept = [_kept(run) for run in runs]
    environments = [os.environ, *kept, *(task.env for plan in plans for task in plan.tasks)]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    return redaction(environments, names, str(Path.home()), user, [each for run in runs for each in _addresses(run)])


def redaction_of_message(*runs: RunDir) -> Redaction:
    """Return the Redaction for a text that goes to the user, or to a receiver that the user chose. It masks only
    secrets.

    The user's name and the home folder are kept, because commands and paths in such a text have to work.
    """
    return replace(redaction_of(*runs), home="", user="")


def unknown_secrets(*runs: RunDir) -> list[str]:
    """Return the names of the runs' secrets that can't be masked. Their values are known neither from this shell's
    variables nor from a file of the run.
    """
    asked = [(name, _kept(run)) for run in runs for name in _plan(run).secret_names]
    return list(dict.fromkeys(name for name, kept in asked if not os.environ.get(name) and name not in kept))


def _plan(run: RunDir) -> PlanRecord:
    try:
        return run.plan()
    except StoreError:  # a bundle may be made because a record is damaged
        return PlanRecord()


def _kept(run: RunDir) -> dict[str, str]:
    """Return the secret variables that are stored until everything is delivered to the run's receivers; empty if the
    file is missing or damaged.
    """
    try:
        return secrets_of(run)
    except StoreError:
        return {}


def _addresses(run: RunDir) -> Iterator[str]:
    """Yield the addresses of the run's notifications, most of which contain a secret."""
    kept = _kept(run)
    try:
        entries = run.record().notify
    except StoreError:  # the record is damaged, so any of the variables may be an address
        entries = tuple(NotifyEntry(webhook_env=name) for name in kept)
    for each in entries:
        yield from [each.webhook] if each.webhook else kept.get(each.variable, "").split()
