"""orch ui: serve the runs as a web page, from this machine and to this user only."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.group import orch, say
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.web.files import Server


@orch.command(epilog="Example: orch ui --detach")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port at 127.0.0.1 (default: a free one)."
)
@click.option("--detach", "-d", is_flag=True, help="Serve in the background until orch ui --stop.")
@click.option("--stop", is_flag=True, help="End the server that runs in the background.")
@click.option("--no-open", is_flag=True, help="Start no browser; print the address of the page.")
@click.option("--any-user", is_flag=True, help="Let programs of other users of this machine connect.")
@click.option(
    "--metrics-port", type=click.IntRange(1, 65535), metavar="N", help="Serve /metrics for Prometheus at this port."
)
@click.option(
    "--metrics-token", type=click.Path(path_type=Path), metavar="FILE", help="Write the token for /metrics to FILE."
)
@click.option("--export", type=click.Path(path_type=Path), metavar="DIR", help="Write static pages to DIR instead.")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
def ui(
    port: int, detach: bool, stop: bool, no_open: bool, any_user: bool, metrics_port: int | None,
    metrics_token: Path | None, export: Path | None, runs: tuple[str, ...],
) -> int:  # fmt: skip
    """Serve a web page of all runs at 127.0.0.1, and open it.

    The server ends with this command (Ctrl-C). RUN... are the runs that --export writes (default: the newest 20).
    """
    from orchestrator.cli.opening import check_packages
    from orchestrator.supervisor.background import attended_root

    check_packages()
    if sum((detach, stop, export is not None)) > 1:
        raise UsageError("--detach, --stop and --export can't be used together", "give only one of them")
    if runs and export is None:
        raise UsageError("RUN needs --export", "the page shows all runs: leave RUN out")
    if metrics_token is not None and metrics_port is None:
        raise UsageError("--metrics-token needs --metrics-port", "add --metrics-port N")
    root = attended_root()
    if export is not None:
        return _export(root, export, runs)
    if stop:
        return _stop(root)
    token_file = metrics_token and metrics_token.absolute()
    wanted = _Wanted(port, metrics_port or 0, token_file, any_user)
    return _serve(root, wanted, detach=detach, opens=not no_open)


@dataclass(frozen=True)
class _Wanted:
    """The requested options of the server. If `port` is 0, any free port is used. If `metrics_port` is 0, metrics are
    not served.
    """

    port: int
    metrics_port: int
    token_file: Path | None
    any_user: bool

    def is_met_by(self, server: Server) -> bool:
        """Return True if a running server has all requested options."""
        return (
            self.port in (0, server.port)
            and self.metrics_port in (0, server.metrics_port)
            and (self.token_file is None or str(self.token_file) == server.token_file)
            and self.any_user <= server.any_user
        )


def _serve(root: Path, wanted: _Wanted, *, detach: bool, opens: bool) -> int:
    from orchestrator.cli.opening import PROGRAM
    from orchestrator.cli.render.runs import note
    from orchestrator.web import files
    from orchestrator.web.listening import port_of
    from orchestrator.web.server import listen_all, new_code, serve, serve_detached

    if (found := files.server_of(root)) is not None:
        return _open_running_server(root, found[0], wanted, opens=opens)
    ports = listen_all(wanted.port, wanted.metrics_port, token_file=wanted.token_file, any_user=wanted.any_user)
    with closing(ports):
        if not detach:
            serve(
                root, note, say, ports,
                lambda server, access: _open(root, server, access.new_code(), opens=opens, ends=True),
            )  # fmt: skip
            return 0
        server = serve_detached(root, ports, PROGRAM)
        own = port_of(ports.page)
    if server.port != own:  # another process has started a server first, so that server is used
        return _open_running_server(root, server, wanted, opens=opens)
    _open(root, server, new_code(server), opens=opens)
    say("the server keeps running; to stop it: orch ui --stop")
    return 0


def _open_running_server(root: Path, server: Server, wanted: _Wanted, *, opens: bool) -> int:
    """Open the page of a running server. Raises UsageError if the server lacks the requested options."""
    from orchestrator.web.server import new_code

    if not wanted.is_met_by(server):
        said = f"the page is served at port {server.port} already, with other options"
        raise UsageError(said, "end the server first: orch ui --stop")
    say(f"process {server.pid} already serves the page; orch ui --stop ends it")
    _open(root, server, new_code(server), opens=opens)
    return 0


def _open(root: Path, server: Server, code: str, *, opens: bool, ends: bool = False) -> None:
    from orchestrator.cli.opening import open_page

    for line in open_page(root, server, code, opens=opens):
        say(line)
    if ends:
        say("Ctrl-C ends the server")


def _stop(root: Path) -> int:
    from orchestrator.web import files
    from orchestrator.web.server import stop

    found = files.server_of(root)
    if found is None:
        say("no server of the page is running on this machine")
        return 0
    stop(found[1])
    say(f"the page's server (pid {found[0].pid}) has ended")
    return 0


def _export(root: Path, folder: Path, runs: tuple[str, ...]) -> int:
    from orchestrator.cli.output import say_unknown_secrets
    from orchestrator.cli.render.runs import note
    from orchestrator.node.system.private import as_the_user
    from orchestrator.web.export import export_pages, runs_to_export

    found = runs_to_export(root, runs)
    with as_the_user():
        export_pages(root, note, folder, found)
    count = len(found)
    say_unknown_secrets(found, "export", "pages")
    say(f"wrote {count} run{'s' * (count != 1)}: open {folder / 'index.html'}")
    return 0
