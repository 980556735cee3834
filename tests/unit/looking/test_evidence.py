"""The facts from which a run's state follows, as its files show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.looking.evidence import gather
from tests.unit.views.runs_made import begin, make


@pytest.mark.parametrize(
    ("marker", "is_done"), [(None, False), ('{"attempt": 0}', False), ('{"attempt": 1}', True), ("{", True)]
)
def test_rank_0_is_done_if_its_marker_is_of_the_newest_attempt_or_damaged(
    tmp_path: Path, marker: str | None, is_done: bool
) -> None:
    run = make(tmp_path, "r-234567")
    begin(run)
    begin(run, attempt=1)
    if marker is not None:
        (run.path / "rank0.done").write_text(marker)
    assert gather(run, run.record()).rank0_done is is_done
