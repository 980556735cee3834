"""TensorBoard's event files, as they grow, and as damaged ones."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.agent.metrics.following import UnreadableError
from orchestrator.protocol.crc32c import masked_crc32c
from orchestrator.trackers import event_file

from .written import EVENTS, REAL, File, scalar


def test_a_file_of_torchs_summary_writer() -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    for point in File(REAL, EVENTS).points():
        assert point.time is not None
        for name, value in point.values.items():
            found.setdefault(name, []).append((point.step, value))
    assert found["loss"] == [(step, 2.0**-step) for step in range(5)]
    assert found["train/acc"] == [(step, 0.25 * step) for step in range(5)]
    assert found["rate"] == [(10 * step, 0.1 * step) for step in range(5)]
    assert all(math.isnan(value) for _, value in found.pop("nan"))
    assert set(found) == {"loss", "train/acc", "rate"}


@given(cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_every_scalar_is_read_once_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    whole = event_file.header(1.0) + b"".join(scalar("loss", step, step) for step in range(20))
    file, found, at = File(tmp_path_factory.mktemp("growing"), EVENTS), list[float](), 0
    for end in [*sorted(cuts), len(whole)]:
        file.append(whole[at:end])
        found += [step for step, _ in file.values()]
        at = max(at, min(end, len(whole)))
    assert found == list(range(20))


def test_a_look_goes_on_from_where_its_time_was_over(tmp_path: Path) -> None:
    file, calls = File(tmp_path, EVENTS), iter([False, False, True])
    file.append(b"".join(scalar("loss", step, step) for step in range(5)))
    assert [point.step for point in file.points(lambda: next(calls))] == [0, 1]
    assert [step for step, _ in file.values()] == [2, 3, 4]


def test_a_record_whose_data_are_damaged_loses_no_other(tmp_path: Path) -> None:
    file = File(tmp_path, EVENTS)
    damaged = bytearray(scalar("loss", 1.0, 1))
    damaged[-6] ^= 1
    file.append(scalar("loss", 0.0, 0) + damaged + event_file.framed(b"\xff" * 40) + scalar("loss", 2.0, 2))
    assert file.values() == [(0, {"loss": 0.0}), (2, {"loss": 2.0})]


def test_after_a_damaged_length_nothing_more_is_read(tmp_path: Path) -> None:
    file = File(tmp_path, EVENTS)
    file.append(scalar("loss", 0.0, 0) + struct.pack("<QI", 40, 1) + scalar("loss", 1.0, 1))
    points = file.reader.read(lambda: False)
    assert next(points).step == 0
    with pytest.raises(UnreadableError, match="wrong checksum"):
        next(points)


def test_a_length_of_2_to_60_is_waited_for_and_not_read(tmp_path: Path) -> None:
    file, length = File(tmp_path, EVENTS), struct.pack("<Q", 1 << 60)
    file.append(scalar("loss", 0.0, 0) + length + struct.pack("<I", masked_crc32c(length)) + bytes(1000))
    assert file.values() == [(0, {"loss": 0.0})]
    assert file.values() == []


def test_a_large_record_is_passed_over(tmp_path: Path) -> None:
    file, length = File(tmp_path, EVENTS), struct.pack("<Q", 1 << 30)
    file.append(length + struct.pack("<I", masked_crc32c(length)))
    with file.path.open("r+b") as opened:
        opened.truncate((1 << 30) + 16)  # a hole: if it were read, this would take seconds
    file.append(scalar("loss", 0.0, 7))
    assert file.values() == [(7, {"loss": 0.0})]


def test_a_file_that_is_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = File(tmp_path, EVENTS)
    file.append(scalar("loss", 0.0, 0) + scalar("loss", 1.0, 1))
    assert len(file.values()) == 2
    file.path.write_bytes(scalar("loss", 5.0, 0) + scalar("loss", 6.0, 1) + scalar("loss", 7.0, 2))
    assert [values["loss"] for _, values in file.values()] == [5.0, 6.0, 7.0]


@given(st.binary(max_size=300))
def test_no_contents_are_an_error_of_another_kind(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    for contents in (data, event_file.framed(data)):
        file = File(tmp_path_factory.mktemp("any"), EVENTS)
        file.append(contents)
        try:
            file.points()
        except UnreadableError:
            continue
