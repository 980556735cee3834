"""What is recorded here of a node's outputs: which files came as they are there, and what is not here."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from orchestrator.errors import StoreError
from orchestrator.protocol.events import EventKind
from orchestrator.protocol.files import write_json
from orchestrator.protocol.layout import output_folder
from orchestrator.protocol.outputs import Entry
from orchestrator.runs.reducer import left_outputs
from orchestrator.runs.store import RunDir

STATE: Final = "outputs.json"


class Kept(NamedTuple):
    """A file as it was when it was copied; one of another node that node 0 has too `is_same`, and is not here twice."""

    root: str
    path: str
    size: int
    mtime_ns: int
    sha256: str
    is_same: bool = False


@dataclass(frozen=True)
class Left:
    """What is still on a node and not here; `files` is None where they could not be counted."""

    files: int | None = 0
    bytes: int = 0
    reason: str = ""

    @property
    def is_something(self) -> bool:
        """Tell whether there is anything that is not here."""
        return self.files != 0


def record_left(run: RunDir, node: int, host: str, folder: str, left: Left) -> None:
    """Record what is on a node and not here, where that is something, or was when it was recorded last."""
    if left.is_something:
        run.append_event(EventKind.OUTPUTS_LEFT, left=node, host=host, folder=folder, **asdict(left))
    elif any(each.node == node for each in left_outputs(run.events())):
        run.append_event(EventKind.OUTPUTS_BROUGHT, left=node, host=host)


def record_removed(run: RunDir, host: str) -> None:
    """Record that nothing of the run is on a host any more, where that was said to be so."""
    for left in left_outputs(run.events()):
        if left.host == host:
            run.append_event(EventKind.OUTPUTS_BROUGHT, left=left.node, host=host)


@dataclass
class Home:
    """What is here of one node, by its path in the run's folder of outputs; kept in `nodes/N/outputs.json`."""

    run: RunDir
    node: int
    host: str
    files: dict[str, Kept] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)  # links that lead out there, and what is no file

    @staticmethod
    def read(run: RunDir, node: int, host: str = "") -> Home:
        """Return what is here from this host; of an earlier host of the node everything stays as it is."""
        try:
            known = run.read(f"nodes/{node}/{STATE}") or {}
            files = {str(name): Kept(*values) for name, values in known["files"].items()}
        except (StoreError, KeyError, TypeError, AttributeError, ValueError):
            return Home(run, node, host)
        return Home(run, node, host, files if host in ("", known.get("host")) else {})

    def write(self) -> None:
        """Keep it; a crash costs no more than that some files are copied again."""
        self.run.node(self.node).mkdir(parents=True, exist_ok=True)
        path = self.run.node(self.node) / STATE
        record = {"host": self.host, "files": self.files, "passed_over": self.passed_over}
        write_json(path, record, mode=0o600, durable=False)

    def forget_lost(self) -> None:
        """Forget the files that are not here any more as they were written: deleted, or cut off by a crash."""
        folder = Path(output_folder(str(self.run.path)))
        for name, kept in list(self.files.items()):
            try:
                is_whole = kept.is_same or os.lstat(folder / name).st_size == kept.size
            except OSError:
                is_whole = False
            if not is_whole:
                del self.files[name]

    @property
    def bytes(self) -> int:
        """Return how much is here."""
        return sum(kept.size for kept in self.files.values() if not kept.is_same)

    def has(self, name: str, entry: Entry) -> bool:
        """Tell whether the file is here as it was found there."""
        kept = self.files.get(name)
        return kept is not None and kept[:4] == entry[:4]
