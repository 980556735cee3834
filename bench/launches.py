"""Both sides started alike: a job under orch in a store of its own, and the same program under torchrun.

Everything is bounded in time and ended by the ids that were recorded when it started; everything lies in a temporary
folder that goes away with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pairs import ROOT, program

from orchestrator.node.system.processes import Process, identify, send_signal

PROGRAMS = Path(__file__).parent / "programs"
POLL_SECONDS = 0.02
RUN_SECONDS = 120.0
L = TypeVar("L", bound="Launch")
COMMON = {"OMP_NUM_THREADS": "1"}  # torchrun's default; orch would divide the cores


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder with the programs and an empty store; TERM ends its block as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="orch-bench-"))
    try:
        shutil.copytree(PROGRAMS, folder / "code", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "home").mkdir()
        yield folder
    finally:
        end_supervisor(folder / "home")
        shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path, out: Path, **more: str) -> dict[str, str]:
    """The shell that both sides are started from."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ORCH_", "TORCHELASTIC", "PET_"))}
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):  # what is installed has its bytecode
        kept.pop(name, None)
    return {**kept, **COMMON, "ORCH_HOME": str(folder / "home"), "BENCH_OUT": str(out), **more}


class Stamps:
    """What the ranks wrote of themselves: lines with `what`, `rank`, `pid` and the machine's monotonic `time`."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def all(self, what: str) -> list[dict[str, Any]]:
        """Every stamp of one kind, by time; a line that is being written is left for the next look."""
        found = []
        for path in self.out.glob("rank_*.jsonl"):
            for line in path.read_bytes().split(b"\n")[:-1]:
                stamp = json.loads(line)
                if stamp["what"] == what:
                    found.append(stamp)
        return sorted(found, key=lambda stamp: stamp["time"])

    def wait(self, ready: Callable[[Stamps], bool], seconds: float) -> bool:
        """Look until it is so, or until the time is over."""
        end = time.monotonic() + seconds
        while not ready(self):
            if time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def end_ranks(self) -> None:
        """KILL to every rank that recorded itself and still lives."""
        for stamp in self.all("started"):
            found = identify(stamp["pid"])
            if found is not None and found.started == stamp["started"]:
                send_signal(found, signal.SIGKILL)


class Launch:
    """One start of a program: its stamps, and how to end it."""

    def __init__(self, out: Path) -> None:
        out.mkdir()
        self.stamps = Stamps(out)
        self.begun = 0.0
        self.processes: list[subprocess.Popen[bytes]] = []
        self.run_id = ""

    def wait(self, seconds: float = RUN_SECONDS) -> None:
        """Wait for the programs to end by themselves; RuntimeError where they fail or take too long."""
        end = time.monotonic() + seconds
        for process in self.processes:
            if (code := process.wait(max(0.1, end - time.monotonic()))) != 0:
                raise RuntimeError(f"{process.args} ended with {code}: see {self.stamps.out}")

    def end(self) -> None:
        """TERM, then KILL, by the recorded ids."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        self.stamps.end_ranks()


class OrchLaunch(Launch):
    """A job submitted to the local backend."""

    def __init__(self, folder: Path, job: dict[str, Any], nodes: int, nproc: int, **env: str) -> None:
        super().__init__(folder / f"out-{time.monotonic_ns()}")
        self.env = environment(folder, self.stamps.out)
        words = {**COMMON, "BENCH_OUT": None, **env}  # the shell's: the files stay as they are, as a person's do
        document = {"name": "bench", **job, "env": words}
        profile = {"kind": "local", "name": "here", "nodes": nodes, "nproc_per_node": nproc}
        # JSON is YAML too.
        (folder / "code" / "job.yaml").write_text(json.dumps(document))
        (folder / "profile.yaml").write_text(json.dumps(profile))
        argv = [program("orch"), "submit", str(folder / "code" / "job.yaml"), "-p", str(folder / "profile.yaml")]
        self.begun = time.monotonic()
        done = subprocess.run([*argv, "--json"], env=self.env, capture_output=True, check=False, timeout=60)
        self.returned = time.monotonic()
        if done.returncode != 0:
            raise RuntimeError(done.stderr.decode())
        answer = json.loads(done.stdout)
        self.run_id, self.run_folder = answer["run_id"], Path(answer["folder"])

    def wait(self, seconds: float = RUN_SECONDS) -> None:
        """Wait for the run's success."""
        argv = [program("orch"), "wait", self.run_id, "--timeout", str(seconds)]
        done = subprocess.run(argv, env=self.env, capture_output=True, check=False, timeout=seconds + 30)
        if done.returncode != 0:
            why = subprocess.run(
                [program("orch"), "why", self.run_id], env=self.env, capture_output=True, check=False, timeout=30
            )
            raise RuntimeError(why.stdout.decode() + done.stderr.decode())

    def end(self) -> None:
        """Cancel the run, which proves that nothing of it is left; nothing happens to one that has ended."""
        subprocess.run(
            [program("orch"), "cancel", self.run_id, "--now"],
            env=self.env,
            capture_output=True,
            check=False,
            timeout=60,
        )
        self.stamps.end_ranks()


class TorchrunLaunch(Launch):
    """The same program under torchrun: one agent for each node, all on this machine."""

    def __init__(self, folder: Path, script: str, agents: list[list[str]], *arguments: str, **env: str) -> None:
        super().__init__(folder / f"out-{time.monotonic_ns()}")
        shell = environment(folder, self.stamps.out, **env)
        self.begun = time.monotonic()
        for number, options in enumerate(agents):
            with open(self.stamps.out / f"agent_{number}.log", "wb") as log:
                argv = [program("torchrun"), *options, str(folder / "code" / script), *arguments]
                process = subprocess.Popen(argv, env=shell, stdout=log, stderr=log, cwd=folder / "code")
            self.processes.append(process)


@contextlib.contextmanager
def ended(launch: L) -> Iterator[L]:
    """End the launch with the block."""
    try:
        yield launch
    finally:
        launch.end()


def one_node(nproc: int) -> list[list[str]]:
    """torchrun's options for one node: the static rendezvous, which starts faster than --standalone."""
    return [["--nproc-per-node", str(nproc), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]]


def two_nodes(nproc: int, restarts: int) -> list[list[str]]:
    """torchrun's options for two nodes that meet over c10d and restart their ranks."""
    port = free_port()
    options = ["--nnodes", "2", "--nproc-per-node", str(nproc), "--max-restarts", str(restarts), "--rdzv-id", "bench"]
    options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
    return [[*options, "--rdzv-conf", f"is_host={int(host)}"] for host in (True, False)]


def free_port() -> int:
    """A port that was free a moment ago: torchrun wants to be told one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def supervisor_of(home: Path) -> Process | None:
    """The supervisor of a store, by the lock that it holds."""
    try:
        inode = (home / "supervisor.lock").stat().st_ino
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    for line in locks.splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return identify(int(fields[4]))
    return None


def end_supervisor(home: Path, seconds: float = 10.0) -> None:
    """Wait until the supervisor has let go of its store, which it does when no run is live; else KILL it by its id."""
    if not (home / "supervisor.lock").exists():
        return
    end = time.monotonic() + seconds
    with open(home / "supervisor.lock", "ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    break
                time.sleep(POLL_SECONDS)
    if found := supervisor_of(home):
        send_signal(found, signal.SIGKILL)


def timed_run(argv: list[str], env: dict[str, str], seconds: float = 60.0) -> float:
    """How long a command takes; RuntimeError where it fails. No timeout of subprocess: that polls, in 50 ms steps."""
    with open(os.devnull, "wb") as null:
        begun = time.monotonic()
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=null, stderr=subprocess.PIPE, cwd=ROOT
        )
        watchdog = os.pidfd_open(process.pid)
        try:
            if not select.select([watchdog], [], [], seconds)[0]:
                process.kill()
            taken = time.monotonic() - begun
        finally:
            os.close(watchdog)
        errors = process.communicate()[1].decode()
    if process.returncode != 0:
        raise RuntimeError(f"{argv}: {errors}")
    return taken
