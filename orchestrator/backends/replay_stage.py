"""Copies the files for a replay of one rank into a new folder. The run's folder must be visible on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.runs.files.code_snapshot import ignored_paths, retake
from orchestrator.runs.files.laid_files import lay
from orchestrator.runs.store import RunDir, write_durably
from orchestrator.transport.node_archive import node_archive

Order = Callable[[str, str], bytes]
"""A function that returns the content of order.json, which describes the replay of a rank. It gets the rank's folder
and the checkpoint to resume from ("never" for none).
"""


def stage_replay(run: RunDir, name: str, checkpoint: Path | None, order: Order, python: str) -> list[str]:
    """Copy the run's code into a folder, and return the command that replays the rank in that folder."""
    folder = run.path / name
    retake(run.path / "code", folder / "code", run.code_files())
    _lay_ignored(run, folder / "code")
    write_durably(folder / "node.pyz", node_archive())
    given = order(str(folder), str(checkpoint) if checkpoint else "never")
    write_durably(folder / "order.json", given, private=True)
    return replay_argv(str(folder), python)


def _lay_ignored(run: RunDir, copy: Path) -> None:
    """Add to the copy those files of the user's code folder that match an ignore pattern, because the run itself has
    these files too.
    """
    record = run.record()
    code, folder = record.job.get("code"), Path(record.code_dir or "")
    if not isinstance(code, dict) or not record.code_dir or not folder.is_dir():
        return
    paths = [path for path in ignored_paths(folder, code["ignore"]) if not (copy / path).exists()]
    lay(folder.resolve(), copy, paths, code["max_size"])


def replay_argv(folder: str, python: str) -> list[str]:
    """Return the command that replays the rank whose files are in this folder. If the folder begins with `~/`, the
    paths in the command are relative, because commands on a node start in the home folder.
    """
    archive, order = (f"{folder}/{name}".removeprefix("~/") for name in ("node.pyz", "order.json"))
    return [python, "-I", "-S", archive, "replay", order]
