"""A node's container, looked at before its run: is the engine there, the image, its mounts?"""

from __future__ import annotations

from orchestrator.node.container.engine import EngineError, ask
from orchestrator.node.container.prepare import ready
from orchestrator.node.server.request import Answer, RefusedError, Request
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.task import NodeTask


def container(request: Request, payload: bytes) -> Answer:
    """Make ready for a container, its image pulled where need be; without a task, ask only for its runtime."""
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
