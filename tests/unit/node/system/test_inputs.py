"""Inputs: verified by content, fetched once however many ask, and a sentence when they can't be had."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from orchestrator.node.system import inputs
from orchestrator.node.system.inputs import InputError, place
from orchestrator.protocol.task import Input
from tests.patience import PATIENCE

DATA = b"some data" * 100_000
SHA = hashlib.sha256(DATA).hexdigest()


class Server(ThreadingHTTPServer):
    requests: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        self.send_response(404 if self.path == "/missing" else 200)
        if self.path == "/chunked":  # and then cut off in the middle
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"ffff\r\nonly a little")
            return
        self.send_header("Content-Length", str(len(DATA)))
        self.end_headers()
        self.wfile.write(DATA[:100] if self.path == "/short" else DATA)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_file_is_placed_by_its_content(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    path = Path(place(Input("data", str(source), SHA), str(tmp_path / "inputs")))
    assert path.read_bytes() == DATA
    assert path.name == SHA
    source.unlink()
    assert place(Input("data", str(source), SHA), str(tmp_path / "inputs")) == str(path)


def test_a_wrong_hash_is_refused_and_leaves_nothing(tmp_path: Path, server: Server) -> None:
    wrong = "0" * 64
    with pytest.raises(InputError, match=f"has sha256 {SHA}, but the job requires {wrong}"):
        place(Input("data", f"{server.url}/data", wrong), str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [f"{wrong}.lock"]


def test_one_of_four_processes_downloads(tmp_path: Path, server: Server) -> None:
    program = (
        "import sys; from orchestrator.node.system.inputs import place; from orchestrator.protocol.task import Input\n"
        "print(place(Input('data', sys.argv[1], sys.argv[2]), sys.argv[3]))"
    )
    argv = [sys.executable, "-c", program, f"{server.url}/data", SHA, str(tmp_path)]
    agents = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = {agent.communicate(timeout=PATIENCE)[0].strip() for agent in agents}
    assert said == {str(tmp_path / SHA)}
    assert server.requests == 1


@pytest.mark.parametrize("path", ["missing", "short", "chunked"])
def test_a_download_that_fails_is_a_sentence(tmp_path: Path, server: Server, path: str) -> None:
    with pytest.raises(InputError, match=f"input data .*from {server.url}/{path}"):
        place(Input("data", f"{server.url}/{path}", SHA), str(tmp_path))
    assert not (tmp_path / SHA).exists()


@pytest.mark.parametrize("source", ["/no/such/file", "ftp://127.0.0.1/x", "http://[broken", "http://127.0.0.1:0/", "."])
def test_a_source_that_is_not_there_is_a_sentence(tmp_path: Path, source: str) -> None:
    with pytest.raises(InputError, match="input data can't be fetched from"):
        place(Input("data", source, SHA), str(tmp_path / "inputs"))


def test_a_server_that_speaks_something_else_is_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            connection.sendall(b"SSH-2.0-OpenSSH\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(InputError, match="can't be fetched"):
            place(Input("data", f"http://127.0.0.1:{listening.getsockname()[1]}/", SHA), str(tmp_path))
        thread.join()


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="can't be stored in"):
        place(Input("data", "/etc/hostname", SHA), str(tmp_path / "file" / "inputs"))


def test_what_an_interrupted_download_left_is_not_taken_for_the_input(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    (tmp_path / f"{SHA}.partial").write_bytes(DATA[:10])
    assert Path(place(Input("data", str(source), SHA), str(tmp_path))).read_bytes() == DATA


def test_an_input_that_was_torn_or_changed_is_fetched_anew_and_read_once_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, kept = tmp_path / "data", tmp_path / "inputs" / SHA
    source.write_bytes(DATA)
    kept.parent.mkdir()
    elsewhere = tmp_path / "mine"
    elsewhere.write_text("mine")
    for plant in (lambda: kept.write_bytes(DATA[:-1]), lambda: kept.symlink_to(elsewhere), lambda: os.mkfifo(kept)):
        monkeypatch.setattr(inputs, "_verified", set())
        kept.unlink(missing_ok=True)
        plant()
        kept.with_name(f"{SHA}.partial").symlink_to(elsewhere)
        assert Path(place(Input("data", str(source), SHA), str(kept.parent))).read_bytes() == DATA
        assert not kept.is_symlink()
    source.unlink()
    place(Input("data", str(source), SHA), str(kept.parent))  # known to be whole
    assert elsewhere.read_text() == "mine"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / f"{SHA}.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="can't be stored in"):
        place(Input("data", "/etc/hostname", SHA), str(tmp_path))
    assert not (tmp_path / "elsewhere").exists()
