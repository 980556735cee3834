"""Makes a rank wait for a debugger before the first line of its program."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any

LOOPBACK = "127.0.0.1"


class NoDebuggerError(Exception):
    """The rank can't be debugged. The text names the reason and a remedy."""


def wait_for_debugger(order: Mapping[str, Any]) -> None:
    """Wait until a debugger has attached and set its breakpoints.

    Raises NoDebuggerError if this interpreter has no debugpy, or if its debugpy does not work.
    """
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # suppresses a warning about frozen modules
    try:
        import debugpy
    except ImportError as error:
        raise NoDebuggerError(
            f"{sys.executable} has no debugpy ({error}): install it there, or in the image: pip install debugpy"
        ) from error
    token = secrets.token_hex(32)
    port = _start_adapter({**order, "token": token, "path": os.path.dirname(os.path.dirname(debugpy.__file__))})
    debugpy.connect((LOOPBACK, port), access_token=token)
    debugpy.wait_for_client()


def _start_adapter(order: Mapping[str, Any]) -> int:
    """Start debugpy's adapter, and return the port to which this rank must connect.

    The adapter is not a child of the rank, because the rank's program may wait until all its children have ended.
    """
    order_read, order_write = os.pipe()
    answer_read, answer_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:
                os.dup2(order_read, 0)
                os.dup2(answer_write, 1)
                os.execv(sys.executable, [sys.executable, "-I", "-S", order["archive"], "adapter"])  # noqa: S606
        finally:
            os._exit(0)
    os.close(order_read)
    os.close(answer_write)
    os.waitpid(child, 0)
    with os.fdopen(order_write, "w", encoding="utf-8") as given:
        json.dump(order, given)
        given.write("\n")
    with os.fdopen(answer_read, encoding="utf-8") as answer:
        line = answer.readline()
    if not line.strip().isdigit():
        raise NoDebuggerError("debugpy's adapter does not start (its messages are above): install debugpy 1.8")
    return int(line)
