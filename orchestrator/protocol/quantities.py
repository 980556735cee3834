"""Formats sizes, durations, rates and numbers as text.

web/static/format.js formats them in the same way for the web page. Both files do their own rounding, because Python's
`round` and JavaScript's `toFixed` differ for ties. One table of cases tests both files
(tests/unit/protocol/quantities.json).
"""

from __future__ import annotations

import math
from typing import Any

NOTHING = "-"
DIGITS = 5  # significant digits of a number
MOST_PLAIN = 1e15  # larger numbers have an exponent
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: float | None) -> str:
    """Return a number of bytes as `812 B`, `1.4 MiB` or `2.0 GiB`."""
    if count is None or not math.isfinite(count):
        return NOTHING
    at = 0
    while at < len(_SIZES) - 1 and _rounded(count, 1 if at else 0) >= 1024:
        count /= 1024
        at += 1
    return f"{_fixed(count, 1 if at else 0)} {_SIZES[at]}"


def duration(seconds: float | None) -> str:
    """Return a duration as `4.2 ms`, `830 ms`, `8.3 s`, `2 min 05 s`, `3 h 12 min` or `4 d 2 h`.

    A negative duration counts as 0, because the clocks of two machines may differ.
    """
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    seconds = max(0.0, seconds)
    if _rounded(seconds, 3) < 1:
        milliseconds = 1000 * seconds
        return f"{_fixed(milliseconds, 1 if 0 < _rounded(milliseconds, 1) < 10 else 0)} ms" if seconds else "0 s"
    if _rounded(seconds, 1) < 60:
        return f"{_fixed(seconds, 1)} s"
    minutes, rest = divmod(max(60, math.floor(seconds)), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def rate(per_second: float | None, of: str) -> str:
    """Format a rate such as `1,234 samples/s` or `12.3 steps/s`. If the unit is `B`, the rate has the form `1.4
    MiB/s`.
    """
    if per_second is None or not math.isfinite(per_second):
        return NOTHING
    return f"{size(per_second)}/s" if of == "B" else f"{number(per_second, 3)} {of}/s"


def number(value: Any, digits: int = DIGITS) -> str:
    """Format a number as `20,000`, `0.33333`, `12,346` or `8.59e-4`.

    The result is a whole number or has `digits` significant digits. None becomes `-`, and values that are not numbers
    become text unchanged.
    """
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if not math.isfinite(value):
        return str(float(value))
    sign, value = "-" if value < 0 else "", abs(value)
    if value >= MOST_PLAIN or 0 < value < 1e-3:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{sign}{_without_zeros(mantissa)}e{int(exponent)}"
    whole = math.floor(value + 0.5)
    if value == whole or value >= 10 ** (digits - 1):
        return f"{sign}{whole:,}"
    places = digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2])
    return sign + _without_zeros(f"{_rounded(value, places):,.{places}f}")


def _rounded(value: float, places: int) -> float:
    scale = 10.0**places
    return math.floor(value * scale + 0.5) / scale


def _fixed(value: float, places: int) -> str:
    return f"{_rounded(value, places):.{places}f}"


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
