"""Which signals a real process and its child processes have handlers for."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from orchestrator.node.system.signals import is_handled

CHILD = """
import contextlib, signal, sys
for number in {caught}:
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, lambda *_: None)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("caught", "expected"),
    [
        ([signal.SIGUSR1, signal.SIGTERM], True),
        ([signal.SIGUSR2], False),
        (range(1, 65), False),
    ],  # the last: as Go does
)
def test_a_child_process_that_catches_all_signals_handles_none(caught: list[int], expected: bool) -> None:
    code = CHILD.format(caught=[int(each) for each in caught])
    argv = ["sh", "-c", '"$0" -c "$1"; :', sys.executable, code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        found = is_handled(shell.pid, signal.SIGUSR1)
        shell.communicate()
    assert found is expected
    assert is_handled(shell.pid, signal.SIGUSR1)  # it has ended
