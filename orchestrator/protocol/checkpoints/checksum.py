"""What a checkpoint's files are verified by: blake3 where all that read them have it, else sha256. Python 3.9.

sha256 is in every Python, and takes longer than the rest of a save where the processor has no instructions for it.
blake3 is a package. Each agent says before an attempt whether its own Python and that of its ranks have it, and the
ranks are told by ORCH_CHECKSUM what to use.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.protocol.reading import descriptor_of
from orchestrator.protocol.str_enum import StrEnum

VARIABLE = "ORCH_CHECKSUM"
BLOCK_BYTES = 8 << 20
_HEX = re.compile(r"[0-9a-f]{64}")


class Algorithm(StrEnum):
    """What a file is hashed with."""

    SHA256 = "sha256"
    BLAKE3 = "blake3"


class NotInstalledError(ImportError):
    """A file can't be verified here: this Python lacks the package that it takes."""


class Hasher(Protocol):
    """What hashlib and blake3 have in common."""

    def update(self, data: Any, /) -> Any:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the hash of all of them, 64 hexadecimal digits."""


def hasher(algorithm: Algorithm) -> Hasher:
    """Begin a hash; NotInstalledError."""
    if algorithm is Algorithm.SHA256:
        return hashlib.sha256()
    try:
        from blake3 import blake3  # noqa: PLC0415 (a package that need not be there)
    except Exception as error:
        raise NotInstalledError("it was hashed with blake3, which this Python lacks: pip install blake3") from error
    return blake3()


def installed() -> tuple[Algorithm, ...]:
    """Return what this Python can hash with."""
    try:
        hasher(Algorithm.BLAKE3)
    except NotInstalledError:
        return (Algorithm.SHA256,)
    return (Algorithm.SHA256, Algorithm.BLAKE3)


def agreed(sides: Iterable[Collection[str]]) -> Algorithm:
    """Return what new files are hashed with, where each side has said what it can hash with."""
    return Algorithm.BLAKE3 if all(Algorithm.BLAKE3 in side for side in sides) else Algorithm.SHA256


def chosen(environment: Mapping[str, str]) -> Algorithm:
    """Return what this process hashes new files with: as its agents say; outside of a run the best that it has."""
    told = environment.get(VARIABLE, Algorithm.SHA256 if "ORCH_RUN_ID" in environment else Algorithm.BLAKE3)
    return agreed(({told}, installed()))


@dataclass(frozen=True)
class Checksum:
    """The hash of a file, and what it was made with."""

    algorithm: Algorithm
    hex: str

    @staticmethod
    def of(entry: Mapping[str, Any]) -> Checksum:
        """Return the checksum that a file's entry in a manifest holds; ValueError where it has none, or two."""
        found = [(each, entry[each]) for each in Algorithm if each in entry]
        if len(found) != 1 or not isinstance(found[0][1], str) or _HEX.fullmatch(found[0][1]) is None:
            raise ValueError("a file in it has no checksum that this version knows")
        return Checksum(*found[0])

    def __str__(self) -> str:
        """Return it as text: blake3:HEX, and HEX alone for sha256, which all were once."""
        return self.hex if self.algorithm is Algorithm.SHA256 else f"{self.algorithm}:{self.hex}"

    def is_of(self, path: str | Path) -> bool:
        """Read a file and tell whether this is its checksum; OSError, NotInstalledError."""
        return checksum_of(path, self.algorithm) == self


def checksum_of(path: str | Path, algorithm: Algorithm = Algorithm.SHA256) -> Checksum:
    """Read a file in blocks and return its checksum; OSError, NotInstalledError."""
    digest = hasher(algorithm)
    with open(descriptor_of(path), "rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return Checksum(algorithm, digest.hexdigest())
