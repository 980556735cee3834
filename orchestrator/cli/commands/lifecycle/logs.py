"""orch logs: print the output of the ranks."""

from __future__ import annotations

import time

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.follow import follow as follow_run
from orchestrator.cli.group import orch, say
from orchestrator.cli.output import print_logs
from orchestrator.errors import UsageError


@orch.command(epilog="Example: orch logs -f last")
@click.argument("run", shell_complete=complete.runs_and_sweeps)
@click.option("--follow", "-f", is_flag=True, help="Stream new lines until the run ends; Ctrl-C detaches.")
@click.option("--rank", "-r", type=click.IntRange(0), metavar="N", help="Show this rank instead of rank 0.")
@click.option("--node", type=click.IntRange(0), metavar="N", help="Show all ranks of this node.")
@click.option("--all", "-a", "everything", is_flag=True, help="Show all ranks of all nodes.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each log.")
@click.option("--since", metavar="TIME", help="Only lines since this time: 10m, 14:30 or 2026-11-22T14:30.")
@click.option("--grep", metavar="REGEX", help="Only lines that match this Python regular expression.")
@click.option(
    "--level", type=click.Choice(["debug", "info", "warning", "error", "critical"]), metavar="LEVEL",
    help="Only lines of at least this level: warning, error, ...",
)  # fmt: skip
@click.option("--raw", is_flag=True, help="Print the bytes as written, with control sequences.")
@delegated
def logs(
    run: str, follow: bool, rank: int | None, node: int | None, everything: bool, tail: int | None, since: str | None,
    grep: str | None, level: str | None, raw: bool,
) -> int:  # fmt: skip
    """Print the log of rank 0, or of the ranks that you choose.

    Before any rank has started, print the output of the setup lines and launchers. For a sweep, print the logs
    of each of its runs.
    """
    from orchestrator.cli.sweeps import logs_of
    from orchestrator.looking.logs import check, line_filter, logs_there
    from orchestrator.runs.files.logs import Selection
    from orchestrator.runs.store import find_run
    from orchestrator.runs.sweeps import find_sweep, points_in
    from orchestrator.supervisor.background import attended_root

    if everything and (rank is not None or node is not None):
        raise UsageError("--all can't be combined with --rank or --node", "leave one of them out")
    wanted = line_filter(since, grep, level, time.time())
    if wanted is not None and raw:
        raise UsageError(
            "--raw prints every byte, so it can't be combined with --since, --grep or --level", "leave --raw out"
        )
    root, selection = attended_root(), Selection(rank, node, everything)
    if (sweep := find_sweep(root, run)) is not None:
        if follow:
            raise UsageError("--follow follows one run, not a sweep", f"name one run of the sweep: {sweep}.0")
        return logs_of(points_in(root, sweep), selection, tail, raw=raw, wanted=wanted)
    folder = find_run(root, run)
    if follow:
        check(folder, selection)
        return follow_run(folder, selection=selection, tail=tail, raw=raw, wanted=wanted)
    selection = logs_there(folder, selection)
    if selection.launchers:
        say("no rank has started; this is the output of the setup lines and launchers:")
    print_logs(folder, selection, tail, raw=raw, wanted=wanted)
    if wanted is not None and wanted.logs_without_times:
        say(
            "note: these logs have no timestamps, so --since shows the whole of each log that has grown since that time"
        )
    return 0
