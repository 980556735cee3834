"""The kinds of files that travel between a run's machines and this one, with one rule for each kind. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Policy:
    """The rule for fetching whole files of one kind."""

    hashed: bool  # the machine hashes what it sends; otherwise the hashes are known from a manifest
    continued: bool  # an interrupted copy is continued, because the file never changes under its version
    durable: bool  # each file is on the disk before it has its name; otherwise all files are synced together at the end
    still: float = 0.0  # seconds for which a file must have been unchanged when it is read


COMMITTED: Final = Policy(hashed=False, continued=True, durable=True)
"""A file of one of orch's checkpoints: written once, and its manifest has its hash."""
STANDING: Final = Policy(hashed=True, continued=True, durable=False)
"""An output that no longer changes, as far as is known: its size and time tell its version."""
CHANGING: Final = Policy(hashed=True, continued=False, durable=False)
"""An output that changes from look to look: whatever version is there is copied, unless it changes during the copy."""
REWRITTEN: Final = Policy(hashed=True, continued=False, durable=False, still=1.0)
"""Weights that are written again and again: as CHANGING, but not while a program may still be writing them."""
