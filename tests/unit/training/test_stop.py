"""A stop signal that comes while a process exits."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from orchestrator.training.distributed import stop

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number={number}):
        kill(pid, number)

stop.install()
late = Late()  # Python deletes it after it has restored the default actions of signals
sys.exit(95)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_second_signal_does_not_replace_the_exit_code(number: signal.Signals) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(number=int(number))], check=False)
    assert done.returncode == 95
