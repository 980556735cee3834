"""Finds the checkpoints of one run on one machine: which folders to search, and which checkpoints in them are the
run's own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from orchestrator.protocol.checkpoints.search import Found, Saved, Sought, look, newest_first
from orchestrator.protocol.code_baseline import read_baseline
from orchestrator.protocol.layout import output_folder
from orchestrator.protocol.outputs import CHECKPOINTS, CODE, OUTPUTS
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.task import NodeTask


@dataclass(frozen=True)
class Places:
    """The folders in which a run's checkpoints may be, and the job's settings for checkpoints."""

    run_dir: str
    code_dir: str
    checkpoints: str
    sought: Sought

    @staticmethod
    def of(task: NodeTask) -> Places:
        """Return the folders for a node's task. A relative `checkpoint_dir` is below the code folder, in which the
        ranks run.
        """
        folder = os.path.normpath(os.path.join(task.code_dir, task.checkpoint_dir)) if task.checkpoint_dir else ""
        return Places(task.run_dir, task.code_dir, folder, Sought(task.checkpoint_format, task.checkpoint_glob))

    @property
    def folders(self) -> dict[str, str]:
        """Return the paths of the run's checkpoint folders, keyed by the names that protocol.outputs defines."""
        found = {OUTPUTS: output_folder(self.run_dir), CODE: self.code_dir, CHECKPOINTS: self.checkpoints}
        return {name: folder for name, folder in found.items() if folder}

    def look(self) -> Found:
        """Return the checkpoints that the run saved. Checkpoints that were sent with the code, or that existed
        before the run, are left out.
        """
        folders = self.folders
        code, made = read_baseline(self.code_dir)
        before = {f"{self.code_dir}/{path}": facts for path, facts in code.items()}
        found = look((folders[OUTPUTS], self.code_dir), sought=self.sought, before=before)
        is_own = f"{self.checkpoints}/".startswith((f"{self.run_dir}/", f"{self.code_dir}/"))
        beside = look((self.checkpoints,), 0.0 if is_own else made / 1e9, self.sought, before)
        paths = {each.path: each for each in (*found.saved, *beside.saved)}
        return Found(list(paths.values()), max(found.changed, beside.changed))

    def own(self) -> dict[str, Saved]:
        """Return the run's checkpoints by name, newest first. A checkpoint has the same name on all nodes."""
        folders = self.folders
        found: dict[str, Saved] = {}
        for saved in newest_first(self.look().saved):
            name = next((name for name, folder in folders.items() if saved.path.startswith(f"{folder}/")), None)
            if name is not None:
                found.setdefault(f"{name}/{os.path.relpath(saved.path, folders[name])}", saved)
        return found

    def path(self, name: str) -> str:
        """Return the path on this machine of the checkpoint with this name. Raises ValueError if the path would
        leave the run's folders.
        """
        root, _, below = name.partition("/")
        if root not in self.folders or not below or any(part in ("", ".", "..") for part in below.split("/")):
            raise ValueError(f"{name} is not the name of a checkpoint")
        return f"{self.folders[root]}/{below}"


def progress_of_saved(saved: Saved) -> Progress:
    """Return the progress of a run whose newest checkpoint is `saved`."""
    return Progress(saved.step) if saved.is_counted else Progress(saved=saved.time)
