"""Sends what the ledger says is due: a program's stdin or a POST, each with a time-out, none of them ever fatal."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from orchestrator.errors import OrchError
from orchestrator.node.system.private import users_umask
from orchestrator.runs.files.logs import result_of
from orchestrator.runs.leaving import redaction_of_message
from orchestrator.runs.notifications.ledger import HIDDEN, LEDGER, Notification, forget, undelivered, unwatch, watched
from orchestrator.runs.record import RunRecord
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.state import RunState
from orchestrator.runs.store import Record, RunDir, append_line
from orchestrator.trackers.ledger import tracked
from orchestrator.transport.http_credentials import HttpAddress
from orchestrator.version import __version__

TIMEOUT: Final = 15.0
LOG: Final = "notify.log"
MOST_TEXT: Final = 1000  # characters; the text is cut after the redaction, which can't detect half of a secret


class NotificationSender:
    """Looks after the notifications of all runs: one thread a run, so that a slow receiver delays no verdict."""

    def __init__(self, root: Path, state_of: Callable[[RunDir], RunState]) -> None:
        self.root, self.state_of = root, state_of
        self.threads: dict[str, threading.Thread] = {}
        self.given_up: set[str] = set()

    def has_work(self) -> bool:
        """Tell whether there is a run that has ended, and of which not everything was delivered."""
        return any((run.path / "verdict.json").exists() for run in self._watched())

    def _watched(self) -> list[RunDir]:
        return [run for run in watched(self.root) if run.run_id not in self.given_up]

    def poll(self) -> None:
        """Begin to send whatever is due."""
        for run in self._watched():
            try:
                self._send_due(run)
            except (OrchError, OSError) as error:
                self._give_up(run, error)

    def _send_due(self, run: RunDir) -> None:
        thread = self.threads.get(run.run_id)
        if thread is not None and thread.is_alive():
            return
        has_ended, record = (run.path / "verdict.json").exists(), run.record()
        ending = run.ending()
        items = undelivered(record.notify, run, ending.verdict.outcome if ending else None, run.events())
        if items:
            thread = threading.Thread(target=self._send, args=(run, record, items), daemon=True)
            self.threads[run.run_id] = thread
            thread.start()
        elif has_ended:  # also where the verdict was damaged meanwhile: there is nothing to be said of it
            unwatch(self.root, run)

    def _send(self, run: RunDir, record: RunRecord, items: list[Notification]) -> None:
        try:
            for each in items:
                state, trackers, redact = self.state_of(run), tracked(run, record), redaction_of_message(run)
                message = payload(each, state, result_of(run), str(run.path), trackers, redact)
                deliver(run, record, each, message)
        except (OrchError, OSError) as error:  # the run has been removed meanwhile, or a disk is full
            self._give_up(run, error)

    def _give_up(self, run: RunDir, error: Exception) -> None:
        """This run's record can't be read or written: say so once, and leave it to the next supervisor."""
        print(f"{run.run_id}: its notifications are not sent: {error}", file=sys.stderr, flush=True)
        self.given_up.add(run.run_id)
        if not run.path.exists():
            forget(self.root, run)


def payload(
    each: Notification,
    state: RunState,
    result: Record | None,
    folder: str,
    trackers: Sequence[Record],
    redact: Redaction,
) -> dict[str, Any]:
    """Return facts and a line of text, all redacted. Logs and tracebacks may hold anything, so they are left out."""
    verdict = state.verdict
    reason = verdict.reason if verdict else each.detail
    text = f"{state.run_id} {each.event}" + (f": {reason}" if reason else "")
    values: dict[str, Any] = {
        "id": each.id,
        "event": each.event,
        "text": text,
        "run_id": state.run_id,
        "name": state.name,
        "profile": state.profile,
        "state": state.state,
        "attempt": state.attempt,
        "restarts": state.restarts,
        "world_size": state.world_size,
        "created": state.created,
        "started": state.started,
        "ended": state.ended,
        "verdict": {key: value for key, value in verdict.to_json().items() if key not in ("error", "tail")}
        if verdict
        else None,
        "detail": each.detail or state.detail,
        "result": result,
        "folder": folder,
        "trackers": {each["name"]: each["link"] for each in trackers if each["link"]},
    }
    message: dict[str, Any] = redact.json(values)
    return {**message, "text": message["text"][:MOST_TEXT]}


def deliver(run: RunDir, record: RunRecord, each: Notification, message: Mapping[str, Any]) -> str:
    """Send one notification; empty when it was, else why not. Never raises, whatever the receiver does."""
    _note(run, each, "intent")
    entry = record.notify[each.entry]
    try:
        hidden = _hidden(run)
        if entry.command:
            environment = _environment({*record.secrets, *hidden})
            problem = _run_command(run, environment, entry.command, each, message)
        elif entry.apprise_env:
            problem = _by_apprise(hidden.get(entry.apprise_env, ""), message)
        else:
            problem = _post(entry.webhook or hidden.get(entry.webhook_env, ""), each, message)
    except (OrchError, OSError, ValueError) as error:
        problem = f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'it can not be sent'}"
    _note(run, each, "failed" if problem else "sent", problem)
    return problem


def _note(run: RunDir, each: Notification, state: str, problem: str = "") -> None:
    line = {"id": each.id, "event": each.event, "entry": each.entry, "state": state, "time": round(time.time(), 3)}
    append_line(run.path / LEDGER, json.dumps({**line, **({"problem": problem} if problem else {})}))


def _hidden(run: RunDir) -> dict[str, str]:
    """Return the addresses that the job names only by variables; StoreError where they can't be read."""
    kept = run.read(HIDDEN)
    return {name: str(url) for name, url in kept.items()} if kept is not None else {}


def _environment(hidden: Collection[str]) -> dict[str, str]:
    """Return this process's variables without the hidden ones."""
    return {key: value for key, value in os.environ.items() if key not in hidden and key != "ORCH_MARK"}


def _run_command(
    run: RunDir, environment: dict[str, str], argv: Sequence[str], each: Notification, message: Mapping[str, Any]
) -> str:
    """Run the program in the run's copy of the code; what it prints goes to notify.log in the run directory."""
    environment |= {
        "ORCH_RUN_ID": run.run_id, "ORCH_RUN_DIR": str(run.path), "ORCH_EVENT": each.event,
        "ORCH_STATE": str(message["state"]), "ORCH_NOTIFY_ID": each.id,
    }  # fmt: skip
    code = run.path / "code"
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


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would carry the message to an address that the user has not configured."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(url: str, each: Notification, message: Mapping[str, Any]) -> str:
    """POST the message as JSON; the URL may be a secret, so no error repeats it."""
    if urlsplit(url).scheme not in ("http", "https"):
        return "the webhook is no http or https address"
    address = HttpAddress.of(url)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"orch/{__version__}",
        "Idempotency-Key": each.id,
        **address.headers,
    }
    request = urllib.request.Request(address.url, json.dumps(message).encode(), headers, method="POST")  # noqa: S310 (checked)

    def send() -> str:
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT) as response:
                return "" if response.status < 300 else f"the webhook answered {response.status}"
        except urllib.error.HTTPError as error:
            error.close()
            return f"the webhook answered {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            words = getattr(reason, "strerror", None) or type(reason).__name__
            return f"the webhook can't be reached: {words}"

    return _in_time(send, "the webhook")


def _by_apprise(urls: str, message: Mapping[str, Any]) -> str:
    """Send the line of text to apprise's URLs, which hold secrets: nothing repeats one."""
    from orchestrator.runs.notifications.apprise_urls import INSTALL, channels

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
    """Return what sending came to; the time-out of a socket holds for each of its bytes, this for all of them."""
    outcome = [f"{who} gave no answer within {TIMEOUT:g} s"]
    thread = threading.Thread(target=lambda: outcome.__setitem__(0, send()), daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    return outcome[0]
