"""What two documents say once they have been read and checked. Loads no pydantic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a submit of files that were read before must not wait for pydantic
    from orchestrator.specs.job import Job
    from orchestrator.specs.profiles import AnyProfile


@dataclass(frozen=True)
class Loaded:
    """A job and a profile that fit each other, and where they and the code came from."""

    job: Job
    profile: AnyProfile
    job_path: Path
    profile_path: Path
    code_dir: Path
    notes: tuple[str, ...] = ()  # what its writer may have meant otherwise


def code_dir_of(job: Job, job_file: Path) -> Path:
    """Return the folder whose code is shipped."""
    return (job_file.parent / Path(job.code.dir).expanduser()).resolve()
