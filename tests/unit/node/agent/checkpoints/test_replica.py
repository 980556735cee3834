"""The second copy of a checkpoint: handed over whole, refused when it is not, and waited for by the next save."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.agent.checkpoints import replica as handing
from orchestrator.node.agent.checkpoints.replica import LOOK_SECONDS, ReplicaSender
from orchestrator.node.agent.checkpoints.transfer import Parcel, Receiver, orchs_parcel
from orchestrator.node.agent.neighbour import NeighbourServer, request
from orchestrator.protocol.layout import second_copy_file
from orchestrator.protocol.messages import Keep
from orchestrator.protocol.task import NodeTask, Program, copies_checkpoints
from orchestrator.training.checkpoint import replica
from orchestrator.training.checkpoint.replica import SecondCopy as Waiting
from orchestrator.training.progress.report import Reporter
from tests.patience import PATIENCE
from tests.unit.node.agent.members import HERE, TLS


def task(folder: Path, node: int, **fields: Any) -> NodeTask:
    values: dict[str, Any] = {
        "run_id": "r-1", "node_rank": node, "nnodes": 2, "hosts": ("n1", "n2"), "nproc": 1, "run_dir": str(folder),
        "code_dir": str(folder), "program": Program("script", "x.py"), "launcher": "fork", "backend": "gloo",
        "python": "python3", "leader_addrs": HERE, "port_range": (1, 1), "checkpoint_dir": str(folder / "checkpoints"),
        "checkpoint_keep": 2, "second_copy": True,
    }  # fmt: skip
    return NodeTask(**{**values, **fields})


def commit(
    folder: Path, step: int, content: bytes, run: str = "r-1", *, found: bytes | None = None, **metric: float
) -> Path:
    """A checkpoint as rank 0 leaves it, in one moment; where `found` is given, the disk has damaged it."""
    path, temp = folder / f"checkpoints/step_{step:08}", folder / "checkpoints/.tmp"
    temp.mkdir(parents=True)
    (temp / "state.pt").write_bytes(content if found is None else found)
    files = {"state.pt": {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}}
    (temp / "manifest.json").write_text(
        json.dumps({"step": step, "run": run, "files": files, "format": 1, "metric": metric})
    )
    (temp / "COMMIT").write_text(hashlib.sha256((temp / "manifest.json").read_bytes()).hexdigest() + "\n")
    return temp.rename(path)


@dataclass(frozen=True)
class Handing:
    """Node 0's side, and the events that it has recorded."""

    sender: ReplicaSender
    events: list[dict[str, Any]]


@asynccontextmanager
async def handing_over(tmp_path: Path, **fields: Any) -> AsyncIterator[Handing]:
    """Node 0 hands what is in one folder to node 1, whose folder is the other."""
    (tmp_path / "0/nodes/0").mkdir(parents=True, exist_ok=True)
    events: list[dict[str, Any]] = []
    server = NeighbourServer(TLS, 1, HERE, take=Receiver(task(tmp_path / "1", 1, **fields)).take)
    second = ReplicaSender(task(tmp_path / "0", 0), TLS, events.append)
    work = asyncio.create_task(second.keep_up(HERE, server.port))
    try:
        yield Handing(second, events)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await server.close()


async def told(tmp_path: Path, path: Path) -> dict[str, Any]:
    """What node 0's agent says of this checkpoint."""
    while True:
        try:
            found: dict[str, Any] = json.loads(Path(second_copy_file(str(tmp_path / "0"))).read_text())
        except FileNotFoundError:
            found = {}
        if found.get("commit") == (path / "COMMIT").read_text():
            return found
        await asyncio.sleep(0.01)


def test_each_checkpoint_arrives_whole_and_as_many_stay_as_the_job_keeps(tmp_path: Path) -> None:
    async def main() -> None:
        foreign = commit(tmp_path / "1", 1, b"another run's", run="r-0")
        async with handing_over(tmp_path) as handing:
            for step in (5, 10, 15):
                content = os.urandom(700_000 + step)
                path = commit(tmp_path / "0", step, content)
                assert (await told(tmp_path, path))["problem"] == ""
                there = tmp_path / "1/checkpoints" / path.name
                assert {each.name: each.read_bytes() for each in there.iterdir()} == {
                    each.name: each.read_bytes() for each in path.iterdir()
                }
            names = sorted(each.name for each in (tmp_path / "1/checkpoints").iterdir())
            assert names == [foreign.name, "step_00000010", "step_00000015"]
            assert handing.events == []

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_the_best_stays_on_the_other_node_too(tmp_path: Path) -> None:
    async def main() -> None:
        commit(tmp_path / "1", 1, b"another run's", run="r-0", accuracy=1.0)
        async with handing_over(tmp_path, checkpoint_best="accuracy", checkpoint_better="higher"):
            for step, accuracy in ((5, 0.1), (10, 0.9), (15, 0.3), (20, 0.4), (25, 0.2)):
                path = commit(tmp_path / "0", step, b"x", accuracy=accuracy)
                assert (await told(tmp_path, path))["problem"] == ""
            names = sorted(each.name for each in (tmp_path / "1/checkpoints").iterdir())
            assert names == [f"step_000000{step}" for step in ("01", "10", "20", "25")]

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


@pytest.mark.parametrize(
    ("found", "problem"),
    [(b"y" * 1000, "does not match its checksum"), (b"x" * 10, "has 10 bytes, and should have 1000")],
)  # fmt: skip
def test_after_a_copy_has_failed_the_next_is_made_in_the_next_attempt(
    tmp_path: Path, found: bytes, problem: str
) -> None:
    async def main() -> None:
        async with handing_over(tmp_path) as handing:
            damaged = commit(tmp_path / "0", 5, b"x" * 1000, found=found)
            assert problem in (await told(tmp_path, damaged))["problem"]
            good = commit(tmp_path / "0", 10, b"good")
            await asyncio.sleep(2 * LOOK_SECONDS)  # nothing is to happen meanwhile
            assert [each.kind for each in handing.events] == ["second_copy_failed"]
            assert list((tmp_path / "1/checkpoints").iterdir()) == []
            handing.sender.begin_attempt()
            assert (await told(tmp_path, good))["problem"] == ""
            assert [each.name for each in (tmp_path / "1/checkpoints").iterdir()] == ["step_00000010"]

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_a_checkpoint_that_is_deleted_while_it_is_copied_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted_first(path: str) -> Parcel:
        if path.endswith("step_00000005"):
            shutil.rmtree(path)
        return orchs_parcel(path)

    monkeypatch.setattr(handing, "orchs_parcel", deleted_first)

    async def main() -> None:
        async with handing_over(tmp_path) as handing:
            old = commit(tmp_path / "0", 5, b"old")
            while old.exists():
                await asyncio.sleep(0.01)
            assert (await told(tmp_path, commit(tmp_path / "0", 10, b"new")))["problem"] == ""
            assert handing.events == []

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_a_folder_that_is_shared_after_all_is_written_by_nobody_else(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "0/checkpoints").mkdir(parents=True)
        (tmp_path / "1").mkdir()
        (tmp_path / "1/checkpoints").symlink_to(tmp_path / "0/checkpoints")
        async with handing_over(tmp_path):
            path = commit(tmp_path / "0", 5, b"once")
            before = (path / "state.pt").stat().st_ino
            assert (await told(tmp_path, path))["problem"] == ""
            assert (path / "state.pt").stat().st_ino == before

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def listed(**files: bytes) -> dict[str, Any]:
    paths = {f"step_00000001/{name.replace('_', '.', 1)}": data for name, data in files.items()}
    return {path: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in paths.items()}


MANIFEST = json.dumps({"format": 1, "step": 1, "files": {"state.pt": {"bytes": 1, "sha256": "0" * 64}}}).encode()
SUM = hashlib.sha256(MANIFEST).hexdigest().encode()


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("checkpoints/../../etc", {}),
        ("checkpoints/step_00000001", {"COMMIT": SUM}),
        ("checkpoints/step_00000001", {"manifest_json": b"{}", "COMMIT": hashlib.sha256(b"{}").hexdigest().encode()}),
        ("checkpoints/step_00000001", {"manifest_json": MANIFEST, "COMMIT": b"0" * 64}),
        ("checkpoints/step_00000001", {"state_pt": b"x", "manifest_json": MANIFEST, "COMMIT": SUM}),
    ],
)
def test_nothing_is_kept_of_what_is_no_checkpoint(tmp_path: Path, name: str, files: dict[str, bytes]) -> None:
    async def main() -> None:
        server = NeighbourServer(TLS, 1, HERE, take=Receiver(task(tmp_path, 1)).take)
        listing = json.dumps(listed(**files)).encode()
        channel = await request(TLS, HERE, server.port, Keep(1, name, len(listing), replaces=True))
        channel.writer.write(listing + b"".join(files.values()))
        answers = [await channel.receive() for _ in range(2 if files else 1)]
        assert answers[-1] is not None
        assert answers[-1]["problem"]
        await channel.close()
        await server.close()
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def waited_for(waiting: Waiting, path: Path) -> bool:
    """Whether the next save looks for the copy of this checkpoint at all."""
    waiting.expect(path)
    return bool(waiting._commit)


def test_the_next_save_waits_until_the_agent_has_said_what_became_of_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Reporter(None, None, speaks=True, attempt=0)
    path, file = commit(tmp_path, 5, b"x"), tmp_path / "second_copy.json"
    waiting = Waiting(file, report)
    waiting.wait()  # for nothing yet
    file.write_text(json.dumps({"commit": (path / "COMMIT").read_text(), "problem": ""}))
    assert waited_for(waiting, path)
    waiting.wait()
    assert waited_for(waiting, path)
    assert capsys.readouterr().err == ""
    report.close()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("failed", "node 1: No space left"),
        ("late", "is still not complete after 5 s"),
        ("removed", "which reports it, was removed"),
    ],
)
def test_after_a_copy_that_failed_or_is_late_no_save_waits_any_more_and_that_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, what: str, words: str
) -> None:
    report = Reporter(None, None, speaks=True, attempt=0)
    path, file = commit(tmp_path, 5, b"x"), tmp_path / "second_copy.json"
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(replica, "time", clock)
    waiting = Waiting(file, report)
    if what != "removed":
        problem = "node 1: No space left" if what == "failed" else ""
        file.write_text(json.dumps({"commit": (path / "COMMIT").read_text() * (what == "failed"), "problem": problem}))
    assert waited_for(waiting, path)
    waiting.wait()
    assert 5 <= sum(slept) < 6 if what == "late" else slept == []
    assert not waited_for(waiting, path)
    waiting.wait()
    assert capsys.readouterr().err.count(words) == 1
    report.close()


def test_one_node_alone_copies_nothing(tmp_path: Path) -> None:
    assert copies_checkpoints(task(tmp_path, 0))
    assert not copies_checkpoints(replace(task(tmp_path, 0), nnodes=1))
