"""Writes a rank's error file, which contains the exception that ended the rank.

For an out-of-memory error, the file also contains the GPU's memory use and the name of a memory snapshot.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
import traceback
from types import TracebackType
from typing import Any, NoReturn

from orchestrator.node.system.private import as_orch
from orchestrator.protocol.reading import open_own


def write_error(path: str, error: BaseException, frames: TracebackType | None, mode: int = 0o666) -> None:
    """Write the exception that ends this process to the error file, which the launcher reads."""
    text = "".join(traceback.format_exception(type(error), error, frames))
    record: dict[str, Any] = {
        "type": type(error).__name__,
        "message": str(error)[:4000],
        "traceback": text[-20_000:],
        "time": time.time(),
    }
    if "out of memory" in str(error) or "ALLOC_FAILED" in str(error):
        record["memory"] = gpu_memory()
        if snapshot := memory_snapshot():
            record["snapshot"] = snapshot
    # An error of the disk is ignored, because it would hide the traceback, which is also in the log.
    with contextlib.suppress(OSError), as_orch():
        descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)


def write_error_at_end(path: str, mode: int) -> None:
    """Install a hook that writes an uncaught exception to this file before Python prints the exception. `mode` is the
    file's mode.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            write_error(path, error, frames, mode)
        before(kind, error, frames)

    sys.excepthook = hook


def ended_file(error_file: str) -> str:
    """Return the path of the empty file that a rank creates when its program has ended. It is beside the rank's error
    file.
    """
    folder, name = os.path.split(error_file)
    return os.path.join(folder, name.replace("error_", "ended_").replace(".json", ""))


def note_end(error_file: str, mode: int = 0o666) -> None:
    """Create the file that shows that the rank's program has ended, unless an exception has ended the program."""
    if not os.path.exists(error_file):
        with contextlib.suppress(OSError), as_orch():  # the disk is full; then the end counts as a crash
            os.close(open_own(ended_file(error_file), os.O_WRONLY | os.O_CREAT, mode))


def note_end_at_exit(error_file: str, mode: int) -> None:
    """Make this process, but none of its forks, create the file at its end, after all other atexit handlers. After
    `sys.exit` with an error, the program has not ended its work, so there is no file.
    """
    rank, leave, codes = os.getpid(), sys.exit, [None]

    def exit_with(code: Any = None) -> NoReturn:
        codes[0] = code
        leave(code)

    sys.exit = exit_with
    atexit.register(lambda: note_end(error_file, mode) if os.getpid() == rank and not codes[0] else None)


def gpu_memory() -> dict[str, int]:
    """Return how much GPU memory this process has used through torch, in bytes. The dict is empty if the process has
    used no GPU.

    `allocated` is the peak size of all tensors. `reserved` is the peak size that torch has taken from the driver.
    `total` is the size of the GPU's memory.
    """
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return {}
        device = torch.cuda.current_device()
        return {
            "allocated": int(torch.cuda.max_memory_allocated(device)),
            "reserved": int(torch.cuda.max_memory_reserved(device)),
            "total": int(torch.cuda.get_device_properties(device).total_memory),
        }
    except Exception:  # noqa: BLE001 (the GPU may have failed; the rank's error matters more)
        return {}


def memory_snapshot() -> str:
    """Write torch's history of GPU memory to the run's outputs. Return the file's name; "" if torch has recorded no
    history.
    """
    torch, folder = sys.modules.get("torch"), os.environ.get("ORCH_OUTPUT_DIR")
    try:
        if torch is None or not folder or not torch._C._cuda_isHistoryEnabled():
            return ""
        name = f"memory_rank_{os.environ.get('RANK', '0')}.pickle"
        torch.cuda.memory._dump_snapshot(f"{folder}/{name}")
    except Exception:  # noqa: BLE001 (torch may lack it, or the disk may be full; the rank's error matters more)
        return ""
    return name
