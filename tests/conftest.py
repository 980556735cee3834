"""What every test gets: a state folder of its own, and an environment without a launcher's or a user's variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from orchestrator.wire import RANK_VARIABLES

# The same examples in every run, so that a failure belongs to the change that it shows up in. New ones are searched for
# by the soak: SOAK=1 draws at random.
settings.register_profile("sample", derandomize=True, deadline=None)
settings.register_profile("soak", deadline=None, print_blob=True)
settings.load_profile("soak" if os.environ.get("SOAK") else "sample")

CLUSTER = Path(__file__).parent / "cluster"
FOREIGN = ("ORCH_", "TORCHELASTIC_", "PET_", "SLURM_", "NCCL_", "GLOO_")


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in RANK_VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("ORCH_HOME", str(tmp_path_factory.mktemp("home")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together, where several processes share the tests: those on the one testbed, and those of a file."""
    for item in items:
        group = "testbed" if item.path.is_relative_to(CLUSTER) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
