"""The options that submit, run and plan share, and the Request that is built from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import complete
from orchestrator.cli.group import say_unless_refused

if TYPE_CHECKING:
    from orchestrator.specs.documents.default_profile import Choice

_ARGUMENTS = "orch.arguments"


class TakesArguments(click.Command):
    """The class of a command that passes the words after `--` to the job's program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before `--`, and keep the rest for `request`."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_ARGUMENTS] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the parts of the usage line. The last part shows that arguments of the program may follow `--`."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENTS]"]


profile_option = click.option(
    "--profile",
    "-p",
    metavar="PROFILE",
    shell_complete=complete.profiles,
    help="Profile name or file (default: $ORCH_PROFILE, your config).",
)


def profile_or_default(given: str | None, job: str = "") -> str:
    """Return the given profile. If none is given, print and return the default profile for `job`, which is a name or a
    file.
    """
    if given is not None:
        return given
    choice = default_choice(job)
    say_unless_refused(f"profile {choice.profile} ({choice.why})")
    return choice.profile


def default_choice(job: str = "") -> Choice:
    """Return the default profile for `job` (a name or a file), and the reason for this default."""
    import os
    from pathlib import Path

    from orchestrator.specs.documents.default_profile import default_profile

    path = Path(job)
    return default_profile(path.stem, Path.cwd(), os.environ, path.absolute() if path.is_file() else None)


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that submit, run and plan share to a command."""
    options = [
        click.option("--set", "sets", multiple=True, metavar="job.A.B=V", help="Override a field of job or profile."),
        click.option(
            "--env",
            "env",
            multiple=True,
            metavar="NAME[=VALUE]",
            help="Set an environment variable, or pass on the shell's value.",
        ),
        click.option("--nodes", type=click.IntRange(1), metavar="N", help="Number of nodes (overrides the profile)."),
        click.option("--nproc-per-node", metavar="N|auto", help="Ranks per node (overrides the profile)."),
        click.option("--name", metavar="NAME", help="Name of the run (default: the job's)."),
        click.option(
            "--resume",
            metavar="RUN[:STEP|:best]",
            shell_complete=complete.runs,
            help="Start from another run's checkpoint (default: its newest).",
        ),
        click.option(
            "--allow-code-dir", is_flag=True, help="Allow a code.dir outside the job's folder and repository."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def request(
    job: Any,
    profile: str,
    shared: dict[str, Any],
    *,
    rehearse: bool = False,
    again: str | None = None,
    waits: bool = False,
    after: str | None = None,
    program: str = "",
) -> Any:
    """Build a request from the options that submit, run and plan share.

    `program` is the launcher or interpreter in the command line that the user typed for `orch run`.
    """
    from orchestrator.prepare.prepare import Request

    nproc = shared["nproc_per_node"]
    flags = {
        "job.name": shared["name"],
        "profile.nodes": shared["nodes"],
        "profile.nproc_per_node": int(nproc) if nproc is not None and nproc.isdecimal() else nproc,
    }
    arguments = click.get_current_context().meta.get(_ARGUMENTS, ())
    return Request(job, profile, shared["sets"], flags, shared["env"], shared["resume"], rehearse, waits, again, after,
                   shared["allow_code_dir"], arguments, program=program)  # fmt: skip
