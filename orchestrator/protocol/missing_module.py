"""Parses the name of a missing module from Python's error message."""

from __future__ import annotations

import re

_WORDS = re.compile(r"No module named '?(\w+)(?:\.\w+)*'?(; '[\w.]+' is (?:not )?a package)?")


def missing_module_in(words: str) -> str:
    """Return the top-level name of the module that an error message reports as missing; "" for any other error, or
    if the module is installed.
    """
    found = _WORDS.search(words)
    return "" if found is None or found[2] else found[1]
