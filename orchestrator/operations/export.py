"""Exports a run to other tools: commands for torchrun, a config for accelerate, weights as a safetensors file."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from orchestrator.backends import backend_for
from orchestrator.errors import BackendError, OrchError, UsageError
from orchestrator.looking.state import state_of
from orchestrator.node.launcher.rank.argv import foreign_argv
from orchestrator.operations.pull import choose
from orchestrator.protocol.events import AgentStarted, Go, Started, of
from orchestrator.protocol.layout import archive_file, attempt_folder
from orchestrator.protocol.masking import MASKED, secret_values
from orchestrator.protocol.ranks import Binding, bind
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.files.checkpoints import checkpoint_folder, listing
from orchestrator.runs.files.metrics import metric_of_checkpoints
from orchestrator.runs.leaving import redaction_of_message
from orchestrator.runs.store import RunDir, check_own, write_durably
from orchestrator.specs.job import Training
from orchestrator.specs.plan import LaunchPlan, bindings_of
from orchestrator.transport.node_archive import node_archive

_PRECISIONS = {"bf16", "fp16", "fp8"}  # the formats that accelerate calls mixed precision


def torchrun_commands(run: RunDir, port: int) -> str:
    """Return the commands that start the run's ranks with torchrun on each node.

    Raises UsageError if the ranks are not known.
    """
    launch, bindings, address = _launch(run)
    blocks = []
    for recorded, binding in zip(launch.tasks, bindings, strict=True):
        task, before = task_by_hand(run, recorded)
        argv = foreign_argv(dataclasses.replace(task, launcher="torchrun"), binding, address, port)
        blocks.append("\n".join([*before, f"# node {task.node_rank}: {task.host}", by_hand(task, argv)]))
    return redacted(run, "\n\n".join([*_notes(launch, port), *blocks]))


def accelerate_config(run: RunDir, node: int, port: int) -> str:
    """Return the config file for `accelerate launch` on a node.

    Raises UsageError if accelerate can't start these ranks.
    """
    launch, bindings, address = _launch(run)
    check_number(f"run {run.run_id}", "node", node, len(bindings))
    if len({binding.nproc for binding in bindings}) > 1:
        raise UsageError(
            f"the nodes of {run.run_id} have different numbers of ranks, which accelerate can't start",
            f"torchrun can start them: orch export torchrun {run.run_id}",
        )
    task, before = task_by_hand(run, launch.tasks[node])
    world = bindings[0].world_size
    precision = _mixed_precision(launch.job.training)
    program = task.program
    start = [task.python, "-m", "accelerate.commands.launch", "--config_file", f"accelerate_{node}.yaml"]
    start += [*(["--module"] if program.kind == "module" else []), program.target, *program.args]
    on_cpu = _has_no_gpus(run)
    lines = [
        *_notes(launch, port),
        *(f"#   {line}" if line[0] != "#" else line for line in before),
        f"# node {node} of {len(bindings)}: {task.host}; save this as accelerate_{node}.yaml in {task.code_dir}, then",
        *(
            f"#   {line}"
            for line in by_hand(task, start, {"ACCELERATE_USE_CPU": "true"} if on_cpu else {}).splitlines()
        ),
        # One process per rank, also without GPUs. MULTI_CPU or use_cpu would start a single process.
        *(
            ["# CPU: no node has a GPU, and ACCELERATE_USE_CPU says so; MULTI_GPU only means several ranks"]
            if on_cpu
            else []
        ),
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {'MULTI_GPU' if world > 1 else 'NO'}",
        f"num_machines: {len(bindings)}",
        f"machine_rank: {node}",
        f"num_processes: {world}",
        f"main_process_ip: {address}",
        f"main_process_port: {port}",
        "rdzv_backend: static",
        f"mixed_precision: '{precision}'",
        "use_cpu: false",
    ]
    return redacted(run, "\n".join(lines))


def _mixed_precision(training: Training | None) -> str:
    """Return accelerate's name for the precision; "no" if the nodes or the script decide the precision."""
    precision = training.precision if training is not None else ""
    return precision if precision in _PRECISIONS else "no"


def safetensors(run: RunDir, which: str, target: Path | None) -> tuple[Path, str]:
    """Write a checkpoint's weights as a safetensors file.

    Return the file, and a phrase with the checkpoint's name and the reason why it was chosen.
    """
    folder = checkpoint_folder(run)
    chosen, why = choose(listing(folder, verify=False), which, folder, metric_of_checkpoints(run.read("run.json")))
    if chosen is None:
        raise UsageError(why, "a run that has not ended may still save one; orch checkpoints lists them")
    path = target or Path(f"{run.run_id}-step{chosen.step}.safetensors")
    # This process must not load torch, so another process reads the checkpoint. With -P it imports nothing from the
    # user's current folder.
    argv = [sys.executable, "-P", "-m", "orchestrator.training.checkpoint.export", str(chosen.path), str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("error: ")
        raise OrchError(
            f"the checkpoint {chosen.path} could not be exported: {last}", "check it: orch checkpoints RUN --verify"
        )
    return path, f"step {chosen.step}, {why}"


def _launch(run: RunDir) -> tuple[LaunchPlan, list[Binding], str]:
    """Return the plan, the ranks of each node, and node 0's address (see `launch_of`). Raises UsageError if they are
    not known, or if the job has a `command` of its own, which launchers can't start.
    """
    launch, bindings, address = launch_of(run)
    if launch.tasks[0].program.kind == "command":
        raise UsageError(f"{run.run_id} runs a `command`, but only a `script` or `module` can be exported")
    return launch, bindings, address


def plan_of(run: RunDir) -> LaunchPlan:
    """Return the recorded plan. Raises UsageError if it can't be read."""
    record = run.read("plan.json")
    if record is None:
        raise UsageError(f"run {run.run_id} has no plan", "it was recorded by another version of orch")
    try:
        return LaunchPlan.from_json(record)
    except ValueError as error:
        raise UsageError(f"the plan of run {run.run_id} can't be read: {error}") from error


def check_number(who: str, what: str, number: int, count: int) -> None:
    """Raise UsageError if the run `who` has no node or rank (`what`) with this number."""
    if not 0 <= number < count:
        hint = f"its {what}s are 0 to {count - 1}; choose one with --{what} N"
        raise UsageError(f"{who} has no {what} {number}", hint)


def launch_of(run: RunDir) -> tuple[LaunchPlan, list[Binding], str]:
    """Return the plan, the ranks of each node, and node 0's address. Values that the nodes have reported replace those
    of the plan.

    Raises UsageError if the plan can't be read, or if the nodes have not decided their number of ranks yet.
    """
    launch = plan_of(run)
    events = run.events()
    bindings = bindings_of(launch)
    for go in of(events, Go):
        if len(go.nproc) == launch.nnodes:
            bindings = bind(list(go.nproc))
    if bindings is None:
        raise UsageError(
            f"the nodes of {run.run_id} decide their number of ranks when they start, and have not started yet",
            "try again when the run has started, or submit with --nproc-per-node N",
        )
    found = [event.master_addr for event in of(events, Started) if event.master_addr]
    return launch, bindings, found[-1] if found else launch.master_addr


def _notes(launch: LaunchPlan, port: int) -> list[str]:
    notes = [f"# start {launch.run_id} by hand: run this on all nodes; port {port} of node 0 must be free (see --port)"]
    notes += notes_on_secrets(launch)
    if any(task.container for task in launch.tasks):
        notes.append("# the run's container is not entered: start this inside of it")
    return notes


def notes_on_secrets(launch: LaunchPlan) -> list[str]:
    """Return a comment that names the variables that the user must set first; empty if there are none."""
    likely = (name for task in launch.tasks for name, _ in secret_values({}, task.env))
    names = dict.fromkeys([*launch.secret_names, *likely])
    return [f"# export these first, because secrets are not written to this file: {', '.join(names)}"] if names else []


def redacted(run: RunDir, text: str) -> str:
    """Return shell lines with masked secrets. If a secret was masked, a note says so. The user name and paths are
    not masked.
    """
    shown = redaction_of_message(run).known(text)
    return shown if shown == text else f"# {MASKED} stands for a secret: write it there\n{shown}"


def task_by_hand(run: RunDir, task: NodeTask) -> tuple[NodeTask, list[str]]:
    """Return the task with folders that exist when a person starts it by hand, and the shell lines that create the
    folders.

    After a run has ended, its folders on other machines are removed. The shell lines then send the recorded code to a
    new folder.
    """
    backend = backend_for(run.record().kind)
    if not backend.is_remote or not state_of(run).is_final:
        return task, []
    folder = f"~/{run.run_id}"
    moved = dataclasses.replace(
        task, run_dir=folder, code_dir=f"{folder}/code", checkpoint_dir=f"{folder}/checkpoints", resume="never"
    )
    with contextlib.suppress(OrchError):  # if the run is another user's or the disk is full, the old archive remains
        check_own(run.root, run)
        write_durably(run.path / "node.pyz", node_archive())
    own = f"{run.run_id}/{attempt_folder(f'nodes/{task.node_rank}', task.attempt)}"
    source, unpack = shlex.quote(str(run.path)), f"mkdir -p {own} && tar -C {run.run_id} -xf -"
    try:
        there = shlex.join(backend.reach(run, task.node_rank, ["sh", "-c", unpack], terminal=False))
    except BackendError:  # the scheduler's job has ended, so the scheduler's commands do not reach the node any more
        there = f"ssh {shlex.quote(task.host)} {shlex.quote(unpack)}"
    return moved, [
        f"# its folder on {task.host} is gone; from this machine:",
        f"tar -C {source} -chf - code node.pyz | {there}",
    ]


def _has_no_gpus(run: RunDir) -> bool:
    """Return True if all nodes of the run reported that they have no GPU."""
    agents = of(run.events(), AgentStarted)
    return bool(agents) and not any(event.gpus for event in agents)


def by_hand(task: NodeTask, argv: list[str], more: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return shell lines that change to the ranks' working folder and export the job's variables and `more`.

    Variables that probably hold a secret are left out, and `notes_on_secrets` names them.
    """
    path = ":".join([archive_file(task.run_dir), *filter(None, [task.env.get("PYTHONPATH")])])
    variables = {**task.env, "PYTHONPATH": path, **more}
    if task.backend != "auto":
        variables["ORCH_BACKEND"] = task.backend
    # In the job's own values `~` is not expanded.
    literal = set(task.env) - {"PYTHONPATH"}
    left_out = {name for name, _ in secret_values({}, task.env)}
    assigned = [
        f"{name}={shlex.quote(value) if name in literal else _at_home(value)}"
        for name, value in sorted(variables.items())
        if name not in left_out
    ]
    line = " ".join(["env", *assigned, _at_home(argv[0]), *map(shlex.quote, argv[1:])])
    return "\n".join([*task.setup, f"cd {_at_home(task.code_dir)}", line])


def _at_home(text: str) -> str:
    """Return a path, or several joined by `:`, as a shell word in which `~` still means the home folder."""
    parts = [('"$HOME"' + shlex.quote(part[1:])) if part.startswith("~/") else part and shlex.quote(part)
             for part in text.split(":")]  # fmt: skip
    return ":".join(parts) if "~/" in text else shlex.quote(text)
