"""A rank between its launcher's fork and its own signal handlers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

# Forks a rank that is told to end before it is anything but a copy of its launcher; says how it ended.
PROGRAM = """
import os, signal, sys
from orchestrator.node.launcher import launcher
from orchestrator.node.launcher.rank.forked import RankStart
from orchestrator.protocol.task import NodeTask, Program

become_rank = launcher.become_rank

def told_to_end_first(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    become_rank(*given)

launcher.become_rank = told_to_end_first
orders, reports = os.pipe()
task = NodeTask("r-1", 0, 1, ("n1",), 1, sys.argv[1], sys.argv[1], Program("script", "main.py"), "fork", "gloo",
                "python3", ("127.0.0.1",), (20000, 20100), log_limit=0)
ours = launcher.Launcher(task, orders, reports, folder=sys.argv[1])
ours._listen_for_signals()
start = RankStart(0, "script", "main.py", (), {}, sys.argv[1], f"{sys.argv[1]}/error_0.json", "")
if ours._fork(start, os.getpid()) is not None:
    os._exit(95)  # the rank, to which nothing was said
print(os.waitstatus_to_exitcode(os.waitpid(ours.ranks[0].pid, 0)[1]), sorted(signal.pthread_sigmask(0, [])))
"""


def test_a_term_that_comes_before_a_rank_has_handlers_is_not_lost_to_the_launcher_s(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE, check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout == f"{-signal.SIGTERM} []\n"
