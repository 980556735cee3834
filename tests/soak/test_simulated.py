"""Simulated gangs: stories of any size in any weather, and every story with 4,000 nodes; see tests/simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.network import Weather
from tests.simulator.stories import STORIES, STORM, told

from .conftest import Soak

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]


def _tell_all(soak: Soak, folder: Path, told_of: list[tuple[int, int, Weather]]) -> None:
    for number, (which, nodes, weather) in enumerate(told_of):
        story, seed = STORIES[which], f"{soak.chance.random()}"
        try:
            told(story, folder / str(number), nodes, seed, weather=weather)
        except Exception as error:  # noqa: BLE001 (counted)
            soak.fail(f"{story.__name__} of {nodes} nodes in {weather}, seed {seed}: {error!r}")


def test_stories_of_any_size(tmp_path: Path, soak: Soak) -> None:
    chance = soak.chance
    count = soak.of(1000, 8)
    drawn = [
        (chance.randrange(len(STORIES)), chance.randint(3, 80), chance.choice((Weather(), STORM))) for _ in range(count)
    ]
    _tell_all(soak, tmp_path, drawn)
    soak.end("simulated gangs of 3 to 80 nodes, a story each", count)


@pytest.mark.soak(alone="minutes")
def test_stories_of_four_thousand_nodes(tmp_path: Path, soak: Soak) -> None:
    _tell_all(soak, tmp_path, [(which, 4000, Weather()) for which in range(len(STORIES))])
    soak.end("simulated gangs of 4,000 nodes, a story each", len(STORIES))
