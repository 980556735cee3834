"""Pointers to runs that another machine looks after, and what is refused of what such a machine is sent."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import BackendError, UsageError
from orchestrator.operations.submission import delegate
from orchestrator.operations.submission.delegate import Pointer, accept, find_pointer, pointers
from orchestrator.operations.submission.sweep import SearchOptions, prepare_asked, prepare_search, prepare_sweep
from orchestrator.prepare.prepare import Request, prepare
from orchestrator.runs.searches import Sampler, Stop
from orchestrator.runs.store import create_run
from tests.profiles import valid_profile


def point(root: Path, run_id: str, when: float) -> Pointer:
    pointer = Pointer(run_id, "me@box", "orch", when)
    (root / "elsewhere").mkdir(exist_ok=True)
    (root / "elsewhere" / f"{run_id}.json").write_text(json.dumps(asdict(pointer)))
    return pointer


def test_a_pointer_is_found_by_its_id_a_unique_prefix_and_as_the_last(tmp_path: Path) -> None:
    assert find_pointer(tmp_path, "last") is None
    one, two = point(tmp_path, "mnist-aaaa11", 50.0), point(tmp_path, "mnist-bbbb22", 60.0)
    (tmp_path / "elsewhere" / "torn.json").write_text('{"run_id"')
    assert pointers(tmp_path) == [one, two]
    assert find_pointer(tmp_path, "mnist-a") == find_pointer(tmp_path, one.run_id) == one
    assert find_pointer(tmp_path, "mnist") is None
    assert find_pointer(tmp_path, "last") == two
    create_run(tmp_path, "local-cccc33", {"run_id": "local-cccc33", "created": 70.0})
    assert find_pointer(tmp_path, "last") is None  # this machine's own is newer
    assert find_pointer(tmp_path, "local-cccc33") is None


def test_a_point_is_where_its_sweep_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pointer = point(tmp_path, "mnist-aaaa22", 50.0)
    called: list[list[str]] = []

    class Done:
        returncode = 0

    def run(argv: list[str], **_: Any) -> Done:
        called.append(argv)
        return Done()

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr(delegate, "_argv", lambda host, command: command)
    for name, there in (("mnist-aaaa22.3", "mnist-aaaa22.3"), ("mnist-a", "mnist-aaaa22"), ("last", "mnist-aaaa22")):
        assert find_pointer(tmp_path, name) == pointer
        delegate.reach(pointer, name, ["logs", name])
        assert called[-1] == ["orch", "logs", there]


def test_an_unreachable_machine_is_tried_by_hand_as_orch_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegate, "_argv", lambda *_: ["sh", "-c", "exit 255"])
    with pytest.raises(BackendError) as error:
        delegate.reach(Pointer("mnist-aaaa22", "gate,me@box:2222", "orch", 1.0), "last", ["logs", "last"])
    assert error.value.hint == "try: ssh -p 2222 -J gate me@box"
    assert delegate._refusal("me@box:2222", "orch", 255, "no route").hint == "try: ssh -p 2222 me@box"


@pytest.mark.parametrize(
    "options", [("--lr=1,2", "--n=1..3"), SearchOptions(Sampler.RANDOM, 7, Stop.ASHA), SearchOptions(Sampler.TPE, 2)]
)
def test_points_are_asked_for_there_as_here(tmp_path: Path, options: tuple[str, ...] | SearchOptions) -> None:
    (tmp_path / "a.py").write_text("")
    (tmp_path / "job.yaml").write_text("script: a.py\nmetric: loss\nsearch: {space: {--lr: [1, 2]}}\n")
    request = Request(str(tmp_path / "job.yaml"), "local")
    found = (
        prepare_sweep(tmp_path, request, options, 3)
        if isinstance(options, tuple)
        else prepare_search(tmp_path, request, options, 3)
    )
    sent = json.loads(json.dumps(found.to_json()))
    there = prepare_asked(tmp_path, request, sent)
    assert (there.points, there.axes, there.search, there.parallel) == (
        found.points, found.axes, found.search, found.parallel,
    )  # fmt: skip
    assert len(there.points) == (6 if isinstance(options, tuple) else options.trials)


@pytest.mark.parametrize("names", [["/etc/x"], ["../x"], ["code/../../x"], ["out", "out/x"], ["out", "out"]])
def test_code_that_leads_elsewhere_is_not_taken_over(tmp_path: Path, names: list[str]) -> None:
    buffer, outside = io.BytesIO(), tmp_path / "outside"
    outside.mkdir()
    head: dict[str, Any] = {"format": 1, "job": {}, "profile": {}, "given": [], "shell": {}, "waits": False}
    buffer.write(json.dumps(head).encode() + b"\n")
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for number, name in enumerate(names):
            entry = tarfile.TarInfo(name)
            if len(names) > 1 and number == 0:
                entry.type, entry.linkname = tarfile.SYMTYPE, str(outside)
            tar.addfile(entry)
    buffer.seek(0)
    with pytest.raises(UsageError, match="leads out of the code folder"):
        accept(tmp_path, buffer)
    assert not (tmp_path / "runs").exists()
    assert not list(outside.iterdir())


@pytest.mark.parametrize("sent", [b'{"format": 9}\n', b"", b"[1]\n", b"\xff\n"])
def test_another_versions_words_are_refused(tmp_path: Path, sent: bytes) -> None:
    with pytest.raises(UsageError, match="sent by another version of orch"):
        accept(tmp_path, io.BytesIO(sent))


def test_code_that_is_cut_short_is_not_taken_over(tmp_path: Path) -> None:
    head = {"format": 1, "job": {}, "profile": {}, "given": [], "shell": {}, "waits": False}
    with pytest.raises(UsageError, match="the code that was sent is incomplete"):
        accept(tmp_path, io.BytesIO(json.dumps(head).encode() + b"\n"))


@pytest.mark.parametrize("name", ["here", "box", "me@box", "me@box.example.org:2222"])
def test_who_may_look_after_a_run(name: str) -> None:
    profile: Any = valid_profile({"kind": "ssh", "name": "p", "hosts": ["n1"], "supervisor": name})
    assert profile.supervisor == name


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "me@-oProxyCommand=x", "a b", "me@", "", "box:ssh"])
def test_who_may_not(name: str) -> None:
    with pytest.raises(ValidationError):
        valid_profile({"kind": "ssh", "name": "p", "hosts": ["n1"], "supervisor": name})


@pytest.mark.parametrize("answer", ['{"run_id": "../../.docker/config"}', '{"run_id": 7}', "[]", "Welcome to box"])
def test_an_answer_that_names_no_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    (tmp_path / "job").mkdir()
    job, profile, root = tmp_path / "job" / "a.yaml", tmp_path / "p.yaml", tmp_path / "root"
    job.write_text("command: ['true']\n")
    profile.write_text("{kind: ssh, hosts: [n1], supervisor: me@box}\n")
    monkeypatch.setattr(delegate, "_argv", lambda *_: ["sh", "-c", 'cat >/dev/null; echo "$1"', "sh", answer])
    prepared = prepare(root, Request(str(job), str(profile)))
    with pytest.raises(
        BackendError, match=r"me@box, the supervisor of this profile, sent .*, which is not the id of a run"
    ):
        delegate.hand_over(root, prepared)
    assert {path.name for path in tmp_path.rglob("*")} == {"job", "a.yaml", "p.yaml"}
