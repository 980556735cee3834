"""Lists the outputs of a run that are on this machine. They were copied from other machines, or ranks on this
machine wrote them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.protocol.layout import output_folder
from orchestrator.protocol.outputs import home_names
from orchestrator.runs.files.checkpoints import checkpoint_folder
from orchestrator.runs.store import RunDir

if TYPE_CHECKING:
    from orchestrator.node.server.outputs import Found


@dataclass(frozen=True)
class Output:
    """An output file: its path among the run's outputs, its real path, and the node that wrote it (0 if the nodes share
    it).

    `below` is the folder that was searched. No part of the path below it is a link.
    """

    path: str
    file: Path
    bytes: int
    node: int
    below: Path

    def to_json(self) -> dict[str, Any]:
        """Return the file as JSON types."""
        return {"path": self.path, "file": str(self.file), "bytes": self.bytes, "node": self.node}


def outputs_of(run: RunDir) -> tuple[Output, ...]:
    """Return all output files of the run that are on this machine, sorted by path."""
    found = _brought(run) if run.record().is_remote else _written(run)
    return tuple(sorted(found, key=lambda each: each.path))


def passed_over(run: RunDir) -> list[str]:
    """Return the paths of outputs that are never copied, such as sockets and links that lead out of the folder. The
    paths are valid on the machine that has the outputs.
    """
    if not run.record().is_remote:
        return _found(run).passed_over
    records = [run.read(str(path.relative_to(run.path))) or {} for path in run.path.glob("nodes/*/outputs.json")]
    return [str(path) for record in records for path in record.get("passed_over", ())]


def _brought(run: RunDir) -> Iterator[Output]:
    folder = output_folder(str(run.path))
    below = Path(folder)
    for above, _, names in os.walk(folder):
        for name in names:
            if name.startswith(".") and name.endswith((".partial", ".tmp")):  # a copy in progress
                continue
            file = f"{above}/{name}"
            path = file[len(folder) + 1 :]
            first, _, rest = path.partition("/")
            number = first.removeprefix("node_")
            is_apart = bool(rest) and number != first and number.isdecimal()
            yield Output(path, Path(file), os.stat(file).st_size, int(number) if is_apart else 0, below)


def _written(run: RunDir) -> Iterator[Output]:
    found = _found(run)
    for name, entry in home_names(found.files).items():
        folder = Path(found.roots[entry.root])
        yield Output(name, folder / entry.path, entry.size, 0, folder)


def _found(run: RunDir) -> Found:
    from orchestrator.node.server.outputs import find

    plan = run.plan()
    code_dir = plan.first.code_dir or str(run.path / "code")
    above = os.path.dirname(code_dir)  # the run's folder if the profile has a workdir
    run_dir = above if os.path.basename(above) == run.path.name else str(run.path)
    return find(run_dir, code_dir, str(checkpoint_folder(run)), plan.outputs, here=True)
