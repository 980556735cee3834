"""Durations, sizes and host ranges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.units import MAX_HOSTS, expand_hosts, seconds, size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (90, 90),
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("15min", 900),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("12:00:00", 43_200),
        ("1-12:00:00", 129_600),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        (" 5s ", 5),
    ],
)
def test_durations(text: str | int, expected: int) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1x", "-5", "1.5h", "h", "12:3", "²", "٣", "9" * 5000, "1h1h", "1:00:00:00"])
def test_broken_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(text)


def test_half_a_clock_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="write 12h30m or 12m30s"):
        seconds("12:30")


@pytest.mark.parametrize(
    ("text", "expected"),
    [(7, 7), ("512", 512), ("64MB", 64 << 20), ("1.5G", 3 << 29), ("8GiB", 8 << 30), ("1 k", 1024), ("2T", 2 << 40)],
)
def test_sizes(text: str | int, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "G", "-1G", "1X", "1e3", "9" * 400, "1.G", "٣G"])
def test_broken_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        size(text)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,5]", ["n08", "n09", "n10", "n5"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("n[3].lan", ["n3.lan"]),
    ],
)
def test_host_ranges(pattern: str, expected: list[str]) -> None:
    assert expand_hosts(pattern) == expected


@pytest.mark.parametrize(
    "pattern", ["n[", "n]", "n[1-", "n[]", "n[a]", "n[3-1]", "n[[1]]", "n[1-2", "n[1--2]", "n[²]", "n[-1]"]
)
def test_broken_ranges_never_become_one_host(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"bracket|can't be read|backwards"):
        expand_hosts(pattern)


@pytest.mark.parametrize(
    "pattern",
    [f"n[1-{MAX_HOSTS + 1}]", "n" + "[1-999]" * 3, "n" + "[1-99999]" * 9000, "n[" + "1-99999," * 9000 + "1]"],
)
def test_too_many_hosts_are_refused_before_they_are_made(pattern: str) -> None:
    with pytest.raises(ValueError, match="more than 100000 hosts"):
        expand_hosts(pattern)


def compressed(numbers: list[int], width: int) -> str:
    """A range that stands for the numbers, in their order."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = (f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in parts)
    return f"n[{','.join(shown)}]"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 120), min_size=1, max_size=40), st.integers(1, 5))
def test_expanding_what_was_compressed(numbers: list[int], width: int) -> None:
    # Zero padding follows the first number of a range, so the width must hold for all.
    width = max(width, 3)
    assert expand_hosts(compressed(numbers, width)) == [f"n{number:0{width}d}" for number in numbers]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="n[]0123-,. ", max_size=20))
def test_any_pattern_expands_or_is_refused(pattern: str) -> None:
    try:
        hosts = expand_hosts(pattern)
    except ValueError:
        return
    assert hosts
    assert not any("[" in host or "]" in host for host in hosts)
