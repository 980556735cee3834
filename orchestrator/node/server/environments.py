"""Handles requests about Python environments: finds an interpreter or an environment, installs an environment, and
hashes all environments.
"""

from __future__ import annotations

import os
from typing import Any

from orchestrator.node.environments import folder, interpreters
from orchestrator.node.environments.install import InstallError, Order, environments_folder, install, place_of
from orchestrator.node.server.request import Answer, RefusedError, Request, at_user
from orchestrator.protocol.json_text import parse_json


def find_interpreter(request: Request, _: bytes) -> Answer:
    """Return the facts about the interpreter for a new environment. If no interpreter matches, raises RefusedError with
    a list of this machine's interpreters.
    """
    try:
        python = interpreters.after_setup(request["python"], request.get("setup", ()))
        return {"found": interpreters.find(python, request["version"], request["system_packages"])}, b""
    except interpreters.NoInterpreterError as error:
        raise RefusedError(str(error)) from error


def find_environment(request: Request, _: bytes) -> Answer:
    """Return whether this machine has an unchanged copy of the environment, and the environment's folder. Mark the
    environment as just used.
    """
    path = place_of(_cache(request), request["key"])
    is_whole = folder.why_unusable(path) is None
    if is_whole:
        os.utime(f"{path}/{folder.MANIFEST}")
    return {"whole": is_whole, "folder": path}, b""


def install_environment(request: Request, payload: bytes) -> Answer:
    """Install an environment from this machine's cache of wheels, unless it exists. Return its folder. The payload is
    an Order.
    """
    order = Order.from_json(parse_json(payload))
    try:
        made = install(_cache(request), order)
    except InstallError as error:
        raise RefusedError(str(error)) from error
    return {"made": made, "folder": place_of(_cache(request), order.key)}, b""


def hash_environments(request: Request, _: bytes) -> Answer:
    """Return the content hash of each environment on this machine. If an environment was altered, also return a
    sentence about this.
    """
    top, found = environments_folder(_cache(request)), dict[str, Any]()
    for name in sorted(os.listdir(top)) if os.path.isdir(top) else ():
        if os.path.isdir(f"{top}/{name}") and not name.startswith("."):
            why = folder.why_unusable(f"{top}/{name}")
            found[name] = [folder.content_hash(f"{top}/{name}"), why]
    return {"environments": found}, b""


def _cache(request: Request) -> str:
    return f"{os.path.abspath(at_user(request['workdir']))}/cache"
