"""The store of wheels on this machine. A wheel's name is its sha256, and each wheel is fetched or built only once."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from orchestrator.environments.choice import Choice
from orchestrator.environments.interpreter import Interpreter
from orchestrator.environments.uv import UvError, run_uv
from orchestrator.errors import OrchError
from orchestrator.node.environments.install import wheels_folder
from orchestrator.node.system.hashing import digest_of
from orchestrator.node.system.private import make_private
from orchestrator.protocol.files import replacing, write_json
from orchestrator.protocol.json_text import parse_json
from orchestrator.transport.http_credentials import HttpAddress

AT_ONCE: Final = 8  # number of simultaneous downloads
SILENCE_SECONDS: Final = 60  # a download fails if no bytes arrive for this long


class WheelError(OrchError):
    """A wheel can't be fetched or built. The message names the package."""


class WheelStore:
    """The cache of wheels in orch's state folder. It also contains other files that are sent to nodes, such as uv."""

    def __init__(self, root: Path) -> None:
        self.folder = Path(wheels_folder(str(root / "cache")))
        make_private(str(self.folder), exist_ok=True)

    def path(self, sha256: str) -> Path:
        """Return the path for the file with this sha256, which may not be stored yet."""
        return self.folder / sha256

    def is_whole(self, sha256: str) -> bool:
        """Return whether the file with this sha256 is stored and intact. The check marks the file as just used."""
        try:
            with self.path(sha256).open("rb") as file:
                found = digest_of(file) == sha256
                os.utime(file.fileno())
        except OSError:
            return False
        return found

    def keep(self, source: Path) -> str:
        """Store a copy of a file, and return its sha256."""
        with source.open("rb") as file:
            sha256 = digest_of(file)
        if not self.is_whole(sha256):
            with replacing(self.path(sha256)) as partial, source.open("rb") as file, open(partial, "xb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
        return sha256

    def have(self, choices: Iterable[Choice]) -> None:
        """Fetch the files that are not stored yet, several at the same time. Raises WheelError if that fails."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(self._have, each) for each in choices]:
                done.result()

    def _have(self, choice: Choice) -> None:
        if self.is_whole(choice.sha256):
            return
        if not choice.url:
            raise WheelError(
                f"{choice.file}, which was built on this machine for this run, has been removed",
                "submit the job file instead of repeating the run, so that the wheel is built again",
            )
        where = urlsplit(choice.url)
        try:
            with replacing(self.path(choice.sha256)) as partial, _open(choice.url) as source:
                with open(partial, "xb") as copy:
                    found = digest_of(source, copy)
                if found != choice.sha256:
                    raise WheelError(
                        f"{choice.name} {choice.version}: {choice.file} from {where.hostname or where.path} "
                        f"has the sha256 {found}, and the lock names {choice.sha256}",
                        "the file at this address has changed since the lock was written: create the lock "
                        "again if you trust the file",
                    )
        except (OSError, ValueError) as error:  # _open raises OSError for the errors of http.client
            what = f"{choice.name} {choice.version}: {choice.file} can't be fetched from {where.hostname or where.path}"
            raise WheelError(
                f"{what}: {error}", "this machine must be able to reach the addresses in the lock"
            ) from None

    def built(self, choice: Choice, interpreter: Interpreter) -> Choice:
        """Build the wheel of a source distribution, or return the wheel of an earlier build for the same kind of
        interpreter.

        Raises WheelError if the build fails.
        """
        key = f"{choice.sha256}-{'.'.join(map(str, interpreter.minor))}-{interpreter.platform}.json"
        record = self.folder.parent / "built" / key
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = parse_json(record.read_bytes())
            if self.is_whole(known["sha256"]):
                return replace(choice, file=known["file"], sha256=known["sha256"], url="", is_sdist=False)
        self._have(choice)
        with tempfile.TemporaryDirectory(prefix="orch-") as folder:
            source, out = Path(folder) / choice.file, Path(folder) / "out"
            shutil.copyfile(self.path(choice.sha256), source)
            version = ".".join(map(str, interpreter.minor))
            python = sys.executable if interpreter.minor == sys.version_info[:2] else version
            try:
                run_uv("build", "--wheel", "--python", python, "--out-dir", str(out), str(source))
            except UvError as error:
                raise WheelError(
                    f"{choice.name} {choice.version} can't be built from {choice.file} for Python {version}:\n{error}",
                    "lock a version that has a wheel, or build the wheel on another machine",
                ) from None
            wheel = next(out.glob("*.whl"))
            sha256 = self.keep(wheel)
            make_private(str(record.parent), exist_ok=True)
            write_json(record, {"file": wheel.name, "sha256": sha256})
        return replace(choice, file=wheel.name, sha256=sha256, url="", is_sdist=False)


def _open(url: str) -> IO[bytes]:
    """Open a URL, with credentials from the URL or from ~/.netrc. Raises OSError or ValueError if that fails."""
    import netrc
    import urllib.request
    from http.client import HTTPException

    parts, address = urlsplit(url), HttpAddress.of(url)
    if parts.scheme not in ("http", "https", "file"):
        raise ValueError(f"{parts.scheme} is not supported: packages are fetched by https, http or file")
    if not address.user and parts.hostname:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            user, _, password = netrc.netrc().authenticators(parts.hostname) or ("", "", "")
            address = replace(address, user=user, password=password or "")
    request = urllib.request.Request(address.url)  # noqa: S310 (schemes are checked above)
    for name, value in address.headers.items():
        request.add_unredirected_header(name, value)
    try:
        response: IO[bytes] = urllib.request.urlopen(request, timeout=SILENCE_SECONDS)  # noqa: S310 (as above)
    except HTTPException as error:
        raise OSError(str(error)) from error
    return response
