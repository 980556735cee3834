"""orch usage: sum the hours, GPU-hours and energy of runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import complete
from orchestrator.cli.group import duration, orch, print_json, say, show
from orchestrator.errors import OrchError, UsageError

if TYPE_CHECKING:
    from orchestrator.operations.usage import Used
    from orchestrator.runs.job_use import JobUse


@orch.command(epilog="Example: orch usage --by job --since 30d")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete.runs_and_sweeps)
@click.option("--by", type=click.Choice(["user", "profile", "job"]), help="Group the sums by this.  [default: profile]")
@click.option("--since", metavar="TIME", help="Only runs submitted in the last TIME, such as 30d.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def usage(runs: tuple[str, ...], by: str | None, since: str | None, as_json: bool) -> int:
    """Sum up the hours, GPU-hours and energy that runs used.

    Without RUN, all your runs are summed by profile, user or job. With RUN, each run has a line. A Slurm run's line
    also has the share of the time limit, cores and memory that its job used (from sacct).

    A run with 8 GPUs uses 8 GPU-hours in an hour, also if the GPUs are idle. Watt-hours are the energy of the GPUs, if
    their driver measures it.
    """
    from orchestrator.operations.usage import usage as sums
    from orchestrator.supervisor.background import attended_root

    root = attended_root()
    if runs:
        if by is not None or since is not None:
            raise UsageError("--by and --since can't be combined with named runs", "leave them out")
        return _of_runs(root, runs, as_json=as_json)
    limit = None if since is None else duration("--since", since)
    by = by or "profile"
    found, unreadable = sums(root, by, limit)
    if unreadable:
        say(f"{len(unreadable)} runs can't be read, and are left out: {', '.join(unreadable[:5])}")
    if as_json:
        print_json([{by: key, **used.to_json()} for key, used in found.items()])
    elif found:
        show(_table(by, found))
    else:
        say("no runs" if since is None else f"no runs since {since}")
    return 0


def _of_runs(root: Path, names: tuple[str, ...], *, as_json: bool) -> int:
    from orchestrator.backends import backend_for
    from orchestrator.cli.render.results import job_use_line
    from orchestrator.operations.usage import usage_of
    from orchestrator.runs.sweeps import find_runs

    folders = {folder.run_id: folder for name in names for folder in find_runs(root, name)}
    found = usage_of(folders.values())
    jobs: dict[str, JobUse] = {}
    for name, folder in folders.items():
        try:
            if (job := backend_for(folder.record().kind).advice.used(folder)) is not None:
                jobs[name] = job
        except OrchError as error:
            say(f"note: {error.message}")
    if as_json:
        print_json([
            {"run": name, **used.to_json(), "job": jobs[name].to_json() if name in jobs else None}
            for name, used in found.items()
        ])  # fmt: skip
        return 0
    show(
        "\n".join(
            [
                _table("run", found),
                *(job_use_line(name, job, folders[name].record().scheduler) for name, job in jobs.items()),
            ]
        )
    )
    return 0


def _table(by: str, found: Mapping[str, Used]) -> str:
    from orchestrator.cli.render.tables import table
    from orchestrator.operations.usage import total

    def cells(key: str, used: Used) -> list[str]:
        watts = "-" if used.gpu_watt_hours is None else f"{used.gpu_watt_hours:,.1f}"
        hours = (f"{each:,.2f}" for each in (used.hours, used.rank_hours, used.gpu_hours))
        return [key, str(used.runs), *hours, watts]

    rows = [cells(key, used) for key, used in found.items()]
    rows += [cells("all", total(found.values()))] if len(rows) > 1 else []
    return table([by.upper(), "RUNS", "HOURS", "RANK-HOURS", "GPU-HOURS", "GPU WH"], rows)
