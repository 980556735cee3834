"""orch run: run a script without any YAML."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli.commands.submission.submit import prepare_and_submit
from orchestrator.cli.group import orch
from orchestrator.cli.request import default_choice, profile_option, request, request_options
from orchestrator.errors import UsageError


@orch.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example: orch run -p lab --nodes 2 -- train.py --lr 0.1",
)
@profile_option
@request_options
@click.option("--detach", "-d", is_flag=True, help="Return at once instead of printing rank 0's log.")
@click.option("--dry-run", "--dryrun", "dry_run", is_flag=True, help="Print the plan and commands; start nothing.")
@click.option("--rehearse", is_flag=True, help="Run the profile's nodes and ranks on this machine.")
@click.option("--no-wait", is_flag=True, help="Refuse if the hosts' GPUs or slots are in use, instead of queueing.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(command: tuple[str, ...], profile: str | None, as_json: bool, detach: bool, dry_run: bool, rehearse: bool,
        no_wait: bool, **shared: Any) -> int:  # fmt: skip
    """Run a script or a torchrun line without a job file.

    The current folder is sent as the code. Words after the script are the script's arguments. Ctrl-C detaches, and the
    run continues.
    """
    from dataclasses import replace
    from pathlib import Path

    from orchestrator.operations.submission.run import read_line
    from orchestrator.runs.store import state_root

    if not command:
        raise UsageError("missing COMMAND", "as in: orch run -- train.py --lr 0.1")
    typed = read_line(command, Path.cwd())
    name = shared["name"] or typed.job.path.stem
    where, why = profile or "", ""
    if profile is None:
        choice = default_choice(name)
        where, why = choice.profile, choice.why
    nproc = shared["nproc_per_node"] or typed.nproc_per_node
    shared |= {"nodes": shared["nodes"] or typed.nodes, "nproc_per_node": None if nproc is None else str(nproc)}
    asked = request(typed.job, where, shared, rehearse=rehearse, waits=not no_wait, program=typed.program)
    flags = {**asked.flags, "profile.python": typed.python}
    asked = replace(asked, flags=flags, keeps_ranks=typed.names_launcher)
    return prepare_and_submit(
        state_root(), asked, follow=not (detach or dry_run), as_json=as_json, dry_run=dry_run, why=why,
        line_notes=typed.notes,
    )  # fmt: skip
