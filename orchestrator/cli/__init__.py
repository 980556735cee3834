"""The command line: parses the arguments, calls an operation, and renders its result. No other package prints or
exits.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from typing import NoReturn

import click

from orchestrator.cli.group import drop_held, orch, release_held, say
from orchestrator.errors import EXIT_INTERRUPTED, EXIT_ORCH_FAILED, EXIT_USAGE, OrchError
from orchestrator.node.system.private import hold_umask
from orchestrator.protocol.files import NO_LOCKS

__all__ = ["main", "orch"]

# The number of new objects between two garbage collections. Most objects of a command are its imports, which stay, so
# more frequent collections would take a tenth of its time and free nothing.
GARBAGE = 50_000
LOCKS = "set ORCH_HOME to a folder on a disk that has file locks, such as a local disk"
ROOM = "make room on that disk: df -h shows the free space, and df -i the number of files that can still be created"
# Errors that this machine causes and not a bug in orch, each with advice.
OF_THE_MACHINE = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EROFS: "set ORCH_HOME to a folder on a disk that can be written",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
    errno.ENFILE: "close programs on this machine: all files that it may have open are open",
    errno.EIO: "the disk, or its server, fails: dmesg shows why",
    **dict.fromkeys(NO_LOCKS, LOCKS),
}


def main() -> NoReturn:
    """Run the command line, and exit with a code that docs/cli.md lists."""
    gc.set_threshold(GARBAGE)
    open_closed_streams()
    hold_umask()
    try:
        code = orch.main(standalone_mode=False, prog_name="orch")
        release_held()
        sys.stdout.flush()
    except OrchError as error:
        code = _say_error(error)
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = EXIT_USAGE
    except click.ClickException as error:
        from orchestrator.cli.usage import refused

        code = _say_error(refused(error))
    except BrokenPipeError:  # `orch logs RUN | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except OSError as error:
        if error.errno not in OF_THE_MACHINE or os.environ.get("ORCH_DEBUG"):
            code = _say_bug(error)
        else:
            where = f"{error.filename}: " if error.filename else ""
            code = _say_error(OrchError(f"{where}{error.strerror}", OF_THE_MACHINE[error.errno]))
    except Exception as error:  # noqa: BLE001 (any bug in orch is reported in one sentence)
        code = _say_bug(error)
    gc.freeze()  # the system frees all memory; Python's exit would collect garbage first
    sys.exit(code)


def open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed (`orch ... >&-`).

    Otherwise, the next opened file would get the stream's descriptor, and the stream's object in `sys` would be None.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 (kept open to the end)


def _say_bug(error: Exception) -> int:
    """Print an unexpected error and return its exit code. Raises the error instead if ORCH_DEBUG is set."""
    if os.environ.get("ORCH_DEBUG"):
        raise error
    say(f"orch: an error in orch itself: {type(error).__name__}: {error}")
    say("  set ORCH_DEBUG=1 to see the traceback, and please report the error")
    return EXIT_ORCH_FAILED


def _say_error(error: OrchError) -> int:
    """Print an error's message and hint, and return its exit code."""
    drop_held()
    say(f"orch: {error.message}")
    for line in error.hint.splitlines():
        say(f"  {line}")
    return error.exit_code
