"""Parses a launch line that a user pastes (torchrun, srun, accelerate, deepspeed, python)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

from orchestrator.errors import UsageError
from orchestrator.operations.submission.accelerate_settings import settings_of
from orchestrator.operations.submission.deepspeed_hosts import DeepspeedHosts, hosts_of
from orchestrator.operations.submission.launcher_files import LauncherFiles
from orchestrator.specs.batch_header import SHORT, options_in
from orchestrator.specs.environment import set_by_orch
from orchestrator.specs.wrappers import ASSIGNMENT, Peeled, peel

# such as $(hostname), which is accepted because the options that usually contain it are replaced by orch
_SUBSTITUTION = re.compile(r"\$\([^\s()|&;<>`]*\)")
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")


def words(text: str) -> frozenset[str]:
    """Return the set of words in a text."""
    return frozenset(text.split())


# The options without a value. All other options take a value.
_TORCHRUN_FLAGS: Final = words("standalone m module no_python run_path use_env use_agent_store virtual_local_rank")
_ACCELERATE_FLAGS: Final = words(
    "multi_gpu cpu use_deepspeed use_fsdp use_megatron_lm tpu use_xpu quiet q m module no_python debug same_network "
    "use_cpu dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation use_parallelism_config "
    "tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16 fp8_use_autocast_during_eval enable_cpu_affinity"
)
_DEEPSPEED_FLAGS: Final = words(
    "module no_python no_local_rank no_ssh force_multi save_pid elastic_training no_ssh_check bind_cores_to_rank"
)
_DEEPSPEED_OWN: Final = words(
    "autotuning elastic_training min_elastic_nodes max_elastic_nodes enable_each_rank_log bind_cores_to_rank "
    "bind_core_list launcher launcher_args venv_script save_pid"
)
_SRUN_FLAGS: Final = words(
    "exclusive overlap pty l label u unbuffered O overcommit s oversubscribe Q quiet v verbose E preserve_env "
    "exact no_kill k contiguous disable_status X Z no_allocate no_container_mount_home container_writable "
    "container_mount_home container_remap_root no_container_remap_root container_readonly H hold spread_job "
    "use_min_nodes interactive"
)
_SRUN_SHORT: Final = {**SHORT, "l": "label", "u": "unbuffered", "K": "kill_on_bad_exit"}
# The options of srun that start no other ranks and pass no other settings to them.
_SRUN_HARMLESS: Final = words(
    "nodes ntasks ntasks_per_node cpus_per_task label unbuffered kill_on_bad_exit wait mpi cpu_bind exact exclusive "
    "overlap quiet verbose output error mem mem_per_cpu gres gpus_per_node job_name export cpus_per_gpu "
    "container_image container_mounts container_workdir container_name no_container_mount_home container_mount_home "
    "container_writable container_remap_root no_container_remap_root container_readonly time"
)

# These launchers pass each rank its local rank by an option of the program, unless the line has --use_env or
# --no_local_rank. torch before 2.0 wrote --local_rank; prepare() chooses the spelling that the program knows.
_LOCAL_RANK: Final = {"torch.distributed.launch": "--local-rank", "deepspeed": "--local_rank"}


@dataclass
class Pasted:
    """The parts of a launch line, collected from left to right."""

    env: dict[str, str] = field(default_factory=dict)
    kind: str = "command"
    target: str = ""
    args: list[str] = field(default_factory=list)
    launcher: str = ""
    local_rank_option: str = ""  # the option by which the launcher passes the local rank
    nodes: int | None = None
    nproc: int | str | None = None
    nproc_is_default: bool = False  # whether `nproc` is the launcher's default and not in the line
    step: tuple[int | None, int | None] | None = None  # srun's numbers of nodes and of tasks on each; None without srun
    header: Mapping[str, str] | None = None  # the options of the #SBATCH lines above the launch line, if there are any
    python: str | None = None
    program: str = ""  # the launcher or interpreter as it was typed
    slurm: dict[str, str] | None = None
    setup: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)  # the hosts of a hostfile
    files: LauncherFiles | None = None  # reads the files that the launcher would read; None if they are not read
    conda: str = ""  # name or folder of the environment of `conda run`
    conda_by: str = ""  # the program that activates this environment
    notes: list[str] = field(default_factory=list)


def job_of(pasted: Pasted, name: str | None = None) -> dict[str, Any]:
    """Return the job's fields for a launch line. The job's name is `name`, or the program's name if `name` is None."""
    job: dict[str, Any] = {"name": name or _name_of(pasted)}
    if pasted.kind == "command":
        job["command"] = [pasted.target, *pasted.args]
    elif not pasted.target:
        raise UsageError("the command names an empty script", "as in: torchrun train.py")
    else:
        job[pasted.kind] = pasted.target
        job |= {"args": list(pasted.args)} if pasted.args else {}
    if pasted.local_rank_option:
        job["local_rank_option"] = pasted.local_rank_option
    if pasted.env:
        job["env"] = dict(pasted.env)
    slurm = pasted.slurm or {}
    if "no_requeue" in slurm:
        job["retry"] = {"preempted": "0"}
    if image := slurm.get("container_image"):
        mounts = slurm.get("container_mounts")
        job["container"] = {"image": image, **({"mounts": mounts.split(",")} if mounts else {})}
    return job


def _name_of(pasted: Pasted) -> str:
    given = pasted.slurm.get("job_name") if pasted.slurm is not None else None
    stem = pasted.target.rpartition(".")[2] if pasted.kind == "module" else PurePosixPath(pasted.target).stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", given or stem).lstrip("_.-")[:40] or "job"


def read_command(text: str, files: LauncherFiles | None = None) -> Pasted:
    """Parse a launch line. Raises UsageError if it is not a single command that starts a program."""
    line = re.sub(r"\\\r?\n", " ", text).strip().removeprefix("$ ")
    _refuse_shell_syntax(line)
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"the command can't be read: {str(error).lower()}", "check its quotes") from None
    return read_words(words, files)


def read_words(
    words: Sequence[str], files: LauncherFiles | None = None, header: Mapping[str, str] | None = None
) -> Pasted:
    """Parse a launch line that a shell has already split, in a batch script with the options `header`.

    Raises UsageError if the line starts no program, or not the same ranks on each of the job's nodes.
    """
    if any("\0" in word for word in words):
        raise UsageError("the command contains a NUL byte, which can't be passed to a program")
    pasted = Pasted(files=files, header=header)
    _program(list(words), pasted)
    _settle(pasted)
    return pasted


def is_launcher(word: str) -> bool:
    """Return True if a word is a program that starts a training: a launcher, Python or a Python script."""
    name = PurePosixPath(word).name
    return name in _LAUNCHERS or name == "srun" or name.endswith(".py") or _PYTHON.fullmatch(name) is not None


def srun_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return (srun's options, the words after them)."""
    return options_in(words, _SRUN_FLAGS, "srun", _SRUN_SHORT)


def _settle(pasted: Pasted) -> None:
    """Set the numbers of nodes and ranks. Raises UsageError if the parts of the line, and the header, contradict each
    other: orch would start other ranks than the line does by itself.
    """
    header, launcher = pasted.header, pasted.launcher
    if header is not None:
        pasted.slurm = {**_for_one_task(header, _tasks_per_node(header)), **(pasted.slurm or {})}
    if pasted.step is not None:
        nodes, tasks = pasted.step[0] or 1, pasted.step[1] or 1
        if launcher and tasks > 1:
            hint = "write --ntasks-per-node=1"
            raise UsageError(f"srun starts {launcher} {tasks} times on each node, and each starts all ranks", hint)
        if launcher and (pasted.nodes or 1) != nodes:
            said = f"{launcher} is started on {nodes} nodes, and its own options say {pasted.nodes or 1}"
            raise UsageError(said, "give the same number to both")
        pasted.nodes = nodes
        if not launcher:
            pasted.nproc, pasted.nproc_is_default = tasks, pasted.step[1] is None
    elif header is not None:
        nodes = int(header["nodes"])
        if nodes > 1:
            said = f"without srun it is started on the first node only, and the file asks for {nodes} nodes"
            raise UsageError(said, "start it by srun; or let orch run the file as it is: orch submit FILE -p PROFILE")
        if (pasted.nodes or 1) > 1:
            raise UsageError(f"{launcher} waits for {pasted.nodes} nodes, and the file asks for one")
        pasted.nodes, pasted.nproc = 1, pasted.nproc if launcher else 1
    if header is not None and pasted.nproc == "auto":
        pasted.nproc = _gpus_per_node(header)
        if pasted.nproc is None:
            raise UsageError(f"the file does not decide how many ranks {launcher} starts on each node",
                             "give the number of ranks to the launcher, or the number of GPUs to #SBATCH")  # fmt: skip


def _refuse_shell_syntax(line: str) -> None:
    """Raise UsageError for unquoted syntax that only a shell can run, such as a pipe or a second command."""
    quote = ""
    escaped = False
    for i, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "|&;<>`\n" or (line.startswith("$(", i) and not _SUBSTITUTION.match(line, i)):
            shown = "a line break" if char == "\n" else f"'{char}'"
            hint = "give only the line that starts the training"
            raise UsageError(f"the command contains {shown}, which only a shell can run", hint)


def _program(words: list[str], pasted: Pasted) -> None:
    """Remove one layer after the other (variables, srun, a launcher, python) until the program itself comes first."""
    while words:
        head, rest = words[0], words[1:]
        name = PurePosixPath(head).name
        if assignment := ASSIGNMENT.fullmatch(head):
            _assign(assignment[1], assignment[2], pasted)
            words = rest
        elif wrapper := peel(words):
            _leave_out(wrapper, pasted)
            words = wrapper.rest
        elif name in ("sbatch", "mpirun", "mpiexec", "horovodrun", "salloc"):
            raise UsageError(
                f"lines that start with {name} can't be read",
                "give the srun, torchrun or python part of it, or the script as a file: orch init NAME job.sbatch",
            )
        elif name == "srun":
            words = _srun(rest, pasted)
        elif reader := _LAUNCHERS.get(name):
            pasted.program = head
            reader(rest[1:] if name == "accelerate" and rest[:1] == ["launch"] else rest, pasted)
            return
        elif _PYTHON.fullmatch(name):
            pasted.program = head
            _python(head, rest, pasted)
            return
        elif head.startswith("-"):
            raise UsageError(
                f"the command begins with {head}, which is not a program", "as in: torchrun --nproc_per_node 4 train.py"
            )
        else:
            pasted.kind = "script" if name.endswith(".py") else "command"
            pasted.target, pasted.args = head, rest
            return
    raise UsageError("the command starts no program", "as in: torchrun --nproc_per_node 4 train.py --lr 1e-3")


def _leave_out(wrapper: Peeled, pasted: Pasted) -> None:
    """Add a note on a wrapper that orch does not start, or record the conda environment that it names."""
    if wrapper.name in ("conda", "mamba", "micromamba"):
        pasted.conda = _first(wrapper.options, "n", "name", "p", "prefix") or "base"
        pasted.conda_by = "micromamba" if wrapper.name == "micromamba" else "conda"
    elif wrapper.name == "env" and wrapper.options:
        pasted.notes.append(f"env's options were left out: {shlex.join(wrapper.said[1:])}")
    elif wrapper.advice:
        pasted.notes.append(f"'{shlex.join(wrapper.said)}' was left out; {wrapper.advice}")


def _first(options: Mapping[str, str], *names: str) -> str:
    return next((options[name] for name in names if options.get(name)), "")


def _assign(name: str, value: str, pasted: Pasted) -> None:
    if set_by_orch(name):
        pasted.notes.append(f"{name} was left out: orch sets it")
        return
    pasted.env[name] = value
    if name == "CUDA_VISIBLE_DEVICES":
        pasted.notes.append("CUDA_VISIBLE_DEVICES is kept as it is on every node")


def _entry(words: list[str], options: dict[str, str], launcher: str, pasted: Pasted) -> None:
    """Parse the program after a launcher's options."""
    if not words:
        raise UsageError(f"the command names no script after the options of {launcher}", "as in: torchrun train.py")
    pasted.launcher = launcher
    if option := _LOCAL_RANK.get(launcher):
        pasted.local_rank_option = "" if {"use_env", "no_local_rank"} & set(options) else option
    pasted.target, pasted.args = words[0], words[1:]
    if "no_python" in options:
        pasted.kind = "command"
    else:
        pasted.kind = "module" if {"m", "module"} & set(options) else "script"


def _count(options: Mapping[str, str], name: str) -> int | None:
    """Return an option's number; None if the option is missing."""
    text = options.get(name)
    if text is None:
        return None
    if "$" in text:
        raise UsageError(f"--{name} {text}: only a shell in the job could tell its value", "write the number")
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) == 0:
        raise UsageError(f"--{name} {text} is not a number of at least 1")
    return int(text)


def _nnodes(options: dict[str, str], pasted: Pasted) -> int | None:
    """Return the number of nodes that torchrun's --nnodes sets. For a range of numbers, return its upper end."""
    name, separator = "nnodes", ":"
    low, found, high = options.get(name, "").partition(separator)
    if not found:
        return _count(options, name)
    pasted.notes.append(f"--{name} {low}{separator}{high} is a range; orch starts a fixed number of nodes: {high}")
    return _count({name: high}, name)


def _torchrun(words: list[str], pasted: Pasted, launcher: str = "torchrun") -> None:
    options, words = options_in(words, _TORCHRUN_FLAGS, launcher)
    pasted.nodes = _nnodes(options, pasted) or pasted.nodes
    pasted.nproc_is_default = "nproc_per_node" not in options
    if options.setdefault("nproc_per_node", "1") in ("auto", "gpu", "cpu", "xpu"):
        pasted.nproc = "auto"
    else:
        pasted.nproc = _count(options, "nproc_per_node") or "auto"
    if options.get("max_restarts", "0") != "0":
        pasted.notes.append("--max_restarts was left out: orch has its own budgets, see 'retry' in the job")
    _entry(words, options, launcher, pasted)


def _accelerate(words: list[str], pasted: Pasted) -> None:
    options, words = options_in(words, _ACCELERATE_FLAGS, "accelerate launch")
    named = options.get("config_file", "")
    found = pasted.files.accelerate(named) if pasted.files and (named or "cpu" not in options) else None
    if named and found is None:
        raise UsageError(f"--config_file {named}: there is no such file here", "copy the file to this folder")
    if found and not named:
        pasted.notes.append(f"read {found[0]}, as accelerate does")
    place, config = found or ("", {})
    settings = settings_of(options, config, place)
    pasted.nodes = settings.nodes or pasted.nodes
    pasted.nproc = settings.nproc or "auto"
    pasted.env |= settings.env
    pasted.notes += settings.notes
    _entry(words, options, "accelerate launch", pasted)


def _deepspeed(words: list[str], pasted: Pasted) -> None:
    options, words = options_in(words, _DEEPSPEED_FLAGS, "deepspeed")
    named = options.get("hostfile") or options.get("H") or ""
    found = pasted.files.hostfile(named) if pasted.files else None
    if named and found is None:
        raise UsageError(f"--hostfile {named}: there is no such file here", "copy the file to this folder")
    if found and not named:
        pasted.notes.append(f"read {found[0]}, as deepspeed does")
    place, text = found or ("", "")
    _hosts(options, hosts_of(options, text, place), pasted)
    for name in sorted(set(options) & _DEEPSPEED_OWN):
        pasted.notes.append(f"deepspeed's --{name} {options[name]}".rstrip() + " was left out")
    _entry(words, options, "deepspeed", pasted)


def _hosts(options: dict[str, str], hosts: DeepspeedHosts, pasted: Pasted) -> None:
    """Record the hosts and the numbers of nodes and GPUs of a deepspeed line."""
    nodes, gpus = _count(options, "num_nodes"), _count(options, "num_gpus")
    slots = dict(list(hosts.slots.items())[:nodes])
    pasted.nodes = len(slots) or nodes or pasted.nodes
    counts = {len(each) for each in slots.values()}
    pasted.nproc = gpus or (min(counts) if counts else "auto")
    pasted.hosts = [host for host in slots if host not in ("localhost", "127.0.0.1")]
    if len(counts) > 1 and not gpus:
        hint = "give --num_gpus, or set nproc_per_node of each host in the profile"
        raise UsageError("the hosts have different numbers of GPUs, and orch would start fewer ranks", hint)
    if hosts.chosen:
        ids = {",".join(map(str, each)) for each in slots.values()}
        if len(ids) == 1:
            _assign("CUDA_VISIBLE_DEVICES", ids.pop(), pasted)
        else:
            hint = "choose the same GPUs on each host"
            raise UsageError("the line chooses other GPUs on each host, which is not converted", hint)


_LAUNCHERS: Final[dict[str, Callable[[list[str], Pasted], None]]] = {
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "accelerate-launch": _accelerate,
    "deepspeed": _deepspeed,
}
_MODULES: Final[dict[str, Callable[[list[str], Pasted], None]]] = {
    "torch.distributed.run": _torchrun,
    "torch.distributed.launch": partial(_torchrun, launcher="torch.distributed.launch"),
    "accelerate.commands.launch": _accelerate,
    "deepspeed.launcher.runner": _deepspeed,
}


def _python(interpreter: str, words: list[str], pasted: Pasted) -> None:
    if "/" in interpreter:
        pasted.python = interpreter
    before = words
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        if re.fullmatch(r"-m\S+", words[0]):
            before = before[: len(before) - len(words)]
            words = ["-m", words[0][2:], *words[1:]]
            before = [*before, *words]
            break
        words = words[2:] if words[0] in ("-W", "-X") else words[1:]
    if not words or words[0] in ("-c", "-"):
        pasted.kind, pasted.target, pasted.args = "command", interpreter, before
        return
    if dropped := before[: len(before) - len(words)]:
        pasted.notes.append(f"options of python were left out: {shlex.join(dropped)}")
    if words[0] != "-m":
        pasted.kind, pasted.target, pasted.args = "script", words[0], words[1:]
    elif len(words) < 2:
        raise UsageError("python -m: the module is missing")
    elif reader := _MODULES.get(words[1]):
        reader(words[2:], pasted)
    else:
        pasted.kind, pasted.target, pasted.args = "module", words[1], words[2:]


def _srun(words: list[str], pasted: Pasted) -> list[str]:
    own, rest = srun_options(words)
    header, options = pasted.header or {}, {**(pasted.header or {}), **own}
    refused = [name for name in own if name not in _SRUN_HARMLESS] if pasted.header is not None else []
    refused += [name for name in ("chdir", "nodelist", "multi_prog") if name in own and name not in refused]
    if own.get("export", "ALL") == "ALL":
        own.pop("export", None)
    else:
        refused.append("export")
    if refused:
        said = ", ".join(f"--{name.replace('_', '-')} {own[name]}".strip() for name in refused)
        raise UsageError(f"srun's {said} is not converted", "leave it out, or put it into the job or the profile")
    nodes, tasks = _count(options, "nodes"), _tasks_per_node(options)
    total = _count(own, "ntasks")
    if "nodes" in header and str(nodes) != header["nodes"]:
        said = f"srun starts it on {nodes} nodes, and the file asks for {header['nodes']}"
        raise UsageError(said, "give the same number to both; or let orch run the file: orch submit FILE -p PROFILE")
    if nodes is None and total is not None:
        each = _count(own, "ntasks_per_node")
        nodes = total // each if each and total % each == 0 else None
        if nodes is None and total > 1:
            raise UsageError(f"srun --ntasks={total} leaves the number of nodes to Slurm", "add --nodes=N to srun")
    if total is not None and (tasks is None or total != tasks * (nodes or 1)):
        raise UsageError(f"srun's {total} tasks are not the same number on each of {nodes} nodes")
    pasted.step = nodes, tasks
    kept = {name: value for name, value in own.items() if name.startswith("container") or name not in header}
    limited = {name: value for name, value in kept.items() if name.startswith(("container", "cpus_per_task"))}
    pasted.slurm = _for_one_task(own if pasted.header is None else limited, tasks)
    return rest


def _tasks_per_node(options: Mapping[str, str]) -> int | None:
    """Return the number of tasks on each node; None if the options do not set it, or if the numbers may differ."""
    each, total, nodes = (_count(options, name) for name in ("ntasks_per_node", "ntasks", "nodes"))
    if each is not None or total is None:
        return each
    return total // (nodes or 1) if total % (nodes or 1) == 0 else None


def _for_one_task(options: Mapping[str, str], tasks: int | None) -> dict[str, str]:
    """Return the options for one task per node, because orch starts one agent per node. This task gets the cores of all
    tasks of its node.
    """
    cores = options.get("cpus_per_task", "")
    return (
        {**options, "cpus_per_task": str(int(cores) * (tasks or 1))}
        if re.fullmatch(r"[0-9]{1,5}", cores)
        else {**options}
    )


def _gpus_per_node(options: Mapping[str, str]) -> int | None:
    found = re.search(r"(?:^|[:=])(\d{1,4})$", options.get("gpus_per_node") or options.get("gres") or "")
    return int(found[1]) if found and int(found[1]) else None
