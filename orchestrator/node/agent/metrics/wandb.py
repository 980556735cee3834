"""Reads the history in wandb's offline files (run-ID.wandb).

The file has the format of LevelDB's log: blocks of 32 KiB, with records that are split into parts at block boundaries.
Each record is a protobuf message `Record`. A `history` record holds the metrics of a step as JSON texts.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from orchestrator.node.agent.metrics.following import Followed, IsOver, Point, UnreadableError
from orchestrator.node.agent.metrics.protobuf import fields
from orchestrator.node.agent.metrics.tables import point_of
from orchestrator.protocol.json_text import parse_json

MOST_OF_A_RECORD = 1 << 20  # bytes; a larger record is skipped
_BLOCK = 1 << 15
_START = struct.Struct("<4sHB")  # the header of the file
_HEADER = struct.Struct("<IHB")  # the header of a part of a record: checksum, length, type
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY = 2  # field of the message Record
_ITEM, _STEP = 1, 2  # fields of HistoryRecord
_NUMBER = 1  # field of HistoryStep
_KEY, _NESTED_KEY, _JSON = 1, 2, 16  # fields of HistoryItem


class WandbFile:
    """An offline file of wandb."""

    def __init__(self, followed: Followed) -> None:
        self.followed = followed

    def read(self, is_over: IsOver) -> Iterator[Point]:
        """Yield the new rows of the history as points. Raises UnreadableError if the file is damaged."""
        with self.followed.open() as (file, is_new):
            if is_new and not self._begin(file):
                return
            while not is_over() and (record := self._record(file)) is not None:
                if (point := _point(record)) is not None:
                    yield point

    def _begin(self, file: BinaryIO) -> bool:
        start = file.read(_START.size)
        if len(start) < _START.size:
            return False
        if _START.unpack(start)[0] != b":W&B":
            raise UnreadableError("the file does not begin with wandb's header")
        self.followed.offset = _START.size
        return True

    def _record(self, file: BinaryIO) -> bytes | None:
        """Return the next record; None if it is incomplete. If a record is too large, return an empty record
        instead.
        """
        at, record, is_begun = self.followed.offset, b"", False
        while True:
            rest = _BLOCK - at % _BLOCK
            if rest < _HEADER.size:  # zeros fill the rest of the block
                at += rest
            file.seek(at)
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return None
            checksum, length, kind = _HEADER.unpack(header)
            data = file.read(length)
            if len(data) < length:
                return None
            is_first = kind in (_FULL, _FIRST)
            if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or is_first == is_begun or length > _BLOCK:
                raise UnreadableError(f"the record at byte {at} is damaged")
            if zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
                raise UnreadableError(f"the record at byte {at} has a wrong checksum")
            at, is_begun = at + _HEADER.size + length, True
            record += data if len(record) <= MOST_OF_A_RECORD else b""
            if kind in (_FULL, _LAST):
                self.followed.offset = at
                return record if len(record) <= MOST_OF_A_RECORD else b""


def _point(record: bytes) -> Point | None:
    row: dict[str, Any] = {}
    try:
        for number, _, history in fields(record):
            if number != _HISTORY or not isinstance(history, bytes):
                continue
            for part, _, value in fields(history):
                if part == _ITEM and isinstance(value, bytes):
                    row.update([_item(value)])
                elif part == _STEP and isinstance(value, bytes):
                    row["_step"] = next((each for field, _, each in fields(value) if field == _NUMBER), 0)
    except (ValueError, RecursionError):
        return None
    return point_of(row, None)


def _item(data: bytes) -> tuple[str, Any]:
    keys, value = list[str](), None
    for number, _, text in fields(data):
        if isinstance(text, bytes) and number in (_KEY, _NESTED_KEY) and text:
            keys.append(text.decode())
        elif isinstance(text, bytes) and number == _JSON:
            value = parse_json(text) if len(text) < 100 else None  # a longer text can't be a number
    return ".".join(keys), value
