"""The program `python3 node.pyz profile`: lets the ranks of this node record profiles of their next steps.

Its arguments are RUN_DIR NODE RUN BOUNDARY STEPS SECONDS. A rank looks for an order next to its heartbeat file, and
writes its recording to the same folder. This program prints all recordings as one line of JSON and removes their files.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import time
from typing import Any

from orchestrator.node.debug.stacks import Started, started_last
from orchestrator.protocol.debugging.profiling import Order, order_file, parts_of
from orchestrator.protocol.files import write_atomic
from orchestrator.protocol.layout import attempt_folder, node_folder
from orchestrator.protocol.reading import read_regular

MOST_PART = 1 << 30  # the maximum size in bytes of a trace or a snapshot
LOOK_SECONDS = 0.1  # seconds between polls; a rank in a container or on network storage can't signal that it is done


def print_profile(run_dir: str, node_rank: str, run_id: str, boundary: str, steps: str, seconds: str) -> int:
    """Print the boundary and the recordings of this node's ranks in one line. The boundary marks the beginning of the
    output, because a login shell may print text before it.
    """
    found = record(os.path.expanduser(run_dir), int(node_rank), int(steps), float(seconds))
    print(boundary, json.dumps(found), flush=True)
    return 0


def record(run_dir: str, node_rank: int, steps: int, seconds: float) -> list[dict[str, Any]]:
    """Request profiles of the next steps. Return one entry per rank of this node, with the recorded files as a dict
    from name to content in base64.

    If a rank has recorded no files, its entry has the reason.
    """
    folder = node_folder(run_dir, node_rank)
    started = started_last(f"{folder}/events.jsonl")
    if started is None:
        return []
    attempt = attempt_folder(folder, started.attempt)
    order = Order(secrets.token_hex(8), steps)
    write_atomic(order_file(attempt), order.to_bytes(), durable=False)
    try:
        return _answers(f"{folder}/events.jsonl", attempt, order, time.monotonic() + seconds)
    finally:
        os.unlink(order_file(attempt))


def _answers(events: str, attempt: str, order: Order, end: float) -> list[dict[str, Any]]:
    """Wait until each rank has recorded its profile or ended, or until time `end`. Then return each rank's files, or
    the reason why a rank has no files.

    When a rank's trace has its final name, the rank has finished recording, because it writes the trace last.
    """
    while True:
        started = started_last(events)
        assert started is not None
        left = [rank for rank in started.pids if rank not in started.exits and not _is_done(attempt, order, rank)]
        if not left or time.monotonic() >= end:
            return [_answer(attempt, order, rank, started) for rank in sorted(started.pids)]
        time.sleep(LOOK_SECONDS)  # torch writes the trace in the rank, and sends no signal when it is done


def _is_done(attempt: str, order: Order, rank: int) -> bool:
    return os.path.exists(f"{attempt}/{parts_of(order, rank).trace}")


def _answer(attempt: str, order: Order, rank: int, started: Started) -> dict[str, Any]:
    if not _is_done(attempt, order, rank):
        ended = started.exits.get(rank)
        why = f"it has ended: {ended}" if ended else "it has not taken that many steps meanwhile, or reports no steps"
        return {"rank": rank, "files": {}, "why_not": why}
    files = {}
    for name, path in parts_of(order, rank).named():
        try:
            data = read_regular(f"{attempt}/{path}", MOST_PART, attempt.rsplit("/", 3)[0])  # RUN/nodes/0/attempt_0
            files[name] = base64.b64encode(data).decode()
            os.unlink(f"{attempt}/{path}")
        except FileNotFoundError:  # a rank without a GPU has no snapshot
            continue
        except OSError as error:
            return {"rank": rank, "files": {}, "why_not": f"{name} can't be read: {error.strerror}"}
    return {"rank": rank, "files": files, "why_not": ""}
