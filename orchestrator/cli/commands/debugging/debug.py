"""orch debug: start a run in which one rank waits for a debugger."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import click

from orchestrator.cli import complete
from orchestrator.cli.group import orch, say
from orchestrator.cli.request import TakesArguments, profile_or_default, request, request_options
from orchestrator.errors import EXIT_INTERRUPTED, OrchError, UsageError


@orch.command(cls=TakesArguments, epilog="Example: orch debug train.yaml -p lab --rank 3")
@click.argument("what", metavar="JOB|RUN", shell_complete=complete.jobs)
@click.option(
    "--rank", required=True, type=click.IntRange(0), metavar="N", help="Rank to debug; it waits for the debugger."
)
@click.option(
    "--profile",
    "-p",
    metavar="PROFILE",
    shell_complete=complete.profiles,
    help="Profile for a JOB; a RUN already has one.",
)
@click.option(
    "--port", default=0, type=click.IntRange(0, 65535), metavar="N", help="Local port (default: any free one)."
)
@click.option("--allow-local-users", is_flag=True, help="Let other users of this machine attach.")
@request_options
def debug(
    what: str, rank: int, profile: str | None, port: int, allow_local_users: bool, as_json: bool, **shared: Any
) -> int:
    """Start a job and debug one rank, from VS Code for example.

    The rank waits before its first line, until a debugger (debugpy) attaches at the printed address. The other ranks
    run. With a RUN, its recorded job is started again. Ctrl-C ends the run.
    """
    from orchestrator.looking import run as looking
    from orchestrator.operations import runs
    from orchestrator.operations.debugging import debug as debugging
    from orchestrator.operations.debugging.port import forward_to
    from orchestrator.operations.submission import submit
    from orchestrator.prepare import prepare
    from orchestrator.runs.store import state_root
    from orchestrator.specs.documents.lookup import known_jobs
    from orchestrator.transport.forwarding import listen_here

    root = state_root()
    if profile is not None or Path(what).is_file() or what in dict(known_jobs(Path.cwd())):
        asked = request(what, profile_or_default(profile, what), shared)
    else:
        asked = request("", "", shared, again=what)
    prepared = prepare.prepare(root, debugging.debug_request(asked, rank))
    debugging.check_debug(prepared)
    if prepared.is_delegated:
        raise UsageError(
            "another machine supervises this profile's runs, and orch debug works only there",
            "run orch debug on that machine, or use a profile with `supervisor: here`",
        )
    listening = listen_here(port, any_user=allow_local_users)
    for number in (signal.SIGTERM, signal.SIGHUP):  # if the terminal is closed, the waiting run must end too
        signal.signal(number, signal.default_int_handler)
    run = submit.submit(root, prepared)
    say(f"submitted {run.run_id}; Ctrl-C ends the run")
    try:
        node = debugging.wait_for_node(run, rank, say)
        if node is not None:
            with forward_to(run, node, f"rank:{rank}", say, listening, any_user=allow_local_users) as way:
                _show(run, debugging.attach(run, prepared, way), as_json=as_json)
                looking.wait(run)
    except KeyboardInterrupt:
        say(f"ending {run.run_id}")
        runs.cancel(root, run, now=True)
        return EXIT_INTERRUPTED
    except OrchError:  # the run would wait for a debugger forever
        runs.cancel(root, run, now=True)
        raise
    return _end(run)


def _show(run: Any, found: dict[str, Any] | None, *, as_json: bool) -> None:
    if found is None:
        return
    if as_json:
        click.echo(json.dumps(found))
        return
    where = found["connect"]
    click.echo(f"{where['host']}:{where['port']}")
    say(f"{found['name']} waits for a debugger at this address. For VS Code, {run.path / 'launch.json'} contains:")
    say(json.dumps(found, indent=2))


def _end(run: Any) -> int:
    from orchestrator.cli.group import style
    from orchestrator.cli.render import runs as render
    from orchestrator.looking import run as looking

    state = looking.wait(run)
    say(f"{run.run_id} {state.state}")
    if state.state == "failed":
        say(render.verdict_page(state, style))
    return looking.exit_code(state)
