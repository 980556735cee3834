"""A server that does not speak MLflow's language, or hardly speaks at all: words, and an end of waiting."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import BackendError
from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.state import Ending
from orchestrator.runs.store import RunDir, create_run
from orchestrator.trackers import mlflow
from orchestrator.trackers.mlflow import Mlflow
from orchestrator.trackers.progress import Progress

Serve = Callable[[socket.socket], None]


@contextmanager
def listening(serve: Serve) -> Iterator[str]:
    """A server of one function, which is called for each connection until the test is over."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accepts() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with suppress(OSError), connection:
                    serve(connection)

    thread = threading.Thread(target=accepts)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def answers(body: bytes, status: str = "200 OK", length: int | None = None) -> Serve:
    def serve(connection: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += connection.recv(1 << 16)
        begun, _, rest = asked.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", begun.lower())
        left = (int(found[1]) if found else 0) - len(rest)
        while left > 0:  # what is not read would reset the connection
            left -= len(connection.recv(left))
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
        connection.sendall(head.encode() + body)

    return serve


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path, "a-bcdefg", {"name": "a", "created": 1.0, "job": {"script": "x.py"}})


def told(run: RunDir, address: str, **variables: str) -> BackendError:
    tracker = Mlflow(run, run.record(), {"MLFLOW_TRACKING_URI": address, **variables}, Redaction())
    with pytest.raises(BackendError) as raised:
        tracker.begin(Progress())
    return raised.value


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>", "an answer that is not JSON"), (b"\xff\xfe", "that is not JSON"), (b"[" * 99_999, "not JSON"),
        (b"[]", "does not answer like MLflow"), (b'"x"', "not answer like"), (b"{}", "not answer like"),
        (b"", "not answer like"), (b'{"experiment": 5}', "not answer like"), (b'{"experiment": []}', "not answer like"),
        (b'{"experiment": {"experiment_id": {}}}', "not answer like"),
        (b'{"experiment": {"experiment_id": "../x\\n"}}', "not answer like"),
        (b'{"experiment": {"experiment_id": "1"}, "runs": 5}', "not answer like"),
        (b'{"experiment": {"experiment_id": "1"}, "runs": {"0": 1}}', "not answer like"),
        (b'{"experiment": {"experiment_id": "1"}, "runs": [[]]}', "not answer like"),
        (b'{"experiment": {"experiment_id": "1"}, "run": null}', "not answer like"),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_mlflows_is_said(run: RunDir, body: bytes, said: str) -> None:
    with listening(answers(body)) as address:
        assert said in told(run, address).message


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"5", b'{"message": []}', b"\xff", b"[" * 99_999])
def test_a_refusal_without_mlflows_words_is_said(run: RunDir, body: bytes) -> None:
    with listening(answers(body, "403 No")) as address:
        assert "answered 403" in told(run, address).message


def test_an_answer_that_is_cut_off_may_pass_later(run: RunDir) -> None:
    with listening(answers(b"{", "500 No", length=99)) as address:
        assert "answered 500" in told(run, address).message
    with listening(answers(b"{", length=99)) as address:
        error = told(run, address)
    assert (error.transient, "gave an answer that is not JSON" in error.message) == (True, True)
    with listening(answers(b"", "200 OK\r\nno header")) as address:
        assert told(run, address).message


def drips(head: bytes) -> Serve:
    """A byte at a time, sooner than any time-out of a socket, without an end."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(head)
        pause = threading.Event()
        while True:
            pause.wait(0.02)
            connection.sendall(b"x")

    return serve


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 500 No\r\nContent-Length: 9999\r\n\r\n"],
)
def test_a_server_that_drips_holds_nobody(run: RunDir, monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(mlflow, "DEADLINE", 0.3)
    before = set(threading.enumerate())  # this test's own time-out, and what other tests have left
    with listening(drips(head)) as address:
        error = told(run, address)
    assert error.transient
    assert "has not answered within 0.3 s" in error.message or "answered 500" in error.message
    assert [each for each in set(threading.enumerate()) - before if isinstance(each, threading.Timer)] == []


def test_a_server_that_drips_its_tls_holds_nobody(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow, "DEADLINE", 0.3)
    with listening(drips(b"\x16\x03\x03\x40\x00")) as address:  # the head of a long record
        error = told(run, address.replace("http:", "https:"))
    assert "has not answered within" in error.message


def test_over_tls_with_a_certificate_of_ones_own(run: RunDir, tmp_path: Path) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
            "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key",
            "-out", "cert"]  # fmt: skip
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    body = json.dumps({"experiment": {"experiment_id": "1"}, "runs": [{"info": {"run_id": "abc"}}]}).encode()

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            answers(body)(secure)

    with listening(serve) as plain:
        address = plain.replace("http:", "https:")
        variables = {"MLFLOW_TRACKING_URI": address, "MLFLOW_TRACKING_SERVER_CERT_PATH": str(tmp_path / "cert")}
        progress = Mlflow(run, run.record(), variables, Redaction()).begin(Progress())
        assert (progress.id, progress.is_begun) == ("abc", True)
        assert "can't be reached" in told(run, address).message  # whose certificate nobody vouches for


@pytest.mark.parametrize(("first", "is_resumed"), [({"loaded": 300}, True), ({"steps": [1, 2]}, False), ({}, False)])
def test_a_run_that_was_given_a_checkpoint_is_tagged_as_resumed_once_it_has_loaded_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: dict[str, Any], is_resumed: bool
) -> None:
    before = create_run(tmp_path, "a-bcdefg", {"name": "a", "created": 1.0, "job": {"script": "x.py"}})
    job = {"script": "x.py", "checkpoint": {"resume": f"{before.path}/checkpoints/step_00000300"}}
    run = create_run(tmp_path, "b-bcdefg", {"name": "b", "created": 2.0, "job": job})
    run.node(0).mkdir(parents=True)
    go = {"kind": "go", "node": 0, "attempt": 0, "world_size": 1, "resume_from": "given/step_00000300"}
    lines = [go, *([{"kind": "first_steps", "node": 0, "attempt": 0, "offered_step": 300, **first}] if first else [])]
    (run.node(0) / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tracker = Mlflow(run, run.record(), {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"}, Redaction())
    posted: list[dict[str, Any]] = []

    def call(_: object, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        posted.extend((body or {}).get("tags", []))
        return {"experiment": {"experiment_id": "1"}, "run": {"info": {"run_id": "abc"}}}

    monkeypatch.setattr(mlflow.Server, "call", call)
    progress = tracker.begin(Progress())
    assert [tag for tag in posted if tag["key"] == "orch.offered_from"] == [
        {"key": "orch.offered_from", "value": "a-bcdefg"}
    ]
    assert "orch.resumed_from" not in [tag["key"] for tag in posted]
    tracker.end(progress, Ending(Verdict(Outcome.SUCCEEDED), 9.0), {})
    resumed = [tag["value"] for tag in posted if tag["key"] == "orch.resumed_from"]
    assert resumed == (["a-bcdefg"] if is_resumed else [])
