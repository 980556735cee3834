"""Creates a run's working folder: a copy of the code in which only the ranks of this run are started.

The folder is filled under a temporary name and then renamed, so it is either complete or missing. A folder that exists
is left unchanged, because a later start of the run continues in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
from typing import Callable

from orchestrator.node.server.outputs import baseline
from orchestrator.node.system.copying import copy_file
from orchestrator.protocol.code_baseline import write_baseline
from orchestrator.protocol.layout import baseline_file


def make(code_dir: str, fill: Callable[[str], None]) -> None:
    """Create the working folder unless it exists, and record its files before any rank is started. `fill` gets the path
    of an empty folder and writes the code into it.

    Several machines that share a file system may call this at the same time. Raises OSError if a file can't be written.
    Nothing of the folder is then left.
    """
    is_new = not os.path.isdir(code_dir)
    if is_new:
        parent, name = os.path.split(code_dir)
        os.makedirs(parent, mode=0o700, exist_ok=True)
        partial = tempfile.mkdtemp(prefix=f"{name}.", suffix=".tmp", dir=parent)
        try:
            fill(partial)
            os.rename(partial, code_dir)
        except OSError:
            if not os.path.isdir(code_dir):  # otherwise, another machine has made the folder
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        for each in os.listdir(parent):  # left by a process that was killed
            if each.startswith(f"{name}.") and each.endswith(".tmp"):
                shutil.rmtree(f"{parent}/{each}", ignore_errors=True)
    if is_new or not os.path.exists(baseline_file(code_dir)):
        _record(code_dir)


def _record(code_dir: str) -> None:
    """Write the baseline of the working folder. If a run has deleted its folder, its earlier files still count as newer
    than the baseline.
    """
    first = None
    with contextlib.suppress(OSError):
        first = os.stat(baseline_file(code_dir)).st_mtime_ns
    write_baseline(code_dir, baseline(code_dir))
    if first is not None:
        os.utime(baseline_file(code_dir), ns=(first, first))


def copy_code(submitted: str, code_dir: str) -> None:
    """Create the working folder of a sweep's run as a copy of the code that the sweep's runs share.

    Raises OSError if a file can't be copied.
    """
    make(code_dir, lambda partial: _copy_tree(submitted, partial))


def _copy_tree(source: str, target: str) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            place = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), place)
            elif entry.is_dir(follow_symlinks=False):
                os.mkdir(place, 0o700)
                _copy_tree(entry.path, place)
            elif entry.is_file(follow_symlinks=False):
                executable = entry.stat(follow_symlinks=False).st_mode & stat.S_IXUSR
                copy_file(entry.path, place, 0o700 if executable else 0o600)


def lay(submitted: str, run_dir: str) -> int:
    """Create the working folder of an array's run, before the job starts the agents. Return the exit code."""
    code_dir = f"{run_dir}/code"
    try:
        copy_code(submitted, code_dir)
    except OSError as error:
        print(f"orch: {failure(code_dir, error)}", file=sys.stderr)
        return 1
    return 0


def failure(code_dir: str, error: OSError) -> str:
    """Return the error message for a working folder that can't be created."""
    return f"{error.filename or code_dir}: the run's working folder can't be created: {error.strerror}"
