"""Finds a run's checkpoints of all formats on this machine, and moves a received checkpoint to its final folder."""

from __future__ import annotations

import os

from orchestrator.node.server.request import Answer, Request, at_user
from orchestrator.protocol.arriving import is_partial
from orchestrator.protocol.checkpoints.of_run import Places, progress_of_saved
from orchestrator.protocol.checkpoints.search import Sought, at
from orchestrator.protocol.files import put_in_place


def saved(request: Request, _: bytes) -> Answer:
    """Return the progress (such as the step) of the run's newest complete checkpoint. Also return whether the
    checkpoint at the request's path `given` is complete.
    """
    run_dir, code_dir, checkpoints = (at_user(request[name]) for name in ("run_dir", "code_dir", "checkpoints"))
    places = Places(run_dir, code_dir, checkpoints, Sought(str(request["format"]), str(request["glob"])))
    newest = next(iter(places.own().values()), None)
    given = str(request.get("given") or "")
    return {
        "newest": progress_of_saved(newest).to_event() if newest is not None else {},
        "given": bool(given) and at(at_user(given)) is not None,
    }, b""


def commit_files(request: Request, _: bytes) -> Answer:
    """Move the files of the folder `source` to the folder that contains `target`, and replace `target`."""
    source = at_user(request["source"])
    for above, _folders, names in os.walk(source):
        for name in filter(is_partial, names):  # an earlier version of a file, whose transfer was interrupted
            os.unlink(f"{above}/{name}")
    put_in_place(source, at_user(request["target"]))
    os.rmdir(source)
    return {}, b""
