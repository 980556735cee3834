"""Notifications: what is due, told once, whatever the receiver does and whenever the sender dies."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.cli.render.runs import notify_lines
from orchestrator.errors import UsageError
from orchestrator.outcome.verdict import Cause, Outcome, Verdict
from orchestrator.runs import outbox
from orchestrator.runs.notifications import Notification, delivered, due, hidden_values, note, undelivered
from orchestrator.runs.outbox import SECRETS, entered
from orchestrator.runs.record import notify_entries
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.runs.store import RunDir, append_line, create_run
from orchestrator.specs.border import valid
from orchestrator.specs.job import Job
from orchestrator.supervisor import notifications
from orchestrator.supervisor.notifications import payload
from orchestrator.supervisor.outbox import Outbox
from tests.events import event
from tests.patience import PATIENCE

JOURNAL = "outbox/notifications.json"
HOOK = "/hook/canary-path-31"


class Receiver(HTTPServer):
    """A web server on loopback that keeps what it was sent."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.answer = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{HOOK}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        assert isinstance(server, Receiver)
        server.got.append((self.path, dict(self.headers), json.loads(body)))
        server.may_answer.wait(PATIENCE)
        self.send_response(server.answer)
        if server.answer == 302:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.may_answer.set()
    server.shutdown()
    thread.join()
    server.server_close()


def entries(*items: dict[str, Any]) -> dict[str, Any]:
    job: dict[str, Any] = valid(Job, {"name": "j", "script": "a.py", "notify": list(items)}).to_json()
    return job


def made(
    root: Path, job: dict[str, Any], outcome: str | None = "failed", hidden: dict[str, str] | None = None
) -> RunDir:
    run = create_run(root, "job-abc", {"run_id": "job-abc", "name": "job", "job": job})
    outbox.enter(root, run, hidden or {})
    if outcome is not None:
        run.write("verdict.json", {"outcome": outcome, "reason": "rank 1 ended with exit code 17"})
    return run


@pytest.fixture(autouse=True)
def _state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "state_of", state_of)


def state_of(run: RunDir) -> RunState:
    reason = "rank 1: ValueError: API_TOKEN=canary-reason"
    verdict = Verdict(Outcome.FAILED, Cause.USER_ERROR, reason, error={"traceback": "canary-t"}, tail=("canary-tail",))
    return RunState(run.run_id, "job", "local", 1.0, RunStatus.FAILED, verdict=verdict)


def send_all(root: Path) -> None:
    worker = Outbox(root, lambda: None)
    end = time.monotonic() + PATIENCE
    while worker.has_work():
        assert time.monotonic() < end
        worker.poll()
        time.sleep(0.01)
    assert entered(root) == []


EVENTS = [
    event("restart", 0, attempt=1, cause="infra"),
    event("stall", 1, attempt=1, full=False, rank=2, seconds=9.0),
    event("stall", 1, attempt=1, full=True, rank=2, seconds=9.0, phase="train", step=7),
    event("stall", 0, attempt=1, full=True, rank=0, seconds=9.0),
    event("restart", 0, attempt=2, cause="infra"),
]


def test_what_is_due() -> None:
    job = entries(
        {"command": ["true"]}, {"on": ["restarted", "cancelled"], "command": ["true"]},
        {"on": ["hung"], "webhook": "https://a/b"},
    )  # fmt: skip
    assert [each.id for each in due(notify_entries(job), "r", "failed", EVENTS)] == [
        "r/restarted/1/1", "r/hung/1/2", "r/restarted/2/1", "r/failed/0"
    ]  # fmt: skip
    assert due(notify_entries(job), "r", "failed", EVENTS)[1].detail == "rank 2 stands still in train at step 7"
    assert [each.id for each in due(notify_entries(job), "r", None, [])] == []
    assert [each.id for each in due(notify_entries(job), "r", "cancelled", [])] == ["r/cancelled/1"]
    assert due((), "r", "failed", EVENTS) == []
    for node in (None, 0):
        again = event("starting_again", node, start=1, attempt=3, cause="infra", reason="lost")
        assert [each.id for each in due(notify_entries(job), "r", None, [again])] == [
            "r/restarted/3/1"
        ]  # by the supervisor, or Slurm


def test_a_webhook_gets_json_once(receiver: Receiver, tmp_path: Path) -> None:
    run = made(tmp_path, entries({"webhook": receiver.url}))
    send_all(tmp_path)
    send_all(tmp_path)  # a second supervisor finds nothing to do
    ((path, headers, message),) = receiver.got
    assert path == HOOK
    assert headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"] == message["id"] == "job-abc/failed/0"
    assert (message["event"], message["run_id"], message["state"]) == ("failed", "job-abc", "failed")
    assert message["text"].startswith("job-abc failed: rank 1: ValueError")
    assert "canary" not in json.dumps(message)
    (line,) = delivered(run)
    assert (line["state"], line["sends"]) == ("sent", 1)
    assert notify_lines(delivered(run)) == ["notification (failed): sent"]


def test_no_secret_of_the_run_is_sent_and_none_is_kept_afterwards(receiver: Receiver, tmp_path: Path) -> None:
    run = made(tmp_path, entries({"webhook": receiver.url}))
    run.write("plan.json", {"secret_names": ["PIN"], "tasks": [{"env": {"HF_TOKEN": "canary-of-the-plan"}}]})
    outbox.enter(tmp_path, run, {"PIN": "canary-that-the-supervisor-has-not"})
    assert (run.path / SECRETS).stat().st_mode & 0o777 == 0o600
    run.write("result.json", {"said": "canary-of-the-plan", "canary-that-the-supervisor-has-not": receiver.url})
    send_all(tmp_path)
    ((_, _, message),) = receiver.got
    assert "canary" not in json.dumps(message)
    assert message["result"] == {"said": "***", "***": "***"}
    assert message["folder"] == str(run.path)
    assert not (run.path / SECRETS).exists()


def test_the_password_in_an_address_is_sent_to_its_host_alone(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up, real = list[str](), socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *given, **more: looked_up.append(host) or real(host, *given, **more)
    )
    made(tmp_path, entries({"webhook_env": "HOOK"}), hidden={"HOOK": receiver.url.replace("://", "://me:p%40ss@")})
    send_all(tmp_path)
    ((path, headers, _),) = receiver.got
    assert (path, headers["Authorization"]) == (HOOK, "Basic bWU6cEBzcw==")
    assert looked_up == ["127.0.0.1"]


def test_a_command_gets_it_on_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT_SECRET", "canary-env")
    words = 'cat > "$ORCH_RUN_DIR/got"; echo "$ORCH_RUN_ID $ORCH_EVENT $ORCH_STATE $ORCH_NOTIFY_ID [$KEPT_SECRET]"; pwd'
    job = {**entries({"command": ["sh", "-c", words]}), "secrets": ["KEPT_SECRET"]}
    run = made(tmp_path, job)
    (run.path / "code").mkdir()
    send_all(tmp_path)
    assert json.loads((run.path / "got").read_text())["id"] == "job-abc/failed/0"
    said = (run.path / notifications.LOG).read_text().splitlines()
    assert said == ["job-abc failed failed job-abc/failed/0 []", str(run.path / "code")]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"command": ["false"]}, "false ended with code 1; see notify.log"),
        ({"command": ["/no/such/program"]}, "FileNotFoundError: No such file or directory"),
        ({"command": ["sleep", "60"]}, "sleep was ended after 0.3 s"),
        ({"webhook": "http://127.0.0.1:9/canary"}, "can't be reached: Connection refused"),
        ({"webhook": "http://[::bad/canary"}, "ValueError"),
        ({"webhook": "http://name.invalid./canary"}, "can't be reached"),
    ],
)
def test_a_failure_is_recorded_and_ends_nothing(
    entry: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = notifications._run_command

    def run_command(*args: Any) -> str:
        """Only a program that never ends has its time cut short."""
        with pytest.MonkeyPatch.context() as own:
            own.setattr(notifications, "TIMEOUT", 0.3 if args[2][0] == "sleep" else 60.0)
            return real(*args)

    monkeypatch.setattr(notifications, "TIMEOUT", 0.3)
    monkeypatch.setattr(notifications, "_run_command", run_command)
    monkeypatch.setenv("no_proxy", "*")
    run = made(tmp_path, entries(entry, {"command": ["true"]}))
    send_all(tmp_path)
    first, second = delivered(run)
    assert first["state"] == "failed"
    assert words in first["problem"] or "not answered" in first["problem"]
    assert "canary" not in (run.path / JOURNAL).read_text()
    assert second["state"] == "sent"
    assert notify_lines([first])[0].startswith("notification (failed): NOT SENT: ")


@pytest.mark.parametrize("answer", [302, 404, 500])
def test_what_a_webhook_answers(answer: int, receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer = answer
    run = made(tmp_path, entries({"webhook": receiver.url}))
    send_all(tmp_path)
    assert delivered(run)[0]["problem"] == f"the webhook answered {answer}"
    assert len(receiver.got) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what apprise's plug-ins import
@pytest.mark.parametrize(
    ("answer", "more", "problem"),
    [
        (200, "", None),
        (200, " nothing://canary", "apprise could not send it to all of its URLs"),
        (500, "", "apprise could not send it to all of its URLs"),
    ],
)
def test_a_message_by_apprise_that_one_of_its_urls_has_not_got_is_a_failure(
    answer: int, more: str, problem: str | None, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answer = answer
    urls = f"{receiver.url.replace('http', 'json')}{more}"
    run = made(tmp_path, entries({"apprise_env": "CHANNELS"}), hidden={"CHANNELS": urls})
    send_all(tmp_path)
    assert [message["title"] for _, _, message in receiver.got] == ["job-abc failed"]
    assert delivered(run)[0].get("problem") == problem


def test_a_slow_webhook_is_left_after_the_time_out(receiver: Receiver, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(notifications, "TIMEOUT", 0.2)
    receiver.may_answer.clear()  # until the test is over
    run = made(tmp_path, entries({"webhook": receiver.url}))
    send_all(tmp_path)
    assert delivered(run)[0]["state"] == "failed"


def test_killed_between_intent_and_outcome_it_is_sent_again_with_its_id(receiver: Receiver, tmp_path: Path) -> None:
    job = entries({"webhook": receiver.url})
    run = made(tmp_path, job)
    (each,) = due(notify_entries(job), run.run_id, "failed", [])
    for sends in (1, 2):
        note(run, each, "intent")  # as a supervisor leaves it that is killed now
        assert [
            (item.id, delivered(run)[0]["sends"]) for item in undelivered(notify_entries(job), run, "failed", [])
        ] == [(each.id, sends)]
    send_all(tmp_path)
    assert [message["id"] for _, _, message in receiver.got] == [each.id]
    for _ in range(3):  # and not for ever, should it kill the supervisor each time
        note(run, Notification("job-abc/failed/9", "failed", 9), "intent")
    assert undelivered(notify_entries(entries(*[{"command": ["true"]}] * 10)), run, None, []) == []


def test_the_hidden_url_is_private_and_gone_afterwards(receiver: Receiver, tmp_path: Path) -> None:
    job = entries({"webhook_env": "HOOK"})
    run = made(tmp_path, job, hidden=hidden_values(notify_entries(job), {"HOOK": receiver.url}))
    assert (run.path / SECRETS).stat().st_mode & 0o777 == 0o600
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and HOOK in path.read_text()]
    assert holding == [run.path / SECRETS]
    send_all(tmp_path)
    assert len(receiver.got) == 1
    assert not (run.path / SECRETS).exists()
    assert HOOK not in (run.path / JOURNAL).read_text()


def test_a_run_that_goes_on_is_told_of_and_stays_entered(tmp_path: Path) -> None:
    run = made(tmp_path, entries({"on": ["restarted", "failed"], "command": ["true"]}), outcome=None)
    worker = Outbox(tmp_path, lambda: None)
    worker.poll()
    assert delivered(run) == []
    append_line(run.path / "events.jsonl", json.dumps({"kind": "restart", "node": 0, "attempt": 1, "cause": "infra"}))
    worker.poll()
    worker.deliveries[run.run_id]["notifications"].thread.join()
    assert [line["id"] for line in delivered(run)] == ["job-abc/restarted/1/0"]
    worker.poll()
    assert entered(tmp_path) == [run]
    assert not worker.has_work()


def test_damage_keeps_nobody_waiting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path, entries({"command": ["true"]}))
    (run.path / "run.json").write_text("{")
    worker = Outbox(tmp_path, lambda: None)
    worker.poll()
    assert not worker.has_work()
    assert "no news of it is delivered" in capsys.readouterr().err
    (tmp_path / outbox.OUTBOX / "long-gone").touch()
    assert [each.run_id for each in entered(tmp_path)] == ["job-abc"]
    assert not (tmp_path / outbox.OUTBOX / "long-gone").exists()
    journal = [{"id": 3}, [], {"id": "x"}, {"id": "y", "state": "sent", "sends": "3"}]
    (run.path / JOURNAL).write_text(json.dumps({"notifications": journal}))
    assert delivered(run) == [{"id": "y", "state": "sent"}]
    for damaged in (b"\xff", b"[]", b'{"notifications": 5}'):
        (run.path / JOURNAL).write_bytes(damaged)
        assert delivered(run) == []


def test_a_missing_or_wrong_hidden_url_is_refused_at_submit() -> None:
    job = entries({"webhook_env": "HOOK"})
    with pytest.raises(UsageError, match="HOOK, which is not set in this shell"):
        hidden_values(notify_entries(job), {})
    for value in ("ftp://x", "file:///etc/passwd", "http://a b", "x"):
        with pytest.raises(UsageError, match="not an http or https address") as caught:
            hidden_values(notify_entries(job), {"HOOK": value})
        assert value not in caught.value.message


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"on": ["failed"]}, "none is given"),
        ({"command": ["a"], "webhook": "http://a"}, "command and webhook are given"),
        ({"webhook": "file:///etc/passwd"}, "pattern"),
        ({"webhook": "https://user:pw@host/"}, "pattern"),
        ({"on": [], "command": ["a"]}, "at least 1"),
        ({"on": ["finished"], "command": ["a"]}, "succeeded"),
        ({"command": []}, "at least 1"),
    ],
)
def test_what_the_job_may_say(value: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        entries(value)


def test_one_entry_needs_no_list() -> None:
    job = valid(Job, {"name": "j", "script": "a", "notify": {"command": ["a"]}})
    assert job.notify[0].on == ("failed", "succeeded")


def test_the_message_is_short() -> None:
    each = Notification("r/failed/0", "failed", 0)
    state = RunState("r", "r", "p", 1.0, RunStatus.FAILED, verdict=Verdict(Outcome.FAILED, reason="x" * 9_990))
    redact = Redaction(frozenset({("PIN", "x" * 999)}))
    text = payload(each, state, {"accuracy": 0.5}, "folder", (), Redaction())["text"]
    assert len(text) == 1000
    assert "x" not in payload(each, state, None, "folder", (), redact)["text"].partition(": ")[2]  # no half of a secret
