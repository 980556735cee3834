"""What a machine is sent before an agent starts there: the code, of which only new contents travel."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from orchestrator.archive import node_archive
from orchestrator.backends.copies import give_checkpoint
from orchestrator.backends.hosts import newest_checkpoint, task_json
from orchestrator.backends.laying import Order, replay_argv
from orchestrator.errors import BackendError
from orchestrator.session import Session
from orchestrator.starts import CLOCK
from orchestrator.store import RunDir
from orchestrator.wire import NodeTask

BATCH: Final = 8 << 20
CLOCKS_DIFFER: Final = 2.0  # seconds; what is less may be the way there
LEAST_FREE: Final = 64 << 20
SERVER_PYTHON: Final = "python3"


def send_code(session: Session, run: RunDir, workdir: str, code_dir: str) -> int:
    """Lay the run's code out on the machine; how many bytes had to travel."""
    listed = ((run.read("code.json") or {}).get("files")) or {}
    listing: dict[str, tuple[str, str]] = {}
    paths: dict[str, str] = {}
    for path, (kind, digest) in listed.items():
        link = os.readlink(run.path / "code" / path) if kind == "l" else ""
        listing[path] = (kind, link if kind == "l" else digest)
        if kind in "fx":
            paths[digest] = path
    absent = json.loads(session.call("missing", json.dumps(sorted(paths)).encode(), workdir=workdir)[1])
    sent, batch = 0, b""
    sizes: list[int] = []
    values: dict[str, Any] = {"workdir": workdir, "code_dir": code_dir}
    for digest in absent:
        content = (run.path / "code" / paths[digest]).read_bytes()
        batch, sizes, sent = batch + content, [*sizes, len(content)], sent + len(content)
        if len(batch) >= BATCH:
            session.call("unpack", batch, sizes=sizes, **values)
            batch, sizes = b"", []
    session.call("unpack", batch, sizes=sizes, listing=listing, **values)
    return sent


def check_shared(sessions: Mapping[int, Session], task: NodeTask, workdir: str) -> None:
    """BackendError unless workdir, which the profile calls shared, is one folder: each node reads what node 0 wrote."""
    path, word = f"{task.run_dir}/shared", secrets.token_hex(8).encode()
    first = sessions[0].address.host
    sessions[0].call("put", word, path=path)
    apart = [each.address.host for each in sessions.values() if _content(each, path) != word]
    if apart:
        raise BackendError(
            f"{', '.join(apart)}: {workdir} is not the folder that {first} has there, though the profile says shared",
            "set shared: false in the profile, or workdir to a folder that all nodes share",
        )


def _content(session: Session, path: str) -> bytes:
    try:
        return session.call("read", path=path, offset=0, count=BATCH)[1]
    except BackendError as error:
        if error.transient:
            raise
        return b""


def lay_out(session: Session, run: RunDir, workdir: str, name: str, checkpoint: Path | None, order: Order) -> list[str]:
    """Send what one rank needs to run once more, and return what replays it there."""
    folder, resume = f"{workdir}/runs/{name}", "never"
    session.call("hello", workdir=workdir)
    send_code(session, run, workdir, f"{folder}/code")
    if checkpoint is not None:
        resume = f"{folder}/given"
        give_checkpoint(session, checkpoint, f"{resume}/{checkpoint.name}")
    session.call("put", node_archive(), path=f"{folder}/node.pyz")
    session.call("put", order(folder, resume), path=f"{folder}/order.json")
    return replay_argv(folder, "python3")


def prepare_node(
    session: Session, run: RunDir, task: NodeTask, workdir: str, given: tuple[Path, str] | None, *, is_new: bool
) -> dict[str, Any]:
    """What the machine says of itself, once it can take part and has all that it needs; BackendError otherwise.

    One that takes a lost machine's place (`is_new`) is given what that one had recorded, and goes on writing there.
    `given` is a checkpoint for it, and the folder that is to have it.
    """
    host = session.address.host
    asked = time.time()
    hello, _ = session.call("hello", workdir=workdir)
    ahead = hello["time"] - (asked + time.time()) / 2
    if abs(ahead) > CLOCKS_DIFFER:
        run.append_event(CLOCK, of=task.node_rank, start=task.start, host=host, ahead=round(ahead, 3))
    if "nccl" in task.backend and hello["gpus"] < (task.nproc or 1):
        raise BackendError(
            f"{host}: it has {hello['gpus']} GPUs for {task.nproc or 1} ranks with nccl",
            "lower nproc_per_node for this host, or set backend: gloo",
        )
    if hello["free"] < LEAST_FREE:
        raise BackendError(f"{host}: {hello['workdir']} has only {hello['free'] >> 20} MiB left", "make room there")
    if task.container is None:
        if task.python != SERVER_PYTHON:  # which has just answered
            session.call("interpreter", python=task.python, versions=False)
    else:  # an image may have to be pulled, however long that takes
        session.call("container", task_json(replace(task, token="", secrets={})), timeout=None)
    send_code(session, run, workdir, task.code_dir)
    if is_new:
        names = [f"nodes/{task.node_rank}/events.jsonl", *(["metrics.jsonl"] if task.node_rank == 0 else [])]
        for name in names:
            if (run.path / name).exists():
                session.call("put", (run.path / name).read_bytes(), path=f"{task.run_dir}/{name}")
    if given is not None:
        checkpoint, target = given
        there = session.call("steps", folder=target)[0]["steps"]
        if not there or there[-1] < checkpoint.name:
            give_checkpoint(session, checkpoint, f"{target}/{checkpoint.name}")
    return hello


def with_given_checkpoint(tasks: tuple[NodeTask, ...]) -> tuple[NodeTask, ...]:
    """The tasks; where the job goes on from a checkpoint that is here, node 0 is given it in the run's own folder."""
    if tasks[0].resume in ("auto", "never") or not Path(tasks[0].resume).is_absolute():
        return tasks
    if not Path(tasks[0].resume).is_dir():
        return tasks
    return tuple(replace(task, resume=f"{task.run_dir}/given") for task in tasks)


def checkpoint_to_give(run: RunDir, task: NodeTask) -> tuple[Path, str] | None:
    """The checkpoint for node 0, and its folder there: the run's own newest, else the one that it goes on from."""
    if own := newest_checkpoint(run.path / "checkpoints"):
        return own, remote_checkpoints(run)
    asked = ((run.read("plan.json") or {}).get("tasks") or [{}])[0].get("resume", "auto")
    if asked in ("auto", "never") or not Path(asked).is_dir():
        return None
    found = Path(asked) if (Path(asked) / "COMMIT").exists() else newest_checkpoint(Path(asked))
    return (found, f"{task.run_dir}/given") if found else None


def remote_checkpoints(run: RunDir) -> str:
    """Where rank 0 keeps its checkpoints on its node."""
    task = ((run.read("plan.json") or {}).get("tasks") or [{}])[0]
    folder = str(task.get("checkpoint_dir") or "")
    return folder if folder.startswith(("/", "~")) or not folder else f"{task.get('code_dir')}/{folder}"
