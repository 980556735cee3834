"""Durations and sizes."""

from __future__ import annotations

import pytest

from orchestrator.specs.units import seconds, size


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
