"""The command group, and the few ways of speaking that all commands share."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from orchestrator import __version__


class Orch(click.Group):
    """Lists the commands in the order in which one meets them."""

    order = (
        "submit", "status", "logs", "why", "cancel", "wait", "best", "checkpoints", "pull", "diff", "bundle", "export",
        "shell", "replay", "plan", "profiles", "init", "rm", "gc", "schema",
    )  # fmt: skip

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.order, *sorted(set(self.commands) - set(self.order))]


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
    return click.style(text, fg=colour) if colour and colour_is_wanted() else text


def colour_is_wanted() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str) -> None:
    """Orch's own words go to stderr, so that stdout is what was asked for."""
    click.echo(text, err=True)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1))
