"""Files of metrics for these tests, and what a reader finds in them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from orchestrator.node.agent.metrics.finding import reader_of
from orchestrator.node.agent.metrics.following import Followed, IsOver, Point
from orchestrator.trackers import event_file

REAL = Path(__file__).with_name("real")  # written by torch 2, Trainer of transformers 5 and Lightning 2
EVENTS = "events.out.tfevents.1700000000.n1.7.0"
BLOCK = 1 << 15


class File:
    """A file in a folder, and its reader."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        reader = reader_of(Followed(str(self.path), str(folder)))
        assert reader is not None
        self.reader = reader

    def append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def points(self, is_over: IsOver = lambda: False) -> list[Point]:
        """Return what is new."""
        return list(self.reader.read(is_over))

    def values(self) -> list[tuple[float, dict[str, float]]]:
        """Return the step and the values of each new point."""
        return [(point.step, dict(point.values)) for point in self.points()]


def scalar(tag: str, value: float, step: int) -> bytes:
    return event_file.scalars([(tag, value)], step, 1.7e9 + step)


def wandb_file(records: list[bytes]) -> bytes:
    """Return records in the frames of wandb's files, which are cut at the ends of blocks."""
    data = bytearray(struct.pack("<4sHB", b":W&B", 0xBEE1, 0))
    for record in records:
        rest, is_first = record, True
        while rest or is_first:
            room = BLOCK - len(data) % BLOCK
            if room < 7:
                data += bytes(room)
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[is_first, not rest]
            checksum = zlib.crc32(part, zlib.crc32(bytes([kind])))
            data += struct.pack("<IHB", checksum, len(part), kind) + part
            is_first = False
    return bytes(data)


def history(step: int, **values: str) -> bytes:
    """Return wandb's record of one step; the values are JSON texts."""
    items = b"".join(
        message(1, message(1, name.encode()) + message(16, text.encode())) for name, text in values.items()
    )
    return message(2, items + message(2, b"\x08" + varint(step)))


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
