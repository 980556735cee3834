"""What was found in a file is remembered for as long as the file's size and time of change stay. Python 3.9."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

MOST = 4096

T = TypeVar("T")


def cached_by_stat(look: Callable[[str], T]) -> Callable[[str], T]:
    """Decorate a function of a path: the same files are looked at again and again while a run goes on.

    Of a file that is not there nothing is remembered.
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
