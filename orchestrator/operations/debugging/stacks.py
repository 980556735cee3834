"""Collects the stacks of all ranks of a run, from all its nodes at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final

from orchestrator.errors import OrchError, UsageError
from orchestrator.looking.state import state_of
from orchestrator.node.launcher.stacks import Frame, Thread
from orchestrator.operations.debugging.on_node import AT_ONCE, ask, check_going_on
from orchestrator.runs.store import RunDir

ANSWER_SECONDS: Final = 90.0


@dataclass(frozen=True)
class RankStacks:
    """The stacks of a rank, or why they are not known."""

    rank: int
    node: int
    host: str
    threads: tuple[Thread, ...]
    why_not: str = ""

    @property
    def main(self) -> tuple[Frame, ...]:
        """Return the main thread's frames, innermost first."""
        return next((thread.frames for thread in self.threads if thread.is_main), ())

    def to_json(self) -> dict[str, Any]:
        """Return the stacks as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Look:
    """The result: the ranks in order, and messages about nodes without an answer."""

    ranks: tuple[RankStacks, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {"ranks": [each.to_json() for each in self.ranks], "problems": list(self.problems)}


def look(run: RunDir) -> Look:
    """Return the stacks of all ranks. Raises UsageError if the run has ended or has started no ranks."""
    check_going_on(run)
    hosts = [node.host for node in state_of(run).nodes]
    ranks: list[RankStacks] = []
    problems: list[str] = []

    def one(node: int) -> list[RankStacks] | OrchError:
        try:
            return _ask(run, node, hosts[node])
        except OrchError as error:
            return error

    with ThreadPoolExecutor(min(AT_ONCE, len(hosts))) as pool:
        for node, answer in enumerate(pool.map(one, range(len(hosts)))):
            if isinstance(answer, OrchError):
                problems.append(f"node {node} ({hosts[node]}): {answer.message}")
            else:
                ranks += answer
    if not ranks and not problems:
        raise UsageError(f"run {run.run_id} has started no rank yet", f"see: orch status {run.run_id}")
    return Look(tuple(sorted(ranks, key=lambda each: each.rank)), tuple(problems))


def _ask(run: RunDir, node: int, host: str) -> list[RankStacks]:
    return ask(run, node, "stacks", ANSWER_SECONDS, lambda values: _stacks(values, node, host))


def _stacks(values: Mapping[str, Any], node: int, host: str) -> RankStacks:
    threads = tuple(_thread(each) for each in values["threads"])
    return RankStacks(int(values["rank"]), node, host, threads, str(values["why_not"]))


def _thread(values: Mapping[str, Any]) -> Thread:
    frames: Sequence[Mapping[str, Any]] = values["frames"]
    found = tuple(Frame(str(each["function"]), str(each["file"]), int(each["line"])) for each in frames)
    return Thread(bool(values["is_main"]), found)
