"""How much a process reads, by what the kernel counts: also what comes from the page cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])  # "rchar: N" is the first line


@contextmanager
def reads_at_most(count: int) -> Iterator[None]:
    """Fail where this process reads more bytes meanwhile, in whichever of its threads."""
    before = _read_bytes()
    yield
    assert _read_bytes() - before <= count
