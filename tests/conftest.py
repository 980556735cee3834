"""What every test gets: a state folder of its own, and an environment without a launcher's or a user's variables."""

from __future__ import annotations

import os
import signal
import time

import pytest
from hypothesis import settings

from orchestrator.protocol.ranks import RANK_VARIABLES
from tests import report, workers

# The same examples in every run, so that a failure belongs to the change that it shows up in. New ones are searched for
# by the soak: SOAK=1 draws at random.
FULL = os.environ.get("SOAK") == "1"
settings.register_profile("sample", derandomize=True, deadline=None)
settings.register_profile("soak", deadline=None, print_blob=True)
settings.load_profile("soak" if FULL else "sample")

# One seed for all processes of a test run, printed at its end and by each soak test that fails. It is the same in every
# run that decides whether a change is merged, so that a failure belongs to the change. The soak draws a new seed.
os.environ["SOAK_SEED"] = os.environ.get("SOAK_SEED") or (str(time.time_ns() % 1_000_000) if FULL else "1")

# What a shell without job control starts with & ignores Ctrl-C, and what nohup starts a closed window; the tests'
# programs are to be ended by both all the same.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

pytest_configure = report.register
pytest_xdist_make_scheduler = workers.pytest_xdist_make_scheduler
FOREIGN = ("ORCH_", "TORCHELASTIC_", "PET_", "SLURM_", "NCCL_", "GLOO_", "PE_", "PBS_", "OAR_", "LSB_")


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in RANK_VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("ORCH_HOME", str(tmp_path_factory.mktemp("home")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs in the soak alone."""
    left = [item for item in items if any("alone" in mark.kwargs for mark in item.iter_markers("soak"))]
    if left and not FULL:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the soak counted, and its seed; SOAK_ROWS=file keeps the rows of a full count."""
    reports = [report for group in ("passed", "failed") for report in terminalreporter.getreports(group)]
    rows = [str(row) for report in reports for key, row in report.user_properties if key == "soak"]
    if not rows:
        return
    sample = "" if FULL else " (a sample; SOAK=1 counts all)"
    terminalreporter.write_line(f"soak: SOAK_SEED={os.environ['SOAK_SEED']}{sample}")
    for row in rows:
        terminalreporter.write_line(row)
    if FULL and (path := os.environ.get("SOAK_ROWS")):
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(f"{row}\n" for row in rows)
