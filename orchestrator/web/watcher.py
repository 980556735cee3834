"""Polls the files of runs for all streams of events, and sends each stream the changes since its last message.

Files on a network file system send no events, so the watcher polls them, and only while a stream is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from orchestrator.errors import OrchError
from orchestrator.views.reader import Reader
from orchestrator.views.runs import RunRow
from orchestrator.web.answers import ALL_SECONDS, row_json
from orchestrator.web.signatures import Signatures, signatures_of

LOOK_SECONDS: Final = 0.5


@dataclass
class _Stream:
    """One listener: the run that its page shows, the rows or signatures that it received, and its unsent messages."""

    run: str | None
    rows: Mapping[str, RunRow] | None = None  # None if the page shows no table
    is_new: bool = True  # whether no rows were sent to the listener yet
    seen: Signatures | None = None
    problem: str = ""  # the error message that was sent last
    messages: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)


class _Turn:
    """One poll for all streams. It reads the table, and each run that a page shows, only once."""

    def __init__(self, reader: Reader) -> None:
        self.rows = cache(lambda: {row.run_id: row for row in reader.runs(seconds=ALL_SECONDS).rows})
        self.signatures = cache(lambda name: signatures_of(reader.find(name)))


class Watcher:
    """Polls the table and the runs that pages show, and sends changes to the streams."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._streams: list[_Stream] = []
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def listen(self, run: str | None, seen: Signatures | None = None) -> AsyncIterator[dict[str, Any]]:
        """Yield changes: rows of the table, or the names of the parts of one run that have changed.

        The first message has all rows, or the parts of the run whose signatures differ from `seen`. It is sent without
        waiting for the watcher's next poll, because the page draws its table from this message.
        """
        stream = _Stream(run, rows={} if run is None else None, seen=seen)
        await self._look_or_say_why_not(stream, _Turn(self._reader))
        self._streams.append(stream)
        if self._task is None and not self._is_closed:
            self._task = asyncio.create_task(self._watch())
        try:
            while not self._is_closed and (message := await stream.messages.get()) is not None:
                yield message
        finally:
            self._streams.remove(stream)

    def close(self) -> None:
        """End all streams. Later listeners get no messages."""
        self._is_closed = True
        for stream in self._streams:
            stream.messages.put_nowait(None)
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while self._streams:
            turn = _Turn(self._reader)
            for stream in list(self._streams):
                if stream.messages.empty():  # if a listener reads slowly, its changes are sent together later
                    await self._look_or_say_why_not(stream, turn)
            await asyncio.sleep(LOOK_SECONDS)
        self._task = None

    async def _look_or_say_why_not(self, stream: _Stream, turn: _Turn) -> None:
        """Poll for one stream. If the run can't be read, send that as a message, so that other streams continue."""
        problem = ""
        try:
            await self._look(stream, turn)
        except OrchError as error:
            problem = error.message
        except Exception as error:  # noqa: BLE001 (as said)
            problem = f"what has changed can't be read: {type(error).__name__}: {error}"
        if problem != stream.problem:
            stream.problem = problem
            stream.messages.put_nowait({"problem": problem})

    async def _look(self, stream: _Stream, turn: _Turn) -> None:
        if stream.rows is not None:
            known = stream.rows
            rows = await run_in_threadpool(turn.rows)
            changed = [row for name, row in rows.items() if (old := known.get(name)) is not row and old != row]
            if changed or len(rows) != len(known):
                stream.rows = rows
                told = [row_json(row) for row in changed]
                gone = [name for name in known if name not in rows]
                stream.messages.put_nowait({"rows": told, "gone": gone, "all": stream.is_new})
            elif stream.is_new:
                stream.messages.put_nowait({"rows": [], "gone": [], "all": True})
            stream.is_new = False
        if stream.run is not None:
            seen = await run_in_threadpool(turn.signatures, stream.run)
            before, stream.seen = stream.seen or {}, seen
            if names := [name for name, value in seen.items() if before.get(name) != value]:
                stream.messages.put_nowait({"changed": names})
