"""A missing module is read from Python's words by one rule everywhere."""

from __future__ import annotations

import pytest

from orchestrator.node.agent.missing_module import missing_module_of
from orchestrator.node.launcher.rank.missing_module import missing_module
from orchestrator.protocol.rank_reports import RankEnd, RankError, missing_module_in


@pytest.mark.parametrize(
    ("words", "module"),
    [
        ("No module named 'timm.models'", "timm"),
        ("ModuleNotFoundError: No module named 'données'", "données"),
        ("/usr/bin/python3: No module named lightning.pytorch", "lightning"),
        ("No module named 'train.data'; 'train' is not a package", ""),
        ("python: No module named pkg.__main__; 'pkg' is a package and cannot be directly executed", ""),
        ("ValueError: no", ""),
    ],
)
def test_the_top_level_module_is_read_and_a_module_that_is_there_is_not_missing(words: str, module: str) -> None:
    assert missing_module_in(words) == module
    assert missing_module_of(RankEnd(0, 1, error=RankError("ModuleNotFoundError", words))) == module
    found = missing_module(words, {})
    assert (found.module if found is not None else "") == module
