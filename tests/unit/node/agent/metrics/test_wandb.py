"""wandb's offline files, as they grow, and as damaged ones."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.agent.metrics.following import UnreadableError

from .written import File, history, message, wandb_file

NAME = "run-abc.wandb"


def test_the_history_is_read(tmp_path: Path) -> None:
    file = File(tmp_path, NAME)
    records = [message(7, b"what is no history"), history(0, loss="0.5", _timestamp="1.7e9", name='"text"')]
    file.append(wandb_file([*records, b"", history(300, loss="NaN", acc="1")]))
    found = file.points()
    assert [(point.step, dict(point.values), point.time) for point in found] == [
        (0, {"loss": 0.5}, 1.7e9), (300, {"acc": 1.0}, None),
    ]  # fmt: skip


@given(cuts=st.lists(st.integers(0, 120_000), max_size=5), filler=st.integers(0, 40_000))
def test_every_step_is_read_once_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], filler: int
) -> None:
    records = [each for step in range(4) for each in (history(step, loss="1"), message(9, bytes(filler)))]
    whole, found, at = wandb_file(records), list[float](), 0
    file = File(tmp_path_factory.mktemp("growing"), NAME)
    for end in [*sorted(cuts), len(whole)]:
        file.append(whole[at:end])
        found += [step for step, _ in file.values()]
        at = max(at, min(end, len(whole)))
    assert found == [0, 1, 2, 3]


@given(place=st.integers(0, 10_000), data=st.binary(min_size=1, max_size=20))
def test_damage_is_noticed_and_what_stands_before_it_counts(
    tmp_path_factory: pytest.TempPathFactory, place: int, data: bytes
) -> None:
    whole = wandb_file([history(step, loss="1") for step in range(50)])
    place = min(place, len(whole))
    file, found = File(tmp_path_factory.mktemp("damaged"), NAME), list[float]()
    file.append(whole[:place] + data + whole[place + len(data) :])
    with contextlib.suppress(UnreadableError):
        for point in file.reader.read(lambda: False):
            found.append(point.step)
    assert found == list(range(len(found)))
