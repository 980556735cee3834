"""Which warnings a rank's program may trap: a shell can't trap a signal that was ignored when it started."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from orchestrator.node.launcher.rank.forked import trapped

USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (("bash", "-c", "trap 'save' USR1; python t.py"), [USR1]),
        (("/bin/sh", "-ec", "trap save SIGUSR1 12"), [USR1, USR2]),
        (("bash", "-c", "python t.py --signal USR1"), []),
        (("bash", "train.sh"), [USR2]),
        (("./train.sh", "a"), [USR2]),
        (("python3", "train.sh"), []),
        (("./program",), []),
        (("bash",), []),
        (("bash", "missing.sh"), []),
        (("bash", "-c", "bootstrap x USR2; python t.py --trap 12"), []),
        (("bash", "-c", "# trap save USR2\nls # trap save USR2\ntrap save EXIT; kill -USR2 5"), []),
        (("bash", "-c", "sleep 12 && trap 'kill -12 $p; exit 10' TERM"), []),
        (("bash", "-c", "set -e && trap 'kill $p\nwait' TERM SIGUSR2; trap 'x' \\\n 'USR1'"), [USR1, USR2]),
        (("bash", "-c", 'trap "echo \\"it\\"; save" EXIT usr2'), [USR2]),
        (("bash", "-c", "trap - USR2"), [USR2]),
        (("bash", "plain.sh", "train.py"), [USR1]),
        (("bash", "-euo", "pipefail", "plain.sh"), [USR1]),
        (("bash", "-ec", 'python "$0"', "train.py"), []),
        (("bash", "-c", "./train.sh"), [USR2]),
        (("bash", "other.sh", "train.py"), []),
    ],
)
def test_only_a_shell_gets_a_signal_that_it_traps(
    argv: tuple[str, ...], found: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text("#!/bin/bash\nsave() { echo; }\ntrap save USR2\npython t.py\n")
    (tmp_path / "plain.sh").write_text("  trap save USR1\n")
    (tmp_path / "other.sh").write_text("python $1\n")
    (tmp_path / "train.py").write_text('# The wrapper has\n"""\ntrap save USR2\n"""\n')
    (tmp_path / "program").write_bytes(b"\x7fELF trap USR1 \xff")
    assert trapped(argv) == found
