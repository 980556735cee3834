"""Parses the options of `orch logs` that select lines."""

from __future__ import annotations

import re
import warnings
from datetime import datetime, timedelta

from orchestrator.errors import UsageError
from orchestrator.runs.files.log_filter import Level, LineFilter
from orchestrator.specs.units import seconds


def line_filter(since: str | None, grep: str | None, level: str | None, now: float) -> LineFilter | None:
    """Return the filter that the options describe, or None without options.

    Raises UsageError if an option can't be parsed.
    """
    if since is None and grep is None and level is None:
        return None
    return LineFilter(
        compiled(grep) if grep is not None else None,
        Level[level.upper()] if level is not None else None,
        moment_of(since, now) if since is not None else None,
    )


def compiled(text: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises UsageError with the position of a mistake."""
    try:
        # Python warns about expressions that later versions will read differently.
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            return re.compile(text)
    except re.error as error:
        where = f" at character {error.pos + 1}" if error.pos is not None else ""
        hint = "--grep takes a Python regular expression; \\[ \\( \\* \\? \\. stand for these characters themselves"
        raise UsageError(f"--grep {text!r}: {error.msg}{where}", hint) from None
    except (RecursionError, OverflowError):
        raise UsageError("--grep: this expression is too large", "give a shorter one") from None


def moment_of(text: str, now: float) -> float:
    """Parse a time such as `10m` (ago), `2026-11-22`, `2026-11-22T14:30` or `14:30`. Raises UsageError otherwise."""
    stripped, today = text.strip(), datetime.fromtimestamp(now)
    try:
        if ":" not in stripped and not re.fullmatch(r"\d{4}-\d\d-\d\d", stripped):
            return now - seconds(stripped)
        if "-" in stripped:
            found = datetime.fromisoformat(stripped).timestamp()
        else:
            clock = datetime.strptime(stripped, "%H:%M" if stripped.count(":") == 1 else "%H:%M:%S").time()
            moment = datetime.combine(today.date(), clock)
            found = (moment if moment <= today else moment - timedelta(days=1)).timestamp()
    except (ValueError, OverflowError, OSError):
        hint = "write a duration such as 10m or 2h, or a time such as 14:30 or 2026-11-22T14:30"
        raise UsageError(f"--since {text!r} is neither a duration nor a time", hint) from None
    if found > now:
        raise UsageError(f"--since {text!r} is in the future", "give a time in the past")
    return found
