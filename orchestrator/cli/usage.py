"""Converts click's usage errors to orch's errors, with a hint at what the user probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

import click

from orchestrator.cli.group import ALIASES
from orchestrator.errors import UsageError

ANSWERS: Final = {
    "clean": "orch gc removes what crashed runs left, orch rm RUN removes runs with their checkpoints",
    "top": "orch status --watch refreshes every second, orch nodes shows who uses which GPUs",
    "delete": "orch rm RUN removes a run that has ended, orch cancel RUN stops a run that has not ended",
    "kill": "orch cancel RUN stops a run, orch cancel RUN --now kills it at once",
    "stop": "orch cancel RUN stops a run",
    "sweep": "orch submit JOB --sweep lr=0.1,0.01 submits a sweep, orch status SWEEP shows it",
    "resume": "orch submit JOB --resume RUN starts from a run's newest checkpoint",
}
"""Hints for words that people type although orch has no such command."""
OPTIONS: Final = {
    "--gpus": "--nproc-per-node",
    "--ranks": "--nproc-per-node",
    "--nnodes": "--nodes",
    "--override": "--set",
    "--limit": "--number",
}
"""Names that other tools have for options, and the options of orch that they stand for."""


def no_command(typed: str, names: Iterable[str]) -> UsageError:
    """Return the error for an unknown command."""
    close = get_close_matches(typed, [*names, *ALIASES], n=1)
    hint = ANSWERS.get(typed) or (f"did you mean orch {close[0]}?" if close else "orch --help lists all commands")
    return UsageError(f"there is no command '{typed}'", hint)


def refused(error: click.ClickException) -> UsageError:
    """Convert click's usage error to an error of orch."""
    context = getattr(error, "ctx", None)
    if context is None or context.parent is None:  # the error concerns orch itself and not one of its commands
        return UsageError(_sentence(error), "orch --help lists the commands, orch COMMAND --help the options of one")
    if isinstance(error, click.NoSuchOption):
        return _no_option(error.option_name, context)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        is_argument = isinstance(error.param, click.Argument)
        name = error.param.metavar or str(error.param.name).upper() if is_argument else error.param.opts[0]
        return UsageError(f"{context.info_name}: {name} is missing", _usage(context))
    if extra := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", error.message):
        return _too_much(extra[1], context)
    return UsageError(f"{context.info_name}: {_sentence(error)}", _usage(context))


def _no_option(typed: str, context: click.Context) -> UsageError:
    there = [name for param in context.command.params for name in (*param.opts, *param.secondary_opts)]
    meant = [name for name in [OPTIONS.get(typed, "")] if name in there] or get_close_matches(
        typed, there, n=1, cutoff=0.7
    )
    hints = [f"did you mean {meant[0]}?"] if meant else []
    if context.info_name == "run":
        hints.append(f"write an option of the script after the script: orch run -- train.py {typed} ...")
    elif _takes_arguments(context):
        hints.append(f"write an option of the script after --: {context.command_path} JOB -- {typed} ...")
    hints.append(f"all options: {context.command_path} --help")
    return UsageError(f"{context.info_name} has no option {typed}", "\n".join(hints))


def _too_much(words: str, context: click.Context) -> UsageError:
    """Return the error for unexpected arguments, such as a profile without -p or arguments of the script."""
    params = context.command.params
    given = [context.params.get(param.name or "") for param in params if isinstance(param, click.Argument)]
    typed = " ".join([context.command_path, *filter(None, given)])
    first, *more = words.split()
    if any("--profile" in param.opts for param in params) and first in _profiles(given[0]):
        return UsageError(f"the profile '{first}' is given without -p", " ".join([typed, "-p", first, *more]))
    hint = (
        f"write the script's arguments after --: {typed} -- {words}" if _takes_arguments(context) else _usage(context)
    )
    return UsageError(f"{context.info_name}: unexpected argument '{words}'", hint)


def _takes_arguments(context: click.Context) -> bool:
    return "-- ARGUMENTS" in " ".join(context.command.collect_usage_pieces(context))


def _profiles(job: str | None) -> set[str]:
    from pathlib import Path

    from orchestrator.specs.documents.lookup import known_profiles

    return {name for name, _, _ in known_profiles(Path.cwd(), Path(job).absolute() if job else None)}


def _usage(context: click.Context) -> str:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return f"usage: {context.command_path} {pieces}"


def _sentence(error: click.ClickException) -> str:
    text = error.format_message().rstrip(".").replace("is not a valid integer range", "is not a whole number")
    text = re.sub(r"'(--[\w-]+)' / '-\w'", r"'\1'", text)  # remove the short form of an option
    return text[:1].lower() + text[1:]
