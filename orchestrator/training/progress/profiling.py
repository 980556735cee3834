"""Records steps with torch's profiler if `orch profile` requests it by a file beside the heartbeat file."""

import os
import time
from pathlib import Path
from typing import Any

import torch

from orchestrator.protocol.debugging.profiling import Order, Parts, order_file, parts_of

LOOK_SECONDS = 0.2  # seconds between two checks for a request
MEMORY_ENTRIES = 200_000  # number of allocations and frees that are kept


def record_memory() -> None:
    """Let torch record the stacks of the last allocations of GPU memory."""
    torch.cuda.memory._record_memory_history(max_entries=MEMORY_ENTRIES)


class Profiler:
    """Records steps if `orch profile` requests it. Without a heartbeat file there are no requests."""

    def __init__(self, heartbeat: Path | None, rank: int, *, keeps_history: bool = False) -> None:
        """Prepare for requests. With `keeps_history`, torch still records GPU memory after the end of a profile."""
        self._keeps_history = keeps_history
        self._folder = heartbeat.parent if heartbeat else None
        self._rank = rank
        self._looked = time.monotonic()
        self._seen = ""
        self._left = 0
        self._profile: Any = None
        self._parts: Parts | None = None

    def stepped(self) -> None:
        """Count a step. Start a recording if one is requested, or end a recording that has enough steps."""
        if self._folder is None:
            return
        if self._profile is not None:
            self._left -= 1
            if self._left == 0:
                self.close()
        elif time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._look(self._folder)

    def _look(self, folder: Path) -> None:
        try:
            order = Order.from_bytes(Path(order_file(str(folder))).read_bytes())
        except (OSError, ValueError):
            return
        if order.number != self._seen:
            self._seen = order.number
            self._begin(order)

    def _begin(self, order: Order) -> None:
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
            record_memory()
        self._parts, self._left = parts_of(order, self._rank), order.steps
        self._profile = torch.profiler.profile(activities=kinds, record_shapes=True, profile_memory=True)
        self._profile.start()

    def close(self) -> None:
        """End the recording, if there is one, and write it. Disk errors are ignored."""
        if self._profile is None or self._parts is None or self._folder is None:
            return
        profile, self._profile = self._profile, None
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        profile.stop()
        try:
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.memory._dump_snapshot(str(self._folder / self._parts.memory))  # type: ignore[no-untyped-call]
                if not self._keeps_history:
                    torch.cuda.memory._record_memory_history(enabled=None)
            partial = self._folder / f".{self._parts.trace}"  # the suffix decides the compression
            profile.export_chrome_trace(str(partial))
            os.replace(partial, self._folder / self._parts.trace)
        except OSError:
            return
