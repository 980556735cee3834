"""Collects the stacks of all ranks of a run from its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from orchestrator.node.launcher.stacks import Frame, Thread
from orchestrator.operations.debugging.on_node import AT_ONCE, ask, on_every_node
from orchestrator.runs.store import RunDir

ANSWER_SECONDS: Final = 90.0


@dataclass(frozen=True)
class RankStacks:
    """The stacks of a rank, or the reason why they are not known."""

    rank: int
    node: int
    host: str
    threads: tuple[Thread, ...]
    why_not: str = ""


@dataclass(frozen=True)
class Look:
    """The stacks of all ranks in order, and messages about nodes that did not answer."""

    ranks: tuple[RankStacks, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return asdict(self)


def look(run: RunDir) -> Look:
    """Return the stacks of all ranks of a run. Raises UsageError if the run has ended or has started no ranks."""
    ranks, problems = on_every_node(
        run,
        lambda node, host: ask(run, node, "stacks", ANSWER_SECONDS, lambda values: _stacks(values, node, host)),
        AT_ONCE,
    )
    return Look(tuple(sorted(ranks, key=lambda each: each.rank)), tuple(problems))


def _stacks(values: Mapping[str, Any], node: int, host: str) -> RankStacks:
    threads = tuple(_thread(each) for each in values["threads"])
    return RankStacks(int(values["rank"]), node, host, threads, str(values["why_not"]))


def _thread(values: Mapping[str, Any]) -> Thread:
    frames: Sequence[Mapping[str, Any]] = values["frames"]
    found = tuple(Frame(str(each["function"]), str(each["file"]), int(each["line"])) for each in frames)
    return Thread(bool(values["is_main"]), found)
