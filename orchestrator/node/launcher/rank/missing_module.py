"""Finds other interpreters on this machine that have a module which a rank could not import."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Mapping

from orchestrator.node.system.interpreter import usual_folders
from orchestrator.protocol.rank_reports import MissingModule, missing_module_in

MOST_NAMED = 3
MOST_LOOKED_AT = 200


def missing_module(words: str, environ: Mapping[str, str] = os.environ) -> MissingModule | None:
    """Return the module that could not be imported according to an error message, with the paths of this interpreter
    and of other interpreters. Return None if the message reports no missing module.

    The other interpreters are those that have the module. If no interpreter has it, they are all others on this
    machine. No interpreter is started, because the folder of an interpreter's packages shows its modules.
    """
    module = missing_module_in(words)
    if not module:
        return None
    others = list(_others(environ))
    having = [python for python, prefix in others if _has(prefix, module)]
    named = (having or [python for python, _ in others])[:MOST_NAMED]
    return MissingModule(module, sys.executable, bool(having), tuple(named))


def others_in_words(words: str) -> str:
    """Return a clause that lists other interpreters, for the message about a missing module; "" if there are none."""
    found = missing_module(words)
    if found is None or not found.others:
        return ""
    which = "these interpreters here have it" if found.has_it else "other interpreters here"
    return f"; {which}: {', '.join(found.others)}"


def _others(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (path, prefix) of other Python 3 interpreters. They are searched in active environments, on PATH and in the
    usual folders.
    """
    active = [f"{environ[name]}/bin" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    seen = {os.path.realpath(sys.prefix)}
    for folder in [*active, *environ.get("PATH", os.defpath).split(os.pathsep), *usual_folders()][:MOST_LOOKED_AT]:
        prefix = os.path.dirname(os.path.realpath(folder))
        python = next((path for name in ("python", "python3") if os.access(path := f"{folder}/{name}", os.X_OK)), "")
        if not folder.startswith("/") or not python or "/shims" in folder or prefix in seen:
            continue
        seen.add(prefix)
        if glob.glob(f"{glob.escape(prefix)}/lib/python3*"):
            yield python, prefix


def _has(prefix: str, module: str) -> bool:
    packages = f"{glob.escape(prefix)}/lib/python3*/*-packages/{module}"
    return bool(glob.glob(packages) or glob.glob(f"{packages}.*"))
