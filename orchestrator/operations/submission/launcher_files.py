"""Reads the files that accelerate and deepspeed would read for a launch line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import UsageError
from orchestrator.protocol.reading import read_regular

MOST_HOSTFILE: Final = 1 << 20
MOST_SCRIPT: Final = 1 << 17
HOSTFILE: Final = "/job/hostfile"  # deepspeed's default


@dataclass(frozen=True)
class LauncherFiles:
    """The files that a launcher would find if it were started in the folder `cwd` with the variables in `environ`."""

    cwd: Path
    environ: Mapping[str, str]

    def script(self, name: str) -> str | None:
        """Return the text of a shell script that the line calls, or None if there is no such file."""
        path = os.path.realpath(self.cwd / os.path.expanduser(name))
        try:
            return read_regular(path, MOST_SCRIPT).decode(errors="replace") if os.path.exists(path) else None
        except OSError as error:
            raise UsageError(f"{name} can't be read: {error.strerror}") from error

    def accelerate(self, named: str) -> tuple[str, dict[str, Any]] | None:
        """Return (path, content) of the named config file or, if none is named, of accelerate's default file.

        Return None if there is no such file. Raises SpecError if the content is not a mapping in YAML or JSON.
        """
        path = self.cwd / os.path.expanduser(named) if named else self._default_config()
        if not os.path.exists(path):
            return None
        from orchestrator.specs.documents.yaml_source import plain, read_yaml

        content = plain(read_yaml(path, "config").root)
        assert isinstance(content, dict)
        return str(path), content

    def _default_config(self) -> Path:
        cache = self.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = Path(os.path.expanduser(self.environ.get("HF_HOME") or f"{cache}/huggingface")) / "accelerate"
        new, old = folder / "default_config.yaml", folder / "default_config.json"
        return old if old.is_file() and not new.is_file() else new

    def hostfile(self, named: str) -> tuple[str, str] | None:
        """Return (path, text) of deepspeed's hostfile, or None if there is no such file."""
        path = self.cwd / os.path.expanduser(named or HOSTFILE)
        if not os.path.exists(path):
            return None
        try:
            return str(path), read_regular(os.path.realpath(path), MOST_HOSTFILE).decode()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise UsageError(f"the hostfile {path} can't be read: {reason}", "name another: --hostfile FILE") from error
