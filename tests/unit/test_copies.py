"""What a node writes is copied by offset: appended, rotated, replaced, interrupted, and nothing lost or invented."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.backends.copies import Copy, bring_checkpoint, give_checkpoint
from orchestrator.backends.ssh import SshBackend
from orchestrator.errors import BackendError
from orchestrator.node import codecache, leases, machine, mirror
from orchestrator.node.request import Part, RefusedError
from orchestrator.store import RunDir


class Here:
    """A session whose other end is this process; it breaks after `calls` requests."""

    is_own = False

    def __init__(self, calls: int | None = None) -> None:
        self.left = calls

    def call(self, do: str, payload: bytes = b"", *, timeout: float | None = None, **values: Any) -> Any:
        return self.ask(do, payload, **values).wait(timeout)

    def ask(self, do: str, payload: bytes = b"", *, sink: Any = None, **values: Any) -> Any:
        return Asked(self, do, payload, sink, values)

    @contextlib.contextmanager
    def for_bytes(self, count: int) -> Iterator[Here]:
        yield self


class Asked:
    """A request that is answered when it is waited for."""

    def __init__(self, here: Here, do: str, payload: bytes, sink: Any, values: dict[str, Any]) -> None:
        self.here, self.do, self.payload, self.sink, self.values = here, do, payload, sink, values

    def wait(self, timeout: float | None = None) -> Any:
        if self.here.left is not None:
            self.here.left -= 1
            if self.here.left < 0:
                raise BackendError("n1: the connection was closed", transient=True)
        verbs = {"look": mirror.look, "read": mirror.read, "pour": mirror.pour, "put": machine.put}
        try:
            reply, data = verbs[self.do](self.values, self.payload)
        except (OSError, RefusedError) as error:
            raise BackendError(f"n1: {error}") from error
        if isinstance(data, Part):
            with tempfile.TemporaryFile() as file:
                data.send(file.fileno())
                file.seek(0)
                self.sink(file, data.count)
            data = b""
        return json.loads(json.dumps(reply)), data


def copy_of(tmp_path: Path, ranks: list[int] | None = None) -> tuple[Path, Copy]:
    remote = tmp_path / "remote"
    (remote / "nodes/0/attempt_0").mkdir(parents=True, exist_ok=True)
    here = RunDir(tmp_path / "here")
    here.path.mkdir(exist_ok=True)
    return remote, Copy(here, 0, str(remote), f"{remote}/checkpoints", ranks)


def look(copy: Copy) -> None:
    while copy.look(Here(), 0.0):  # type: ignore[arg-type]
        pass


@settings(max_examples=60)
@given(
    acts=st.lists(st.one_of(st.binary(min_size=1, max_size=400), st.just(None)), max_size=25), often=st.integers(1, 4)
)
def test_a_log_is_copied_whole_however_it_grows_and_rotates(
    tmp_path_factory: pytest.TempPathFactory, acts: list[bytes | None], often: int
) -> None:
    """None is a rotation; between two looks there is one at most, as the size limit has it."""
    remote, copy = copy_of(tmp_path_factory.mktemp("log"))
    log, rotated = remote / "nodes/0/attempt_0/rank_0.log", remote / "nodes/0/attempt_0/rank_0.log.1"
    log.touch()
    for number, act in enumerate(acts):
        if act is None:
            look(copy)
            os.replace(log, rotated)
            log.write_bytes(f"[rotated at {number:1000}]".encode() * (number + 1))
        else:
            with open(log, "ab") as file:
                file.write(act)
        if number % often == 0:
            copy = copy_of(remote.parent)[1] if number % 3 == 0 else copy  # the supervisor was started anew
            look(copy)
    look(copy)
    own = copy.run.path / "nodes/0/attempt_0/rank_0.log"
    assert (own.read_bytes() if own.exists() else b"") == log.read_bytes()
    if rotated.exists():
        assert own.with_name("rank_0.log.1").read_bytes() == rotated.read_bytes()


def test_a_log_that_was_rotated_between_two_looks_is_finished_first(tmp_path: Path) -> None:
    remote, copy = copy_of(tmp_path)
    log = remote / "nodes/0/attempt_0/rank_0.log"
    log.write_bytes(b"a" * 5000)
    look(copy)
    with open(log, "ab") as file:
        file.write(b"b" * (3 << 20))
    os.replace(log, f"{log}.1")
    log.write_bytes(b"new")
    look(copy)
    look(copy)
    own = copy.run.path / "nodes/0/attempt_0"
    assert (own / "rank_0.log").read_bytes() == b"new"
    assert (own / "rank_0.log.1").read_bytes() == b"a" * 5000 + b"b" * (3 << 20)


def test_only_the_chosen_ranks_logs_come_and_a_torn_copy_is_mended(tmp_path: Path) -> None:
    remote, copy = copy_of(tmp_path, [0])
    folder = remote / "nodes/0/attempt_0"
    for rank in (0, 1):
        (folder / f"rank_{rank}.log").write_text(f"rank {rank}\n" * 100)
    (folder / "error_1.json").write_text("{}")
    (remote / "nodes/0/events.jsonl").write_text('{"kind": "go"}\n')
    (remote / "metrics.jsonl").write_text('{"step": 1}\n')
    look(copy)
    own = copy.run.path / "nodes/0/attempt_0"
    assert sorted(path.name for path in own.iterdir()) == ["error_1.json", "rank_0.log"]
    (own / "rank_0.log").write_text("rank 0\nrank")  # what a crash has left of the copy
    (copy.run.path / "metrics.jsonl").write_text("something else")
    look(copy)
    assert (own / "rank_0.log").read_text() == "rank 0\n" * 100
    assert (copy.run.path / "metrics.jsonl").read_text() == '{"step": 1}\n'


@pytest.mark.parametrize("name", ["../x", "/etc/x", "nodes/1/events.jsonl", "nodes/0/../../x", "verdict.json"])
def test_a_node_can_not_write_elsewhere(tmp_path: Path, name: str) -> None:
    _, copy = copy_of(tmp_path)
    with pytest.raises(ValueError, match="not its own"):
        copy._inside(name)


# -- checkpoints


def checkpoint(folder: Path, step: int, content: bytes) -> Path:
    path = folder / f"step_{step:08}"
    path.mkdir(parents=True)
    (path / "state.pt").write_bytes(content)
    files = {"state.pt": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
    manifest = json.dumps({"format": 1, "step": step, "files": files}).encode()
    (path / "manifest.json").write_bytes(manifest)
    (path / "COMMIT").write_text(hashlib.sha256(manifest).hexdigest() + "\n")
    return path


def test_an_interrupted_checkpoint_is_continued_and_never_seen_half(tmp_path: Path) -> None:
    content = os.urandom((9 << 20) + 1)
    source, target = checkpoint(tmp_path / "there", 7, content), tmp_path / "here" / "step_00000007"
    for calls in (3, 6):
        with pytest.raises(BackendError):
            bring_checkpoint(Here(calls), str(source), target)  # type: ignore[arg-type]
        assert not (target / "COMMIT").exists()
    assert bring_checkpoint(Here(), str(source), target)  # type: ignore[arg-type]
    assert (target / "state.pt").read_bytes() == content
    assert sorted(path.name for path in target.iterdir()) == ["COMMIT", "manifest.json", "state.pt"]
    back = tmp_path / "back" / target.name
    give_checkpoint(Here(), target, str(back))  # type: ignore[arg-type]
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {
        path.name: path.read_bytes() for path in source.iterdir()
    }


@pytest.mark.parametrize("damage", ["state.pt", "manifest.json", "COMMIT"])
def test_a_damaged_checkpoint_is_not_brought(tmp_path: Path, damage: str) -> None:
    source, target = checkpoint(tmp_path / "there", 7, b"weights"), tmp_path / "here" / "step_00000007"
    data = bytearray((source / damage).read_bytes())
    data[3] ^= 1
    (source / damage).write_bytes(data)
    assert not bring_checkpoint(Here(), str(source), target)  # type: ignore[arg-type]
    assert not (target / "COMMIT").exists()


@pytest.mark.parametrize("name", ["../../evil", "..", "/evil", "COMMIT", "manifest.json", "a/b", ""])
def test_a_checkpoint_that_names_files_elsewhere_is_not_brought(tmp_path: Path, name: str) -> None:
    source = checkpoint(tmp_path / "there", 7, b"weights")
    files = {name: {"bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}}
    manifest = json.dumps({"format": 1, "step": 7, "files": files}).encode()
    (source / "manifest.json").write_bytes(manifest)
    (source / "COMMIT").write_text(hashlib.sha256(manifest).hexdigest())
    assert not bring_checkpoint(Here(), str(source), tmp_path / "here" / "step_00000007")  # type: ignore[arg-type]
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("manifest", [b"[]", b"{", b'{"step": 7, "files": {"a": 3}}', b'{"files": {}}'])
def test_a_manifest_of_another_kind_is_no_checkpoint(tmp_path: Path, manifest: bytes) -> None:
    source = checkpoint(tmp_path / "there", 7, b"weights")
    (source / "manifest.json").write_bytes(manifest)
    (source / "COMMIT").write_text(hashlib.sha256(manifest).hexdigest())
    assert not bring_checkpoint(Here(), str(source), tmp_path / "step_00000007")  # type: ignore[arg-type]


def test_a_link_in_a_checkpoint_is_not_followed(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "there", 7, b"weights")
    (source / "state.pt").rename(tmp_path / "elsewhere")
    (source / "state.pt").symlink_to(tmp_path / "elsewhere")
    assert not bring_checkpoint(Here(), str(source), tmp_path / "here" / "step_00000007")  # type: ignore[arg-type]


def test_a_disk_without_room_here_is_said_and_what_came_is_gone_on_from(tmp_path: Path) -> None:
    content = os.urandom(5 << 20)
    source, target = checkpoint(tmp_path / "there", 7, content), tmp_path / "step_00000007"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, hard))  # no file can grow beyond that
    try:
        with pytest.raises(BackendError, match=r"partial: File too large"):
            bring_checkpoint(Here(), str(source), target)  # type: ignore[arg-type]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.stat().st_size for path in target.iterdir()] == [3 << 20]
    assert bring_checkpoint(Here(), str(source), target)  # type: ignore[arg-type]
    assert (target / "state.pt").read_bytes() == content


# -- code and leases


def test_code_is_laid_out_from_its_contents(tmp_path: Path) -> None:
    contents = [b"print(1)\n", b"#!/bin/sh\n"]
    digests = [hashlib.sha256(each).hexdigest() for each in contents]
    values: dict[str, Any] = {"workdir": str(tmp_path), "code_dir": str(tmp_path / "run/code")}
    absent, data = codecache.missing(values, json.dumps(digests).encode())
    assert (absent, json.loads(data)) == ({}, digests)
    listing = {"a": ["d", ""], "a/one.py": ["f", digests[0]], "run.sh": ["x", digests[1]], "link": ["l", "a/one.py"]}
    codecache.unpack({**values, "sizes": [len(each) for each in contents], "listing": listing}, b"".join(contents))
    code = tmp_path / "run/code"
    assert (code / "a/one.py").read_bytes() == (code / "link").read_bytes() == contents[0]
    assert os.access(code / "run.sh", os.X_OK)
    assert json.loads(codecache.missing(values, json.dumps(digests).encode())[1]) == []


@pytest.mark.parametrize(("path", "digest"), [("../x", "0" * 64), ("/x", "0" * 64), ("x", "../../etc/passwd")])
def test_code_can_not_leave_its_folder(tmp_path: Path, path: str, digest: str) -> None:
    values = {
        "workdir": str(tmp_path),
        "code_dir": str(tmp_path / "code"),
        "sizes": [],
        "listing": {path: ["f", digest]},
    }
    with pytest.raises(RefusedError):
        codecache.unpack(values, b"")
    assert not (tmp_path / "code").exists()


def test_slots_are_held_by_descriptors_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "FOLDER", str(tmp_path / "leases"))
    monkeypatch.setattr(leases, "gpus", lambda: 0)
    asked = {"slots": 3, "count": 2}
    assert leases.lease({**asked, "run_id": "one"}, b"")[0] == {"places": ["slot-0", "slot-1"]}
    with pytest.raises(RefusedError, match=r"only 1 of 3 slots are free, 2 are needed: slot-0 by .*'s run one; slot-1"):
        leases.lease({**asked, "run_id": "two"}, b"")
    with pytest.raises(RefusedError, match="it has 3 slots, and 4 are asked for"):
        leases.lease({"slots": 3, "count": 4, "run_id": "two"}, b"")
    shown = leases.leases({"slots": 3}, b"")[0]["places"]
    assert [holder and holder["run"] for holder in shown.values()] == ["one", "one", None]
    assert leases.release({"run_id": "one"}, b"")[0] == {"released": 2}
    assert leases.lease({**asked, "run_id": "two"}, b"")[0]["places"] == ["slot-0", "slot-1"]
    leases.release({"run_id": "two"}, b"")
    assert leases.lease({"slots": None, "count": 2, "run_id": "three"}, b"")[0] == {"places": []}  # nothing is counted


def test_a_run_whose_submit_is_still_at_work_is_followed_later(tmp_path: Path) -> None:
    """Before there is a record of its hosts, there would be none to follow."""
    run, backend = RunDir(tmp_path / "r-1"), SshBackend()
    run.path.mkdir()
    run.write("run.json", {"nnodes": 1, "profile": {"kind": "ssh", "hosts": ["n1"]}})
    backend.wait(run, 0.0)
    assert backend._watches == {}
