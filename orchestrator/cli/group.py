"""The command group, and the functions by which all commands print."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any, Final

import click

from orchestrator.cli.render import escapes
from orchestrator.errors import UsageError, printable
from orchestrator.version import __version__

SECTIONS: Final = {
    "submission": ("Start runs", ("submit", "run", "plan")),
    "lifecycle": (
        "Watch and stop runs",
        ("status", "top", "ui", "metrics", "logs", "events", "why", "wait", "cancel", "tag", "note", "rm"),
    ),
    "results": (
        "Results",
        ("checkpoints", "outputs", "pull", "best", "plot", "tensorboard", "diff", "bundle", "export"),
    ),
    "debugging": ("Debugging", ("stacks", "profile", "debug", "port", "shell", "replay", "drill")),
    "machines": ("Machines", ("doctor", "nodes", "queue", "usage", "gc")),
    "setup": ("Setup", ("init", "profiles", "schema", "completion", "mcp")),
}
"""The packages of commands, with their titles in the help, and their commands in the usual order of use."""

ALIASES: Final = {"ls": "status", "ps": "status", "describe": "status"}
"""Names that other tools have for commands, and the commands of orch that they stand for."""


class Orch(click.Group):
    """The group of all commands, sorted by purpose. A command's file is imported when the command is used."""

    unlisted = {"accept": "submission"}  # noqa: RUF012 (click's classes are not frozen)
    sections = {name: section for section, (_, names) in SECTIONS.items() for name in names}  # noqa: RUF012 (as above)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands that the help shows."""
        return list(self.sections)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or None if there is none."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if section := self.sections.get(cmd_name) or self.unlisted.get(cmd_name):
            import_module(f"orchestrator.cli.commands.{section}.{cmd_name}")  # importing the file registers the command
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names, directly or by an alias. Raises UsageError if there is none."""
        name = ALIASES.get(args[0], args[0])
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            from orchestrator.cli.usage import no_command

            raise no_command(name, self.sections)
        return super().resolve_command(ctx, [name, *args[1:]])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group of commands."""
        width = formatter.width - 6 - max(map(len, self.sections))
        for title, names in SECTIONS.values():
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                rows = [(name, command.get_short_help_str(width)) for name, command in found if command is not None]
                formatter.write_dl(rows)


def _dashes(name: str) -> str:
    return name.replace("_", "-")  # click has removed the leading dashes of an option


@click.group(
    cls=Orch,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "token_normalize_func": _dashes},
)
@click.version_option(__version__, prog_name="orch")
def orch() -> None:
    """Run a PyTorch training job on this machine, SSH hosts, Slurm, Grid Engine or PBS.

    orch COMMAND --help shows a command's options, with an example.
    """


def style(text: str, colour: str) -> str:
    """Return the text in a colour if the terminal shows colours."""
    return click.style(text, fg=colour) if colour and colour_is_wanted() else text


def colour_is_wanted() -> bool:
    """Return True if stdout is a terminal that shows colours, and the user has not turned colours off."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width_of(stream: Any) -> int | None:
    """Return the number of columns of the terminal behind a stream; None if the stream is a file or a pipe."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80  # 0: the terminal does not know its size
    except (OSError, ValueError):  # the stream has no descriptor, as in tests
        return 80


_HELD: Final[list[str]] = []


def say(text: str) -> None:
    """Print a message to stderr, because stdout has only the command's result."""
    show(text, err=True)


def say_all(*lines: str) -> None:
    """Print each line to stderr, except empty lines."""
    for line in filter(None, lines):
        say(line)


def say_unless_refused(text: str) -> None:
    """Delay a message until the command's next output. `drop_held` discards the message if the command fails first."""
    _HELD.append(text)


def drop_held() -> None:
    """Discard the messages that `say_unless_refused` has delayed."""
    _HELD.clear()


def release_held() -> None:
    """Print the messages that `say_unless_refused` has delayed."""
    held = list(_HELD)
    _HELD.clear()
    for line in held:
        show(line, err=True)


def show(text: str, *, err: bool = False) -> None:
    """Print text for people. Control characters in the text are escaped, so that they can't control the terminal."""
    release_held()
    click.echo(escapes.page(text) if colour_is_wanted() else printable(text), err=err)


def print_id(name: str) -> None:
    """Print the id of a new run or sweep to stdout if stdout is not a terminal. Users at a terminal read the id in a
    message on stderr.
    """
    if not sys.stdout.isatty():
        click.echo(name)


def print_json(value: Any) -> None:
    """Print a value as JSON, on stdout."""
    release_held()
    click.echo(json.dumps(value, indent=1))


def duration(option: str, text: str) -> int:
    """Convert an option's value, such as `10m`, to seconds. Raises UsageError if the value is not a duration."""
    from orchestrator.specs.units import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
