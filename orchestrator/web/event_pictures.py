"""Finds the pictures in a TensorBoard event file and their offsets, so that the page can read one picture at a time."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from orchestrator.node.agent.metrics.protobuf import fields
from orchestrator.protocol.crc32c import masked_crc32c

MOST_PICTURES: Final = 500
MOST_OF_A_RECORD: Final = 16 << 20  # bytes; a larger record is skipped
MOST_READ: Final = 256 << 20  # bytes of a file, including skipped records
_HEADER: Final = struct.Struct("<QI")
_CRC_BYTES: Final = 4
# field numbers of the messages Event, Summary, Summary.Value and Summary.Image
_STEP, _SUMMARY = 2, 5
_VALUE = 1
_TAG, _IMAGE = 1, 4
_ENCODED = 4
_KINDS: Final = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


@dataclass(frozen=True)
class Picture:
    """One picture: its tag, its step, and the offset and number of its bytes in the event file."""

    tag: str
    step: int
    offset: int
    bytes: int
    kind: str


def pictures_in(file: BinaryIO) -> list[Picture]:
    """Return pictures from the beginning of an event file. Their number is limited, and reading ends at a damaged
    record.
    """
    found = list[Picture]()
    try:
        for offset, data in _records(file):
            found += _of_event(offset, data)
            if len(found) >= MOST_PICTURES:
                break
    except (ValueError, UnicodeDecodeError):
        pass
    return found[:MOST_PICTURES]


def _records(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the data of each record."""
    end, at = min(os.fstat(file.fileno()).st_size, MOST_READ), 0
    while at + _HEADER.size < end:
        file.seek(at)
        header = file.read(_HEADER.size)
        length, checksum = _HEADER.unpack(header)
        if masked_crc32c(header[:8]) != checksum:
            return
        at += _HEADER.size
        if length <= MOST_OF_A_RECORD and at + length <= end:
            yield at, file.read(length)
        at += length + _CRC_BYTES


def _of_event(offset: int, data: bytes) -> Iterator[Picture]:
    step, summaries = 0, list[bytes]()
    for number, _, value in fields(data):
        if number == _STEP and isinstance(value, int):
            step = value
        elif number == _SUMMARY and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, _, value in fields(summary):
            if number == _VALUE and isinstance(value, bytes) and (found := _encoded(value)) is not None:
                tag, encoded, kind = found
                yield Picture(tag, step, offset + data.find(encoded), len(encoded), kind)


def _encoded(value: bytes) -> tuple[str, bytes, str] | None:
    """Return (tag, bytes, image format) of the picture in a value; None if the value has no picture that the page can
    show.
    """
    parts = {number: part for number, _, part in fields(value) if isinstance(part, bytes)}
    image = {number: part for number, _, part in fields(parts.get(_IMAGE, b"")) if isinstance(part, bytes)}
    encoded = image.get(_ENCODED, b"")
    kind = next((kind for magic, kind in _KINDS.items() if encoded.startswith(magic)), None)
    return None if kind is None else (parts.get(_TAG, b"").decode(), encoded, kind)
