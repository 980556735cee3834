"""orch events: list a run's events, in order of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, say, show
from orchestrator.errors import EXIT_INTERRUPTED
from orchestrator.protocol.events import KINDS

if TYPE_CHECKING:
    from orchestrator.runs.store import Record, RunDir


@orch.command(epilog="Example: orch events last --kind restart --kind lost_node")
@click.argument("run", shell_complete=complete.runs)
@click.option("--follow", "-f", is_flag=True, help="Stream new events until the run ends; Ctrl-C detaches.")
@click.option("--node", type=click.IntRange(0), metavar="N", help="Only the events of this node.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(sorted(KINDS)),
    metavar="KIND",
    help="Only events of this kind (repeatable).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@delegated
def events(run: str, follow: bool, node: int | None, kinds: tuple[str, ...], as_json: bool) -> int:
    """List the events of a run: starts, failures, lost nodes."""
    from orchestrator.looking import run as looking
    from orchestrator.runs.store import find_run
    from orchestrator.supervisor.background import attended_root

    found, printer = find_run(attended_root(), run), _Printer(node, kinds, as_json=as_json)
    if follow:
        try:
            for _ in looking.states(found):
                printer.print_new(found)
        except KeyboardInterrupt:
            say(f"\ndetached; {found.run_id} continues")
            return EXIT_INTERRUPTED
    printer.print_new(found)
    return 0


class _Printer:
    """Prints each event once, sorted by time within each call.

    Each node appends events to its own file, so the number of printed events per node tells which events are new.
    """

    def __init__(self, node: int | None, kinds: Collection[str], *, as_json: bool) -> None:
        self.node, self.kinds, self.as_json = node, kinds, as_json
        self.printed = Counter[object]()

    def print_new(self, run: RunDir) -> None:
        """Print the events that are new since the last call."""
        seen, new = Counter[object](), list[Any]()
        for event in run.event_lines():
            source = event.get("node")
            seen[source] += 1
            if seen[source] > self.printed[source] and self._is_asked_for(event):
                new.append(event)
        self.printed = seen
        self._print(new)

    def _is_asked_for(self, event: Record) -> bool:
        return (self.node is None or event.get("node") == self.node) and (not self.kinds or event["kind"] in self.kinds)

    def _print(self, found: list[Record]) -> None:
        import json

        from orchestrator.cli.render.events import event_lines, time_of

        found = sorted(found, key=time_of)
        for line in map(json.dumps, found) if self.as_json else event_lines(found):
            show(line)
