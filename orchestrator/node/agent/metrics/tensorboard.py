"""Reads the scalars of TensorBoard's event files.

An event file is a sequence of records. A record consists of the length (8 bytes), the length's checksum (4 bytes), the
data, and the data's checksum (4 bytes). The data is a protobuf message `Event`. Only the fields that hold a scalar are
read, so images and histograms are never loaded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from orchestrator.node.agent.metrics.following import Followed, IsOver, Point, UnreadableError
from orchestrator.node.agent.metrics.protobuf import fields
from orchestrator.protocol.crc32c import masked_crc32c

MOST_OF_A_RECORD = 1 << 16  # bytes; scalars take about 50 bytes, larger records are images, histograms or graphs
_HEADER, _CRC = struct.Struct("<QI"), struct.Struct("<I")
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5  # fields of Event
_VALUE = 1  # field of Summary
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8  # fields of Summary.Value
_DTYPE, _SHAPE, _CONTENT, _FLOATS, _DOUBLES = 1, 2, 4, 5, 6  # fields of TensorProto
_DIMENSION, _SIZE = 2, 1  # fields of TensorShapeProto and of its Dim
_OF_DTYPE = {1: (_FLOAT, _FLOATS), 2: (_DOUBLE, _DOUBLES)}


class EventFile:
    """A TensorBoard event file."""

    def __init__(self, followed: Followed) -> None:
        self.followed = followed

    def read(self, is_over: IsOver) -> Iterator[Point]:
        """Yield the scalars of the new records. Skip a record whose data is damaged or has a wrong checksum.

        Raises UnreadableError if the checksum of a length is wrong, because the next record can't be located then.
        """
        with self.followed.open() as (file, _):
            size = file.seek(0, 2)
            file.seek(self.followed.offset)
            while not is_over() and (record := self._record(file, size)) is not None:
                data, checksum = record
                if (point := _point(data)) is not None and masked_crc32c(data) == checksum:
                    yield point

    def _record(self, file: BinaryIO, size: int) -> tuple[bytes, int] | None:
        """Return the next record as (data, checksum); None if the record is incomplete. If the record is too large, its
        data is skipped.
        """
        at = self.followed.offset
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack(header)
        if masked_crc32c(header[:8]) != checksum:
            raise UnreadableError(f"the record at byte {at} has a wrong checksum")
        end = at + _HEADER.size + length + _CRC.size
        if end > size:
            return None
        self.followed.offset = end
        if length > MOST_OF_A_RECORD:
            file.seek(end)
            return b"", 0
        data, trailer = file.read(length), file.read(_CRC.size)
        return (data, _CRC.unpack(trailer)[0]) if len(trailer) == _CRC.size else (b"", 0)


def _point(data: bytes) -> Point | None:
    """Return the scalars of an event; None if the event has no scalar or is damaged."""
    step, time, values = 0, None, dict[str, float]()
    try:
        for number, _, value in fields(data):
            if number == _STEP and isinstance(value, int):
                step = value - (1 << 64) if value >= 1 << 63 else value
            elif number == _WALL_TIME and isinstance(value, bytes):
                time = _DOUBLE.unpack(value)[0]
            elif number == _SUMMARY and isinstance(value, bytes):
                values.update(found for each in _each(value, _VALUE) if (found := _scalar(each)) is not None)
    except (ValueError, struct.error):
        return None
    return Point(step, time, values) if values else None


def _each(data: bytes, wanted: int) -> Iterator[bytes]:
    return (value for number, _, value in fields(data) if number == wanted and isinstance(value, bytes))


def _scalar(data: bytes) -> tuple[str, float] | None:
    tag, found = "", None
    for number, _, value in fields(data):
        if not isinstance(value, bytes):
            continue
        if number == _TAG:
            tag = value.decode()
        elif number == _SIMPLE_VALUE:
            found = _FLOAT.unpack(value)[0]
        elif number == _TENSOR:
            found = _number_in(value)
    return (tag, found) if tag and found is not None else None


def _number_in(tensor: bytes) -> float | None:
    """Return the value of a tensor that holds one float or double."""
    parts: dict[int, tuple[int, int | bytes]] = {number: (wire, value) for number, wire, value in fields(tensor)}
    _, shape = parts.get(_SHAPE, (0, b""))
    if not isinstance(shape, bytes) or any((_SIZE, 0, 1) not in fields(each) for each in _each(shape, _DIMENSION)):
        return None
    kind = _OF_DTYPE.get(int(parts[_DTYPE][1])) if _DTYPE in parts else None
    if kind is None:
        return None
    form, listed = kind
    for number in (listed, _CONTENT):
        value = parts.get(number, (0, b""))[1]
        if isinstance(value, bytes) and len(value) == form.size:
            return float(form.unpack(value)[0])
    return None
