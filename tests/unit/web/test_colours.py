"""The page's colours, light and dark: what is read and what carries meaning stands out as WCAG 2 AA asks."""

from __future__ import annotations

import re
from itertools import pairwise, product

import pytest

from orchestrator.web.app import STATIC

STYLE = (STATIC / "style.css").read_text()
TEXT, MARK = 4.5, 3.0
WORDS = ("ink", "muted", "accent", "good", "bad", "warn")
CURVES = tuple(f"curve-{number}" for number in range(1, 9))


def schemes() -> dict[str, dict[str, str]]:
    """The custom properties of each scheme: the dark ones take the place of the light ones."""
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.S)
    )
    assert light.keys() == dark.keys()
    return {"light": light, "dark": dark}


def contrast(one: str, other: str) -> float:
    """The ratio of two colours, as WCAG 2 defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("fronts", "grounds", "least"),
    [
        (WORDS, ("surface", "shade"), TEXT),
        (("ink",), ("mark",), TEXT),  # a line that was found
        (("warn",), ("mark", "shade"), MARK),  # the stroke that marks it
        (("good", "accent"), ("shade",), MARK),  # bars of time
        (("edge", "accent"), ("surface", "shade"), MARK),  # borders of controls, the keyboard's place
        *(((word, "ink"), (f"{word}-soft",), TEXT) for word in ("accent", "good", "bad", "warn")),  # badges
        (CURVES, ("surface",), MARK),
        (("heat-1",), ("heat-6",), MARK),  # the ends of the scale of a map
    ],
)
def test_colours_stand_out(scheme: str, fronts: tuple[str, ...], grounds: tuple[str, ...], least: float) -> None:
    colours = schemes()[scheme]
    found = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in product(fronts, grounds)}
    assert {pair: round(value, 2) for pair, value in found.items() if value < least} == {}


def test_the_scale_of_maps_is_one_for_both_schemes_and_becomes_lighter_with_each_colour() -> None:
    scales = {name: [colours[f"heat-{number}"] for number in range(1, 7)] for name, colours in schemes().items()}
    assert scales["light"] == scales["dark"]
    steps = [luminance(colour) for colour in scales["light"]]
    assert steps == sorted(steps)
    assert all(contrast(one, other) > 1.4 for one, other in pairwise(scales["light"]))


def test_the_ratio_is_that_of_the_standard() -> None:
    assert round(contrast("#000000", "#ffffff"), 2) == 21
    assert round(contrast("#777777", "#ffffff"), 2) == 4.48


def test_no_colour_stands_outside_the_style_sheets_properties() -> None:
    rules = re.sub(r":root \{.*?\}", "", STYLE, flags=re.S)
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?![^{}]*\{)", rules) == []
    for script in STATIC.glob("*.js"):
        if not script.name.startswith("uPlot"):
            assert re.findall(r"[\"'`]#[0-9a-fA-F]{3,8}\b|hsl\(|rgb\(", script.read_text()) == [], script.name
