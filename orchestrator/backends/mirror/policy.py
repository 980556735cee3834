"""The rules for copying each kind of file between a run's machines and this one. This module has no side effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.protocol.files import PRIVATE
from orchestrator.protocol.writing import USERS


@dataclass(frozen=True)
class Policy:
    """The rule for fetching whole files of one kind."""

    hashed: bool  # the machine hashes what it sends; otherwise the hashes are known from a manifest
    continued: bool  # an interrupted copy is continued, because a file of one version never changes
    durable: bool  # each file is on the disk before it has its name; otherwise all files are synced together at the end
    still: float = 0.0  # seconds for which a file must have been unchanged when it is read
    mode: int = PRIVATE  # of a new file, before the umask applies


COMMITTED: Final = Policy(hashed=False, continued=True, durable=True)
"""A file of one of orch's checkpoints. It is written once, and the checkpoint's manifest has its hash."""
REQUESTED: Final = Policy(hashed=False, continued=True, durable=True, mode=USERS)
"""A file of one of orch's checkpoints, in the folder that a person has named."""
STANDING: Final = Policy(hashed=True, continued=True, durable=False)
"""An output that seems not to change any more. Its size and time identify its version."""
CHANGING: Final = Policy(hashed=True, continued=False, durable=False)
"""An output that changes all the time. Its present version is copied, unless it changes during the copy."""
REWRITTEN: Final = Policy(hashed=True, continued=False, durable=False, still=1.0)
"""Weights that a program overwrites again and again. They are copied as in CHANGING, but not while a program may be
writing.
"""
