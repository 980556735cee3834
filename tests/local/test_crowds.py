"""Several commands at once for the same runs: each ends in a sentence that is true, and nothing is left half."""

from __future__ import annotations

import os
import random
import subprocess

import pytest

from orchestrator.node.system.processes import marked
from tests.patience import PATIENCE

from .conftest import Orch

SEEDS = 20 if os.environ.get("SOAK") else 1
AT_ONCE = 6
TRUE = (
    "cancelled", "already finished (cancelled)", "removed", "is running", "is stopping", "is finishing", "is starting",
    "is pending",
    "no run is called", "has been removed meanwhile", "cancel it first", "orch status -a lists all runs",
    "has lost its record",  # `orch rm` has removed the record, and not yet the folder
)  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(SEEDS))
def test_crowds_of_cancel_rm_and_gc_leave_nothing_half(orch: Orch, project, number: int) -> None:
    seed = f"{os.environ['SOAK_SEED']}-{number}"
    rng = random.Random(seed)
    job = str(project(s_yaml="command: [sleep, '600']\n") / "s.yaml")
    runs = [orch.submit(job, "-p", "local").run_id for _ in range(2)]
    words = [["cancel"], ["cancel", "--now"], ["rm"], ["rm"], ["status"], ["why"], ["wait", "--timeout", "9"], ["logs"]]
    commands = [[word[0], run, *word[1:]] for run in runs for word in words] + [["gc"], ["status"], ["gc"]]
    rng.shuffle(commands)
    for command, (code, said) in zip(commands, _at_once(orch, commands), strict=True):
        has_no_log = command[0] == "logs" and code == 1 and "has no log" in said
        assert code in (0, 2, 101, 102, 103) or has_no_log, (seed, command, said)
        assert "submitting" not in said, (seed, command, said)
        assert command[0] not in ("cancel", "rm") or any(each in said for each in TRUE), (seed, command, said)
    for run in runs:
        orch("cancel", run, "--now")
        assert orch("rm", run).code in (0, 102)
        assert marked(run) == [], seed
    assert sorted(os.listdir(orch.home / "runs")) == [], seed
    assert os.listdir(orch.home / "live") == [], seed


def _at_once(orch: Orch, commands: list[list[str]]) -> list[tuple[int, str]]:
    """Run the commands, so many at a time; return (exit code, what it said) of each."""
    started: list[subprocess.Popen[str]] = []
    for index, command in enumerate(commands):
        if index >= AT_ONCE:
            started[index - AT_ONCE].wait(PATIENCE)
        process = subprocess.Popen(
            orch.argv(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=orch.cwd,
            env=orch.environment(),
        )  # fmt: skip
        started.append(process)
    said = [process.communicate(timeout=PATIENCE)[0] for process in started]
    assert not [text for text in said if "Traceback" in text]
    return [(process.returncode, text) for process, text in zip(started, said, strict=True)]
