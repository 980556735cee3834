"""Requests about environments: find an interpreter, find an environment, install one, hash all."""

from __future__ import annotations

import os
from typing import Any

from orchestrator.node.environments import folder, interpreters
from orchestrator.node.environments.install import InstallError, Order, environments_folder, install, place_of
from orchestrator.node.server.request import Answer, RefusedError, Request, at_user
from orchestrator.protocol.json_text import parse_json


def find_interpreter(request: Request, _: bytes) -> Answer:
    """Return the facts about the interpreter to install for. Raises RefusedError, which names those that are here."""
    try:
        return {"found": interpreters.find(request["python"], request["version"], request["system_packages"])}, b""
    except interpreters.NoInterpreterError as error:
        raise RefusedError(str(error)) from error


def find_environment(request: Request, _: bytes) -> Answer:
    """Return whether an environment is here and unchanged, and its folder. The environment counts as used now."""
    path = place_of(_cache(request), request["key"])
    is_whole = folder.why_unusable(path) is None
    if is_whole:
        os.utime(f"{path}/{folder.MANIFEST}")
    return {"whole": is_whole, "folder": path}, b""


def install_environment(request: Request, payload: bytes) -> Answer:
    """Install an environment (the payload is an Order) from wheels here, unless it exists. Return its folder."""
    order = Order.from_json(parse_json(payload))
    try:
        made = install(_cache(request), order)
    except InstallError as error:
        raise RefusedError(str(error)) from error
    return {"made": made, "folder": place_of(_cache(request), order.key)}, b""


def hash_environments(request: Request, _: bytes) -> Answer:
    """Return the hash of the contents of each environment here, and why it counts as altered if it does."""
    top, found = environments_folder(_cache(request)), dict[str, Any]()
    for name in sorted(os.listdir(top)) if os.path.isdir(top) else ():
        if os.path.isdir(f"{top}/{name}") and not name.startswith("."):
            why = folder.why_unusable(f"{top}/{name}")
            found[name] = [folder.content_hash(f"{top}/{name}"), why]
    return {"environments": found}, b""


def _cache(request: Request) -> str:
    return f"{os.path.abspath(at_user(request['workdir']))}/cache"
