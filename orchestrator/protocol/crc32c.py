"""CRC-32C, the checksum of TensorBoard's event files."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78  # Castagnoli's polynomial, with its bits reversed
_MASK = 0xA282EAD8


def _table() -> tuple[int, ...]:
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901 (the value is shifted)
        rows.append(value)
    return tuple(rows)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the masked checksum, as records of event files store it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
