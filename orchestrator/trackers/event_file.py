"""Encodes TensorBoard's event files, which are protobuf messages in TFRecord frames, without a protobuf package.

The field numbers are those in TensorFlow's event.proto, summary.proto and tensor.proto.
This module has no side effects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from orchestrator.protocol.crc32c import masked_crc32c

VERSION: Final = "brain.Event:2"  # the text in the first event of every file, which readers check
_DT_STRING: Final = 7
_DATA_CLASS_TENSOR: Final = 2
_START: Final = 1  # after SessionLog.START, readers drop earlier events of its step and of later steps
_FLOAT32_MAX: Final = 3.4028234663852886e38


def framed(data: bytes) -> bytes:
    """Return the data framed as a TFRecord: length, checksum of the length, data, checksum of the data."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))


def header(time: float) -> bytes:
    """Return the first record of an event file, which names the format."""
    return framed(_double(1, time) + _text(3, VERSION))


def scalars(values: Iterable[tuple[str, float]], step: int, time: float) -> bytes:
    """Return a record with a number for each tag. A number that is too large for a float32 becomes infinite."""
    summary = b"".join(_message(1, _text(1, tag) + _float(2, value)) for tag, value in values)
    return _event(step, time, _message(5, summary))


def text(tag: str, markdown: str, time: float) -> bytes:
    """Return a record with a Markdown text. TensorBoard shows it on its page "Text"."""
    tensor = _number(1, _DT_STRING) + _message(2, _message(2, _number(1, 1))) + _text(8, markdown)
    metadata = _message(1, _text(1, "text")) + _number(4, _DATA_CLASS_TENSOR)
    value = _text(1, f"{tag}/text_summary") + _message(8, tensor) + _message(9, metadata)
    return _event(0, time, _message(5, _message(1, value)))


def restart(step: int, time: float) -> bytes:
    """Return a record after which readers drop all earlier values of this step and of later steps."""
    return _event(step, time, _message(7, _number(1, _START)))


def _event(step: int, time: float, what: bytes) -> bytes:
    return framed(_double(1, time) + _number(2, step) + what)


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    if abs(value) > _FLOAT32_MAX:
        value = float("inf") if value > 0 else float("-inf")
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode("utf-8", "replace"))
