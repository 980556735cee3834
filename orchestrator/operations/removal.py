"""Plans a removal: which runs are selected, how large they are, and which of their files have no other copy."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import StoreError, UsageError
from orchestrator.looking.run import state_or_why_not
from orchestrator.operations.pull import folders_pulled_to
from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT
from orchestrator.protocol.files import folder_size
from orchestrator.protocol.reading import MOST_WORD, read_regular
from orchestrator.runs.files.checkpoints import checkpoint_folder
from orchestrator.runs.files.outputs import Output, outputs_of
from orchestrator.runs.reducer import left_outputs
from orchestrator.runs.state import LeftOutputs, RunState, RunStatus
from orchestrator.runs.store import RunDir


@dataclass(frozen=True)
class Removal:
    """The removal of one run: its size in bytes, and the number of checkpoints and outputs without another copy."""

    run: RunDir
    state: RunState
    bytes: int
    outputs: int = 0
    output_bytes: int = 0
    only_outputs: int = 0
    only_checkpoints: int = 0
    left: tuple[LeftOutputs, ...] = ()  # outputs on other machines; after the removal, orch has no record of them


def select(
    runs: Iterable[RunDir], *, states: Collection[RunStatus], before: float | None, keep: int
) -> tuple[list[RunDir], list[RunDir]]:
    """Return (runs to remove, runs kept because outputs are still on other machines).

    A run is selected if it ended in one of the `states` (any state if empty) and before the time `before`. The newest
    `keep` of the selected runs are not removed. `runs` are sorted newest first.
    """
    found = []
    for run in runs:
        state = state_or_why_not(run)
        is_old = before is None or (state.ended or state.created) < before
        if state.is_final and is_old and (not states or state.state in states):
            found.append(run)
    holding = [run for run in found[keep:] if left_outputs(run.events())]
    return [run for run in found[keep:] if run not in holding], holding


def removal_of(run: RunDir) -> Removal:
    """Return the files that a removal of the run deletes. For a damaged run, return no details.

    Raises UsageError if the run has not ended.
    """
    state = state_or_why_not(run)
    if not state.is_final and state.state is not RunStatus.UNREADABLE:
        raise UsageError(
            f"run {run.run_id} has not ended: it is {state.state}", f"cancel it first: orch cancel {run.run_id}"
        )
    size = folder_size(run.path.resolve())
    try:
        own = [each for each in outputs_of(run) if each.file.resolve().is_relative_to(run.path.resolve())]
        copies = folders_pulled_to(run)
        return Removal(
            run, state, size,
            outputs=len(own),
            output_bytes=sum(each.bytes for each in own),
            only_outputs=sum(not _is_output_in(each, copies) for each in own),
            only_checkpoints=sum(not _is_checkpoint_in(path, copies) for path in _checkpoints_within(run)),
            left=left_outputs(run.events()),
        )  # fmt: skip
    except (StoreError, OSError):
        return Removal(run, state, size)


def _checkpoints_within(run: RunDir) -> list[Path]:
    """Return the committed checkpoints in the run's folder, which a removal deletes."""
    folder = checkpoint_folder(run)
    if not folder.resolve().is_relative_to(run.path.resolve()):
        return []
    return [folder / name for name in checkpoint_dir.committed(folder)]


def _is_output_in(output: Output, folders: Sequence[Path]) -> bool:
    for folder in folders:
        with contextlib.suppress(OSError):
            if (folder / "outputs" / output.path).stat().st_size == output.bytes:
                return True
    return False


def _is_checkpoint_in(path: Path, folders: Sequence[Path]) -> bool:
    for folder in folders:
        with contextlib.suppress(OSError):
            copy = folder / "checkpoints" / path.name / COMMIT
            committed = read_regular(path / COMMIT, MOST_WORD, path.parent)
            if read_regular(copy.resolve(), MOST_WORD).strip() == committed.strip():
                return True
    return False
