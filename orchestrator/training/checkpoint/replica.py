"""The second copy of a checkpoint, on another node: the next save waits for that of the last one."""

import contextlib
import json
import time
from pathlib import Path

from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT
from orchestrator.training.progress.report import Reporter

MOST_SECONDS = 60.0
LOOK_SECONDS = 0.02


class SecondCopy:
    """What rank 0 knows of it: `told` is the file in which the agent of its node says what has been copied, if any is.

    So at most one interval between checkpoints is lost with the node and its disk. A copy that takes longer than
    MOST_SECONDS is not waited for any more: training would stand still for it.
    """

    def __init__(self, told: Path | None, report: Reporter) -> None:
        self._told = told
        self._report = report
        self._commit = ""
        self._problem = ""

    def expect(self, path: Path) -> None:
        """Remember the checkpoint that has just been committed, as the one to wait for."""
        if self._told is not None:
            with contextlib.suppress(OSError):  # replaced or deleted meanwhile: there is nothing to wait for
                self._commit = (path / COMMIT).read_text("ascii")

    def wait(self) -> None:
        """Return when it has been copied, or can not be (said once); a poll: another program writes the file."""
        end = time.monotonic() + MOST_SECONDS
        while self._commit:
            told = self._read()
            if told.get("commit") == self._commit:
                self._say(str(told.get("problem") or ""))
                self._commit = ""
            elif time.monotonic() > end:
                self._say(f"it is not there after {MOST_SECONDS:.0f} s")
                self._commit = ""
            else:
                time.sleep(LOOK_SECONDS)

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            self._report.warn(f"A second copy of the last checkpoint is missing: {problem}. Training goes on.")
        self._problem = problem

    def _read(self) -> dict[str, object]:
        try:
            told = json.loads((self._told or Path()).read_text())
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}
