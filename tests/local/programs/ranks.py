"""Real ranks for tests: processes with torchrun's environment, ended for certain.

Ranks are forked from a process that has imported torch, as orch's launcher forks them. The import would take longer
than most trainings.
"""

import atexit
import json
import multiprocessing
import os
import resource
import runpy
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.patience import PATIENCE

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).parent
JOBS = REPOSITORY / "jobs"
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch._dynamo", "orchestrator.training.train"])  # every optimizer imports _dynamo


@dataclass(frozen=True)
class Ended:
    """How one rank ended: its exit code (negative for a signal) and its output."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Rank:
    """The process of a rank."""

    process: BaseProcess

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the rank runs."""
        return self.process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        """Wait for the rank and return its exit code. Raises TimeoutError if the rank does not end in time."""
        self.process.join(seconds)
        if (code := self.poll()) is None:
            raise TimeoutError(f"a rank has not ended after {seconds} s")
        return code


@dataclass(frozen=True)
class Started:
    """Running ranks, by rank, and the folder in which their outputs lie."""

    processes: list[Rank]
    folder: Path

    def wait(self, seconds: float = PATIENCE) -> list[Ended]:
        """Wait for all ranks. Raises TimeoutError if a rank does not end in time."""
        deadline = time.monotonic() + seconds
        codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]
        return [
            Ended(code, (self.folder / f"out.{rank}").read_text(), (self.folder / f"err.{rank}").read_text())
            for rank, code in enumerate(codes)
        ]


def _environment(rank: int, world_size: int, port: int, folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's environment; a single rank gets none of torchrun's variables: it is a plain process."""
    foreign = ("ORCH_", "SLURM_", "TORCHELASTIC_")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    environ |= {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    environ |= {"ORCH_BEAT_FILE": str(folder / f"beat.{rank}"), "ORCH_RESULT_FILE": str(folder / "result.json")}
    if world_size > 1:
        environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environ |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    return environ | extra


@contextmanager
def kept_port() -> Iterator[int]:
    """A port that nobody else is given while this lasts, and that a program which is told of it can listen on."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def _be_rank(
    rank: int, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], limit: tuple[int, int]
) -> None:
    """Become `python *arguments` in a forked process."""
    import torch

    torch.set_num_threads(1)  # OMP_NUM_THREADS is read when torch is imported, which was before
    os.setsid()
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{name}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    os.environ.clear()
    os.environ.update(environment)
    what, *rest = arguments
    sys.argv = [what, *rest] if what not in ("-m", "-c") else [what, *rest[1:]]
    sys.path.insert(0, str(Path(what).parent) if what not in ("-m", "-c") else "")
    try:
        if what == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif what == "-c":
            exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))  # noqa: S102 - a test's own program
        else:
            runpy.run_path(what, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # which a process that multiprocessing started leaves out


@contextmanager
def started(
    world_size: int, arguments: Sequence[str], folder: Path, extra: Mapping[str, str] | None = None
) -> Iterator[Started]:
    """Run `python *arguments` as `world_size` ranks in `folder`; whatever still runs at the end is killed.

    The ranks inherit this process's limit on the size of files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processes = []
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with kept_port() as port:
        try:
            for rank in range(world_size):
                environment = _environment(rank, world_size, port, folder, extra or {})
                process = FORKS.Process(target=_be_rank, args=(rank, arguments, folder, environment, limit))
                process.start()
                processes.append(Rank(process))
            yield Started(processes, folder)
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run(world_size: int, arguments: Sequence[str], folder: Path, extra: Mapping[str, str] | None = None) -> list[Ended]:
    """Run ranks to their end."""
    with started(world_size, arguments, folder, extra) as ranks:
        return ranks.wait()


def train(*arguments: str, task: Path = JOBS / "digits.py") -> list[str]:
    """Return the arguments of the shared entrypoint."""
    return ["-m", "orchestrator.training", "--task", str(task), *arguments]


def wait_for(path: Path, text: str, ranks: Started) -> None:
    """Wait until a file contains `text`; fails at once where a rank has ended."""
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and text in path.read_text()):
        ended = [process.poll() for process in ranks.processes]
        assert ended == [None] * len(ended), [(ranks.folder / f"err.{rank}").read_text() for rank in range(len(ended))]
        assert time.monotonic() < deadline, f"{text!r} did not appear in {path}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Training:
    """One training of several: where it is done, the entrypoint's arguments, and variables of its own."""

    folder: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def trainings(
    world_size: int, wanted: Sequence[Training], folder: Path, task: Path = PROGRAMS / "small.py"
) -> list[list[Ended]]:
    """Run trainings one after the other in the same ranks; for each of them how its ranks ended, with their errors."""
    import torch.distributed as dist

    # A store each: what a process group has left in one would be taken for the next one's.
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in wanted]
    spec = [
        [each.folder, ["--task", str(task), *each.arguments], {"MASTER_PORT": str(store.port), **each.variables}]
        for each, store in zip(wanted, stores, strict=True)
    ]
    with started(1, [str(PROGRAMS / "trainings.py"), str(world_size), json.dumps(spec)], folder) as programs:
        [ended] = programs.wait(1.5 * PATIENCE)  # for all of them
    assert ended.code == 0, ended.err
    return [
        [
            Ended(values["code"], "", values["error"])
            for rank in range(world_size)
            if (values := json.loads((folder / each.folder.format(rank=rank) / f"end.{rank}.json").read_text()))
        ]
        for each in wanted
    ]
