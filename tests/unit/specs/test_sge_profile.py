"""Profiles of Grid Engine."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.profiles import valid_profile


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"nodes": 2}, "nodes is 2"), ({"slots": 2}, "slots is 2"), ({"nodes": 2, "slots": 2}, "nodes is 2")],
)
def test_several_nodes_or_slots_need_a_parallel_environment(fields: dict[str, Any], words: str) -> None:
    profile = {"name": "p", "kind": "sge", **fields}
    with pytest.raises(ValidationError, match=f"{words}, so `pe` must name a parallel environment"):
        valid_profile(profile)
    valid_profile({**profile, "pe": "mpi"})


def test_one_slot_of_one_node_needs_no_parallel_environment() -> None:
    valid_profile({"name": "p", "kind": "sge", "slots": 1})
