"""Parses durations and sizes as people write them."""

from __future__ import annotations

import re

# The lengths are bounded so that no number overflows.
_SECONDS = re.compile(r"[0-9]{1,12}")
_DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m(?:in)?)?(?:(\d{1,9})s)?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(\d{1,9}):(\d\d):(\d\d)|(\d{1,9})-(\d\d?)(?::(\d\d))?", re.ASCII)
_HALF_CLOCK = re.compile(r"(\d{1,9}):(\d\d)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)\s*%?", re.ASCII)
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?)(i?)B?", re.IGNORECASE | re.ASCII)


def seconds(text: str | int) -> int:
    """Return the number of seconds in a duration such as `90`, `15m`, `1h30m`, `2d`, `12:00:00` or Slurm's
    `1-12:00:00`.

    Raises ValueError for any other text.
    """
    if isinstance(text, int):
        return text
    stripped = text.strip()
    if _SECONDS.fullmatch(stripped):
        return int(stripped)
    if clock := _CLOCK.fullmatch(stripped):
        days, hours, minutes, secs, days2, hours2, minutes2 = (int(part or 0) for part in clock.groups())
        return (((days + days2) * 24 + hours + hours2) * 60 + minutes + minutes2) * 60 + secs
    if half := _HALF_CLOCK.fullmatch(stripped):
        # Slurm reads minutes:seconds and most people mean hours:minutes, so this form is refused.
        raise ValueError(f"'{text}' can be read in two ways; write {half[1]}h{half[2]}m or {half[1]}m{half[2]}s")
    match = _DURATION.fullmatch(stripped)
    if not match or not any(match.groups()):
        raise ValueError(f"'{text}' is not a duration; write it like 90s, 15m, 1h30m, 2d or 12:00:00")
    days, hours, minutes, secs = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + secs


def percent(text: str) -> float:
    """Return the number in a percentage such as `5%`, `5 %` or `0.5%`. Raises ValueError for any other text."""
    match = _PERCENT.fullmatch(text.strip())
    if not match:
        raise ValueError(f"'{text}' is not a percentage; write it like 5%")
    return float(match[1])


def size(text: str | int) -> int:
    """Return the number of bytes in a size such as `512`, `64MB`, `1.5G` or `8GiB`. Units are powers of 1024, as in
    Slurm and docker.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"'{text}' is not a size; write it like 512MB, 16G or 1.5GiB")
    power = " KMGT".index(match[2].upper() or " ")
    return int(float(match[1]) * 1024**power)
