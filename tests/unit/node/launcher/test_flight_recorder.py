"""What is read of torch's flight recorder: dumps of real process groups, and what a rank might leave instead."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.missing_rank import Missing, missing_rank
from orchestrator.node.launcher.flight_recorder import (
    ask_for_dumps,
    groups_of,
    read_groups,
    recorder_settings,
    remove_pipes,
)
from orchestrator.protocol.messages import StacksFound
from orchestrator.protocol.typed import read

# Rank 0 has entered three all_reduces and a broadcast of all ranks, rank 1 one all_reduce less.
PROGRAM = """
import os, sys, torch, torch.distributed as dist
rank, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
for _ in range(2):
    dist.all_reduce(torch.ones(1))
waiting = dist.all_reduce(torch.ones(1), async_op=True) if rank == 0 else None
for _ in sys.stdin:
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank), "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace(includeStackTraces=False))
    print("dumped", flush=True)
"""


def dumps(folder: Path) -> None:
    """Let two ranks of a real group dump what they have recorded."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), f"{folder}/store", str(folder)],
            env={**os.environ, **recorder_settings(str(folder)), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        while not all(map(dumped, ranks)) or first_waited(folder) & {1, 2}:
            time.sleep(0.05)  # gloo's own thread notes the end of a collective, perhaps after it was waited for
    finally:
        for rank in ranks:
            with rank:
                rank.kill()


def dumped(rank: subprocess.Popen[str]) -> bool:
    """Let a rank dump, once more."""
    assert rank.stdin is not None
    assert rank.stdout is not None
    rank.stdin.write("\n")
    rank.stdin.flush()
    return rank.stdout.readline() == "dumped\n"


def first_waited(folder: Path) -> set[int]:
    """The numbers of the first collective that has not ended, of each rank that waits in one."""
    groups = [group for rank in range(2) for group in (read_groups(str(folder), rank) or {}).values()]
    return {group["waits"][0] for group in groups if group["waits"]}


def test_the_rank_that_never_entered_a_collective_is_named(tmp_path: Path) -> None:
    dumps(tmp_path)
    recorders = {rank: read_groups(str(tmp_path), rank) or {} for rank in range(2)}
    (group,) = recorders[0].values()
    assert (group["entered"], group["waits"], group["desc"]) == (3, [3, "all_reduce"], "default_pg")
    missing = named(recorders)
    assert missing is not None
    assert (missing.rank, missing.words) == (
        1,
        "it never entered all_reduce 3, in which rank 0 of process group 0 waits",
    )


def entry(
    number: int, *, name: str = "all_reduce", ended: bool = True, group: str = "0", **more: Any
) -> dict[str, Any]:
    """An entry of version 2.10, as NCCL's recorder writes it."""
    return {
        "record_id": number, "pg_id": 0, "process_group": (group, "default_pg" if group == "0" else "rows"),
        "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{name}",
        "time_created_ns": 1, "state": "completed" if ended else "started", "retired": ended, "is_p2p": False,
        "input_sizes": [[3]], "output_sizes": [[3]], "timeout_ms": 600000, **more,
    }  # fmt: skip


def named(recorders: dict[int, dict[str, Any]]) -> Missing | None:
    """Return whom the recorders name, as the leader reads them."""
    return missing_rank(read(StacksFound, {"recorders": recorders}).recorders)


def recorder(*entries: dict[str, Any]) -> dict[str, Any]:
    return groups_of({"version": "2.10", "pg_config": {}, "entries": list(entries)})


def test_a_rank_that_has_entered_nothing_at_all_is_missing_from_the_group_of_all() -> None:
    waits = recorder(entry(1), entry(2, ended=False))
    elsewhere = recorder(entry(1, group="7"))
    assert named({0: waits, 1: waits, 2: elsewhere, 3: {}}).rank == 2  # type: ignore[union-attr]


def test_a_rank_that_waits_elsewhere_is_not_blamed_for_the_one_it_waits_for() -> None:
    """Rank 1 is missing from what 0 waits in, for it waits itself for rank 2, which waits for nobody."""
    found = named({
        0: recorder(entry(5, ended=False)),
        1: recorder(entry(4), entry(9, group="1", ended=False)),
        2: recorder(entry(4), entry(8, group="1")),
    })  # fmt: skip
    assert found is not None
    assert (found.rank, found.words) == (2, "it never entered all_reduce 5, in which rank 0 of process group 0 waits")


def test_a_rank_that_calls_another_collective_is_named() -> None:
    usual, odd = recorder(entry(288, ended=False)), recorder(entry(288, name="broadcast", ended=False))
    found = named({0: usual, 1: usual, 2: odd})
    assert found is not None
    assert (found.rank, found.words) == (
        2, "it called broadcast as collective 288 of process group 0, where ranks 0, 1 called all_reduce",
    )  # fmt: skip


def test_nobody_is_named_where_all_wait_in_the_same() -> None:
    assert named({rank: recorder(entry(3, ended=False)) for rank in range(4)}) is None
    assert named({0: recorder(entry(3)), 1: {}}) is None
    assert named({}) is None


def test_sends_and_receives_are_left_out() -> None:
    assert recorder(entry(3, ended=False, is_p2p=True)) == {}


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


@pytest.mark.parametrize(
    "dump",
    [
        b"", b"\x80\x02", b"cos\nsystem\n(S'true'\ntR.", pickle.dumps({"entries": [Harmful()]}), pickle.dumps([]),
        pickle.dumps({"entries": [{"process_group": 3}]}), b"(" * 100_000, pickle.dumps({"entries": None}),
    ],
)  # fmt: skip
def test_what_is_no_dump_tells_nothing_and_runs_nothing(
    dump: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flight_3").write_bytes(dump)
    assert not read_groups(str(tmp_path), 3)
    assert not (tmp_path / "harmed").exists()


def test_only_a_pipe_with_a_listener_is_asked(tmp_path: Path) -> None:
    (tmp_path / "flight_0.pipe").write_text("a plain file")
    os.mkfifo(tmp_path / "flight_1.pipe")
    os.mkfifo(tmp_path / "flight_2.pipe")
    (tmp_path / "flight_2").write_text("older")
    heard = os.open(tmp_path / "flight_2.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert ask_for_dumps(str(tmp_path), range(4)) == [2]
        assert os.read(heard, 8) == b"1"
    finally:
        os.close(heard)
    assert not (tmp_path / "flight_2").exists()
    assert (tmp_path / "flight_0.pipe").read_text() == "a plain file"
    remove_pipes(str(tmp_path), range(4))
    assert sorted(path.name for path in tmp_path.iterdir()) == []


def test_only_older_torches_are_given_the_buffers_older_name(tmp_path: Path) -> None:
    """Newer ones warn of it in each rank's log."""
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" in recorder_settings(str(tmp_path), "2.6.0+cu124")
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" not in recorder_settings(str(tmp_path), "2.15.0+cu132")
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" not in recorder_settings(str(tmp_path), "")
