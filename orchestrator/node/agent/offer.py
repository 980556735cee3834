"""The checkpoint that an attempt is offered: records once what rank 0's program shows of having loaded it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Callable

from orchestrator.node.agent.first_steps import FirstSteps, first_saved
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.checkpoints.search import Saved
from orchestrator.protocol.events import EventKind
from orchestrator.protocol.layout import attempt_folder, metrics_file, node_folder
from orchestrator.protocol.task import NodeTask

MOST_PAUSE = 60.0  # seconds between two looks at what the program saves
LOOK_SECONDS = 5.0  # that such a look may take


class Offer:
    """One attempt's offer, on node 0; `there` are the checkpoints that are there when it begins, by their names."""

    def __init__(
        self, task: NodeTask, attempt: int, name: str, there: Mapping[str, Saved], record: Callable[..., None]
    ) -> None:
        self.task, self.attempt, self.there, self.record = task, attempt, dict(there), record
        self.offered = self.there.get(name)
        self.has_ended = False
        folder = attempt_folder(node_folder(task.run_dir, task.node_rank), attempt)
        self.first_steps = FirstSteps(f"{folder}/beat_0", metrics_file(task.run_dir))
        self.is_known = False

    def look(self) -> None:
        """Look at what rank 0 has reported."""
        if not self.is_known and (found := self.first_steps.look()) is not None:
            self._record(found)

    async def watch_saves(self) -> None:
        """Look at what the program saves until it is known, ever more seldom: a large folder takes a while."""
        pause = 1.0
        while not (self.is_known or self.has_ended):
            await asyncio.sleep(pause)
            await self._look_at_saves()
            pause = min(2 * pause, MOST_PAUSE)

    async def end(self) -> None:
        """Look for the last time: the ranks have ended."""
        if not self.has_ended:
            self.has_ended = True
            await self._look_at_saves()

    async def _look_at_saves(self) -> None:
        if self.is_known or self.offered is None or not self.offered.is_counted:
            return
        # What can't be looked at, or takes too long, stays unknown: it is no reason to end a run.
        with contextlib.suppress(OSError, ValueError, RuntimeError, asyncio.TimeoutError):
            look = in_thread(first_saved, self.task, self.offered, self.there)
            saved = await asyncio.wait_for(look, LOOK_SECONDS)
            if saved is not None and not self.is_known:
                self._record({"saved": saved})

    def _record(self, found: dict[str, Any]) -> None:
        self.is_known = True
        step = self.offered.step if self.offered is not None and self.offered.is_counted else None
        self.record(EventKind.FIRST_STEPS, attempt=self.attempt, offered_step=step, **found)
