"""The record of a node's outputs: which files have been copied to this machine, and which have not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from orchestrator.errors import StoreError
from orchestrator.protocol.checkpoints.weight_files import names_weights
from orchestrator.protocol.events import OutputsBrought, OutputsLeft
from orchestrator.protocol.files import write_json
from orchestrator.protocol.layout import output_folder
from orchestrator.protocol.outputs import Entry, checkpoint_of
from orchestrator.runs.reducer import left_outputs
from orchestrator.runs.store import RunDir

STATE: Final = "outputs.json"
MOST_NEWER: Final = 10  # the most checkpoints that are named as not copied yet


class Kept(NamedTuple):
    """An output file as it was when it was copied. `is_same`: the file equals node 0's, so it is not stored again."""

    root: str
    path: str
    size: int
    mtime_ns: int
    sha256: str
    is_same: bool = False


@dataclass(frozen=True)
class Left:
    """The outputs of a node that were not copied to this machine. `files` is None if they could not be counted."""

    files: int | None = 0
    bytes: int = 0
    reason: str = ""

    @property
    def is_something(self) -> bool:
        """Return True if an output was not copied, or if the outputs could not be counted."""
        return self.files != 0


def record_left(run: RunDir, left: Mapping[int, Left], hosts: Mapping[int, str], folder: str) -> None:
    """Record the outputs of each node that were not copied. If all outputs of a node are copied now, but an earlier
    record names outputs that were missing, record that too.
    """
    before = {each.node for each in left_outputs(run.events())}
    for node, each in left.items():
        if each.is_something:
            run.append_event(OutputsLeft(left=node, host=hosts[node], folder=folder, **asdict(each)))
        elif node in before:
            run.append_event(OutputsBrought(node, hosts[node]))


def record_removed(run: RunDir, host: str) -> None:
    """Record that a host no longer has outputs of the run, if an earlier record says that it had some."""
    for left in left_outputs(run.events()):
        if left.host == host:
            run.append_event(OutputsBrought(left.node, host))


class Sizes:
    """The total size of each node's outputs on this machine. The sizes are kept because all nodes share one limit."""

    def __init__(self, run: RunDir, nodes: Iterable[int]) -> None:
        self.run, self.nodes = run, nodes
        self.known: dict[int, int] | None = None  # None until the first use

    def beside(self, node: int) -> int:
        """Return the number of bytes on this machine that belong to the other nodes."""
        if self.known is None:
            self.known = {each: Home.read(self.run, each).bytes for each in self.nodes}
        return sum(size for each, size in self.known.items() if each != node)

    def note(self, node: int, size: int) -> None:
        """Update the size of a node's outputs that are on this machine, in bytes."""
        if self.known is not None:
            self.known[node] = size


def newest_of(there: Mapping[str, Entry], lacking: Iterable[str]) -> dict[str, float]:
    """Return the newest checkpoints to which the files in `lacking` belong, with their times. A checkpoint may have
    several files.
    """
    times: dict[str, float] = {}
    for name in lacking:
        checkpoint = checkpoint_of(name) or (name if names_weights(os.path.basename(name)) else "")
        if checkpoint:
            times[checkpoint] = max(times.get(checkpoint, 0.0), there[name].mtime_ns / 1e9)
    return dict(sorted(times.items(), key=lambda each: each[1])[-MOST_NEWER:])


@dataclass
class Home:
    """The copied output files of one node, as a dict from the path in the run's outputs. They are recorded in
    `nodes/N/outputs.json`.
    """

    run: RunDir
    node: int
    host: str
    files: dict[str, Kept] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)  # links that lead out of the outputs, and non-files
    lacking: list[str] = field(
        default_factory=list
    )  # files of the node that were not copied yet; checkpoints that need them are not used
    newer: dict[str, float] = field(default_factory=dict)  # the time of each checkpoint that was not copied whole yet

    @staticmethod
    def read(run: RunDir, node: int, host: str = "") -> Home:
        """Return the record of the files from this host. Files from an earlier host of the node are left out, so they
        are never changed.
        """
        try:
            known = run.read(f"nodes/{node}/{STATE}") or {}
            files = {str(name): Kept(*values) for name, values in known["files"].items()}
            lacking = [str(name) for name in known.get("lacking", ())]
        except (StoreError, KeyError, TypeError, AttributeError, ValueError):
            return Home(run, node, host)
        return Home(run, node, host, files if host in ("", known.get("host")) else {}, lacking=lacking)

    def write(self) -> None:
        """Write the record. If a crash prevents that, some files are copied a second time later."""
        self.run.node(self.node).mkdir(parents=True, exist_ok=True)
        path = self.run.node(self.node) / STATE
        record = {"host": self.host, "files": self.files, "passed_over": self.passed_over, "lacking": self.lacking}
        record["newer"] = self.newer
        write_json(path, record, mode=0o600, durable=False)

    def note(self, there: Mapping[str, Entry]) -> bool:
        """Note which of the files on the node (`there`) are not copied yet. Return True if there are such files now, or
        if the record named some before.
        """
        before, self.lacking = self.lacking, [name for name, entry in there.items() if not self.has(name, entry)]
        self.newer = newest_of(there, self.lacking)
        return bool(before or self.lacking)

    def forget_lost(self) -> None:
        """Remove from the record those files that were deleted on this machine, or that a crash has truncated."""
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
        """Return the number of bytes that the recorded files have on this machine."""
        return sum(kept.size for kept in self.files.values() if not kept.is_same)

    def has(self, name: str, entry: Entry) -> bool:
        """Return True if this machine has the file in the version that is on the node."""
        kept = self.files.get(name)
        return kept is not None and kept[:4] == entry[:4]
