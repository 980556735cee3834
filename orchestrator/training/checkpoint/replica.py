"""Waits briefly, before the next save, for the second copy of a checkpoint on another node."""

import contextlib
import json
import time
from pathlib import Path

from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT
from orchestrator.training.progress.report import Reporter

MOST_SECONDS = 5.0  # the copy has had the time since the last save; hang.train is ten times as long
LOOK_SECONDS = 0.02


class SecondCopy:
    """Rank 0's view of the second copy. The agent of rank 0's node makes the copy, and reports in the file `told`.

    As long as copies arrive in time, the loss of the node and its disk costs at most one interval between checkpoints.
    The first copy that fails or is late ends the waiting for this attempt, because training matters more than another
    copy.
    """

    def __init__(self, told: Path | None, report: Reporter) -> None:
        """`told` is None if no second copy is made."""
        self._told = told
        self._report = report
        self._commit = ""

    def expect(self, path: Path) -> None:
        """Remember the checkpoint that has just been committed, as the one to wait for."""
        if self._told is not None:
            # the checkpoint was replaced or deleted meanwhile, so there is nothing to wait for
            with contextlib.suppress(OSError):
                self._commit = (path / COMMIT).read_text("ascii")

    def wait(self) -> None:
        """Return once the last checkpoint has been copied or is late. This polls, because an agent writes the file."""
        end = time.monotonic() + MOST_SECONDS
        while self._commit:
            told = self._read()
            if told is None:
                self._give_up(f"No second copy is made any more: {self._told}, in which it is reported, was removed.")
            elif told.get("commit") == self._commit:
                self._commit = ""
                if problem := str(told.get("problem") or ""):
                    why = f"The last checkpoint has no second copy: {problem}."
                    self._give_up(f"{why} Training continues, and this attempt makes no second copy any more.")
            elif time.monotonic() > end:
                late = f"The second copy of the last checkpoint is still not complete after {MOST_SECONDS:.0f} s."
                self._give_up(f"{late} Training continues, and waits for no second copy any more.")
            else:
                time.sleep(LOOK_SECONDS)

    def _give_up(self, why: str) -> None:
        """Print the reason once, and wait for no further copy."""
        self._report.warn(why)
        self._told, self._commit = None, ""

    def _read(self) -> dict[str, object] | None:
        """Return the agent's report; empty while the agent writes it, and None if the file was removed."""
        try:
            told = json.loads((self._told or Path()).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}
