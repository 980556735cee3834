"""orch stacks: print the Python stacks of all ranks."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, print_json, show
from orchestrator.errors import EXIT_ORCH_FAILED


@orch.command(epilog="Example: orch stacks last")
@click.argument("run", shell_complete=complete.runs)
@click.option("--threads", is_flag=True, help="Print all threads, not only the main thread.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def stacks(run: str, threads: bool, as_json: bool) -> int:
    """Print the Python stack of every rank of a live run.

    Ranks with equal stacks are shown together.
    """
    from orchestrator.cli.render.stacks import stacks_page
    from orchestrator.operations.debugging.stacks import look
    from orchestrator.runs.store import find_run, state_root

    found = look(find_run(state_root(), run))
    if as_json:
        print_json(found.to_json())
    else:
        show(stacks_page(found, all_threads=threads))
    return 0 if any(each.threads for each in found.ranks) else EXIT_ORCH_FAILED
