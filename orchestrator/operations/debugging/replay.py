"""Runs one rank of a run again, with the run's code, environment and command, on this machine or on the rank's node."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orchestrator.backends import backend_for, kind_of, replay_stage
from orchestrator.backends.mirror import upload
from orchestrator.backends.mirror.checkpoints import newest_checkpoint
from orchestrator.backends.settings import workdir_of
from orchestrator.errors import UsageError
from orchestrator.node.environments.folder import interpreter
from orchestrator.operations.debugging.shell import Way, environment_of, host_of
from orchestrator.operations.export import by_hand, check_number, launch_of, notes_on_secrets, redacted, task_by_hand
from orchestrator.protocol.events import Started, last_of
from orchestrator.protocol.ranks import Binding, gets_no_variables, rank_argv, rank_environment
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.files.checkpoints import checkpoint_folder
from orchestrator.runs.store import RunDir, check_own
from orchestrator.specs.plan import LaunchPlan

ALONE = Binding(node_rank=0, nnodes=1, nproc=1, rank_offset=0, world_size=1)
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Rank:
    """A rank with the settings of its last start."""

    run: RunDir
    launch: LaunchPlan
    task: NodeTask
    binding: Binding
    rank: int
    master_addr: str
    master_port: int
    attempt: int

    @property
    def local_rank(self) -> int:
        """Return the rank's number on its node."""
        return self.rank - self.binding.rank_offset


def recall(run: RunDir, rank: int) -> Rank:
    """Read a rank's settings from the run's records. Raises UsageError if the run has no such rank, or no ranks yet."""
    launch, bindings, address = launch_of(run)
    world_size = bindings[0].world_size
    check_number(f"run {run.run_id}", "rank", rank, world_size)
    binding = next(each for each in bindings if each.rank_offset <= rank < each.rank_offset + each.nproc)
    last = last_of(run.events(), Started)
    task = launch.tasks[binding.node_rank]
    if folder := environment_of(run, binding.node_rank):
        task = replace(task, environment=folder, python=interpreter(folder))
    port, attempt = ((last.master_port or 0), last.attempt) if last is not None else (0, 0)
    return Rank(run, launch, task, binding, rank, address, port, attempt)


def as_it_was(one: Rank) -> str:
    """Return shell code with which a person starts the rank, with all variables of its run except secrets."""
    task, before = task_by_hand(one.run, replace(one.task, attempt=one.attempt))
    variables = rank_environment(
        task,
        one.binding,
        one.local_rank,
        attempt=one.attempt,
        master_addr=one.master_addr,
        master_port=one.master_port,
        serves_store=one.task.launcher not in ("torchrun", "accelerate"),
    )
    head = [
        f"# rank {one.rank} of {one.run.run_id}: node {one.task.node_rank} ({host_of(one.run, one.task.node_rank)})"
    ]
    head.append("# it writes results, metrics and checkpoints to the same folders as its run")
    head += notes_on_secrets(one.launch)
    return redacted(one.run, "\n".join([*before, *head, by_hand(task, rank_argv(task, one.local_rank), variables)]))


def replay(one: Rank, shell: Mapping[str, str], *, here: bool, alone: bool, afresh: bool, terminal: bool) -> Way:
    """Prepare the rank's files on its node or on this machine. Return the command that starts the rank.

    The values of secrets are taken from the variables in `shell`. With `alone`, the rank is the only rank. With
    `afresh`, it loads no checkpoint. The rank writes into a new folder, which is removed afterwards. Raises UsageError
    or BackendError if the rank can't be started.
    """
    check_own(one.run.root, one.run)
    missing = [name for name in one.launch.secret_names if name not in shell]
    if missing:
        raise UsageError(
            f"rank {one.rank} needs {', '.join(missing)}, which is not set in this shell",
            "export it in this shell: orch stores no secrets",
        )
    kind = kind_of(one.launch.profile)
    backend = backend_for("local" if here else kind)
    name = f"{one.run.run_id}.replay-{secrets.token_hex(3)}"
    checkpoint = None if afresh else newest_checkpoint(checkpoint_folder(one.run))
    task = replace(one.task, run_id=name, secrets={key: shell[key] for key in one.launch.secret_names}, launcher="exec")
    # The set-up lines and the interpreter are the nodes' own, except an interpreter in a container's image.
    if here and kind != "local":
        python = sys.executable if task.container is None else task.python
        task = replace(task, python=python, environment="", setup=(), inputs_dir=str(one.run.root / "inputs"))

    def order(folder: str, resume: str) -> bytes:
        return _order(one, _moved(task, folder, resume), alone=alone)

    node = one.task.node_rank
    backend.reach(one.run, node, (), terminal=terminal)  # raises an error before anything is copied
    source = next((each for each in backend.sources(one.run) if node in each.nodes), None)
    if source is None:
        argv = replay_stage.stage_replay(one.run, name, checkpoint, order, sys.executable)
    else:
        workdir = workdir_of(one.launch.profile)
        argv = upload.stage_replay(source.session(), one.run, workdir, name, checkpoint, order)
        argv = backend.with_python(one.run, node, [one.launch.commands[0][0], *argv])
    argv = backend.reach(one.run, node, argv, terminal=terminal)
    return Way(tuple(argv), _words(one, here=here, alone=alone, checkpoint=checkpoint))


def _moved(task: NodeTask, folder: str, resume: str) -> NodeTask:
    """Return the task, changed so that all paths to which its rank writes are inside the replay's folder."""
    return replace(
        task, run_dir=folder, code_dir=f"{folder}/code", checkpoint_dir=f"{folder}/checkpoints", resume=resume
    )


def _order(one: Rank, task: NodeTask, *, alone: bool) -> bytes:
    # A rank that had torchrun's variables gets them although it is now the only one.
    program = replace(task.program, runs_alone=gets_no_variables(one.task, one.binding))
    task = replace(task, program=program)
    order = {
        "task": task.to_json(), "rank": one.rank, "gpu": one.local_rank,
        "binding": asdict(ALONE if alone else one.binding), "local_rank": 0 if alone else one.local_rank,
        "master_addr": LOOPBACK if alone else one.master_addr, "master_port": 0 if alone else one.master_port,
    }  # fmt: skip
    return json.dumps(order).encode()


def _words(one: Rank, *, here: bool, alone: bool, checkpoint: Path | None) -> str:
    where = (
        f"on {os.uname().nodename}"
        if here
        else f"on node {one.task.node_rank} ({host_of(one.run, one.task.node_rank)})"
    )
    how = "RANK=0 of 1" if alone else f"RANK={one.rank} of {one.binding.world_size}"
    if gets_no_variables(one.task, one.binding):
        how = "python starts it, without RANK"
    start = f"from {checkpoint.name}" if checkpoint else "from the beginning"
    line = f"rank {one.rank} of {one.run.run_id} {where}, as {how}, {start}; the files that it writes are not kept"
    if alone:
        return line
    return f"{line}\nit must not call init_process_group, because it would wait for the other ranks, which do not run"
