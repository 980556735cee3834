"""Shell completion of runs, sweeps, profiles and jobs. It reads only names, and not the files of runs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import click

from orchestrator.errors import OrchError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PLAIN: Final = re.compile(r"[A-Za-z0-9._@:+/-]+")


class Complete(Protocol):
    """The type of click's completion function, which returns the words that begin with `incomplete`."""

    def __call__(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]: ...


def _completes(names: Callable[[str], Iterable[str]], *, or_a_file: bool = False) -> Complete:
    """Return a completion function for click that offers these names. With `or_a_file`, the shell offers file names if
    no name matches.

    Only names that match PLAIN are offered, because bash inserts a name as shell code, and anybody may have written the
    file of a job or profile. The shell itself quotes the names of files. Errors are ignored, because the shell can't
    show them at its prompt.
    """

    @functools.wraps(names)
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        try:
            found = [CompletionItem(name) for name in names(incomplete)
                     if name.startswith(incomplete) and PLAIN.fullmatch(name)]  # fmt: skip
        except (OrchError, OSError):
            found = []
        return [CompletionItem("", type="file")] if or_a_file and not found else found

    return complete


_completes_or_a_file = functools.partial(_completes, or_a_file=True)


@_completes
def runs(_typed: str) -> Iterable[str]:
    """Return the completions of a run's name: `last`, then the ids of all runs, the newest first."""
    from orchestrator.runs.store import newest_runs, state_root

    return ["last", *(run.run_id for run in newest_runs(state_root())), *_delegated()]


@_completes
def runs_and_sweeps(typed: str) -> Iterable[str]:
    """Return the completions of the name of a run or a sweep.

    A sweep may have a thousand points, so its points are offered only if the user has typed the sweep's whole id.
    """
    from orchestrator.runs.run_id import sweep_of
    from orchestrator.runs.store import newest_runs, state_root

    names = []
    for run in newest_runs(state_root()):
        sweep = sweep_of(run.run_id)
        names.append(run.run_id if sweep is None or typed.startswith(f"{sweep}.") else sweep)
    return dict.fromkeys(["last", *names, *_delegated()])


@_completes_or_a_file
def profiles(_typed: str) -> Iterable[str]:
    """Return the completions of a profile's name. If none matches, the shell offers files."""
    from orchestrator.specs.documents.lookup import known_profiles

    return dict.fromkeys(name for name, _, _ in known_profiles(Path.cwd()))


@_completes_or_a_file
def jobs(_typed: str) -> Iterable[str]:
    """Return the completions of a job: files of this folder, names in ./jobs, and names of shipped jobs. If none
    matches, the shell offers files.
    """
    from orchestrator.specs.documents.lookup import documents, known_jobs

    here = [path.name for path in documents(Path.cwd())]
    return [*here, *(name for name, _ in known_jobs(Path.cwd()))]


def _delegated() -> list[str]:
    """Return the ids of the runs that other machines supervise, the newest first."""
    from orchestrator.runs.store import state_root

    if not (state_root() / "elsewhere").is_dir():
        return []
    from orchestrator.operations.submission.delegate import pointers

    return [pointer.run_id for pointer in reversed(pointers(state_root()))]
