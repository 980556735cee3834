"""orch drill: cause failures on the user's own machines, and compare the recovery with the promised recovery."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, print_json, say, show, style
from orchestrator.errors import EXIT_ORCH_FAILED
from orchestrator.protocol.debugging.fault import KILLS, Fault


@orch.command(epilog="Example: orch drill lab --kill node")
@click.argument("profile", shell_complete=complete.profiles)
@click.option(
    "--kill",
    "kills",
    multiple=True,
    type=click.Choice([str(each) for each in KILLS]),
    help="Kill a process of this kind, or a whole node.",
)
@click.option(
    "--freeze", "freezes", multiple=True, metavar="HOST:TIME", help="Freeze a host's processes (SIGSTOP) for TIME."
)
@click.option("--set", "sets", multiple=True, metavar="job.A.B=V", help="Override a field of job or profile.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def drill(profile: str, kills: tuple[str, ...], freezes: tuple[str, ...], sets: tuple[str, ...], as_json: bool) -> int:
    """Kill or freeze parts of a test run to check the recovery.

    Without an option, the command causes every fault that PROFILE allows, one after another.
    """
    from orchestrator.cli.render.results import drill_page
    from orchestrator.operations.debugging import drill as drills
    from orchestrator.prepare.prepare import Request, prepare
    from orchestrator.runs.store import state_root

    root = state_root()
    prepared = prepare(root, Request(str(drills.job_file()), profile, sets))
    orders = [*(drills.Order(Fault(each)) for each in kills), *map(drills.freeze_of, freezes)]
    orders = orders or drills.orders_for(root, prepared, say)
    drills.check(root, prepared, orders)
    reports = []
    for order in orders:
        reports.append(drills.drill(root, prepared, order, say))
        if not as_json:
            show(drill_page(reports[-1], style))
    if as_json:
        print_json([report.to_json() for report in reports])
    return EXIT_ORCH_FAILED if any(report.differences for report in reports) else 0
