"""Sends the due notifications of a run to a program's stdin, a webhook or apprise. Each delivery has a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from orchestrator.errors import OrchError
from orchestrator.looking.account import Account, account_of
from orchestrator.looking.state import state_of
from orchestrator.node.system.private import users_umask
from orchestrator.runs.files.logs import result_of
from orchestrator.runs.leaving import redaction_of_message
from orchestrator.runs.notifications import INSTALL, NOTIFICATIONS, Notification, channels, note, undelivered
from orchestrator.runs.outbox import secrets_of
from orchestrator.runs.record import RunRecord
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.state import RunState
from orchestrator.runs.store import Record, RunDir
from orchestrator.trackers.progress import tracked
from orchestrator.transport.http_credentials import HttpAddress
from orchestrator.transport.http_request import NoAnswerError, request
from orchestrator.version import __version__

TIMEOUT: Final = 15.0
LOG: Final = "notify.log"
_OF_STATE: Final = (
    "run_id", "name", "profile", "state", "attempt", "restarts", "world_size", "created", "started", "ended",
)  # fmt: skip
MOST_TEXT: Final = 1000  # characters; the text is cut after the redaction, which can't detect half of a secret


class Notifications:
    """The receiver that sends one run's notifications. A failed notification is recorded and not sent again."""

    name = NOTIFICATIONS

    def __init__(self, run: RunDir) -> None:
        self.run = run

    def has_news(self, *, has_ended: bool) -> bool:
        """Return True if a notification is due. Notifications that were sent or have failed do not count."""
        return bool(self._items())

    def deliver(self) -> str:
        """Send the notifications that are due, in order."""
        run, record = self.run, self.run.record()
        for each in self._items():
            state, redact = state_of(run), redaction_of_message(run)
            account = account_of(run, state)
            message = payload(each, state, result_of(run), str(run.path), tracked(run, record), redact, account)
            send(run, record, each, message)
        return ""

    def _items(self) -> list[Notification]:
        ending = self.run.ending()
        outcome = ending.verdict.outcome if ending is not None else None
        return undelivered(self.run.record().notify, self.run, outcome, self.run.events())


def payload(
    each: Notification,
    state: RunState,
    result: Record | None,
    folder: str,
    trackers: Sequence[Record],
    redact: Redaction,
    account: Account | None = None,
) -> dict[str, Any]:
    """Return the notification's message: facts about the run and a line of text. Known secrets are masked in both.

    Logs and tracebacks are left out, because they may contain secrets that orch does not know.
    """
    verdict = state.verdict
    reason = verdict.reason if verdict else each.detail
    text = f"{state.run_id} {each.event}" + (f": {reason}" if reason else "")
    values: dict[str, Any] = {
        "id": each.id,
        "event": each.event,
        "text": text,
        **{name: getattr(state, name) for name in _OF_STATE},
        "verdict": {key: value for key, value in verdict.to_json().items() if key not in ("error", "tail")}
        if verdict
        else None,
        "account": account.to_json() if account is not None else None,
        "detail": each.detail or state.detail,
        "result": result,
        "folder": folder,
        "trackers": {each["name"]: each["link"] for each in trackers if each["link"]},
    }
    message: dict[str, Any] = redact.json(values)
    return {**message, "text": message["text"][:MOST_TEXT]}


def send(run: RunDir, record: RunRecord, each: Notification, message: Mapping[str, Any]) -> None:
    """Send one notification and record whether that worked. Raises only StoreError, if the record can't be written."""
    note(run, each, "intent")
    entry = record.notify[each.entry]
    try:
        hidden = secrets_of(run)
        if entry.command:
            names = {*record.secrets, *(other.variable for other in record.notify)}
            problem = _run_command(run, _environment(names), entry.command, each, message)
        elif entry.apprise_env:
            problem = _by_apprise(hidden.get(entry.apprise_env, ""), message)
        else:
            problem = _post(entry.webhook or hidden.get(entry.webhook_env, ""), each, message)
    except (OrchError, OSError, ValueError) as error:
        problem = f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'it can not be sent'}"
    note(run, each, "failed" if problem else "sent", problem)


def _environment(hidden: Collection[str]) -> dict[str, str]:
    """Return this process's environment variables without those in `hidden` and without ORCH_MARK."""
    return {key: value for key, value in os.environ.items() if key not in hidden and key != "ORCH_MARK"}


def _run_command(
    run: RunDir, environment: dict[str, str], argv: Sequence[str], each: Notification, message: Mapping[str, Any]
) -> str:
    """Run the program in the run's copy of the code, with its output in notify.log. Return the problem; "" if it
    worked.
    """
    environment |= {
        "ORCH_RUN_ID": run.run_id, "ORCH_RUN_DIR": str(run.path), "ORCH_EVENT": each.event,
        "ORCH_STATE": str(message["state"]), "ORCH_NOTIFY_ID": each.id,
    }  # fmt: skip
    own = run.path / "code"
    code = own if own.is_dir() else run.submitted_code  # a run of a sweep may not have started here
    with open(run.path / LOG, "ab") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True,
            cwd=code if code.is_dir() else run.path, umask=users_umask(),
        )  # fmt: skip
        try:
            process.communicate(json.dumps(message).encode(), timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"{argv[0]} was ended after {TIMEOUT:g} s"
    return f"{argv[0]} ended with code {process.returncode}; see {LOG}" if process.returncode else ""


def _post(url: str, each: Notification, message: Mapping[str, Any]) -> str:
    """Send the message as JSON by a POST request. Return the problem; "" if it worked. The problem omits the URL,
    which may be a secret.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        return "the webhook is no http or https address"
    address = HttpAddress.of(url)
    headers = {
        "Content-Type": "application/json", "User-Agent": f"orch/{__version__}", "Idempotency-Key": each.id,
        **address.headers,
    }  # fmt: skip

    def send() -> str:
        try:
            answer = request(address.url, json.dumps(message).encode(), headers, seconds=TIMEOUT)
        except NoAnswerError as error:
            return f"the webhook {error}"
        return "" if answer.status < 300 else f"the webhook answered {answer.status}"

    return _in_time(send, "the webhook")


def _by_apprise(urls: str, message: Mapping[str, Any]) -> str:
    """Send the message's text to apprise's URLs. Return the problem; "" if it worked. The problem omits the URLs,
    which contain secrets.
    """

    def send() -> str:
        try:
            found, refused = channels(urls)
        except ImportError:
            return f"apprise isn't installed beside orch: {INSTALL}"
        title = f"{message['run_id']} {message['event']}"
        links = [f"{name}: {link}" for name, link in message["trackers"].items()]
        try:
            is_sent = found.notify(title=title, body="\n".join([message["text"], *links]))
        except Exception as error:  # noqa: BLE001 (a plug-in of apprise's may raise anything)
            return f"apprise could not send it: {type(error).__name__}"
        return "" if is_sent and not refused else "apprise could not send it to all of its URLs"

    return _in_time(send, "apprise")


def _in_time(send: Callable[[], str], who: str) -> str:
    """Return the result of `send`. If `send` takes more than TIMEOUT seconds, for example in a DNS query, return an
    error message.
    """
    outcome = [f"{who} has not answered within {TIMEOUT:g} s"]
    thread = threading.Thread(target=lambda: outcome.__setitem__(0, send()), daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    return outcome[0]
