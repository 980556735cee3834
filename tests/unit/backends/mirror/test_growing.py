"""What a node writes is copied by offset: appended, rotated, replaced, interrupted, and nothing lost or invented."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.backends.mirror.growing import WRITING, Copy
from orchestrator.errors import BackendError
from orchestrator.node.server.files import _news
from orchestrator.runs.store import RunDir
from tests.machines import FakeMachine


def copy_of(tmp_path: Path, ranks: list[int] | None = None) -> tuple[Path, Copy]:
    remote = tmp_path / "remote"
    (remote / "nodes/0/attempt_0").mkdir(parents=True, exist_ok=True)
    here = RunDir(tmp_path / "here")
    here.path.mkdir(exist_ok=True)
    return remote, Copy(here, 0, str(remote), f"{remote}/checkpoints", ranks)


def look(copy: Copy) -> None:
    while copy.update(FakeMachine(), 0.0):
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


def test_samples_come_whole_with_what_was_rotated_and_make_no_answer_by_themselves(tmp_path: Path) -> None:
    remote, copy = copy_of(tmp_path)
    samples, own = remote / "nodes/0/samples.jsonl", copy.run.path / "nodes/0/samples.jsonl"
    samples.write_bytes(b"a" * (2 << 20))
    look(copy)
    assert own.read_bytes() == samples.read_bytes()
    with open(samples, "ab") as file:
        file.write(b"b" * 100)
    os.replace(samples, f"{samples}.1")
    samples.write_bytes(b"new")
    look(copy)
    look(copy)
    assert own.read_bytes() == b"new"
    assert own.with_name("samples.jsonl.1").read_bytes() == b"a" * (2 << 20) + b"b" * 100
    assert _news(str(remote), 0, {"have": {}}, beats=False) == ([], False)  # a supervisor need not wake up for them


def test_metrics_that_an_agent_has_read_come_as_they_grow(tmp_path: Path) -> None:
    remote, copy = copy_of(tmp_path)
    read, own = remote / "nodes/0/metrics.jsonl", copy.run.path / "nodes/0/metrics.jsonl"
    for _ in range(3):
        with read.open("ab") as file:
            file.write(b'{"step": 1, "loss": 2}\n')
        look(copy)
        assert own.read_bytes() == read.read_bytes()
    assert not copy.has_news  # no decision about the run follows from them


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


def test_results_of_every_rank_come_whole_however_large(tmp_path: Path) -> None:
    remote, copy = copy_of(tmp_path, [0])
    folder = remote / "nodes/0/attempt_0"
    large = os.urandom((5 << 20) + 1)
    (folder / "result_0.json").write_text('{"rank": 0}')
    (folder / "result_1.pt").write_bytes(large)
    (folder / ".result_2.pt.partial").write_bytes(b"half")
    (remote / "nodes/0/events.jsonl").write_text('{"kind": "exit"}\n')
    copy.update(FakeMachine(), 0.0)
    own = copy.run.path / "nodes/0/attempt_0"
    assert 0 < (own / "result_1.pt").stat().st_size < len(large)
    copy = copy_of(tmp_path, [0])[1]  # the supervisor was started anew
    look(copy)
    assert sorted(path.name for path in own.iterdir()) == ["result_0.json", "result_1.pt"]
    assert (own / "result_0.json").read_text() == '{"rank": 0}'
    assert (own / "result_1.pt").read_bytes() == large


@pytest.mark.parametrize(
    "name",
    [
        "../x", "/etc/x", "nodes/1/events.jsonl", "nodes/0/../../x", "verdict.json", "nodes/0/seen.json", "nodes/0/",
        "nodes/0/attempt_0/../events.jsonl", "nodes/0/attempt_0/x", "slurm/../run.json", "slurm/.log", "nodes/0/x\0",
        "nodes/0/attempt_0/error_0.json/x", "nodes/0/attempt_0/rank_0.log\n", "", "." * 5000,
    ],
)  # fmt: skip
def test_a_node_can_not_write_elsewhere(tmp_path: Path, name: str) -> None:
    _, copy = copy_of(tmp_path)
    with pytest.raises(ValueError, match="may not use"):
        copy._inside(name)


def told(data: bytes = b"", **reply: Any) -> FakeMachine:
    """Return a machine that answers a look with this."""
    answer = {"files": [], "alive": True, "steps": [], "more": False, **reply}
    return FakeMachine(answers={"poll_changes": (answer, data)})


@pytest.mark.parametrize(
    "piece",
    [
        ["nodes/1/events.jsonl", 1, 0, "", False],
        ["nodes/0/agent.log", 2, 0, "", False],
        ["nodes/0/agent.log", -1, 0, "", False],
        ["nodes/0/agent.log", 1, -1, "", False],
    ],
)
def test_a_piece_that_is_not_the_nodes_own_or_not_there_is_an_error_that_names_the_host(
    tmp_path: Path, piece: list[Any]
) -> None:
    _, copy = copy_of(tmp_path)
    with pytest.raises(BackendError, match=r"^n1: "):
        copy.update(told(b"x", files=[piece]), 0.0)


def test_results_are_taken_from_node_0_alone(tmp_path: Path) -> None:
    copies = [Copy(RunDir(tmp_path), node, "/r", "", None) for node in (0, 1)]
    for name in ("metrics.jsonl", "result.json", "rank0.done", "slurm/agent.1.0.0.log"):
        piece = [name, 1, 0, "", False]
        with pytest.raises(BackendError, match="n1: node 1 sent a file name that a node may not use"):
            copies[1].update(told(b"1", files=[piece]), 0.0)
        assert not (tmp_path / name).exists()
        copies[0].update(told(b"0", files=[piece]), 0.0)
        assert (tmp_path / name).read_bytes() == b"0"


def test_a_checkpoint_of_another_name_is_none(tmp_path: Path) -> None:
    _, copy = copy_of(tmp_path)
    copy.update(told(steps=["../evil", "step_00000007", "step_x"]), 0.0)
    assert copy.steps == ["step_00000007"]


def test_a_disk_here_without_room_is_an_error_and_not_the_nodes_end(tmp_path: Path) -> None:
    _, copy = copy_of(tmp_path)
    (copy.run.path / "nodes").write_text("in the way")
    with pytest.raises(BackendError, match=r"Not a directory|File exists"):
        copy.update(told(b"x", files=[["nodes/0/agent.log", 1, 0, "", False]]), 0.0)


def test_a_disk_here_that_takes_no_lock_is_an_error_that_names_it(tmp_path: Path) -> None:
    _, copy = copy_of(tmp_path)
    (copy.run.path / WRITING).mkdir()
    with pytest.raises(BackendError, match=rf"{WRITING}: Is a directory"):
        copy.update(told(), 0.0)


class Meanwhile(FakeMachine):
    """Answers once another process has brought the same, and what was written after the answer."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.acts = [act]

    def carry_out(self, verb: str, payload: bytes, values: dict[str, Any]) -> Any:
        answer = super().carry_out(verb, payload, values)
        while self.acts:
            self.acts.pop()()
        return answer


def test_what_another_process_has_brought_meanwhile_stays(tmp_path: Path) -> None:
    remote, copy = copy_of(tmp_path)
    log = remote / "nodes/0/attempt_0/rank_0.log"
    log.write_bytes(b"one\n")
    own = copy.run.path / "nodes/0/attempt_0/rank_0.log"

    def another() -> None:
        log.write_bytes(b"one\ntwo\n")
        look(copy_of(tmp_path)[1])

    copy.update(Meanwhile(another), 0.0)
    assert own.read_bytes() == b"one\ntwo\n"
    look(copy)
    assert own.read_bytes() == b"one\ntwo\n"


def test_a_log_that_another_process_has_rotated_here_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    remote, copy = copy_of(tmp_path)
    log = remote / "nodes/0/attempt_0/rank_0.log"
    log.write_bytes(b"one\n")
    look(copy)
    log.write_bytes(b"one\ntwo\n")
    os.replace(log, f"{log}.1")
    log.touch()
    other = copy_of(tmp_path)[1]
    copy.update(Meanwhile(lambda: look(other)), 0.0)
    look(copy)
    own = copy.run.path / "nodes/0/attempt_0"
    assert (own / "rank_0.log.1").read_bytes() == b"one\ntwo\n"
    assert not (own / "rank_0.log").exists()
