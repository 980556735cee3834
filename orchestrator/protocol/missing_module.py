"""Reads which module Python says is missing. Pure. Python 3.9."""

from __future__ import annotations

import re

_WORDS = re.compile(r"No module named '?(\w+)(?:\.\w+)*'?(; '[\w.]+' is (?:not )?a package)?")


def missing_module_in(words: str) -> str:
    """Return the top-level module that an error says is missing; "" if the error is another or the module is there."""
    found = _WORDS.search(words)
    return "" if found is None or found[2] else found[1]
