"""What every test gets: a state folder of its own, and an environment without a launcher's or a user's variables."""

from __future__ import annotations

import os

import pytest

from orchestrator.wire import RANK_VARIABLES

FOREIGN = ("ORCH_", "TORCHELASTIC_", "PET_", "SLURM_", "NCCL_", "GLOO_")


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in RANK_VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("ORCH_HOME", str(tmp_path_factory.mktemp("home")))
