"""Provides the uv program for a node: this machine's own uv if the node can run it, or else uv's wheel from the
package index.
"""

from __future__ import annotations

import platform
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from orchestrator.environments.interpreter import Interpreter, libc_of
from orchestrator.environments.lock import Lock
from orchestrator.environments.packages import chosen
from orchestrator.environments.uv import find_uv, run_uv
from orchestrator.environments.wheels import WheelStore

OLDEST_GLIBC: Final = (2, 17)  # the version of glibc that uv's own wheels need


def uv_for(store: WheelStore, interpreter: Interpreter) -> str:
    """Put a uv program that can run on the interpreter's node into the store of wheels, and return the file's sha256.

    Raises LockError or WheelError if no such uv is available.
    """
    if _runs_there(interpreter):
        return store.keep(find_uv())
    version = run_uv("--version").split()[1]
    (choice,) = chosen(store, Lock("uv", f"uv=={version}\n", "", ""), interpreter)
    store.have([choice])
    with tempfile.TemporaryDirectory(prefix="orch-") as folder, zipfile.ZipFile(store.path(choice.sha256)) as wheel:
        name = next(each for each in wheel.namelist() if each.endswith("/scripts/uv"))
        return store.keep(Path(wheel.extract(name, folder)))


def _runs_there(interpreter: Interpreter) -> bool:
    there = libc_of(interpreter.libc)
    if interpreter.platform != sysconfig.get_platform() or platform.libc_ver()[0] != "glibc" or there is None:
        return False
    return there[0] == "glibc" and there[1] >= OLDEST_GLIBC
