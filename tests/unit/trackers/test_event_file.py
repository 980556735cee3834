"""TensorBoard's event files: every record reads back as it was written."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.protocol.crc32c import crc32c
from orchestrator.trackers import event_file

numbers = st.floats(width=32, allow_nan=True)
steps = st.integers(-(2**63), 2**63 - 1)
tags = st.text(max_size=20)


def records(data: bytes) -> list[bytes]:
    """The contents of TFRecord frames, whose checksums are computed bit by bit here."""
    found = []
    while data:
        length, of_length = struct.unpack("<QI", data[:12])
        body, of_body = data[12 : 12 + length], struct.unpack("<I", data[12 + length : 16 + length])[0]
        assert (_masked(data[:8]), _masked(body)) == (of_length, of_body)
        found.append(body)
        data = data[16 + length :]
    return found


def _masked(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if (crc ^ byte >> bit) & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def fields(data: bytes) -> dict[int, list[Any]]:
    """The fields of a protobuf message by their numbers, as they come."""
    found: dict[int, list[Any]] = {}
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(data):
        key = varint()
        if key & 7 == 0:
            value: Any = varint()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            value = data[position : position + size]
            position += size
        found.setdefault(key >> 3, []).append(value)
    return found


@given(st.lists(st.tuples(tags, numbers), max_size=5), steps, st.floats(allow_nan=False))
@example([("loss", 0.5)], -1, 0.0)
def test_scalars_read_back(values: list[tuple[str, float]], step: int, time: float) -> None:
    (record,) = records(event_file.scalars(values, step, time))
    event = fields(record)
    assert struct.unpack("<d", event[1][0])[0] == time
    assert event[2][0] == step % 2**64
    read = [fields(each) for each in fields(event[5][0]).get(1, [])]
    assert [each[1][0].decode() for each in read] == [tag for tag, _ in values]
    for each, (_, value) in zip(read, values, strict=True):
        (found,) = struct.unpack("<f", each[2][0])
        assert found == value or math.isnan(found) == math.isnan(value) is True


@pytest.mark.parametrize(("value", "found"), [(1e300, math.inf), (-1e300, -math.inf), (1e-300, 0.0)])
def test_what_a_float32_cannot_hold(value: float, found: float) -> None:
    (record,) = records(event_file.scalars([("x", value)], 0, 0.0))
    assert struct.unpack("<f", fields(fields(fields(record)[5][0])[1][0])[2][0])[0] == found


def test_a_file_begins_with_its_version_and_a_restart_is_told() -> None:
    header, restart = records(event_file.header(1.5) + event_file.restart(7, 2.0))
    assert fields(header)[3] == [b"brain.Event:2"]
    assert (fields(restart)[2], fields(fields(restart)[7][0])[1]) == ([7], [1])


def test_the_checksum_is_the_one_that_others_compute() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
