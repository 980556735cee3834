"""A run for other tools: the same ranks by torchrun or accelerate by hand, and its weights as a safetensors file."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from orchestrator.errors import OrchError, UsageError
from orchestrator.node.agent.launcher_process import archive_argv
from orchestrator.node.launcher.rank_argv import foreign_argv
from orchestrator.operations.pull import choose
from orchestrator.protocol.events import EventKind
from orchestrator.protocol.ranks import Binding, bind
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.checkpoints import checkpoint_folder, listing
from orchestrator.runs.metrics import metric_of_job
from orchestrator.runs.store import RunDir
from orchestrator.specs.plan import LaunchPlan, bindings_of

_PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def torchrun_commands(run: RunDir, port: int) -> str:
    """Return what to type on each node to start the run's ranks by torchrun; UsageError where they aren't known."""
    launch, bindings, address = _launch(run)
    blocks = []
    for task, binding in zip(launch.tasks, bindings, strict=True):
        argv = foreign_argv(dataclasses.replace(task, launcher="torchrun"), binding, address, port)
        blocks.append(f"# node {task.node_rank}: {task.host}\n{by_hand(task, argv)}")
    return "\n\n".join([*_notes(launch, port), *blocks])


def accelerate_config(run: RunDir, node: int, port: int) -> str:
    """Return the file for `accelerate launch --config_file` on a node; UsageError where it can't start such ranks."""
    launch, bindings, address = _launch(run)
    if not 0 <= node < len(bindings):
        raise UsageError(f"run {run.run_id} has no node {node}", f"its nodes are 0 to {len(bindings) - 1}: --node N")
    if len({binding.nproc for binding in bindings}) > 1:
        raise UsageError(
            f"the nodes of {run.run_id} have different numbers of ranks, which accelerate can't start",
            f"torchrun can: orch export torchrun {run.run_id}",
        )
    task, world = launch.tasks[node], bindings[0].world_size
    precision = _PRECISIONS[_precision(launch.job.get("training"))]
    program = task.program
    start = [task.python, "-m", "accelerate.commands.launch", "--config_file", f"accelerate_{node}.yaml"]
    start += [*(["--module"] if program.kind == "module" else []), program.target, *program.args]
    lines = [
        *_notes(launch, port),
        f"# node {node} of {len(bindings)}: {task.host}; save this as accelerate_{node}.yaml in {task.code_dir}, then",
        *(f"#   {line}" for line in by_hand(task, start).splitlines()),
        "compute_environment: LOCAL_MACHINE",
        # One process a rank, also without GPUs: MULTI_CPU would start a single one.
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
    return "\n".join(lines)


def _precision(training: Mapping[str, str] | None) -> str:
    return training.get("precision", "fp32") if training is not None else "fp32"


def safetensors(run: RunDir, which: str, target: Path | None) -> tuple[Path, str]:
    """Write a checkpoint's weights as a safetensors file; return (the file, which checkpoint and why)."""
    folder = checkpoint_folder(run)
    chosen, why = choose(listing(folder, verify=False), which, folder, metric_of_job(run.read("run.json")))
    if chosen is None:
        raise UsageError(why, "a run that is going on saves one in time; orch checkpoints lists them")
    path = target or Path(f"{run.run_id}-step{chosen.step}.safetensors")
    # Torch is not for this process: it reads the checkpoint in one of its own, which imports
    # nothing from the folder that the user happens to be in.
    argv = [sys.executable, "-P", "-m", "orchestrator.training.checkpoint.export", str(chosen.path), str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("error: ")
        raise OrchError(f"the checkpoint {chosen.path} could not be exported: {last}", "orch checkpoints --verify")
    return path, f"step {chosen.step}, {why}"


def _launch(run: RunDir) -> tuple[LaunchPlan, list[Binding], str]:
    """Return what `launch_of` does; UsageError also for a run of commands, which no launcher of ranks can start."""
    launch, bindings, address = launch_of(run)
    if launch.tasks[0].program.kind == "command":
        raise UsageError(f"{run.run_id} runs a command, and this takes a module or a script")
    return launch, bindings, address


def launch_of(run: RunDir) -> tuple[LaunchPlan, list[Binding], str]:
    """Return the plan, each node's ranks and node 0's address: as planned, or as the run's nodes have found them.

    UsageError where the plan can't be read, or the nodes have not decided yet.
    """
    record = run.read("plan.json")
    if record is None:
        raise UsageError(f"run {run.run_id} has no plan", "it was recorded by another version of orch")
    try:
        launch = LaunchPlan.from_json(record)
    except ValueError as error:
        raise UsageError(f"the plan of run {run.run_id} can't be read: {error}") from error
    events = run.events()
    bindings = bindings_of(launch)
    for event in events:
        if event["kind"] == EventKind.GO and len(event.get("nproc", ())) == launch.nnodes:
            bindings = bind([int(count) for count in event["nproc"]])
    if bindings is None:
        raise UsageError(
            f"the nodes of {run.run_id} decide their ranks, and have not done so yet",
            "try again when it has started, or submit with --nproc-per-node N",
        )
    found = [
        event["master_addr"] for event in events if event["kind"] == EventKind.STARTED and event.get("master_addr")
    ]
    return launch, bindings, str(found[-1]) if found else launch.master_addr


def _notes(launch: LaunchPlan, port: int) -> list[str]:
    notes = [f"# {launch.run_id} by hand: start it on all nodes; port {port} of node 0 must be free (--port)"]
    if launch.secret_names:
        notes.append(f"# set these before, they are kept nowhere: {', '.join(launch.secret_names)}")
    if any(task.container for task in launch.tasks):
        notes.append("# the run's container is not entered: start this inside of it")
    return notes


def by_hand(task: NodeTask, argv: list[str], more: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return shell lines that go where the ranks start and give them the job's variables, and `more`."""
    path = ":".join([*archive_argv(task), *filter(None, [task.env.get("PYTHONPATH")])])
    variables = {**task.env, "PYTHONPATH": path, **more}
    if task.backend != "auto":
        variables["ORCH_BACKEND"] = task.backend
    assigned = [f"{name}={value}" for name, value in sorted(variables.items())]
    return "\n".join([*task.setup, f"cd {shlex.quote(task.code_dir)}", shlex.join(["env", *assigned, *argv])])
