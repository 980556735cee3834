"""Nothing that orch writes of a run can be read by another user of the machine, whatever umask the user has."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from tests.local.conftest import Orch

PROGRAM = """
import os, pathlib, sys, time
pathlib.Path("written").touch()
pathlib.Path(os.environ["ORCH_RUN_DIR"], "started").touch()
print("here", flush=True)
while not pathlib.Path(os.environ["ORCH_RUN_DIR"], "go").exists():
    time.sleep(0.05)
"""
BY_RANKS = ("written", "started")


def bits(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_live_run_is_its_users_alone(orch: Orch, project, tmp_path: Path) -> None:
    told = tmp_path / "told"
    folder = project(
        job_yaml=f"script: wait.py\nnotify: [{{on: [succeeded], command: [touch, {told}]}}]\n", wait_py=PROGRAM
    )
    (folder / "run.sh").write_text("true\n")
    (folder / "run.sh").chmod(0o755)
    argv = orch.argv("submit", str(folder / "job.yaml"), "-p", "local", "--nproc-per-node", "2", "--json")
    subprocess.run(argv, env=orch.environment(), check=True, capture_output=True, umask=0o002)
    run = orch.run()
    while not (run.path / "started").exists() or not list(run.path.glob("nodes/0/attempt_*/rank_1.log")):
        assert orch("status", "last", "--json").json["state"] not in ("failed", "cancelled")
    paths = [orch.home, *orch.home.rglob("*")]
    ours = [path for path in paths if path.name not in BY_RANKS and not path.is_symlink()]
    assert {path.name: oct(bits(path)) for path in ours if bits(path) & 0o077} == {}
    assert {oct(bits(run.path / name)) for name in ("started", "code/written")} == {"0o664"}
    assert os.access(run.path / "code" / "run.sh", os.X_OK)
    (run.path / "go").touch()
    assert orch("wait", "last").code == 0
    while not told.exists():
        assert orch("status", "last").code == 0
    assert oct(bits(told)) == "0o664"
