"""The lock that a process holds while it starts a run, and the rule for a process that dies during a start.

The process that starts a run locks the run's file `starting`. It takes the lock before it records the run, and holds it
until the start has ended. If the process dies, the kernel releases the lock. Then the files in the run's folder decide
what happens next:

1. If `run.json` is missing, the run was not recorded, so there is no run.
2. If `held.json` exists, all that a start needs is recorded. The supervisor starts the run, or completes its start.
3. If `handle.json` says `submitted`, everything was started, and the run continues.
4. Otherwise the run is ended, together with the agents that were started.

`supervisor/decide.py` implements rules 3 and 4, and `supervisor/starting.py` implements rule 2.
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
from orchestrator.runs.dependencies import AWAITED_PLACES
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir

STARTING: Final = "starting"
SENDING: Final = "sending"  # this file exists while a first start sends files to the hosts and starts the agents
ELSEWHERE_SECONDS: Final = 60.0
MOST_NAME: Final = 256
SHOWS_ITSELF_SECONDS: Final = 10.0  # seconds until a started agent or job is visible


def may_have_left_something(run: RunDir) -> bool:
    """Return True if a start of the run may have left files, agents or entries in a queue on a machine."""
    return run.has_begun or any((run.path / name).exists() for name in (AWAITED_PLACES, SENDING))


def has_started_all(handle: HandleStatus | None, started: int, nodes: int) -> bool:
    """Return True if a start has started the agents of all nodes. `started` is the number of agents that are known.

    If handle.json says that everything was started, one agent is enough, because records of the others may be lost.
    """
    return started >= (1 if handle is HandleStatus.SUBMITTED else max(1, nodes))


@contextlib.contextmanager
def being_started(run: RunDir) -> Iterator[int]:
    """Hold the start lock of a run during the block, and yield the lock's file descriptor.

    Another process that wants to start, drop or queue the run waits until the block ends. A child process that inherits
    the descriptor also holds the lock. Raises FileNotFoundError if the run was removed.
    """
    with contextlib.ExitStack() as held:
        try:
            descriptor = held.enter_context(locked_in_place(run.path / STARTING))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(
                f"{run.path / STARTING} can't be written: {error.strerror}", "make room on that disk"
            ) from error
        with contextlib.suppress(OSError):  # the disk may be full, and a run must be cancellable even then
            if os.pread(descriptor, MOST_NAME, 0) != (name := os.uname().nodename.encode()):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, name)
            os.utime(descriptor)  # the new time shows other machines that a start is in progress
        yield descriptor


def is_being_started(run: RunDir) -> bool:
    """Return whether a process is starting the run now.

    Some file systems don't show a lock to other machines. So a start also counts as in progress if a process of another
    machine began it less than a minute ago.
    """
    path = run.path / STARTING
    if is_locked(path):
        return True
    try:
        is_fresh = time.time() - path.stat().st_mtime < ELSEWHERE_SECONDS
        return is_fresh and read_part(path, 0, MOST_NAME).decode() not in ("", os.uname().nodename)
    except (OSError, ValueError):  # nobody has started the run yet
        return False
