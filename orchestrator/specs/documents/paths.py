"""Finds the file of a job or profile by name or path, or suggests similar names. This module imports no pydantic."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.specs.documents.lookup import (
    SHELL_SUFFIXES,
    SUFFIXES,
    documents,
    job_folders,
    known_profiles,
    shipped,
)

if TYPE_CHECKING:  # a submission of cached documents must not load ruamel
    from orchestrator.specs.documents.yaml_source import Document


def both_paths(job: str | Path | Document, profile: str | Path, cwd: Path) -> tuple[Path, Path]:
    """Return the files of the job and of the profile. If both are missing, one UsageError reports both."""
    try:
        job_file = job_path(job, cwd) if isinstance(job, str | Path) else job.path
    except UsageError as error:
        try:
            profile_path(profile, cwd)
        except UsageError as other:
            hint = "\n".join(filter(None, [error.hint, other.hint]))
            raise UsageError(f"{error.message}; {other.message}", hint) from error
        raise
    return job_file, profile_path(profile, cwd, job_file)


def shown(path: Path, cwd: Path) -> str:
    """Return the path that a user in the folder `cwd` would write for a file."""
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def job_path(ref: str | Path, cwd: Path) -> Path:
    """Return the file of a job. It is given by its path, or by its name in ./jobs or among the shipped jobs.

    Raises UsageError, with similar names, if there is no such file.
    """
    path = cwd / Path(ref).expanduser()
    name = str(ref)
    if path.suffix == ".py":
        hint = (
            f"run the script without a job file: orch run -- {name}; or write a job file for it: orch init "
            f"{path.stem} python {name}"
        )
        raise UsageError(f"{name} is a Python script; submit expects a job file (YAML)", hint)
    if path.suffix in SHELL_SUFFIXES:
        raise UsageError(
            f"{name} is a shell script; submit expects a job file (YAML)",
            f"write a job file from it: orch init {path.stem} {name}",
        )
    # Path.is_file raises OSError for a name that is too long
    if os.path.isfile(path) or (path.suffix in SUFFIXES and os.path.isdir(path)):
        return path
    named = path.suffix not in SUFFIXES and "/" not in name
    places = job_folders(cwd) if named else []
    for folder in places:
        for suffix in SUFFIXES:
            if os.path.isfile(folder / f"{name}{suffix}"):
                return folder / f"{name}{suffix}"
    if os.path.exists(path):
        raise UsageError(f"{name} is not a job file", "give the path of a YAML file")
    ours = shipped("jobs")
    near = _near(path.stem, [p for folder in (path.parent, *places, ours) for p in documents(folder)], 3)
    names = dict.fromkeys(p.stem if p.parent == ours else p.name for p in near)
    hint = f"did you mean {' or '.join(names)}?" if near else "give the path of a YAML file (orch init writes one)"
    raise UsageError(f"no such job file: {name}", hint)


def profile_path(ref: str | Path, cwd: Path, job_file: Path | None = None) -> Path:
    """Return the file of a profile, which is given by its path or by a name in `known_profiles`. Raises UsageError if
    there is no such profile.
    """
    name = str(ref)
    if "/" in name or name.endswith(SUFFIXES):
        path = cwd / Path(name).expanduser()
        if not os.path.exists(path):
            near = _near(path.stem, documents(path.parent), 1)
            hint = f"did you mean {shown(near[0], cwd)}?" if near else _known_names(known_profiles(cwd, job_file))
            raise UsageError(f"{name}: there is no such profile file", hint)
        return path
    listed = known_profiles(cwd, job_file)
    known = {known_name: path for known_name, path, _ in reversed(listed)}
    if name in known:
        return known[name]
    from orchestrator.specs.documents.diagnostics import did_you_mean

    guess = did_you_mean(name, sorted(known)).removeprefix("; ")
    raise UsageError(f"there is no profile '{name}'", " ".join(filter(None, (guess, _known_names(listed)))))


def _known_names(profiles: Iterable[tuple[str, Path, str]]) -> str:
    return f"known profiles: {', '.join(dict.fromkeys(name for name, _, _ in profiles)) or 'none'}"


def hidden_files(job: object, profile: str, job_file: Path, profile_file: Path, cwd: Path) -> list[str]:
    """Return a line for each job or profile that has the given name and is not used, because another file takes
    precedence. Shipped files are included.
    """
    jobs = [path for folder in job_folders(cwd) for path in documents(folder)]
    profiles = [path for _, path, _ in known_profiles(cwd, job_file)]
    found = [(path, job_file) for path in jobs if path.stem == job and not os.path.samefile(path, job_file)]
    found += [
        (path, profile_file) for path in profiles if path.stem == profile and not os.path.samefile(path, profile_file)
    ]
    return [f"{shown(used, cwd)} is used, and hides {shown(path, cwd)}" for path, used in found]


def _near(stem: str, files: list[Path], most: int) -> list[Path]:
    """Return at most `most` files with the most similar names; suffixes are ignored."""
    import difflib

    close = difflib.get_close_matches(stem, {p.stem for p in files}, n=most, cutoff=0.6)
    return [path for name in close for path in files if path.stem == name]
