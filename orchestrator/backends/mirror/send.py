"""Sends files to a machine. A file gets its final name only when its last piece has arrived."""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator.protocol.arriving import PIECE
from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT
from orchestrator.protocol.reading import opened
from orchestrator.transport.machine import CALL_SECONDS, SLOWEST, Machine, Reply

ON_THE_WAY: Final = 8  # pieces that are sent before the first of them is answered


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
    """Send a file in pieces. The last piece, which is sent after all others have arrived, renames the file to its final
    name.

    sha256: the hash that the file must have. With a hash, several senders may send the same file at once.
    """
    sent: deque[Reply] = deque()
    values: dict[str, Any] = {"path": remote, "sha256": sha256, "sender": secrets.token_hex(4) if sha256 else ""}
    with opened(source) as file:
        size, offset = os.fstat(file.fileno()).st_size, 0
        while True:
            data = file.read(PIECE)
            last = offset + len(data) >= size
            while sent and (last or len(sent) >= ON_THE_WAY):
                sent.popleft().wait(CALL_SECONDS + ON_THE_WAY * PIECE / SLOWEST)
            answer = machine.ask("write_file", data, offset=offset, last=last, **values)
            if last or offset == 0:
                answer.wait()
            else:
                sent.append(answer)
            offset += len(data)
            if last:
                return
