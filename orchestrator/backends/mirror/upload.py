"""Prepares a machine for an agent: checks the machine, and sends missing code and records."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from orchestrator.backends.hosts import MachinesError
from orchestrator.backends.mirror.contents import send_contents
from orchestrator.backends.mirror.fetch import read_small
from orchestrator.backends.mirror.given import Given, give
from orchestrator.backends.mirror.send import give_checkpoint, give_files
from orchestrator.backends.replay_stage import Order, replay_argv
from orchestrator.backends.settings import need_room, run_folder, tls_problem
from orchestrator.errors import BackendError
from orchestrator.protocol.events import Clock, of
from orchestrator.protocol.reading import MOST_WORD
from orchestrator.protocol.task import NodeTask, task_json
from orchestrator.runs.store import RunDir
from orchestrator.specs.resources import Has, lacking
from orchestrator.transport.machine import Machine
from orchestrator.transport.node_archive import node_archive

CLOCKS_DIFFER: Final = 2.0  # seconds; a smaller difference may come from the network
SERVER_PYTHON: Final = "python3"


def send_code(machine: Machine, run: RunDir, workdir: str, code_dir: str) -> int:
    """Send those files of the run's code that the machine lacks. Return the number of bytes sent."""
    listed, code = run.code_files(), run.submitted_code
    listing: dict[str, tuple[str, str]] = {}
    paths: dict[str, Path] = {}
    for path, (kind, digest) in listed.items():
        link = os.readlink(code / path) if kind == "l" else ""
        listing[path] = (kind, link if kind == "l" else digest)
        if kind in "fx":
            paths[digest] = code / path
    return send_contents(machine, workdir, "code", paths, code_dir=code_dir, listing=listing)


def check_shared(sessions: Mapping[int, Machine], task: NodeTask, workdir: str) -> None:
    """Raise BackendError unless all machines share the same workdir. Node 0's machine writes a random word into a file,
    and all machines must read the same word from it.
    """
    path, word = f"{task.run_dir}/shared", secrets.token_hex(8).encode()
    first = sessions[0].name
    sessions[0].call("write_file", word, path=path)
    apart = {node: each.name for node, each in sessions.items() if _content(each, path) != word}
    if apart:
        what = f"{workdir} is not the folder that {first} has there, though the profile says shared"
        raise MachinesError(
            f"{', '.join(apart.values())}: {what}",
            "set `shared: false` in the profile, or set `workdir` to a folder that all nodes share",
            {node: BackendError(f"{host}: {what}") for node, host in apart.items()},
        )


def _content(machine: Machine, path: str) -> bytes:
    folder, _, name = path.rpartition("/")
    return read_small(machine, folder, [name], MOST_WORD)[0] or b""


def stage_replay(
    machine: Machine, run: RunDir, workdir: str, name: str, checkpoint: Path | None, order: Order
) -> list[str]:
    """Send the files that one rank needs to run again. Return the arguments of Python that replay the rank on the
    machine.
    """
    folder, resume = run_folder(workdir, name), "never"
    machine.call("hello", workdir=workdir, shared_parent=run.record().profile.shared_parent)
    send_code(machine, run, workdir, f"{folder}/code")
    if checkpoint is not None:
        resume = f"{folder}/given"
        give_checkpoint(machine, checkpoint, f"{resume}/{checkpoint.name}")
    machine.call("write_file", node_archive(), path=f"{folder}/node.pyz")
    machine.call("write_file", order(folder, resume), path=f"{folder}/order.json")
    return replay_argv(folder)


def prepare_node(
    machine: Machine, run: RunDir, task: NodeTask, workdir: str, given: Given | None, *, is_new: bool
) -> dict[str, Any]:
    """Send the machine the files that its agent needs. Return the machine's answer to the request `hello`.

    Raises BackendError if the machine can't take part.

    is_new: the machine replaces a lost machine, so it gets the records of the lost machine and appends to them. given:
    a checkpoint to send to the machine.
    """
    asked = time.time()
    hello = check_machine(machine, run, task, workdir)
    ahead = hello["time"] - (asked + hello["answered"]) / 2
    if abs(ahead) > CLOCKS_DIFFER:
        _record_clock(run, task, machine.name, round(ahead, 3))
    if task.container is not None:  # an image may have to be pulled, which may take long
        machine.call("container", task_json(replace(task, credentials="", secrets={})), timeout=None)
    send_code(machine, run, workdir, task.code_dir)
    if is_new:
        _send_records(machine, run, task)
    if given is not None:
        give(machine, run, given)
    return hello


def _send_records(machine: Machine, run: RunDir, task: NodeTask) -> None:
    """Send the records of the lost machine in pieces, because a long run may have gigabytes of metrics."""
    names = [f"nodes/{task.node_rank}/{name}" for name in ("events.jsonl", "samples.jsonl", "metrics.jsonl")]
    names += ["metrics.jsonl"] if task.node_rank == 0 else []
    give_files(machine, {run.path / name: f"{task.run_dir}/{name}" for name in names if (run.path / name).exists()})


def _record_clock(run: RunDir, task: NodeTask, host: str, ahead: float) -> None:
    """Record how many seconds the machine's clock is ahead. Each start records it once, even if the start is tried
    several times.
    """
    now = Clock(of=task.node_rank, start=task.start, host=host, ahead=ahead)
    known = [
        each.ahead for each in of(run.events(), Clock) if (each.of, each.start, each.host) == (now.of, now.start, host)
    ]
    if not any(abs(each - ahead) < CLOCKS_DIFFER for each in known):
        run.append_event(now)


def check_machine(machine: Machine, run: RunDir, task: NodeTask, workdir: str) -> dict[str, Any]:
    """Return the machine's answer to the request `hello`, and the time at which it arrived on this machine
    (`answered`).

    No file is sent to the machine. Raises BackendError if the machine can't take part.
    """
    host = machine.name
    hello, _ = machine.call("hello", workdir=workdir, shared_parent=run.record().profile.shared_parent)
    hello["answered"] = time.time()
    if "nccl" in task.backend and hello["gpus"] < (ranks := task.nproc or 1):
        raise BackendError(
            f"{host}: it has {hello['gpus']} GPUs for {ranks} rank{'s' * (ranks > 1)} with nccl",
            "lower `nproc_per_node` for this host, or set `backend: gloo`",
        )
    has = Has(hello["cores"], hello["gpus"], hello["memory"])
    if lacks := lacking(run.record().job.resources, has):
        raise BackendError(
            f"{host}: it {'; it '.join(lacks.values())}",
            f"change `resources.{next(iter(lacks))}` in the job, or use another host",
        )
    if task.nnodes > 1 and (problem := tls_problem(hello["lacks_tls"])):
        raise BackendError(
            f"{host}: {problem}",
            "install a python3 with OpenSSL 1.1.1 or newer on that host, or run on one node",
        )
    need_room(host, hello["workdir"], hello["free"])
    # If python3 of PATH runs orch's server, and no setup line changes PATH, python3 itself has just answered.
    if task.container is None and (task.python != SERVER_PYTHON or task.setup or machine.passed_over):
        _check_interpreter(machine, task)
    return hello


def _check_interpreter(machine: Machine, task: NodeTask) -> None:
    """Raise BackendError unless the task's interpreter starts. The setup lines are run only if they can change that."""
    if task.setup and "/" in task.python:
        try:
            machine.call("interpreter", python=task.python, versions=False)
        except BackendError as error:
            if error.transient:
                raise
        else:
            return
    machine.call("interpreter", python=task.python, setup=list(task.setup), versions=False)
