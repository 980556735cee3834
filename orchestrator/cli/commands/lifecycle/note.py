"""orch note: show or change a run's note."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, print_json, show


@orch.command(epilog='Example: orch note last "the warm-up was too short"')
@click.argument("run", shell_complete=complete.runs)
@click.argument("text", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def note(run: str, text: str | None, as_json: bool) -> int:
    """Give a run a note, or show it.

    An empty TEXT removes the note. Without TEXT, the command shows the note.
    """
    from orchestrator.runs.labels import labels_of, set_note
    from orchestrator.runs.store import find_run, state_root

    folder = find_run(state_root(), run, newest=text is None)
    labels = labels_of(folder) if text is None else set_note(folder, text)
    if as_json:
        print_json({folder.run_id: labels.to_json()})
    elif text is None and labels.note:
        show(labels.note)
    return 0
