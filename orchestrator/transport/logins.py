"""Remembers which machines have refused a login, and which accept orch's own connection.

Some machines lock out a user after too many failed logins. So orch repeats a refused login only if the configuration
or the keys have changed, or if `orch doctor` tries again. All commands and the supervisor share this memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from orchestrator.protocol.files import write_json
from orchestrator.protocol.quantities import duration
from orchestrator.protocol.reading import read_object
from orchestrator.transport.openssh import LoginRefusedError, Resolved

AGENT_SECONDS: Final = 5.0
_MOST: Final = 1 << 20  # bytes of a file


class Logins:
    """The memory of logins: a file in `folder` for each configuration of a machine. Without a folder, only this
    process remembers.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self.here = folder, dict[str, dict[str, Any]]()

    def works(self, resolved: Resolved) -> bool:
        """Return True if orch's own connection has logged in with this configuration."""
        return self._read(resolved).get("works") is True

    def check(self, resolved: Resolved) -> None:
        """Raise LoginRefusedError if the machine has refused a login with this configuration and these keys."""
        refused = self._read(resolved).get("refused")
        if not isinstance(refused, dict) or not refused:
            return
        found = refused.get(_keys(resolved))
        if isinstance(found, dict):
            ago = duration(max(0.0, time.time() - float(found["at"])))
            again = f"orch does not repeat a login that was refused (here {ago} ago); `orch doctor` tries it again"
            hint = "\n".join(filter(None, [str(found["hint"]), again]))
            is_transient = found["transient"] is True
            raise LoginRefusedError(str(found["message"]), hint, resolved=resolved, transient=is_transient)

    def accept(self, resolved: Resolved) -> None:
        """Remember that orch's own connection has logged in."""
        known = self._read(resolved)
        refused = dict(known.get("refused") or {})
        if refused:
            refused.pop(_keys(resolved), None)
        if (after := {"works": True, "refused": refused}) != known:
            self._write(resolved, after)

    def refuse(self, error: LoginRefusedError) -> None:
        """Remember that a machine has refused the login."""
        found = {"message": error.message, "hint": error.hint, "transient": error.transient, "at": time.time()}
        refused = self._read(error.resolved).get("refused") or {}
        self._write(error.resolved, {"works": False, "refused": {**refused, _keys(error.resolved): found}})

    def forget(self, resolved: Resolved) -> None:
        """Forget the machine's refusals."""
        known = self._read(resolved)
        if known.get("refused"):
            self._write(resolved, {**known, "refused": {}})

    def _read(self, resolved: Resolved) -> dict[str, Any]:
        found = self.here.get(resolved.configuration)
        if found is None and self.folder is not None:
            found = read_object(self.folder / f"{resolved.configuration}.json", _MOST)
        return found or {}

    def _write(self, resolved: Resolved, values: dict[str, Any]) -> None:
        name = resolved.configuration
        self.here[name] = values
        if self.folder is not None:
            with contextlib.suppress(OSError):  # if the disk is full, this process alone remembers
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_json(self.folder / f"{name}.json", values, mode=0o600, durable=False)
                del self.here[name]


def _keys(resolved: Resolved) -> str:
    """Return a hash of the keys that a login can use: those of the agent, and the key files."""
    found = []
    for path in resolved.keys:
        with contextlib.suppress(OSError):  # it was removed meanwhile
            info = os.stat(path)
            found.append(f"{path} {info.st_size} {info.st_mtime_ns}")
    if shutil.which("ssh-add"):
        socket = {"SSH_AUTH_SOCK": resolved.agent_socket} if resolved.agent_socket else {}
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                ["ssh-add", "-L"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                timeout=AGENT_SECONDS, env={**os.environ, **socket},
            )  # fmt: skip
            found.append(done.stdout)
    return hashlib.sha256("\n".join(found).encode()).hexdigest()
