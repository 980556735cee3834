"""Checkpoints of other formats between agents: put in place whole, refused where they lead elsewhere, dropped."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.node.agent.channel import ChannelError
from orchestrator.node.agent.checkpoints import replica
from orchestrator.node.agent.checkpoints.replica import ReplicaSender
from orchestrator.node.agent.checkpoints.saved import mark_of, place_of, resumable
from orchestrator.node.agent.checkpoints.transfer import Address, Parcel, Receiver, parcel_of, send
from orchestrator.node.agent.neighbour import NeighbourServer, request
from orchestrator.protocol.messages import Keep
from tests.patience import PATIENCE
from tests.unit.node.agent.checkpoints.test_replica import task as node_task
from tests.unit.node.agent.members import HERE, TLS


def task(folder: Path, node: int, **fields: Any) -> Any:
    (folder / "code").mkdir(parents=True, exist_ok=True)
    return node_task(folder, node, code_dir=str(folder / "code"), **fields)


def deepspeed(folder: Path, step: int) -> Path:
    path = folder / f"code/ds/global_step{step}"
    path.mkdir(parents=True)
    torch.save({"weights": torch.arange(50_000) * step}, path / "mp_rank_00_model_states.pt")
    (path.parent / "latest").write_text(path.name)
    return path


def megatron(folder: Path, step: int) -> Path:
    path = folder / f"code/mt/iter_{step:07}"
    (path / "mp_rank_00").mkdir(parents=True)
    torch.save({"weights": torch.arange(50_000) * step}, path / "mp_rank_00/model_optim_rng.pt")
    (path.parent / "latest_checkpointed_iteration.txt").write_text(str(step))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@asynccontextmanager
async def receiving(folder: Path) -> AsyncIterator[Address]:
    """Node 1, which takes what it is handed into this folder."""
    server = NeighbourServer(TLS, 1, HERE, take=Receiver(task(folder, 1)).take)
    try:
        yield 1, HERE, server.port
    finally:
        await server.close()


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, PATIENCE))


@pytest.mark.parametrize("write", [deepspeed, megatron])
def test_it_is_put_where_the_node_s_own_ranks_look_for_it(tmp_path: Path, write: Callable[[Path, int], Path]) -> None:
    """With the file beside it, without which it is no whole checkpoint on the other node."""
    path = write(tmp_path / "0", 50)
    name = str(path.relative_to(tmp_path / "0"))
    found = resumable(task(tmp_path / "0", 0), attempt=1)
    assert list(found) == [name]

    async def main() -> None:
        async with receiving(tmp_path / "1") as to:
            for _ in range(2):  # the second time it is there
                for each in (name, f"given/{path.name}"):
                    await send(TLS, to, parcel_of(each, found[name]), replaces=True)

    run(main())
    assert contents(tmp_path / "1/code") == contents(tmp_path / "0/code")
    assert contents(tmp_path / "1/given") == contents(path.parent)
    assert list(resumable(task(tmp_path / "1", 1), attempt=1)) == [name]
    assert not (tmp_path / "1/nodes/1/receiving").exists()


def test_what_ranks_may_be_writing_is_replaced_only_before_an_attempt(tmp_path: Path) -> None:
    deepspeed(tmp_path / "0", 50)
    torn = tmp_path / "1/code/ds/global_step50"
    torn.mkdir(parents=True)
    (torn / "mp_rank_00_model_states.pt").write_bytes(b"PK")
    (found,) = resumable(task(tmp_path / "0", 0), attempt=1).values()

    async def main() -> None:
        async with receiving(tmp_path / "1") as to:
            parcel = parcel_of("code/ds/global_step50", found)
            await send(TLS, to, parcel)  # while ranks run, it may be theirs
            assert contents(torn) == {"mp_rank_00_model_states.pt": b"PK"}
            await send(TLS, to, parcel, replaces=True)

    run(main())
    assert contents(tmp_path / "1/code") == contents(tmp_path / "0/code")


def test_a_file_that_is_written_again_and_again_is_followed_by_other_starts_too(tmp_path: Path) -> None:
    target = tmp_path / "1/code/last.ckpt"

    async def main() -> None:
        for step in range(3):
            (tmp_path / "0/code").mkdir(parents=True, exist_ok=True)
            torch.save({"global_step": step}, tmp_path / "0/code/last.ckpt")
            (found,) = resumable(task(tmp_path / "0", 0), attempt=1).values()
            assert mark_of(found) == str(step)
            async with receiving(tmp_path / "1") as to:
                await send(TLS, to, parcel_of("code/last.ckpt", found))
            assert target.read_bytes() == (tmp_path / "0/code/last.ckpt").read_bytes()

    run(main())


def test_what_changed_meanwhile_is_not_put_in_place(tmp_path: Path) -> None:
    path = deepspeed(tmp_path / "0", 50)
    (found,) = resumable(task(tmp_path / "0", 0), attempt=1).values()
    parcel = parcel_of("code/ds/global_step50", found)
    file = path / "mp_rank_00_model_states.pt"
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)

    async def main() -> None:
        async with receiving(tmp_path / "1") as to:
            with pytest.raises(ValueError, match=r"mp_rank_00_model_states\.pt was changed after it was listed"):
                await send(TLS, to, parcel)

    run(main())
    assert contents(tmp_path / "1") == {}


def test_a_refusal_is_reported_while_many_bytes_are_still_on_the_way(tmp_path: Path) -> None:
    sizes = {"wrong": 1, "large": 64 << 20}
    for name, size in sizes.items():
        (tmp_path / "0/code/a").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"0/code/a/{name}").write_bytes(b"x" * size)
    files = {f"a/{name}": {"bytes": size, "sha256": "0" * 64} for name, size in sizes.items()}

    async def main() -> None:
        async with receiving(tmp_path / "1") as to:
            with pytest.raises(ChannelError, match=r"^node 1: wrong does not match its checksum$"):
                await send(TLS, to, Parcel("code/a", str(tmp_path / "0/code"), files))

    run(main())
    assert contents(tmp_path / "1") == {}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("code/../../evil", "evil/x"), ("elsewhere/a", "a/x"), ("given/..", "../x"), ("given/a/b", "b/x"),
        ("code/", "x"),
        ("code/a", "../x"), ("code/a", "b/x"), ("code/a", "/etc/x"), ("code/a", "a/../../x"), ("code/a", "a//x"),
    ],
)  # fmt: skip
def test_nothing_is_written_for_what_leads_elsewhere(tmp_path: Path, name: str, path: str) -> None:
    listing = json.dumps({path: {"bytes": 1, "sha256": hashlib.sha256(b"1").hexdigest()}}).encode()

    async def main() -> None:
        async with receiving(tmp_path / "1") as (node, addrs, port):
            channel = await request(TLS, addrs, port, Keep(node, name, len(listing), replaces=True))
            channel.writer.write(listing + b"1")
            answer = await channel.receive()
            assert answer is not None
            assert answer["problem"]
            await channel.close()

    run(main())
    assert contents(tmp_path) == {}


def test_node_1_follows_node_0_and_drops_what_that_has_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "time", SimpleNamespace(monotonic=lambda: 0.0))  # its rest is as long as a look took
    own = tmp_path / "1/code/ds/global_step10"
    own.mkdir(parents=True)

    async def main() -> None:
        async with receiving(tmp_path / "1") as (_, addrs, port):
            sender = ReplicaSender(task(tmp_path / "0", 0), TLS, lambda *_, **__: None)
            work = asyncio.create_task(sender.keep_up_with_others(addrs, port))
            deepspeed(tmp_path / "0", 50)
            first, second = (tmp_path / f"1/code/ds/global_step{step}" for step in (50, 100))
            while not first.exists():
                await asyncio.sleep(0.01)
            for file in (tmp_path / "0/code/ds/global_step50").iterdir():
                file.unlink()
            (tmp_path / "0/code/ds/global_step50").rmdir()
            deepspeed(tmp_path / "0", 100)
            while first.exists():
                await asyncio.sleep(0.01)
            assert second.exists()
            assert own.exists()  # it was not sent
            work.cancel()

    run(main())


def test_a_node_knows_the_place_of_each_name(tmp_path: Path) -> None:
    here = task(tmp_path, 1)
    assert place_of(here, "given/a.ckpt") == f"{tmp_path}/given/a.ckpt"
    assert place_of(here, "checkpoints/x/y") == f"{tmp_path}/checkpoints/x/y"
    for name in ("given/..", "given/a/b", "code/../x", "nowhere/x", "code"):
        with pytest.raises(ValueError, match="is not the name of a checkpoint"):
            place_of(here, name)
