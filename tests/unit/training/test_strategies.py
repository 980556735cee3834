"""Each training strategy has its file, its class and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.protocol.training_options import STRATEGIES
from orchestrator.specs.program import MANY_GPUS, ONE_PROCESS, WHOLE_BATCH
from orchestrator.training.strategies import Strategy, find

PAGES = Path(__file__).parents[3] / "docs" / "training"


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_found_by_its_name_and_has_a_page(name: str) -> None:
    strategy = find(name)
    assert strategy.__module__ == f"orchestrator.training.strategies.{name.replace('-', '_')}"
    assert (PAGES / f"{name}.md").is_file()
    assert strategy.one_process == (name in ONE_PROCESS)
    assert (strategy.devices is not Strategy.devices) == (name in MANY_GPUS)
    assert (strategy.one_process or not strategy.shares_data) == (name in WHOLE_BATCH)
