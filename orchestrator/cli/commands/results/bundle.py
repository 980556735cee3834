"""orch bundle: pack an archive of a run for a bug report."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, print_json, say, show


@orch.command(epilog="Example: orch bundle last")
@click.argument("run", shell_complete=complete.runs)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Archive to write (default: ./RUN-bundle.tar.gz).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bundle(run: str, output: Path | None, as_json: bool) -> int:
    """Pack a run's records and logs for a bug report.

    Only the ends of logs are packed. Secrets, code and weights are left out.
    """
    from orchestrator.cli.output import say_unknown_secrets
    from orchestrator.cli.render import results
    from orchestrator.operations.bundle import bundle as write_bundle
    from orchestrator.runs.store import find_run, state_root

    folder = find_run(state_root(), run)
    path = output or Path(f"{folder.run_id}-bundle.tar.gz")
    written, members = write_bundle(folder, path)
    unknown = say_unknown_secrets([folder], "bundle", "logs")
    if as_json:
        print_json(
            {
                "file": written,
                "unknown_secrets": unknown,
                "members": [{"path": name, "bytes": count} for name, count in members],
            }
        )
    else:
        show(results.members_page(members))
        say(f"wrote {written}; read it before you send it, because a log contains everything that the program printed")
    return 0
