"""The job's `environment` section: the lock file, the interpreter, and whose packages stay visible."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from orchestrator.specs.fields import Line, Spec

LOCK_FILES: Final = "uv.lock, pylock.toml (also pylock.NAME.toml) or a requirements file (.txt)"
_LOCK = re.compile(r"uv\.lock|pylock(\.[^./]+)?\.toml|[^/]+\.txt")


def _lock(text: str) -> str:
    if not _LOCK.fullmatch(text.rpartition("/")[2]):
        raise ValueError(f"'{text}' is not the name of a lock file: {LOCK_FILES}")
    return text


class PythonEnvironment(Spec):
    """The Python packages of the ranks, which orch installs on every node from a lock file."""

    lock: Annotated[Line, AfterValidator(_lock)] = Field(
        description="uv.lock, pylock.toml or requirements.txt, relative to the code folder"
    )
    python: Annotated[str, Field(pattern=r"^3\.\d{1,2}(\.\d{1,2})?$")] | None = Field(
        None, description='the version of the interpreter, as "3.12"; the profile\'s interpreter by default'
    )
    system_packages: Line | None = Field(
        None,
        description="an interpreter on the nodes whose packages stay visible: that of a cluster's torch, or of a venv",
    )
    extras: tuple[Line, ...] = Field((), description="of uv.lock or pylock.toml: extras of the project to install")
    groups: tuple[Line, ...] = Field((), description="of uv.lock or pylock.toml: dependency groups to install")
