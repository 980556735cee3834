"""What a script writes on other machines comes home, byte for byte, before their folders are removed."""

from __future__ import annotations

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import Lab

# An ordinary script: it knows nothing of orch, but for one file in $ORCH_OUTPUT_DIR.
SCRIPT = """
import os, sys
def write(path, data):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
write("model.pt", bytes(range(256)) * 9000)
write("outputs/checkpoint-500/weights.bin", b"w" * 1000)
write("lightning_logs/version_0/hparams.yaml", b"lr: 1")
write(os.environ["ORCH_OUTPUT_DIR"] + "/x", b"")
write("gone.tmp", b"1")
os.unlink("gone.tmp")
write(b"odd-\\xff\\n name".decode("utf-8", "surrogateescape"), b"odd")
write("__pycache__/x.pyc", b"no")
write("data/mnist", b"no")
write("env/pyvenv.cfg", b"no")
write("run.sh", b"#!/bin/sh")
os.chmod("run.sh", 0o755)
os.symlink("/etc/passwd", "out")
os.symlink("model.pt", "last.pt")
with open("main.py", "a") as file:
    file.write("# changed by itself")
"""
NAMES = {
    "model.pt", "outputs/checkpoint-500/weights.bin", "lightning_logs/version_0/hparams.yaml", "x", "run.sh", "main.py",
    b"odd-\xff\n name".decode("utf-8", "surrogateescape"),
}  # fmt: skip


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def outputs(lab: Lab, run: str) -> dict[str, bytes]:
    """The files in the run's folder of outputs on the laptop."""
    folder = lab.home / ".local/state/orch/runs" / run / "outputs"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_an_ordinary_script_writes_comes_home_byte_for_byte(lab: Lab) -> None:
    run = lab.submit(lab.job("plain", SCRIPT), "--profile", lab.profile(hosts=["n1"]))
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    found = outputs(lab, run)
    assert set(found) == NAMES
    assert found["model.pt"] == bytes(range(256)) * 9000
    assert found["main.py"] == SCRIPT.encode() + b"# changed by itself"
    lab.assert_nothing_left(run)
