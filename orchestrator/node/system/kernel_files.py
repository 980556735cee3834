"""Reads files of /proc and /sys, in which the kernel and its drivers report facts."""

from __future__ import annotations

import os

CHUNK = 1 << 16


def read_bytes(path: str) -> bytes:
    """Return the contents of a file of /proc or /sys; empty if the file is missing or this user may not read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = piece = os.read(descriptor, CHUNK)
        while piece:
            piece = os.read(descriptor, CHUNK)
            data += piece
        return data
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def read_text(path: str, errors: str = "surrogateescape") -> str:
    """Return the contents as text. By default, bytes that are not UTF-8 become surrogates, as in file names."""
    return read_bytes(path).decode("utf-8", errors)
