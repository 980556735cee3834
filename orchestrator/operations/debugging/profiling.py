"""Records profiles of a run's next steps on all its nodes at once, and copies them here."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import OrchError, UsageError
from orchestrator.looking.state import state_of
from orchestrator.operations.debugging.on_node import ask, check_going_on
from orchestrator.protocol.files import write_atomic
from orchestrator.runs.store import RunDir

MORE_SECONDS: Final = 90.0  # for the connection, and for the transfer of the files
_NAME = re.compile(r"rank_\d{1,6}\.(trace\.json\.gz|memory\.pickle)")


@dataclass(frozen=True)
class RankProfile:
    """The files that a rank has recorded, or why it has none."""

    rank: int
    files: Mapping[str, bytes]
    why_not: str = ""


@dataclass(frozen=True)
class Profiled:
    """The files that were written, and messages about those that are missing."""

    files: tuple[str, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return asdict(self)


def profile(run: RunDir, steps: int, wait: float, folder: Path) -> Profiled:
    """Let every rank of a run record its next steps, and write the recordings into the folder.

    Raises UsageError if the run has ended or has started no ranks.
    """
    check_going_on(run)
    hosts = [node.host for node in state_of(run).nodes]
    problems: list[str] = []
    ranks: list[RankProfile] = []

    def one(node: int) -> list[RankProfile] | OrchError:
        try:
            return ask(run, node, "profile", wait + MORE_SECONDS, _read, str(steps), str(wait))
        except OrchError as error:
            return error

    with ThreadPoolExecutor(max(1, len(hosts))) as pool:  # at once, because ranks wait for each other in their steps
        for node, answer in enumerate(pool.map(one, range(len(hosts)))):
            if isinstance(answer, OrchError):
                problems.append(f"node {node} ({hosts[node]}): {answer.message}")
            else:
                ranks += answer
                problems += [f"rank {each.rank} ({hosts[node]}): {each.why_not}" for each in answer if each.why_not]
    if not ranks and not problems:
        raise UsageError(f"run {run.run_id} has started no rank yet", f"see: orch status {run.run_id}")
    return Profiled(_write(ranks, folder), tuple(problems))


def _write(ranks: list[RankProfile], folder: Path) -> tuple[str, ...]:
    written = []
    for name, data in (item for each in ranks for item in each.files.items()):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, data)
        written.append(str(folder / name))
    return tuple(written)


def _read(values: Mapping[str, Any]) -> RankProfile:
    files = {str(name): base64.b64decode(data, validate=True) for name, data in values["files"].items()}
    if not all(_NAME.fullmatch(name) for name in files):
        raise ValueError(f"files of other names: {sorted(files)}")
    return RankProfile(int(values["rank"]), files, str(values["why_not"]))
