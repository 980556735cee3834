"""The examples of other people's frameworks without orch: the callbacks change nothing and leave nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.local.conftest import REPO

PYTHON = REPO / ".venv-frameworks/bin/python"  # by `make test`
# As the interpreter would run it; then what TERM does.
PROGRAM = """
import runpy, signal, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("on TERM:", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


@pytest.mark.parametrize(
    ("example", "option", "left"),
    [
        ("hf_trainer", "--steps=25", {"checkpoint-25", "final"}),
        ("lightning_trainer", "--epochs=1", {"epoch=0-step=25.ckpt", "epoch=0-step=50.ckpt", "final.pt"}),
    ],
)
def test_without_orch_the_callbacks_do_nothing(tmp_path: Path, example: str, option: str, left: set[str]) -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ORCH_")}
    done = subprocess.run(
        [PYTHON, "-c", PROGRAM, str(REPO / f"jobs/{example}.py"), option],
        env={**ours, "PYTHONPATH": str(REPO)}, cwd=tmp_path,
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "on TERM: True" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
    assert {path.name for path in (tmp_path / "outputs").iterdir()} == left
