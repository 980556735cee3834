"""Copies the files for a replay of one rank into a new folder. The run's folder must be visible on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.runs.files.code_snapshot import lay_ignored, retake
from orchestrator.runs.store import RunDir, write_durably
from orchestrator.transport.node_archive import node_archive

Order = Callable[[str, str], bytes]
"""A function that returns the content of order.json, which describes the replay of a rank. It gets the rank's folder
and the checkpoint to resume from ("never" for none).
"""


def stage_replay(run: RunDir, name: str, checkpoint: Path | None, order: Order, python: str) -> list[str]:
    """Copy the run's code into a folder, and return the command that replays the rank in that folder."""
    folder, record = run.path / name, run.record()
    retake(run.submitted_code, folder / "code", run.code_files())
    if record.code_dir:  # the run itself has the ignored files too
        code = record.job.code
        lay_ignored(Path(record.code_dir), folder / "code", code.ignore, code.max_size)
    write_durably(folder / "node.pyz", node_archive())
    given = order(str(folder), str(checkpoint) if checkpoint else "never")
    write_durably(folder / "order.json", given, private=True)
    return [python, *replay_argv(str(folder))]


def replay_argv(folder: str) -> list[str]:
    """Return the arguments of Python that replay the rank whose files are in this folder. If the folder begins with
    `~/`, the paths are relative, because commands on a node start in the home folder.
    """
    archive, order = (f"{folder}/{name}".removeprefix("~/") for name in ("node.pyz", "order.json"))
    return ["-I", "-S", archive, "replay", order]
