"""The folder of one run of a batch job, which takes the archive that all runs of the job share."""

from __future__ import annotations

import contextlib
import os

from orchestrator.node.server.request import Answer, Request, at_user
from orchestrator.protocol.files import PRIVATE, write_json
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import archive_file, node_folder


def prepare_array_run(request: Request, payload: bytes) -> Answer:
    """Make the folder of a run: its nodes' tasks, which are the payload, and a link to the `archive`.

    folder: the run's folder for the logs of its job. The request may be repeated.
    """
    run_dir = at_user(request["run_dir"])
    os.makedirs(f"{run_dir}/{request['folder']}", mode=0o700, exist_ok=True)
    for node, task in enumerate(parse_json(payload)):
        os.makedirs(node_folder(run_dir, node), mode=0o700, exist_ok=True)
        write_json(f"{node_folder(run_dir, node)}/task.json", task, mode=PRIVATE)
    with contextlib.suppress(FileExistsError):
        os.link(at_user(request["archive"]), archive_file(run_dir))
    return {}, b""
