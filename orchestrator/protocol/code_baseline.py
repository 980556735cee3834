"""Records the files of the code folder before any rank starts, so that files that ranks write into the folder can be
recognised.
"""

from __future__ import annotations

from orchestrator.protocol.files import write_json
from orchestrator.protocol.layout import baseline_file
from orchestrator.protocol.reading import info_of, read_json

MOST_BYTES = 256 << 20
Baseline = dict[str, list[int]]  # size and mtime_ns of each file of the code


def write_baseline(code_dir: str, found: Baseline) -> None:
    """Write the baseline: the files of the code folder before any rank has started. It is written beside the code
    folder, because ranks may change the files inside.
    """
    write_json(baseline_file(code_dir), found, mode=0o600, durable=False)


def read_baseline(code_dir: str) -> tuple[Baseline, int]:
    """Return the baseline (the files of the code folder before any rank started), and the time in ns at which it was
    written. If there is no baseline, it is empty, so all files count as new.
    """
    try:
        path = baseline_file(code_dir)
        found, made = read_json(path, MOST_BYTES), info_of(path).st_mtime_ns
        return {str(path): list(value) for path, value in found.items()}, made
    except (OSError, ValueError, TypeError, AttributeError):
        return {}, 0
