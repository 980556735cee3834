"""Finds the logs that a command or the API wants to read, and parses the options that select their lines."""

from __future__ import annotations

import re
import warnings
from datetime import datetime, timedelta

from orchestrator.errors import OrchError, UsageError
from orchestrator.looking.run import bringing_logs
from orchestrator.looking.state import state_of
from orchestrator.runs.files.log_filter import Level, LineFilter
from orchestrator.runs.files.logs import Selection, launchers_instead, log_files
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir
from orchestrator.specs.units import seconds

_ENDS = {"succeeded": "succeeded", "failed": "failed", "cancelled": "was cancelled"}


def logs_there(run: RunDir, selection: Selection) -> Selection:
    """Copy the selected logs to this machine, and return a selection of logs that exist.

    Before any rank has started, select the logs of setup lines and launchers instead. Raises OrchError if there are no
    logs.
    """
    check(run, selection)
    with bringing_logs(run, selection):
        pass
    if log_files(run, selection):
        return selection
    if (instead := launchers_instead(run, selection)) is not None:
        return instead
    raise _no_log(state_of(run), selection)


def check(run: RunDir, selection: Selection) -> None:
    """Raise OrchError if the run does not have the selected rank or node."""
    rank, node = selection.rank, selection.node
    if rank is None and node is None:
        return
    state = state_of(run)
    if rank is not None and state.world_size is not None and rank >= state.world_size:
        raise OrchError(f"no rank {rank}: the run has {_span('rank', state.world_size)}")
    if node is not None and node >= len(state.nodes):
        raise OrchError(f"no node {node}: the run has {_span('node', len(state.nodes))}")


def _no_log(state: RunState, selection: Selection) -> OrchError:
    """Return the error which says that the selected rank or node, or the whole run, has no log."""
    rank, node = selection.rank, selection.node
    which = f"rank {rank} has" if rank is not None else f"node {node} has" if node is not None else "the run has"
    if state.is_final:
        return OrchError(f"{which} no log on this machine; the run {_ENDS[state.state]}",
                         f"see: orch why {state.run_id}")  # fmt: skip
    return OrchError(f"{which} no log yet: the run is {state.state}", f"see: orch status {state.run_id}")


def _span(what: str, count: int) -> str:
    return f"{what}s 0-{count - 1}" if count > 1 else f"{what} 0 alone"


def line_filter(since: str | None, grep: str | None, level: str | None, now: float) -> LineFilter | None:
    """Return a filter for the lines that these options select, or None if no option is given. Raises UsageError if
    an option can't be parsed.
    """
    if since is None and grep is None and level is None:
        return None
    return LineFilter(
        compiled(grep) if grep is not None else None,
        Level[level.upper()] if level is not None else None,
        moment_of(since, now) if since is not None else None,
    )


def compiled(text: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises UsageError, with the position of the mistake, if it is not valid."""
    try:
        # Python warns about expressions that later versions will read differently.
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            return re.compile(text)
    except re.error as error:
        where = f" at character {error.pos + 1}" if error.pos is not None else ""
        hint = "--grep takes a Python regular expression; \\[ \\( \\* \\? \\. stand for these characters themselves"
        raise UsageError(f"--grep {text!r}: {error.msg}{where}", hint) from None
    except (RecursionError, OverflowError):
        raise UsageError("--grep: this expression is too large", "give a shorter expression") from None


def moment_of(text: str, now: float) -> float:
    """Parse a time such as `10m` (ten minutes ago), `2026-11-22`, `2026-11-22T14:30` or `14:30`. Raises UsageError
    for any other text.
    """
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
