"""Assigns a run's ranks to nodes, and defines the argv, variables and exit codes of a rank."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.protocol.checkpoints import checksum as checksums
from orchestrator.protocol.layout import (
    attempt_folder,
    metrics_file,
    node_folder,
    output_folder,
    result_file,
    second_copy_file,
)
from orchestrator.protocol.places.devices import GIVEN, ORDER, VISIBLE, words_of
from orchestrator.protocol.task import NodeTask, Program, copies_checkpoints

EXIT_NO_RETRY = 93  # a rank exits with this code if another start can't help
EXIT_REQUEUE = 95  # a rank exits with this code after a stop at a step boundary with a checkpoint to resume from

# A job, a profile's set-up lines or a node's own shell may override these. With the value 3, a process ends after an
# NCCL error without aborting its communicators, which may hang and would come before the flight recorder's dump.
DEFAULTS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", **ORDER}

# The C++ part of torch reads this value as true: a process with rank 0 that can't bind MASTER_PORT, because the launcher
# listens there, connects to the launcher's store. The Python part of torch reads only `True` as true, and would then
# take every port for the launcher's. So a process group with a port of its own works in all descendants of a rank.
LAUNCHER_SERVES = "1"

# The variables have torchrun's names. If the shell has such variables, they belong to another launcher.
RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    # if a rank of an outer run submits this run, these variables point to the outer run's folder
    "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
)  # fmt: skip


@dataclass(frozen=True)
class Binding:
    """The ranks of one node: rank_offset <= rank < rank_offset + nproc."""

    node_rank: int
    nnodes: int
    nproc: int
    rank_offset: int
    world_size: int


def bind(nproc_by_node: list[int]) -> list[Binding]:
    """Return the binding of every node. Ranks are numbered node by node, and each node may have a different nproc."""
    world_size, nnodes = sum(nproc_by_node), len(nproc_by_node)
    bindings, offset = [], 0
    for node_rank, nproc in enumerate(nproc_by_node):
        bindings.append(Binding(node_rank, nnodes, nproc, offset, world_size))
        offset += nproc
    return bindings


def rank_environment(
    task: NodeTask,
    binding: Binding,
    local_rank: int,
    *,
    attempt: int,
    master_addr: str,
    master_port: int | str,
    serves_store: bool,
    resume_from: str = "",
    checksum: str = "",
) -> dict[str, str]:
    """Return the variables of one rank: torchrun's, and orch's own. A single rank gets torchrun's only if its program
    expects them.

    `serves_store` tells whether the launcher serves torch's store. For a single rank it never does, so that a program
    that starts its own ranks finds the port free.
    `resume_from` is the path of the checkpoint from which the attempt continues; empty if there is none. `checksum` is
    an algorithm that all agents and ranks can verify; empty means sha256.
    """
    rank = binding.rank_offset + local_rank
    folder = attempt_folder(node_folder(task.run_dir, task.node_rank), attempt)
    serves_store = serves_store and binding.world_size > 1
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(binding.world_size),
        "LOCAL_WORLD_SIZE": str(binding.nproc),
        "GROUP_RANK": str(binding.node_rank),
        "GROUP_WORLD_SIZE": str(binding.nnodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(binding.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "TORCHELASTIC_RUN_ID": task.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(task.retry.get("infra") or 0),
        "TORCHELASTIC_ERROR_FILE": f"{folder}/error_{rank}.json",
        "TORCHELASTIC_USE_AGENT_STORE": LAUNCHER_SERVES if serves_store else "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        **{name: value for name, value in DEFAULTS.items() if name not in task.env},
        "ORCH_RUN_ID": task.run_id,
        "ORCH_RUN_DIR": task.run_dir,
        "ORCH_ATTEMPT": str(attempt),
        "ORCH_NODE_RANK": str(binding.node_rank),
        "ORCH_NNODES": str(binding.nnodes),
        "ORCH_BACKEND": task.backend,
        "ORCH_CHECKPOINT_DIR": task.checkpoint_dir,
        "ORCH_CHECKPOINT_KEEP": str(task.checkpoint_keep),
        **_keep_best(task),
        "ORCH_OUTPUT_DIR": output_folder(task.run_dir),
        "ORCH_RESUME": task.resume,
        **({"ORCH_RESUME_FROM": resume_from} if resume_from else {}),
        **({checksums.VARIABLE: checksum} if checksum else {}),
        "ORCH_METRICS_FILE": metrics_file(task.run_dir),
        "ORCH_RESULT_FILE": result_file(folder if task.container else task.run_dir),
        "ORCH_BEAT_FILE": f"{folder}/beat_{rank}",
        **_own_instance(task, local_rank),
        **({"ORCH_SECOND_COPY": second_copy_file(task.run_dir)} if copies_checkpoints(task) and rank == 0 else {}),
    }
    if task.program.own_ranks:  # its own launchers set the variables of its ranks
        return {k: value for k, value in variables.items() if k.startswith("ORCH_") and k != "ORCH_BEAT_FILE"}
    if gets_no_variables(task, binding):
        return {name: value for name, value in variables.items() if name not in RANK_VARIABLES}
    return variables


def gets_no_variables(task: NodeTask, binding: Binding) -> bool:
    """Return whether the rank has no variables of torchrun, because it is the only one, and its program was written to
    run without a launcher.
    """
    return task.program.runs_alone and binding.world_size == 1


def _own_instance(task: NodeTask, local_rank: int) -> dict[str, str]:
    """Return the variables that give a rank its own MIG instance, because CUDA shows a process only the first of
    several instances.
    """
    words = words_of(task.env.get(GIVEN, ""))
    if local_rank < len(words) > 1 and task.nproc != 1 and all(word.startswith("MIG-") for word in words):
        return {VISIBLE: words[local_rank]}
    return {}


def _keep_best(task: NodeTask) -> dict[str, str]:
    if not task.checkpoint_best:
        return {}
    return {"ORCH_CHECKPOINT_KEEP_BEST": task.checkpoint_best, "ORCH_CHECKPOINT_BETTER": task.checkpoint_better}


def rank_argv(task: NodeTask, local_rank: int) -> list[str]:
    """Return the argv of a rank that is started by exec. A forked rank runs the same program with the same
    arguments.
    """
    program, args = task.program, rank_args(task.program, local_rank)
    if program.kind == "module":
        return [task.python, "-m", program.target, *args]
    if program.kind == "script":
        return [task.python, program.target, *args]
    return [program.target, *args]


def rank_args(program: Program, local_rank: int) -> list[str]:
    """Return the arguments of one rank's program. If the program takes its local rank as an option, this option comes
    first, as in deepspeed and torch.
    """
    told = [f"{program.local_rank_option}={local_rank}"] if program.local_rank_option else []
    return [*told, *program.args]
