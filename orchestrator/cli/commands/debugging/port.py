"""orch port: forward a local port to a port of a run's node."""

from __future__ import annotations

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, say


@orch.command(epilog="Example: orch port last 8888")
@click.argument("run", shell_complete=complete.runs)
@click.argument("port", metavar="PORT[:NODE]")
@click.option(
    "--here", default=0, type=click.IntRange(0, 65535), metavar="N", help="Local port (default: any free one)."
)
@click.option("--allow-local-users", is_flag=True, help="Let other users of this machine connect.")
def port(run: str, port: str, here: int, allow_local_users: bool) -> int:
    """Forward a local port to a node of a live run, as ssh -L does.

    Use it for a server that a rank has started on its node, such as Jupyter or a dashboard. The port is open until
    Ctrl-C or the end of the run.
    """
    from orchestrator.looking.run import wait
    from orchestrator.operations.debugging.port import forward, parse_port
    from orchestrator.operations.debugging.shell import host_of
    from orchestrator.runs.store import find_run, state_root

    folder, (there, node) = find_run(state_root(), run), parse_port(port)
    with forward(folder, there, node, say, here=here, any_user=allow_local_users) as forwarding:
        forwarding.reach()
        click.echo(f"127.0.0.1:{forwarding.port}")
        say(
            f"connections are forwarded to port {there} of node {node} ({host_of(folder, node)}) of "
            f"{folder.run_id}; Ctrl-C ends this"
        )
        try:
            wait(folder)
        except KeyboardInterrupt:
            return 0
    say(f"{folder.run_id} has ended")
    return 0
