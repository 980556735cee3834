"""Loads a checkpoint on all ranks. Rank 0 chooses and reads it, and sends its bytes to the other ranks.

So ranks on hosts without a shared file system can resume too. The ranks of a host share one copy of the bytes, in a
file in memory that each rank maps. A rank needs memory of its own only for pages to which it writes.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.distributed import group
from orchestrator.training.errors import CheckpointError, UserError
from orchestrator.training.options import Places

Report = Callable[[str], None]
SHARDED = "sharded"
"""The entry that marks the state of a sharded checkpoint, whose tensors are in files that each rank wrote."""


@dataclass(frozen=True)
class Loaded:
    """The contents of a checkpoint, and its path as rank 0 sees it."""

    state: dict[str, Any]
    path: Path


def find(places: Places, report: Report) -> Path | None:
    """Return the checkpoint to resume from according to ORCH_RESUME, or None to start from the beginning.

    Raises UserError if the given path has no checkpoint, and CheckpointError if this Python can't verify a checkpoint.
    """
    if places.resume == "never" and places.attempt == 0:
        return None
    run = places.run_id if places.resume == "never" else ""
    own = checkpoints.newest(places.checkpoints, run=run, report=report)
    if own or places.resume in ("auto", "never"):
        return own.path if own else None
    given = Path(places.resume).expanduser()
    if checkpoints.is_checkpoint(given):
        found = checkpoints.check(given)
        if found.problem:
            raise UserError(found.problem)
        return given
    other = checkpoints.newest(given, report=report)
    if other is None:
        raise UserError(f"There is no checkpoint to resume from in {given}.")
    return other.path


def path_for_all(places: Places, report: Report) -> Path | None:
    """Call `find` on rank 0, and return its result on all ranks. All ranks must call this. Errors of `find` are raised
    as UserError on all ranks.
    """
    path = group.done_by_main(lambda: str(find(places, report) or ""), UserError)
    return Path(path) if path else None


def load_for_all(places: Places, report: Report) -> Loaded | None:
    """Load the checkpoint to resume from on all ranks, or return None if there is none. All ranks must call this."""
    path = path_for_all(places, report)
    if path is None:
        return None
    with _host_file() as (file, keeps):
        group.done_by_main(lambda: bool(checkpoints.copy_verified(path, file)), CheckpointError)
        group.file_from_main(file, keeps=keeps)
        return Loaded(checkpoints.decode(file, path), path)


@contextmanager
def _host_file() -> Iterator[tuple[IO[bytes], bool]]:
    """Yield (a file in memory that the ranks of a host share, whether this rank has to fill the file). All ranks must
    call this.
    """
    own = checkpoints.memory_file()
    # Processes that see the same /proc can open each other's files through it, whoever started the processes.
    there = f"{Path('/proc/sys/kernel/random/boot_id').read_text()} {os.readlink('/proc/self/ns/pid')}"
    mine = [os.getpid(), own.fileno()]
    pid, number = next(each for where, *each in group.everyones([there, *mine]) if where == there)
    theirs = None if [pid, number] == mine else _opened(f"/proc/{int(pid)}/fd/{int(number)}")
    with own, theirs or own as file:
        yield file, file is own


def _opened(path: str) -> IO[bytes] | None:
    """Open a file of another rank through that rank's folder in /proc. Return None if this host hides the folders of
    other processes, even those of the same user.
    """
    try:
        return open(path, "rb", buffering=0)
    except OSError:
        return None


def whole(loaded: Loaded) -> dict[str, Any]:
    """Return a checkpoint's state, with the entries "model" and "optimizer". The tensors of a sharded checkpoint are
    joined to whole tensors. All ranks must call this.
    """
    if not loaded.state.get(SHARDED):
        return loaded.state
    from orchestrator.training.checkpoint import sharded

    model: dict[str, Any] = {}
    optimizer = dict(loaded.state["optimizer"])
    states = {number: dict(values) for number, values in optimizer["state"].items()}
    for name, value in sharded.read_whole(loaded.path).items():
        kind, _, rest = name.partition(".")
        if kind == "model":
            model[rest] = value
        else:
            number, _, key = rest.partition(".")
            states.setdefault(int(number), {})[key] = value
    return {**loaded.state, "model": model, "optimizer": {**optimizer, "state": states}}
