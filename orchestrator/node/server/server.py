"""Answers requests. `python3 node.pyz serve` answers the requests of a submitting machine that has connected over SSH.
For a run on this machine, `LocalMachine` calls `answer` in its own process.

A request is a line of JSON, {"id", "do", "bytes", ...}, followed by the number of bytes in "bytes". A reply has the
same form. Each request is handled in a separate thread, so a long request does not delay other requests. If no more
threads can be started, requests wait for one another. When stdin ends, this process ends, but the agents that it has
started continue.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from functools import partial
from importlib import import_module
from typing import BinaryIO

from orchestrator.node.server.request import Answer, RefusedError, Request
from orchestrator.node.system.shortages import shortage
from orchestrator.protocol.answers import ANSWERS
from orchestrator.protocol.json_text import parse_json

FORGOTTEN_SECONDS = 900.0

# The module of a request is imported at its first use, because most servers get few kinds of requests.
HOME = {verb: module for module, verbs in ANSWERS.items() for verb in verbs}


def serve() -> int:
    """Answer the requests on stdin until stdin ends. Return the exit code."""
    from orchestrator.node.system.workers import Workers

    source, sink, lock = sys.stdin.buffer, os.fdopen(os.dup(1), "wb"), threading.Lock()
    os.dup2(2, 1)  # printed text must not get between two replies

    asked = threading.Event()
    with contextlib.suppress(RuntimeError):  # no thread can be started; in this case sshd ends this process in the end
        threading.Thread(target=_end_when_forgotten, args=(asked,), daemon=True).start()
    workers = Workers()
    while (line := source.readline()).endswith(b"\n"):
        asked.set()
        request = parse_json(line)
        payload = source.read(request.get("bytes", 0))
        workers.do(partial(_reply, request, payload, sink, lock))
    return 0


def stay() -> int:
    """Serve in a child process, and return when the child and all programs that it has started have ended.

    A scheduler ends all processes of a step as soon as the step's first process ends, and agents must outlive the
    server. When the scheduler is about to end the job, it signals all processes. The server and its parent ignore these
    signals, so that the agents' last files can still be copied.
    """
    from orchestrator.node.system.orphans import adopt_orphans
    from orchestrator.protocol.schedulers import STOP_SIGNALS

    for number in (*STOP_SIGNALS, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # programs that the server starts would inherit SIG_IGN
    adopt_orphans()
    if os.fork() == 0:
        return serve()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nowhere, stream)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    return 0


def _end_when_forgotten(asked: threading.Event) -> None:
    """End this process after FORGOTTEN_SECONDS without a request, because a broken network may leave the connection
    open.
    """
    while asked.wait(FORGOTTEN_SECONDS):
        asked.clear()
    os._exit(0)


def answer(request: Request, payload: bytes) -> Answer:
    """Carry out a request and return its answer. If the request fails, the answer contains the reason (`error`)."""
    try:
        verb = request["do"]
        found: Answer = getattr(import_module(f"orchestrator.node.server.{HOME[verb]}"), verb)(request, payload)
    except RefusedError as error:
        return {"error": str(error), "transient": error.transient}, b""
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return {"error": "; ".join(filter(None, [f"{where}{error.strerror or error}", shortage(error)]))}, b""
    except (RuntimeError, MemoryError) as error:
        return {"error": shortage(error) or f"{request.get('do')} failed: {error!r}"}, b""
    except (KeyError, TypeError, ValueError, ImportError) as error:
        return {"error": f"the request {request.get('do')} is not understood: {error!r}"}, b""
    return found


def _reply(request: Request, payload: bytes, sink: BinaryIO, lock: threading.Lock) -> None:
    values, data = answer(request, payload)
    size = len(data) if isinstance(data, bytes) else data.count
    with lock:
        try:
            sink.write(json.dumps({"id": request.get("id"), **values, "bytes": size}).encode() + b"\n")
            if isinstance(data, bytes):
                sink.write(data)
            else:
                data.send(sink)
            sink.flush()
        except OSError:  # the requester has disconnected
            os._exit(0)
