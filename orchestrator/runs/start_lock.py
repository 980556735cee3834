"""The lock that the starter of a run holds, and the rule for a process that dies while it starts a run.

The process that starts a run holds the kernel's lock of the run's file `starting`. It takes the lock before it records
the run, and keeps it until the start has ended. If the process dies, at whatever moment, the kernel frees the lock.
Nothing else shows that a start was interrupted, and the run's files tell what follows:

1. `run.json` is missing: the run was not recorded, so there is no run.
2. `held.json` is there: all that a start needs is recorded, so the supervisor starts the run, or completes its start.
3. `handle.json` says `submitted`: everything was started, so the run continues.
4. Otherwise the run is ended, together with the agents that were started.

`supervisor/decide.py` carries out rules 3 and 4, and `supervisor/starting.py` rule 2.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Final

from orchestrator.errors import StoreError
from orchestrator.protocol.files import is_locked, locked_in_place
from orchestrator.protocol.reading import read_part
from orchestrator.runs.store import RunDir

STARTING: Final = "starting"
ELSEWHERE_SECONDS: Final = 60.0
MOST_NAME: Final = 256
SHOWS_ITSELF_SECONDS: Final = 10.0  # until an agent or a job is visible, even if the process that started it was killed


@contextlib.contextmanager
def being_started(run: RunDir) -> Iterator[int]:
    """Hold the start of a run within the block, and yield the descriptor that holds it.

    Another process that starts, drops or queues the run waits until the block has ended. A process that inherits the
    descriptor holds the start as well. Raises FileNotFoundError if the run was removed.
    """
    with contextlib.ExitStack() as held:
        try:
            descriptor = held.enter_context(locked_in_place(run.path / STARTING))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"{run.path / STARTING} can't be written: {error.strerror}", "make room there") from error
        with contextlib.suppress(OSError):  # the disk may be full, and a run must be cancellable even then
            if os.pread(descriptor, MOST_NAME, 0) != (name := os.uname().nodename.encode()):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, name)
            os.utime(descriptor)  # a second start on this machine is as fresh for others as the first
        yield descriptor


def is_being_started(run: RunDir) -> bool:
    """Tell whether a process is starting the run now.

    Some file systems don't show a lock to other machines. So a start that a process of another machine began less than
    a minute ago counts as in progress.
    """
    path = run.path / STARTING
    if is_locked(path):
        return True
    try:
        is_fresh = time.time() - path.stat().st_mtime < ELSEWHERE_SECONDS
        return is_fresh and read_part(path, 0, MOST_NAME).decode() not in ("", os.uname().nodename)
    except (OSError, ValueError):  # nobody has started the run yet
        return False
