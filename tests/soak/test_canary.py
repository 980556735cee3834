"""A secret goes through real runs and is found in the environment of the ranks, and nowhere else."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.looking.run import wait
from orchestrator.supervisor.reconcile import reconcile
from tests.local.conftest import Orch
from tests.local.test_runs import wait_for_line
from tests.patience import PATIENCE

from .conftest import Soak

pytestmark = pytest.mark.soak

CANARY = "canary-93c1e7-$(touch pwned)-'\"-of-a-secret"
SHOWN = (b"canary-93c1e7", b"-of-a-secret")

PROGRAM = """
import hashlib, os, signal, sys, time
print("rank", os.environ["RANK"], "knows", hashlib.sha256(os.environ["KEY"].encode()).hexdigest()[:16], flush=True)
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
end = time.monotonic() + float(sys.argv[1])
while not stop and time.monotonic() < end:
    time.sleep(0.02)
if sys.argv[2] == "fail":
    raise RuntimeError("something else went wrong")
sys.exit(95 if stop else 0)
"""


class Watch:
    """Reads every command line of this machine, again and again, and the environment of what holds the secret."""

    def __init__(self) -> None:
        self.argvs: set[bytes] = set()
        self.looks = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self.over.wait(0.02):
            self.looks += 1
            for name in filter(str.isdigit, os.listdir("/proc")):
                try:
                    argv = Path(f"/proc/{name}/cmdline").read_bytes()
                except OSError:
                    continue
                if any(part in argv for part in SHOWN):
                    self.argvs.add(argv)

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def holders(orch: Orch) -> list[str]:
    """The files of the state folder that hold a part of it."""
    found = []
    for path in orch.home.rglob("*"):
        try:
            if path.is_file() and any(part in path.read_bytes() for part in SHOWN):
                found.append(str(path))
        except OSError:
            continue
    return found


def knowing() -> list[tuple[int, str]]:
    """Which processes of this machine have the secret in the environment that they were started with."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ, argv = (Path(f"/proc/{name}/{what}").read_bytes() for what in ("environ", "cmdline"))
        except OSError:
            continue
        if any(part in environ for part in SHOWN):
            found.append((int(name), argv.decode(errors="replace")))
    return found


@pytest.mark.full(
    "tests/local/test_runs.py::test_environment_secrets_and_setup",
    "tests/cluster/test_ssh.py::test_a_secret_is_in_no_argv_no_environment_and_one_private_file",
    "tests/unit/operations/test_bundle.py::test_no_canary_anywhere_in_the_archive",
)
def test_a_secret_stays_one(orch: Orch, project: Any, soak: Soak) -> None:
    folder = project(
        job_py=PROGRAM,
        job_yaml="name: canary\nscript: job.py\nargs: ['0', ok]\nsecrets: [KEY]\nenv: {OTHER: shown}\n",
        slow_yaml="name: slow\nscript: job.py\nargs: ['60', ok]\nsecrets: [KEY]\nlauncher: exec\n",
        fail_yaml="name: fails\nscript: job.py\nargs: ['0', fail]\nsecrets: [KEY]\nretry: {user_error: 1}\n",
    )
    digest = hashlib.sha256(CANARY.encode()).hexdigest()[:16]
    said: dict[str, str] = {}

    def run(*args: str) -> str:
        done = orch(*args, KEY=CANARY)
        said[" ".join(args)] = done.out + done.err
        return done.out

    with Watch() as watch:
        for name in ("job", "slow"):
            run("submit", str(folder / f"{name}.yaml"), "-p", "local-2x2", "--dry-run")
            run("submit", str(folder / f"{name}.yaml"), "-p", "local-2x2", "--dry-run", "--json")
            run("plan", str(folder / f"{name}.yaml"), "-p", "local-2x2", "--json")
        out = run("submit", str(folder / "job.yaml"), "-p", "local-2x2", "--follow")
        soak.check(f"rank 0 knows {digest}" in out, f"rank 0 did not get it: {out}")
        run("submit", str(folder / "fail.yaml"), "-p", "local-2x2", "--follow")
        failed = orch.run()
        run("submit", str(folder / "slow.yaml"), "-p", "local-2x2")
        slow = orch.run()
        for rank in range(4):
            wait_for_line(slow, f"rank {rank} knows {digest}", rank)
        soak.check(not holders(orch), f"while it ran it was in {holders(orch)}")
        know = knowing()
        only_ranks = len(know) <= 4 and all("job.py" in argv for _, argv in know)
        soak.check(only_ranks, f"others than the ranks have it: {know}")
        run("status")
        run("cancel", slow.run_id)
        for each in (slow.run_id, failed.run_id):
            run("logs", each, "-a")
            for name in ("why", "status"):
                run(name, each)
                run(name, each, "--json")
        soak.check(wait(slow, timeout=PATIENCE).state == "cancelled", "the run was not cancelled")
        for path in (orch.home / "runs").iterdir():
            reconcile(orch.home, orch.run(path.name))
        everything = subprocess.run(["ps", "axww"], capture_output=True, check=False).stdout
    soak.check(watch.looks > 20, f"only {watch.looks} looks")
    soak.check(not watch.argvs, f"in a command line: {watch.argvs}")
    soak.check(not any(part in everything for part in SHOWN), "ps shows it")
    soak.check(not holders(orch), f"in files: {holders(orch)}")
    shown = [args for args, text in said.items() if any(part.decode() in text for part in SHOWN)]
    soak.check(not shown, f"on the screen of: {shown}")
    soak.check(not list(folder.rglob("pwned")) + list(orch.home.rglob("pwned")), "it was run")
    soak.end("commands with a secret: argv, ps, files, screens looked through", len(said))
