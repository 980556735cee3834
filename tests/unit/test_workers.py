"""A test that ends its test process is reported as failed, by its name, and all other tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PASSES = "def test_{name}():\n    pass\n\n\n"
HANGS = "@pytest.mark.timeout(1)\ndef test_that_hangs():\n    time.sleep(600)\n\n\n"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_test_that_reaches_its_limit_fails_once_and_the_run_goes_on_to_its_end(workers: int, tmp_path: Path) -> None:
    one, two, three, four = (PASSES.format(name=name) for name in ("one", "two", "three", "four"))
    (tmp_path / "test_1.py").write_text(one)
    (tmp_path / "test_2.py").write_text(f"import time\n\nimport pytest\n\n\n{two}{HANGS}{three}")
    (tmp_path / "test_3.py").write_text(four)
    plugins = [word for name in ("xdist", "pytest_timeout", "tests.workers") for word in ("-p", name)]
    process = f"popen//python={ROOT}/tests/testbed/alone {sys.executable}"
    distributed = ["--tx", f"{workers}*{process}", "--dist", "loadfile", "--no-loadscope-reorder"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "--timeout-method", "thread", *plugins, *distributed],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    said = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("PASSED ", "FAILED "))]
    passed = ["test_1.py::test_one", "test_2.py::test_two", "test_2.py::test_three", "test_3.py::test_four"]
    assert sorted(said) == ["FAILED test_2.py::test_that_hangs", *sorted(f"PASSED {name}" for name in passed)]
