"""The result of loading a job and a profile. This module imports no pydantic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a submission of cached documents must not load pydantic
    from orchestrator.specs.job import Job
    from orchestrator.specs.profiles import AnyProfile


@dataclass(frozen=True)
class Loaded:
    """A job and a profile that were checked together, their files, and the code folder."""

    job: Job
    profile: AnyProfile
    job_path: Path
    profile_path: Path
    code_dir: Path
    notes: tuple[str, ...] = ()  # warnings about values that may mean something else, such as a time without a unit


def code_dir_of(job: Job, job_file: Path) -> Path:
    """Return the folder with the job's code, as an absolute path."""
    return (job_file.parent / Path(job.code.dir).expanduser()).resolve()
