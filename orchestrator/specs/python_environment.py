"""The job's `environment` section: the lock file, the interpreter, and another interpreter whose packages are used."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

from orchestrator.specs.spec import Spec, setting

if TYPE_CHECKING:  # the border reads the types of fields; a submission of cached documents loads no pydantic
    from pydantic import AfterValidator, Field

    from orchestrator.specs.fields import Line

LOCK_FILES: Final = "uv.lock, pylock.toml (also pylock.NAME.toml) or a requirements file (.txt)"
_LOCK: Final = r"uv\.lock|pylock(\.[^./]+)?\.toml|[^/]+\.txt"


def _lock(text: str) -> str:
    if not re.fullmatch(_LOCK, text.rpartition("/")[2]):
        raise ValueError(f"'{text}' is not the name of a lock file: {LOCK_FILES}")
    return text


class PythonEnvironment(Spec):
    """The Python packages of the ranks, which orch installs on every node from a lock file."""

    lock: Annotated[Line, AfterValidator(_lock)] = setting(
        "uv.lock, pylock.toml or requirements.txt, relative to the code folder"
    )
    python: Annotated[str, Field(pattern=r"^3\.\d{1,2}(\.\d{1,2})?$")] | None = setting(
        'the version of the interpreter, as "3.12"; the profile\'s interpreter by default', default=None
    )
    system_packages: Line | None = setting(
        "an interpreter on the nodes; the ranks can also import its packages, such as the cluster's torch", default=None
    )
    extras: tuple[Line, ...] = setting(
        "extras of the project to install (only with uv.lock or pylock.toml)", default=()
    )
    groups: tuple[Line, ...] = setting("dependency groups to install (only with uv.lock or pylock.toml)", default=())
