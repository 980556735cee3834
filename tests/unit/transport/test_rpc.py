"""The server on a node and how it gets there, over a pipe instead of SSH; and what `ssh -G` makes of an address."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.server.server import HOME
from orchestrator.transport.node_archive import node_archive
from orchestrator.transport.rpc import _BOOTSTRAP
from tests.patience import PATIENCE


def server(path: Path) -> subprocess.Popen[bytes]:
    """The bootstrap as a login shell would start it."""
    code, digest = f'exec("{_BOOTSTRAP}")', hashlib.sha256(node_archive()).hexdigest()
    argv = [sys.executable, "-I", "-S", "-c", code, "BOUNDARY", str(path), digest, str(len(node_archive())), "serve"]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def ask(process: subprocess.Popen[bytes], **request: Any) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    reply: dict[str, Any] = json.loads(process.stdout.readline())
    process.stdout.read(reply["bytes"])
    return reply


def test_the_server_is_sent_once_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "node.pyz"
    for word in ("need", "have"):
        with server(path) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            version = ".".join(map(str, sys.version_info[:2]))
            assert process.stdout.readline().decode() == f"BOUNDARY {version} {word}\n"
            if word == "need":
                process.stdin.write(node_archive())
            hello = ask(process, id=5, do="hello", workdir=str(tmp_path / "work"))
            assert (hello["id"], hello["workdir"]) == (5, str(tmp_path / "work"))
            assert b"BOUNDARY" in Path(f"/proc/{process.pid}/cmdline").read_bytes()  # no second interpreter was started
            assert ask(process, id=6, do="nonsense")["error"].startswith("the request nonsense is not understood")
            (tmp_path / "file").touch()
            assert (
                "Not a directory" in ask(process, id=7, do="has_begun", run_dir=str(tmp_path), folder="file")["error"]
            )
            refused = ask(process, id=8, do="remove", run_dir=str(tmp_path), run_id="r-1")["error"]
            assert refused == f"{tmp_path} is not the folder of run r-1"
            process.stdin.close()
            assert process.wait(PATIENCE) == 0
    assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(node_archive()).digest()


def test_every_request_has_its_function() -> None:
    for verb, module in HOME.items():
        assert callable(getattr(import_module(f"orchestrator.node.server.{module}"), verb))


def test_a_folder_that_can_not_be_made_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with server(tmp_path / "file" / "cache" / "node.pyz") as process:
        assert process.stdout is not None
        assert b" error [Errno 20] Not a directory" in process.stdout.readline()
        assert process.wait(PATIENCE) == 1


def test_the_bootstrap_is_one_line_that_every_shell_passes_on() -> None:
    assert not set(_BOOTSTRAP) & set('\n!"')


@pytest.mark.parametrize("planted", ["torn", "evil", "longer", "link", "pipe", "folder"])
def test_only_the_bytes_that_were_hashed_are_run_whatever_lies_there(tmp_path: Path, planted: str) -> None:
    path, elsewhere = tmp_path / "node.pyz", tmp_path / "authorized_keys"
    elsewhere.write_text("mine")
    whole = node_archive()
    if planted == "link":
        path.symlink_to(elsewhere)
    elif planted == "pipe":
        os.mkfifo(path)
    elif planted == "folder":
        path.mkdir()
    else:
        path.write_bytes({"torn": whole[:1000], "evil": b"print('evil')", "longer": whole + b"x"}[planted])
    with server(path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b" need\n")
        process.stdin.write(whole)
        assert ask(process, id=1, do="hello", workdir=str(tmp_path / "work"))["id"] == 1
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    assert elsewhere.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["authorized_keys", "node.pyz", "work"]
    if planted != "folder":
        assert not path.is_symlink()
        assert path.read_bytes() == whole
        assert path.stat().st_mode & 0o077 == 0


def test_a_server_that_is_sent_half_leaves_nothing(tmp_path: Path) -> None:
    with server(tmp_path / "node.pyz") as process:
        assert process.stdin is not None
        process.stdin.write(node_archive()[:1000])
        process.stdin.close()
        assert process.wait(PATIENCE) == 1
    assert list(tmp_path.iterdir()) == []
