"""The options of `orch logs` that say which lines are wanted, read."""

from __future__ import annotations

import re
import warnings
from datetime import datetime, timedelta

from orchestrator.errors import UsageError
from orchestrator.runs.files.log_filter import Level, LineFilter
from orchestrator.specs.units import seconds


def line_filter(since: str | None, grep: str | None, level: str | None, now: float) -> LineFilter | None:
    """Return what the options ask for; None for none of them, UsageError for what can't be read."""
    if since is None and grep is None and level is None:
        return None
    return LineFilter(
        compiled(grep) if grep is not None else None,
        Level[level.upper()] if level is not None else None,
        moment_of(since, now) if since is not None else None,
    )


def compiled(text: str) -> re.Pattern[str]:
    """Return a regular expression; UsageError says where it is wrong."""
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # what it may mean to a later Python
            return re.compile(text)
    except re.error as error:
        where = f" at character {error.pos + 1}" if error.pos is not None else ""
        hint = "--grep takes a Python regular expression; \\[ \\( \\* \\? \\. stand for these characters themselves"
        raise UsageError(f"--grep {text!r}: {error.msg}{where}", hint) from None
    except (RecursionError, OverflowError):
        raise UsageError("--grep: this expression is too large", "give a shorter one") from None


def moment_of(text: str, now: float) -> float:
    """Return the moment that `10m`, `2026-11-22`, `2026-11-22T14:30` or `14:30` means; UsageError otherwise."""
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
