"""Sends files to a machine. A file gets its final name when the machine has all of it and its hash matches."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from orchestrator.backends.mirror.fetch import HASH_SLOWEST
from orchestrator.errors import BackendError
from orchestrator.protocol.arriving import PIECE
from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT
from orchestrator.protocol.reading import opened
from orchestrator.transport.machine import CALL_SECONDS, SLOWEST, Machine, Reply

ON_THE_WAY: Final = 8  # pieces that are sent before the first of them is answered
PATIENCE: Final = CALL_SECONDS + ON_THE_WAY * PIECE / SLOWEST


def give_checkpoint(machine: Machine, source: Path, remote: str) -> None:
    """Send one committed checkpoint to a machine, its COMMIT file last."""
    files = sorted((path for path in source.iterdir() if path.is_file()), key=lambda path: path.name == COMMIT)
    give_files(machine, {path: f"{remote}/{path.name}" for path in files})


def give_files(machine: Machine, files: Mapping[Path, str]) -> None:
    """Send files in this order over one connection."""
    with machine.bulk(sum(path.stat().st_size for path in files)) as fast:
        for path, remote in files.items():
            give_file(fast, path, remote)


def give_file(machine: Machine, source: Path, remote: str, sha256: str = "") -> None:
    """Send a file, which is hashed while it is sent. The machine gives the file its final name if the hash matches.

    sha256: the hash that the file must have. By default, the file's size and time identify its version. If an earlier
    transfer of the same version was interrupted, only the rest is sent.
    """
    with opened(source) as file:
        facts = os.fstat(file.fileno())
        if facts.st_size <= PIECE:
            data = file.read(PIECE)
            machine.call("write_file", data, path=remote, sha256=sha256 or hashlib.sha256(data).hexdigest())
            return
        version, sender = sha256 or f"{facts.st_size}-{facts.st_mtime_ns}", secrets.token_hex(8)
        answer, _ = machine.call(
            "begin_file", timeout=CALL_SECONDS + facts.st_size / HASH_SLOWEST,
            path=remote, version=version, size=facts.st_size, sender=sender,
        )  # fmt: skip
        there, offset, digest, sent = answer["size"], 0, hashlib.sha256(), deque[Reply]()
        while data := file.read(min(PIECE, facts.st_size - offset)):
            digest.update(data)
            if offset + len(data) > there:
                if len(sent) == ON_THE_WAY:
                    sent.popleft().wait(PATIENCE)
                first = max(offset, there)
                sent.append(machine.ask("write_piece", data[first - offset :], sender=sender, offset=first))
            offset += len(data)
    for each in sent:
        each.wait(PATIENCE)
    whole = sha256 or digest.hexdigest()
    answer, _ = machine.call("write_piece", sender=sender, offset=facts.st_size, sha256=whole)
    if answer.get("is_wrong") and not there:
        raise BackendError(f"{machine.name}: {remote} was changed on the way: its sha256 is not {whole}")
    if answer.get("is_wrong"):  # a crash has damaged the bytes that an interrupted transfer had left
        give_file(machine, source, remote, sha256)
