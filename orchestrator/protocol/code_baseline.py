"""The state of the code before any rank started, so that files written by the ranks can be told apart. Python 3.9."""

from __future__ import annotations

from orchestrator.protocol.files import write_json
from orchestrator.protocol.layout import baseline_file
from orchestrator.protocol.reading import info_of, read_json

MOST_BYTES = 256 << 20
Baseline = dict[str, list[int]]  # size and mtime_ns of each file of the code


def write_baseline(code_dir: str, found: Baseline) -> None:
    """Write the baseline beside the code folder, where ranks do not write."""
    write_json(baseline_file(code_dir), found, mode=0o600, durable=False)


def read_baseline(code_dir: str) -> tuple[Baseline, int]:
    """Return the baseline and the time of its writing (ns). Without a baseline, all of the code counts as new."""
    try:
        path = baseline_file(code_dir)
        found, made = read_json(path, MOST_BYTES), info_of(path).st_mtime_ns
        return {str(path): list(value) for path, value in found.items()}, made
    except (OSError, ValueError, TypeError, AttributeError):
        return {}, 0
