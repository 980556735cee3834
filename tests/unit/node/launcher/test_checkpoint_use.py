"""Whether a rank has read the checkpoint that it was offered. Each program runs in an interpreter of its own, because
an audit hook can't be removed.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

BEGIN = """
import mmap, os, sys, time, types, zipfile
from orchestrator.node.launcher.rank.checkpoint_use import note_use
note_use(sys.argv[1], "marker")
def other():
    return len(open("other", "rb").read())
def wait():
    end = time.monotonic() + 300
    while not os.path.exists("marker") and time.monotonic() < end:
        time.sleep(0.01)
    print("seen while it runs")
"""


def is_read(folder: Path, checkpoint: str, program: str) -> str:
    """Return when the marker was made: "while it runs", "at the end", or "" if it was not made."""
    for name in ("ck/step-20.pt", "ck/last/optimizer.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / name, "w") as file:
            file.writestr("weights", bytes(200_000))
    (folder / "ck/last/state.json").write_text("{}")
    (folder / "ck/step-10.pt").write_bytes(bytes(200_000))
    (folder / "other").write_bytes(bytes(5_000_000))
    argv = [sys.executable, "-c", BEGIN + program, str(folder / checkpoint)]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if not (folder / "marker").exists():
        return ""
    return "while it runs" if "seen" in done.stdout else "at the end"


@pytest.mark.parametrize(
    "program",
    [
        "open(sys.argv[1], 'rb').read()",
        "zipfile.ZipFile('ck/step-20.pt').read('weights')",
        "file = os.open('ck/../ck/step-20.pt', os.O_RDONLY); os.read(file, 1 << 20)",
        "with open(sys.argv[1], 'rb') as file: held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)",
        "file = open(sys.argv[1], 'rb'); other; file.read(9); import decimal, fractions; file.read()",
    ],
)
def test_a_file_that_was_read_to_its_end_or_mapped_counts(tmp_path: Path, program: str) -> None:
    assert is_read(tmp_path, "ck/step-20.pt", f"{program}\nwait()") == "while it runs"


def test_a_program_that_ends_at_once_is_seen_too(tmp_path: Path) -> None:
    program = "import threading\nthreading.stack_size(1 << 20)\nopen(sys.argv[1], 'rb').read()\n"
    assert is_read(tmp_path, "ck/step-20.pt", program) in ("at the end", "while it runs")


@pytest.mark.parametrize(
    "program",
    [
        "",
        "other()",
        "zipfile.ZipFile(sys.argv[1]).namelist(); other()",
        "open(sys.argv[1], 'rb').read(1000); other()",
        "os.stat(sys.argv[1]); os.listdir('ck'); open('ck/step-10.pt', 'rb').read(); other()",
        "open(sys.argv[1], 'wb').write(bytes(300_000)); other()",
        "try: open(sys.argv[1] + '/x', 'rb')\nexcept OSError: other()",
    ],
)
def test_a_file_that_was_listed_or_written_does_not_count(tmp_path: Path, program: str) -> None:
    assert is_read(tmp_path, "ck/step-20.pt", program) == ""


def test_a_weight_file_of_a_folder_counts_and_its_description_does_not(tmp_path: Path) -> None:
    assert is_read(tmp_path, "ck/last", "open('ck/last/state.json', 'rb').read(); other()") == ""
    assert is_read(tmp_path, "ck/last", "open('ck/last/optimizer.pt', 'rb').read(); wait()") == "while it runs"


def test_what_safetensors_loads_counts(tmp_path: Path) -> None:
    """It opens files in Rust, so its function is watched. This one only stands for it."""
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "torch.py").write_text("def load_file(filename, device='cpu'):\n    return [filename, device]\n")
    program = "import safetensors.torch\nassert safetensors.torch.load_file({!r}, device='x') == [{!r}, 'x']\n"
    assert is_read(tmp_path, "ck/last", program.format("ck/step-10.pt", "ck/step-10.pt")) == ""
    inside = "ck/last/optimizer.pt"
    assert is_read(tmp_path, "ck/last", program.format(inside, inside)) == "at the end"
