"""Finds the checkpoints of a run on this machine, in any format, and puts one that was sent in its place."""

from __future__ import annotations

import os
import shutil

from orchestrator.node.server.request import Answer, RefusedError, Request, at_user
from orchestrator.protocol.checkpoints.of_run import Places, progress_of_saved
from orchestrator.protocol.checkpoints.search import Sought, at


def saved(request: Request, _: bytes) -> Answer:
    """Return the progress of a run's newest complete checkpoint (an event's fields), and if `given` is complete."""
    run_dir, code_dir, checkpoints = (at_user(request[name]) for name in ("run_dir", "code_dir", "checkpoints"))
    places = Places(run_dir, code_dir, checkpoints, Sought(str(request["format"]), str(request["glob"])))
    newest = next(iter(places.own().values()), None)
    given = str(request.get("given") or "")
    return {
        "newest": progress_of_saved(newest).to_event() if newest is not None else {},
        "given": bool(given) and at(at_user(given)) is not None,
    }, b""


def put_in_place(request: Request, _: bytes) -> Answer:
    """Give its name to a folder that was written completely. An incomplete folder of that name is removed."""
    source, target = at_user(request["source"]), at_user(request["target"])
    if os.path.islink(target) or os.path.isfile(target):
        raise RefusedError(f"{target} is no folder")
    shutil.rmtree(target, ignore_errors=True)
    os.rename(source, target)
    return {}, b""
