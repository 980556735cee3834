"""What the code was before a rank was started in it: by this, what the ranks have written is known. Python 3.9."""

from __future__ import annotations

from orchestrator.protocol.files import write_json
from orchestrator.protocol.layout import baseline_file
from orchestrator.protocol.reading import info_of, read_json

MOST_BYTES = 256 << 20
Baseline = dict[str, list[int]]  # of each file of the code: size and mtime_ns


def write_baseline(code_dir: str, found: Baseline) -> None:
    """Keep it beside the code, where ranks don't write."""
    write_json(baseline_file(code_dir), found, mode=0o600, durable=False)


def read_baseline(code_dir: str) -> tuple[Baseline, int]:
    """Return the baseline, and when it was made; without one all of the code counts as new."""
    try:
        path = baseline_file(code_dir)
        found, made = read_json(path, MOST_BYTES), info_of(path).st_mtime_ns
        return {str(path): list(value) for path, value in found.items()}, made
    except (OSError, ValueError, TypeError, AttributeError):
        return {}, 0
