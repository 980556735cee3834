"""Iterates over the fields of a protobuf message without its schema. The module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10  # bytes


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (number, wire type, value) of each field. The value of a fixed-size field is its bytes.

    Raises ValueError if the message is truncated or damaged.
    """
    at, size = 0, len(data)
    while at < size:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == _BYTES:
            length, at = _varint(data, at)
        elif wire == _VARINT:
            number, at = _varint(data, at)
            yield key >> 3, wire, number
            continue
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"a field has the unknown wire type {wire}")
        end = at + length
        if end > size:
            raise ValueError("a field is cut off")
        yield key >> 3, wire, data[at:end]
        at = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1  # most numbers take one byte
    value = 0
    for position, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + position + 1
    raise ValueError("a number is cut off")
