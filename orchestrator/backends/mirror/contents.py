"""Sends contents, such as code files and wheels, that a machine's cache lacks. Each content is named by its sha256."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator.backends.mirror.send import give_file
from orchestrator.errors import BackendError
from orchestrator.protocol.reading import read_regular
from orchestrator.transport.answers import data_of
from orchestrator.transport.machine import Machine

HASH_SECONDS: Final = 600.0  # the machine hashes the contents that it has
BATCH: Final = 8 << 20  # bytes of one request


def send_contents(machine: Machine, workdir: str, cache: str, paths: Mapping[str, Path], **last: Any) -> int:
    """Send the contents that a machine lacks. One request has many small contents; a large content is sent in pieces.

    paths: a file on this machine for each sha256. last: more values for the last request, which is then sent even
    without contents. Return the number of bytes sent.
    """
    sizes = {digest: os.stat(paths[digest]).st_size for digest in missing_on(machine, workdir, paths, cache)}
    batch: list[bytes] = []
    with machine.bulk(sum(sizes.values())) as fast:

        def unpack(**values: Any) -> None:
            each = [len(content) for content in batch]
            fast.call("unpack", b"".join(batch), workdir=workdir, cache=cache, sizes=each, **values)
            batch.clear()

        for digest in sorted(sizes, key=sizes.__getitem__):
            if sizes[digest] > BATCH:
                give_file(fast, paths[digest], f"{workdir}/cache/{cache}/{digest}", sha256=digest)
                continue
            batch.append(read_regular(paths[digest], BATCH))
            if sum(map(len, batch)) >= BATCH:
                unpack()
        if batch or last:
            unpack(**last)
    return sum(sizes.values())


def missing_on(machine: Machine, workdir: str, known: Collection[str], cache: str) -> list[str]:
    """Return the sha256s among `known` that a machine's cache lacks. Raises BackendError if the machine's answer names
    a sha256 that is not in `known`.
    """
    asked = json.dumps(sorted(known)).encode()
    answer = machine.call("missing", asked, timeout=HASH_SECONDS, workdir=workdir, cache=cache, most=len(asked))
    found: list[str] = data_of(machine.name, "missing", answer[1])
    if all(each in known for each in found):
        return found
    raise BackendError(f"{machine.name} sent an invalid list of the files that its cache of {cache} lacks")
