"""Renders the stacks of ranks. Equal stacks are shown once."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.cli.render.escapes import one_line
from orchestrator.node.launcher.stacks import Thread
from orchestrator.operations.debugging.stacks import Look, RankStacks
from orchestrator.protocol.hostlist import in_words, spans


def stacks_page(found: Look, *, all_threads: bool = False) -> str:
    """Return each distinct stack once, innermost frame first, below a line with the ranks and nodes that have it."""
    groups: dict[object, list[RankStacks]] = {}
    for each in found.ranks:
        shown = each.threads if all_threads else tuple(thread for thread in each.threads if thread.is_main)
        groups.setdefault((shown, each.why_not), []).append(each)
    blocks = [_block(group, all_threads=all_threads) for group in groups.values()]
    return "\n\n".join([*blocks, *map(one_line, found.problems)])


def _block(group: Sequence[RankStacks], *, all_threads: bool) -> str:
    first = group[0]
    nodes = {each.node: each.host for each in group}
    where = f"node{'s' if len(nodes) > 1 else ''} {spans(nodes)} ({in_words(dict.fromkeys(nodes.values()))})"
    head = f"rank{'s' if len(group) > 1 else ''} {spans(each.rank for each in group)}, {one_line(where)}:"
    if first.why_not:
        return f"{head} {one_line(first.why_not)}"
    others = [thread for thread in first.threads if not thread.is_main] if all_threads else []
    lines = [line for thread in first.threads if thread.is_main for line in _frames(thread)]
    for number, thread in enumerate(others, start=1):
        lines += [f"  thread {number}:", *_frames(thread)]
    return "\n".join(
        [
            head,
            *(
                lines
                or ["  no Python frame: the process is starting (its imports take seconds), or runs no Python code"]
            ),
        ]
    )


def _frames(thread: Thread) -> list[str]:
    return [f"  {one_line(f'{frame.file}:{frame.line} {frame.function}')}" for frame in thread.frames]
