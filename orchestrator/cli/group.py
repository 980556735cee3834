"""The command group, and how all commands print."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

import click

from orchestrator.cli.render import escapes
from orchestrator.errors import printable
from orchestrator.version import __version__


class Orch(click.Group):
    """Lists the commands in the order in which one meets them; each is a file of its name, loaded when asked for."""

    order = (
        "submit", "status", "logs", "why", "cancel", "wait", "best", "checkpoints", "pull", "outputs", "diff", "bundle",
        "export", "shell", "replay", "plan", "profiles", "init", "rm", "gc", "schema", "completion", "doctor", "nodes",
    )  # fmt: skip
    unlisted = ("accept",)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.order)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in (*self.order, *self.unlisted):
            import_module(f"orchestrator.cli.commands.{cmd_name}")  # registers it
        return super().get_command(ctx, cmd_name)


def _dashes(name: str) -> str:
    return name.replace("_", "-")  # click has taken the dashes in front off


@click.group(
    cls=Orch,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "token_normalize_func": _dashes},
)
@click.version_option(__version__, prog_name="orch")
def orch() -> None:
    """Take one PyTorch training job to any cluster: this machine, SSH hosts, or Slurm."""


def style(text: str, colour: str) -> str:
    """Return the text in a colour, where the terminal takes colours."""
    return click.style(text, fg=colour) if colour and colour_is_wanted() else text


def colour_is_wanted() -> bool:
    """Is stdout a terminal that takes colours, and is the user content with that?"""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str) -> None:
    """Print orch's own words to stderr, so that stdout is what was asked for."""
    show(text, err=True)


def show(text: str, *, err: bool = False) -> None:
    """Print a page for people; what a program or a host has put into it can't command the terminal."""
    click.echo(escapes.page(text) if colour_is_wanted() else printable(text), err=err)


def print_json(value: Any) -> None:
    """Print a value as JSON, on stdout."""
    click.echo(json.dumps(value, indent=1))
