"""Builds the commands of a node's ranks, for every setting of `launcher`. The module does no I/O."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from orchestrator.node.launcher.flight_recorder import recorder_settings
from orchestrator.node.launcher.rank.exec_hook import files_of
from orchestrator.node.launcher.rank.forked import RankStart
from orchestrator.protocol.layout import archive_file, attempt_folder, debugger_file, node_folder
from orchestrator.protocol.ranks import DEFAULTS, Binding, rank_args, rank_argv, rank_environment
from orchestrator.protocol.task import NodeTask

SUBMIT_FOLDERS = ("SLURM_SUBMIT_DIR", "SGE_O_WORKDIR", "PBS_O_WORKDIR")
"""The variables with the folder of a batch file's submit. The file starts in a copy of that folder."""


def plan_ranks(
    task: NodeTask,
    binding: Binding,
    attempt: int,
    master_addr: str,
    master_port: int,
    *,
    serves_store: bool,
    resume_from: str = "",
    checksum: str = "",
    torch_version: str = "",
    visible: Mapping[str, str] = MappingProxyType({}),
) -> list[RankStart]:
    """Return a RankStart for each process that a node starts: one process per rank, or a single torchrun or accelerate
    for all ranks. `argv` is set if the process must exec. `visible` has the variables that select the node's GPUs.
    """
    foreign, own = task.launcher in ("torchrun", "accelerate"), task.program.own_ranks
    folder = attempt_folder(node_folder(task.run_dir, task.node_rank), attempt)
    variables = functools.partial(
        rank_environment, binding=binding, attempt=attempt, master_addr=master_addr, master_port=master_port,
        serves_store=serves_store and not foreign, resume_from=resume_from, checksum=checksum,
    )  # fmt: skip
    told = replace(task, program=replace(task.program, runs_alone=False))
    starts = []
    for local_rank in range(1 if foreign else binding.nproc):
        environment = variables(task, local_rank=local_rank)
        withheld = {k: v for k, v in variables(told, local_rank=local_rank).items() if k not in environment}
        if "SLURM_PROCID" in os.environ and not own:
            environment |= slurm_variables(binding, local_rank)
        rank = binding.rank_offset + local_rank
        defaults = {name: environment.pop(name) for name in DEFAULTS if name in environment}
        values: dict[str, Any] = {
            "argv": None,
            "withheld": withheld,
            "debugged": debugged(task, rank, folder),
            **files_of(folder, rank),
        }
        if foreign:
            environment = {key: value for key, value in environment.items() if key.startswith("ORCH_")}
            del environment["ORCH_BEAT_FILE"]
            if task.backend == "gloo":
                environment["ACCELERATE_USE_CPU"] = "true"
            values["argv"] = tuple(foreign_argv(task, binding, master_addr, master_port))
            values["archive"] = archive_file(task.run_dir)
            values["members"] = tuple(range(binding.rank_offset, binding.rank_offset + binding.nproc))
        elif own:
            environment |= {name: task.code_dir for name in SUBMIT_FOLDERS if name in os.environ}
            values["argv"] = tuple(rank_argv(task, local_rank))
        elif task.launcher == "exec" or task.program.kind == "command":
            values["argv"] = tuple(rank_argv(task, local_rank))
            if is_python(values["argv"][0]):
                values["archive"] = archive_file(task.run_dir)
        starts.append(
            RankStart(
                rank=rank,
                kind=task.program.kind,
                target=task.program.target,
                args=tuple(rank_args(task.program, local_rank)),
                environment={**visible, **environment},
                defaults={**defaults, **({} if own else recorder_settings(folder, torch_version))},
                cwd=task.code_dir,
                hears_all=own,
                **values,
            )
        )
    return starts


def slurm_variables(binding: Binding, local_rank: int) -> dict[str, str]:
    """Return Slurm's variables of a task for a rank. Programs that `srun python` starts read their rank from them.
    The agent's own variables count the nodes, not the ranks.
    """
    world, nodes = str(binding.world_size), binding.nnodes
    return {
        "SLURM_PROCID": str(binding.rank_offset + local_rank), "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(binding.node_rank), "SLURM_NTASKS": world, "SLURM_NPROCS": world,
        "SLURM_STEP_NUM_TASKS": world, "SLURM_NTASKS_PER_NODE": str(binding.nproc),
        "SLURM_TASKS_PER_NODE": f"{binding.nproc}(x{nodes})" if nodes > 1 else str(binding.nproc),
    }  # fmt: skip


def debugged(task: NodeTask, rank: int, folder: str) -> dict[str, Any] | None:
    """Return the debugger's settings for a rank. Return {} if another rank is debugged, and None if no rank is
    debugged.
    """
    if task.debug is None:
        return None
    if task.debug.rank != rank:
        return {}
    return {
        "name": f"{task.run_id}/{rank}", "announce": debugger_file(folder, rank), "user": task.debug.user,
        "archive": archive_file(task.run_dir),
    }  # fmt: skip


def is_python(program: str) -> bool:
    """Return whether a program's name is that of a Python interpreter."""
    return re.fullmatch(r"python[\d.]*", os.path.basename(program)) is not None


def foreign_argv(task: NodeTask, binding: Binding, master_addr: str, master_port: int) -> list[str]:
    """Return the torchrun or accelerate command that starts the ranks of one node with the given rank numbers and
    addresses.
    """
    program = task.program
    module = ["-m"] if program.kind == "module" else []
    if task.launcher == "torchrun":
        head = [task.python, "-m", "torch.distributed.run", "--nnodes", str(binding.nnodes)]
        head += ["--node-rank", str(binding.node_rank), "--nproc-per-node", str(binding.nproc)]
        head += ["--master-addr", master_addr, "--master-port", str(master_port)]
        return [*head, *module, program.target, *program.args]
    head = [task.python, "-m", "accelerate.commands.launch", "--num_machines", str(binding.nnodes)]
    head += ["--machine_rank", str(binding.node_rank), "--num_processes", str(binding.world_size)]
    head += ["--main_process_ip", master_addr, "--main_process_port", str(master_port)]
    head += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    if binding.world_size > 1:  # for a single process, accelerate refuses --multi_gpu
        head += ["--multi_gpu"]  # one process per rank, also without GPUs; --cpu would start a single process
    return [*head, *(["--module"] if module else []), program.target, *program.args]
