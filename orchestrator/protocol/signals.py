"""The signals by which schedulers announce that they will stop a job. Every process of the job gets them."""

from __future__ import annotations

import re
import signal

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""The signals before a time limit, a suspension or an end. By default, each of them would end a process."""
WARNING_NAMES = tuple(each.name[3:] for each in WARNINGS)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, *WARNINGS, signal.SIGXCPU)
"""The signals upon which an agent stops. orch itself sends SIGXCPU to node 0's agent when the time limit of a job of
Grid Engine or PBS is near, because Grid Engine sends SIGUSR2 before every end of a job.
"""


def number_of(text: str) -> int | None:
    """Return the number of the signal in an option such as `USR1@60`, `SIGUSR1` or `R:10@60`; None if there is none."""
    match = re.fullmatch(r"(?:R:)?(?:(?:SIG)?([A-Z0-9]+?))(?:@\d+)?", text, re.IGNORECASE)
    if match is None:
        return None
    word = match[1].upper()
    return int(word) if word.isdecimal() else getattr(signal, f"SIG{word}", None)
