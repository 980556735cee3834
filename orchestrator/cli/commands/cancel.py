"""orch cancel: stop a run, and prove that nothing of it is left."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import orch, print_json, say
from orchestrator.cli.output import what_is_left
from orchestrator.errors import EXIT_ORCH_FAILED


@orch.command()
@click.argument("run", shell_complete=complete.runs_and_sweeps)
@click.option("--now", is_flag=True, help="Kill at once, without a last checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@delegated
def cancel(run: str, now: bool, as_json: bool) -> int:
    """Stop a run, or all of a sweep, at the next step boundary, with a checkpoint; prove that nothing is left."""
    from orchestrator.cli.sweeps import cancel_all
    from orchestrator.operations import runs as run_operations
    from orchestrator.protocol.hostlist import by_words
    from orchestrator.runs.store import find_run
    from orchestrator.runs.sweeps import find_sweep, points_in
    from orchestrator.supervisor.supervisor import attended_root

    root = attended_root()
    if (sweep := find_sweep(root, run)) is not None:
        return cancel_all(root, points_in(root, sweep), now=now, as_json=as_json)
    folder = find_run(root, run)
    state, proofs = run_operations.cancel(root, folder, now=now)
    if as_json:
        print_json({**state.to_json(), "proofs": [proof.__dict__ for proof in proofs]})
    else:
        if not proofs:
            say(f"{folder.run_id} had ended before: {state.state}")
        else:
            say(f"{folder.run_id} {state.state}")
        for line in by_words((proof.host, what_is_left(proof)) for proof in proofs):
            say(f"  {line}")
    return EXIT_ORCH_FAILED if any(proof.survivors or proof.is_unreachable for proof in proofs) else 0
