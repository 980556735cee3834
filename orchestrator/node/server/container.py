"""Checks a node's container before its run: the engine, the image and the mounts."""

from __future__ import annotations

from orchestrator.node.container.engine import EngineError, ask
from orchestrator.node.container.prepare import ready
from orchestrator.node.server.request import Answer, RefusedError, Request
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.task import NodeTask


def container(request: Request, payload: bytes) -> Answer:
    """Prepare a node's container, and pull its image if necessary. If the request has no task, only return facts about
    the container runtime.
    """
    try:
        if not payload:
            engine, image = ask(request["runtime"]), ""
        else:
            box = NodeTask.from_json(parse_json(payload)).container
            assert box is not None
            engine, image = ready(box)
    except EngineError as error:
        raise RefusedError(str(error)) from error
    return {"version": engine.version, "rootless": engine.rootless, "image_id": image}, b""
