"""Caches the result of a function of a file until the file's size or modification time changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

MOST = 4096

T = TypeVar("T")


def cached_by_stat(look: Callable[[str], T]) -> Callable[[str], T]:
    """Cache the results of a function of a path. A result is used again while the path's stat is unchanged. Results
    for missing files are not cached.
    """

    @lru_cache(MOST)
    def remembered(path: str, size: int, mtime_ns: int) -> T:
        return look(path)

    @wraps(look)
    def looked(path: str) -> T:
        try:
            info = os.stat(path)
        except OSError:
            return look(path)
        return remembered(path, info.st_size, info.st_mtime_ns)

    return looked
