"""Records profiles of a run's next steps on all its nodes at once, and copies them to this machine."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.operations.debugging.on_node import ask, on_every_node
from orchestrator.protocol.reading import READABLE
from orchestrator.protocol.writing import named_folder
from orchestrator.runs.store import RunDir, said_of_named

MORE_SECONDS: Final = 90.0  # the time allowed for the connection and the transfer of the files
_NAME = re.compile(r"rank_\d{1,6}\.(trace\.json\.gz|memory\.pickle)")


@dataclass(frozen=True)
class RankProfile:
    """The files that a rank has recorded, or the reason why it has none."""

    rank: int
    host: str
    files: Mapping[str, bytes]
    why_not: str = ""


@dataclass(frozen=True)
class Profiled:
    """The files that were written, and messages about missing files."""

    files: tuple[str, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return asdict(self)


def profile(run: RunDir, steps: int, wait: float, folder: Path) -> Profiled:
    """Let every rank of a run record its next steps, and write the recordings into the folder.

    Raises UsageError if the run has ended or has started no ranks.
    """
    seconds, words = wait + MORE_SECONDS, (str(steps), str(wait))
    ranks, problems = on_every_node(  # on all nodes at the same time, because ranks wait for each other in each step
        run, lambda node, host: ask(run, node, "profile", seconds, lambda values: _read(values, host), *words)
    )
    problems += [f"rank {each.rank} ({each.host}): {each.why_not}" for each in ranks if each.why_not]
    return Profiled(_write(ranks, folder), tuple(problems))


def _write(ranks: list[RankProfile], folder: Path) -> tuple[str, ...]:
    files = {name: data for each in ranks for name, data in each.files.items()}
    if not files:
        return ()
    with said_of_named(folder), named_folder(folder) as named:
        for name, data in files.items():
            named.write(name, data, mode=READABLE)
        return tuple(f"{named.path}/{name}" for name in files)


def _read(values: Mapping[str, Any], host: str) -> RankProfile:
    files = {str(name): base64.b64decode(data, validate=True) for name, data in values["files"].items()}
    if not all(_NAME.fullmatch(name) for name in files):
        raise ValueError(f"the node sent files with unexpected names: {sorted(files)}")
    return RankProfile(int(values["rank"]), host, files, str(values["why_not"]))
