"""The hash algorithm of checkpoint files, which is blake3 if all readers have it, else sha256.

Every Python has sha256. But if the processor has no instructions for sha256, hashing takes longer than the rest of a
save. blake3 is a separate package. Before an attempt, each agent reports whether its own Python and the Python of its
ranks have blake3. ORCH_CHECKSUM then tells the ranks which algorithm to use.
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
    """The hash algorithm of a file."""

    SHA256 = "sha256"
    BLAKE3 = "blake3"


class NotInstalledError(ImportError):
    """A file can't be verified, because this Python lacks the package for its algorithm."""


class Hasher(Protocol):
    """The common interface of hashlib and blake3."""

    def update(self, data: Any, /) -> Any:
        """Add bytes to the hash."""

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far as 64 hexadecimal digits."""


def hasher(algorithm: Algorithm) -> Hasher:
    """Return a new hash object for this algorithm. Raises NotInstalledError if the package is missing."""
    if algorithm is Algorithm.SHA256:
        return hashlib.sha256()
    try:
        from blake3 import blake3
    except Exception as error:
        raise NotInstalledError(
            "the checkpoint was hashed with blake3, which this Python does not have: pip install blake3"
        ) from error
    return blake3()


def installed() -> tuple[Algorithm, ...]:
    """Return the algorithms that this Python has."""
    try:
        hasher(Algorithm.BLAKE3)
    except NotInstalledError:
        return (Algorithm.SHA256,)
    return (Algorithm.SHA256, Algorithm.BLAKE3)


def agreed(sides: Iterable[Collection[str]]) -> Algorithm:
    """Return the hash algorithm for new files: the best one that all readers have. Each item of `sides` has the
    algorithms of one reader.
    """
    return Algorithm.BLAKE3 if all(Algorithm.BLAKE3 in side for side in sides) else Algorithm.SHA256


def chosen(environment: Mapping[str, str]) -> Algorithm:
    """Return the hash algorithm for new files: the one in ORCH_CHECKSUM or, outside of a run, the best that is
    installed.
    """
    told = environment.get(VARIABLE, Algorithm.SHA256 if "ORCH_RUN_ID" in environment else Algorithm.BLAKE3)
    return agreed(({told}, installed()))


@dataclass(frozen=True)
class Checksum:
    """The hash of a file and its algorithm."""

    algorithm: Algorithm
    hex: str

    @staticmethod
    def of(entry: Mapping[str, Any]) -> Checksum:
        """Return the checksum in a file's entry of a manifest. Raises ValueError unless the entry has exactly one
        checksum.
        """
        found = [(each, entry[each]) for each in Algorithm if each in entry]
        if len(found) != 1 or not isinstance(found[0][1], str) or _HEX.fullmatch(found[0][1]) is None:
            raise ValueError("a file has no checksum that this version of orch knows")
        return Checksum(*found[0])

    def __str__(self) -> str:
        """Return the checksum as text: blake3:HEX, or only HEX for sha256, the original algorithm."""
        return self.hex if self.algorithm is Algorithm.SHA256 else f"{self.algorithm}:{self.hex}"

    def is_of(self, path: str | Path | int) -> bool:
        """Return whether a file has this checksum (see `checksum_of`). Raises OSError or NotInstalledError."""
        return checksum_of(path, self.algorithm) == self


def checksum_of(path: str | Path | int, algorithm: Algorithm = Algorithm.SHA256) -> Checksum:
    """Read a file in blocks and return its checksum. The file may be an open descriptor, which is closed. Raises
    OSError or NotInstalledError.
    """
    digest = hasher(algorithm)
    with open(path if isinstance(path, int) else descriptor_of(path), "rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return Checksum(algorithm, digest.hexdigest())
