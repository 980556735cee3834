"""Records whether rank 0's program has loaded the checkpoint from which its attempt was to resume. This is recorded
once per attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Callable

from orchestrator.node.agent.first_steps import FirstSteps, first_saved
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.checkpoints.search import Saved
from orchestrator.protocol.events import Event, FirstStepsSeen
from orchestrator.protocol.layout import attempt_folder, metrics_file, node_folder, read_marker
from orchestrator.protocol.task import NodeTask

MOST_PAUSE = 60.0  # the longest pause in seconds between two searches for saved checkpoints
LOOK_SECONDS = 5.0  # the time limit of such a search in seconds


class Offer:
    """The checkpoint on node 0 from which an attempt was to resume. `there` has the names of the checkpoints that
    existed when the attempt began.
    """

    def __init__(
        self, task: NodeTask, attempt: int, name: str, there: Mapping[str, Saved], record: Callable[[Event], None]
    ) -> None:
        self.task, self.attempt, self.there, self.record = task, attempt, dict(there), record
        self.offered = self.there.get(name)
        self.has_ended = False
        self.search: asyncio.Future[tuple[int, int] | None] | None = None  # the newest search for saved checkpoints
        folder = attempt_folder(node_folder(task.run_dir, task.node_rank), attempt)
        self.first_steps = FirstSteps(f"{folder}/beat_0", metrics_file(task.run_dir), read_marker(folder))
        self.is_known = False

    def look(self) -> None:
        """Record whether the program loaded the checkpoint, once the steps that rank 0 has reported show this."""
        if not self.is_known and (found := self.first_steps.look()) is not None:
            self._record(found)

    async def watch_saves(self) -> None:
        """Search for newly saved checkpoints until they show whether the program has loaded the offered checkpoint. The
        pauses between searches grow, because listing a folder may be slow.
        """
        pause = 1.0
        while not (self.is_known or self.has_ended):
            await asyncio.sleep(pause)
            await self._look_at_saves()
            pause = min(2 * pause, MOST_PAUSE)

    async def end(self) -> None:
        """After the ranks have ended, search a last time for a saved checkpoint that shows whether the program has
        loaded the offered checkpoint.
        """
        if not self.has_ended:
            self.has_ended = True
            await self._look_at_saves()

    async def _look_at_saves(self) -> None:
        if self.is_known or self.offered is None or self.offered.step < 0:
            return
        # If the folder can't be read in time, nothing is recorded, because that is no reason to end a run.
        with contextlib.suppress(OSError, ValueError, RuntimeError, asyncio.TimeoutError):
            # A search that hangs on a dead disk keeps its thread, so no second search is started beside it.
            if self.search is None or self.search.done():
                self.search = asyncio.ensure_future(in_thread(first_saved, self.task, self.offered, self.there))
            saved = await asyncio.wait_for(asyncio.shield(self.search), LOOK_SECONDS)
            if saved is not None and not self.is_known:
                self._record({"offered_step": saved[0], "saved": saved[1]})

    def _record(self, found: dict[str, Any]) -> None:
        self.is_known = True
        step = self.offered.step if self.offered is not None and self.offered.is_counted else None
        self.record(FirstStepsSeen(self.attempt, **{"offered_step": step, **found}))
