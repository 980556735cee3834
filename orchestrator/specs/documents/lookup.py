"""Finds jobs and profiles by name: in this folder, in the user's config folder, and among those shipped with orch.

This module imports no pydantic, because shell completion must be fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import platformdirs

SUFFIXES: Final = (".yaml", ".yml", ".json")
SHELL_SUFFIXES: Final = (".sh", ".sbatch", ".slurm", ".job")
BATCH_SUFFIXES: Final = (*SHELL_SUFFIXES, ".pbs", ".qsub", ".sge", ".sub", ".bash")


def known_profiles(cwd: Path, job_file: Path | None = None) -> list[tuple[str, Path, str]]:
    """Return (name, path, origin) of every profile. If several profiles have the same name, the first takes precedence.

    Profiles in a job's folder come after the user's own, because another person may have written the job.
    """
    places = [("./cluster_profiles", cwd / "cluster_profiles"), ("your profiles", users_profiles())]
    if job_file is not None:
        folder = job_file.parent
        beside = [folder, folder.parent] if folder.name == "jobs" else [folder]
        places += [("beside the job", each / "cluster_profiles") for each in beside]
    places.append(("shipped with orch", shipped("cluster_profiles")))
    found = [(path.stem, path, where) for where, folder in places for path in documents(folder)]
    first = {entry[1]: entry for entry in reversed(found)}
    return list(reversed(first.values()))


def own_profiles(cwd: Path) -> dict[str, Path]:
    """Return the profiles of this folder and the user's own profiles by name, without those shipped with orch."""
    found: dict[str, Path] = {}
    for name, path, where in known_profiles(cwd):
        if where != "shipped with orch":
            found.setdefault(name, path)
    return found


def users_profiles() -> Path:
    """Return the folder of the user's own profiles."""
    return Path(platformdirs.user_config_dir("orch")) / "profiles"


def known_jobs(cwd: Path) -> list[tuple[str, Path]]:
    """Return (name, path) of every job in ./jobs and of those shipped with orch. If several jobs have the same name,
    the first takes precedence.
    """
    found = [(path.stem, path) for folder in job_folders(cwd) for path in documents(folder)]
    return list(reversed(dict(reversed(found)).items()))


def job_folders(cwd: Path) -> list[Path]:
    """Return the folders in which a job is found by its name. The first takes precedence."""
    return [cwd / "jobs", shipped("jobs")]


def documents(folder: Path) -> list[Path]:
    """Return the YAML and JSON files of a folder, sorted by name; empty if the folder can't be read."""
    try:
        return sorted((p for p in folder.iterdir() if p.suffix in SUFFIXES and p.is_file()), key=lambda p: p.stem)
    except OSError:
        return []


def shipped(folder: str) -> Path:
    """Return a folder that is shipped with orch. It is next to the package in a checkout, and inside the package in
    a wheel.
    """
    package = Path(__file__).parents[2]
    inside = package / "shipped" / folder
    return inside if inside.is_dir() else package.parent / folder
