"""The options that submit and plan share, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from orchestrator.cli import complete


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that submit and plan share."""
    options = [
        click.option("--set", "sets", multiple=True, metavar="job.A.B=V", help="Override a field of job or profile."),
        click.option(
            "--env", "env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable, or take the shell's."
        ),
        click.option("--nodes", type=click.IntRange(1), help="This many nodes instead of the profile's."),
        click.option("--nproc-per-node", metavar="N|auto", help="This many ranks a node instead of the profile's."),
        click.option("--name", help="The run's name; the job's by default."),
        click.option(
            "--resume", metavar="RUN", shell_complete=complete.runs, help="Start from another run's newest checkpoint."
        ),
        click.option(
            "--allow-code-dir", is_flag=True, help="Ship a code.dir outside of the job's folder and repository."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def request(
    job: str,
    profile: str,
    shared: dict[str, Any],
    *,
    rehearse: bool = False,
    again: str | None = None,
    waits: bool = False,
    after: str | None = None,
) -> Any:
    """Return what the options that submit and plan share ask for."""
    from orchestrator.prepare.prepare import Request

    nproc = shared["nproc_per_node"]
    flags = {
        "job.name": shared["name"],
        "profile.nodes": shared["nodes"],
        "profile.nproc_per_node": int(nproc) if nproc is not None and nproc.isdecimal() else nproc,
    }
    return Request(job, profile, shared["sets"], flags, shared["env"], shared["resume"], rehearse, waits, again, after,
                   shared["allow_code_dir"])  # fmt: skip
