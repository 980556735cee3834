"""Nothing that orch writes of a run can be read by another user of the machine, whatever umask the user has."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterable
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


def open_to_others(paths: Iterable[Path]) -> dict[str, str]:
    """Those that others may read, with their bits; a supervisor may be replacing some meanwhile."""
    found = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if bits(path) & 0o077:
                found[path.name] = oct(bits(path))
    return found


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
    assert open_to_others(ours) == {}
    assert {oct(bits(run.path / name)) for name in ("started", "code/written")} == {"0o664"}
    assert os.access(run.path / "code" / "run.sh", os.X_OK)
    (run.path / "go").touch()
    assert orch("wait", "last").code == 0
    while not told.exists():
        assert orch("status", "last").code == 0
    assert oct(bits(told)) == "0o664"


def test_what_init_writes_has_the_users_umask_and_nobody_else_can_write_it(orch: Orch, tmp_path: Path) -> None:
    argv = orch.argv("init", "mine", "--force", "torchrun", "--nproc_per_node", "2", "train.py")
    (tmp_path / "train.py").touch()
    found = []
    for umask in (0o002, 0o027):
        subprocess.run(argv, env=orch.environment(), cwd=tmp_path, check=True, capture_output=True, umask=umask)
        found.append(oct(bits(tmp_path / "mine.yaml")))
    assert found == ["0o644", "0o640"]


APPTAINER = """#!/bin/sh
[ "$1" = --version ] && { echo apptainer version 1.3.6; exit; }
shift
while [ "${1#--}" != "$1" ]; do
    case "$1" in --cleanenv) shift ;; --env) export "$2"; shift 2 ;; --pwd) cd "$2"; shift 2 ;; *) shift 2 ;; esac
done
shift
exec "$@"
"""
SEEN = """
import json, os, stat, sys
scratch = os.path.join(os.environ["ORCH_RUN_DIR"], "nodes", "0", "scratch")
print(json.dumps([oct(stat.S_IMODE(os.stat(scratch).st_mode)), os.listdir(scratch)]), flush=True)
open(os.path.join(scratch, "kept"), "w").close()
sys.exit(int(os.environ["ORCH_ATTEMPT"]) == 0)
"""


def test_a_container_that_would_share_the_nodes_tmp_has_a_private_one_that_goes_with_it(
    orch: Orch, project, tmp_path: Path
) -> None:
    """A program in apptainer's place, without a container: what is made for one, and removed after it."""
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(APPTAINER)
    program.chmod(0o755)
    folder = project(
        job_yaml="script: seen.py\nlauncher: exec\ncontainer: {image: x.sif}\nretry: {user_error: 1}\n",
        profile_yaml="kind: local\nnproc_per_node: 1\nruntime: apptainer\n",
        seen_py=SEEN,
    )
    argv = ("submit", str(folder / "job.yaml"), "-p", str(folder / "profile.yaml"), "--follow")
    done = orch(*argv, PATH=f"{program.parent}:{os.environ['PATH']}")
    assert done.code == 0, done.out + done.err
    logs = [orch.run().path / f"nodes/0/attempt_{attempt}/rank_0.log" for attempt in (0, 1)]
    assert [log.read_text().strip() for log in logs] == ['["0o700", []]'] * 2
    assert not (orch.run().path / "nodes/0/scratch").exists()
