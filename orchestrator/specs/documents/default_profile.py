"""Chooses the profile if the user names none. This module imports no pydantic, and imports YAML only if there is a
config file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

from orchestrator.errors import SpecError
from orchestrator.specs.documents.lookup import known_profiles, shipped

_FIELD: Final = "profile"


@dataclass(frozen=True)
class Choice:
    """The name or file of a profile, and the reason why it was chosen."""

    profile: str
    why: str


def default_profile(job: str, cwd: Path, environ: Mapping[str, str], job_file: Path | None = None) -> Choice:
    """Return the default profile for a job of this name ("" for a job without a name) in the folder `cwd`.

    The first of these that exists is chosen: the variable ORCH_PROFILE, the profile in the user's config file, the
    profile with the job's name, the only profile that is not shipped with orch, and last the profile `local`. A profile
    in the folder of `job_file` counts only if it has the job's name. Raises SpecError if the config file has a mistake.
    """
    if named := environ.get("ORCH_PROFILE"):
        return Choice(named, "from ORCH_PROFILE")
    config = config_file()
    if config.exists():
        return Choice(_profile_in(config), f"from {config}")
    own = _not_of_orch(known_profiles(cwd))
    if job in own | _not_of_orch(known_profiles(cwd, job_file)):
        return Choice(job, "it is named like the job")
    if len(own) == 1:
        return Choice(own.pop(), "the only one of your own")
    return Choice("local", "none is named: -p NAME; orch profiles lists them")


def _not_of_orch(profiles: Iterable[tuple[str, Path, str]]) -> set[str]:
    of_orch = shipped("cluster_profiles").resolve()
    return {name for name, path, _ in profiles if path.resolve().parent != of_orch}


def config_file() -> Path:
    """Return the path of the user's config file, which may not exist."""
    return Path(platformdirs.user_config_dir("orch")) / "config.yaml"


def _profile_in(config: Path) -> str:
    """Return the profile that the config file names. A relative path is relative to the config file's folder."""
    from orchestrator.specs.documents.yaml_source import read_yaml

    root = read_yaml(config, "config").root
    assert isinstance(root.value, dict)
    for name, node in root.value.items():
        if name != _FIELD:
            guess = f"did you mean {_FIELD}?" if difflib.get_close_matches(name, [_FIELD]) else f"it takes: {_FIELD}"
            raise SpecError(node.key_where or node.where, f"{name}: there is no such field in a config file", guess)
        if not isinstance(node.value, str) or not node.value:
            raise SpecError(node.where, f"{_FIELD}: expected a profile's name or file", f"{_FIELD}: lab")
        named = Path(node.value).expanduser()
        return str(config.parent / named) if "/" in node.value else node.value
    raise AssertionError("an empty mapping is refused as an empty file")
