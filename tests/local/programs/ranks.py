"""Real ranks for tests: processes with torchrun's environment, ended for certain."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.patience import PATIENCE

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).parent
JOBS = REPOSITORY / "jobs"


@dataclass(frozen=True)
class Ended:
    """How one rank ended: its exit code (negative for a signal) and its output."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Started:
    """Running ranks, by rank, and the folder in which their outputs lie."""

    processes: list[subprocess.Popen[bytes]]
    folder: Path

    def wait(self, seconds: float = PATIENCE) -> list[Ended]:
        """Wait for all ranks; TimeoutExpired where one does not end in time."""
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


@contextmanager
def started(
    world_size: int, arguments: Sequence[str], folder: Path, extra: Mapping[str, str] | None = None
) -> Iterator[Started]:
    """Run `python *arguments` as `world_size` ranks in `folder`; whatever still runs at the end is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = []
    with kept_port() as port:
        try:
            for rank in range(world_size):
                with (folder / f"out.{rank}").open("wb") as out, (folder / f"err.{rank}").open("wb") as err:
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, *arguments],
                            cwd=folder,
                            env=_environment(rank, world_size, port, folder, extra or {}),
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=err,
                            start_new_session=True,
                        )
                    )
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
