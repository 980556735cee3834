"""Waits before a save, for a few seconds at most, until another node has a second copy of the previous checkpoint."""

import contextlib
import json
import time
from pathlib import Path

from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT
from orchestrator.training.progress.report import Reporter

MOST_SECONDS = 5.0  # in addition to the time since the last save; ten times this limit would count as a hang
LOOK_SECONDS = 0.02  # seconds between two readings of the agent's report


class SecondCopy:
    """Waits on rank 0 for second copies of checkpoints.

    The agent of rank 0's node makes the copies, and reports each copy in the file `answers`. As long as copies are made
    in time, the loss of a node and its disk costs at most one interval between checkpoints. After the first copy that
    fails or is late, this attempt no longer waits, because the training matters more.
    """

    def __init__(self, answers: Path | None, report: Reporter) -> None:
        """Prepare to wait. `answers` is None if no second copies are made."""
        self._answers = answers
        self._report = report
        self._commit = ""

    def expect(self, path: Path) -> None:
        """Store the path of a checkpoint that was just committed. The next `wait` waits for the second copy of it."""
        if self._answers is not None:
            # If the checkpoint was replaced or deleted meanwhile, there is nothing to wait for.
            with contextlib.suppress(OSError):
                self._commit = (path / COMMIT).read_text("ascii")

    def wait(self) -> None:
        """Wait until the last checkpoint has a second copy, or until the copy is late. This polls the file in which the
        agent reports its copies.
        """
        end = time.monotonic() + MOST_SECONDS
        while self._commit:
            answer = self._read()
            if answer is None:
                self._give_up(f"No second copy is made any more: {self._answers}, which reports it, was removed.")
            elif answer.get("commit") == self._commit:
                self._commit = ""
                if problem := str(answer.get("problem") or ""):
                    why = f"The last checkpoint has no second copy: {problem}."
                    self._give_up(f"{why} Training continues, and this attempt makes no second copy any more.")
            elif time.monotonic() > end:
                late = f"The second copy of the last checkpoint is still not complete after {MOST_SECONDS:.0f} s."
                self._give_up(f"{late} Training continues, and waits for no second copy any more.")
            else:
                time.sleep(LOOK_SECONDS)

    def _give_up(self, why: str) -> None:
        """Print the reason, and no longer wait for copies."""
        self._report.warn(why)
        self._answers, self._commit = None, ""

    def _read(self) -> dict[str, object] | None:
        """Return the agent's last report, which is empty while the agent is writing it. Return None if the file was
        removed.
        """
        try:
            answer = json.loads((self._answers or Path()).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}
