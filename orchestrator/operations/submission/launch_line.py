"""Parses a launch line that a user pastes (torchrun, srun, accelerate, deepspeed, python)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

from orchestrator.errors import UsageError
from orchestrator.operations.submission.accelerate_settings import settings_of
from orchestrator.operations.submission.deepspeed_hosts import DeepspeedHosts, hosts_of
from orchestrator.operations.submission.launcher_files import LauncherFiles
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
_SBATCH_FLAGS: Final = _SRUN_FLAGS | words("requeue no_requeue parsable wait reboot ignore_pbs test_only get_user_env")
_SRUN_SHORT: Final = {
    "N": "nodes", "n": "ntasks", "G": "gpus", "c": "cpus_per_task", "p": "partition", "A": "account",
    "q": "qos", "t": "time", "C": "constraint", "x": "exclude", "J": "job_name", "w": "nodelist",
    "l": "label", "u": "unbuffered", "o": "output", "e": "error", "i": "input", "K": "kill_on_bad_exit",
    "W": "wait", "D": "chdir", "d": "dependency", "L": "licenses", "m": "distribution", "B": "extra_node_info",
}  # fmt: skip

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


def read_words(words: Sequence[str], files: LauncherFiles | None = None) -> Pasted:
    """Parse a launch line that a shell has already split. Raises UsageError if it starts no program."""
    if any("\0" in word for word in words):
        raise UsageError("the command contains a NUL byte, which can't be passed to a program")
    pasted = Pasted(files=files)
    _program(list(words), pasted)
    return pasted


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


def _options(
    words: list[str], flags: frozenset[str], launcher: str, short: dict[str, str] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return (a launcher's options at the start of `words`, the words after them). In the names of options, dashes
    become underscores.
    """
    short = short or {}
    found: dict[str, str] = {}
    while words and words[0].startswith("-") and words[0] not in ("-", "--"):
        word, words = words[0], words[1:]
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--") and short and name[:1] in short and name[1:]:  # such as -N4, -pgpu
            name, equals, value = name[0], "=", word[2:].removeprefix("=")
        name = short.get(name, name).replace("-", "_")
        if equals:
            found[name] = value
        elif name in flags:
            found[name] = ""
        elif words:
            found[name], words = words[0], words[1:]
        else:
            raise UsageError(f"{launcher} {word}: its value is missing")
    return found, words[1:] if words[:1] == ["--"] else words


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


def _count(options: dict[str, str], name: str, pasted: Pasted) -> int | None:
    """Return an option's number; None if the option is missing or if only a shell can compute it."""
    text = options.get(name)
    if text is None:
        return None
    if "$" in text:
        pasted.notes.append(f"--{name} {text} was left out: only a shell could tell its value")
        return None
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) == 0:
        raise UsageError(f"--{name} {text} is not a number of at least 1")
    return int(text)


def _highest(options: dict[str, str], name: str, separator: str, pasted: Pasted) -> int | None:
    """Return the number of nodes that the option `name` sets. For a range of numbers, return its upper end."""
    low, found, high = options.get(name, "").partition(separator)
    if not found:
        return _count(options, name, pasted)
    pasted.notes.append(f"--{name} {low}{separator}{high} is a range; orch starts a fixed number of nodes: {high}")
    return _count({name: high}, name, pasted)


def _torchrun(words: list[str], pasted: Pasted, launcher: str = "torchrun") -> None:
    options, words = _options(words, _TORCHRUN_FLAGS, launcher)
    pasted.nodes = _highest(options, "nnodes", ":", pasted) or pasted.nodes
    pasted.nproc_is_default = "nproc_per_node" not in options
    if options.setdefault("nproc_per_node", "1") in ("auto", "gpu", "cpu", "xpu"):
        pasted.nproc = "auto"
    else:
        pasted.nproc = _count(options, "nproc_per_node", pasted) or "auto"
    if options.get("max_restarts", "0") != "0":
        pasted.notes.append("--max_restarts was left out: orch has its own budgets, see 'retry' in the job")
    _entry(words, options, launcher, pasted)


def _accelerate(words: list[str], pasted: Pasted) -> None:
    options, words = _options(words, _ACCELERATE_FLAGS, "accelerate launch")
    named = options.get("config_file", "")
    found = pasted.files.accelerate(named) if pasted.files and (named or "cpu" not in options) else None
    if named and found is None:
        pasted.notes.append(f"--config_file {named} was not read, because it is not here; check the numbers of ranks")
    elif found and not named:
        pasted.notes.append(f"read {found[0]}, as accelerate does")
    place, config = found or ("", {})
    settings = settings_of(options, config, place)
    pasted.nodes = settings.nodes or pasted.nodes
    pasted.nproc = settings.nproc or "auto"
    pasted.env |= settings.env
    pasted.notes += settings.notes
    _entry(words, options, "accelerate launch", pasted)


def _deepspeed(words: list[str], pasted: Pasted) -> None:
    options, words = _options(words, _DEEPSPEED_FLAGS, "deepspeed")
    named = options.get("hostfile") or options.get("H") or ""
    found = pasted.files.hostfile(named) if pasted.files else None
    if named and found is None:
        pasted.notes.append(f"--hostfile {named} was not read, because it is not here; name the hosts in the profile")
    elif found and not named:
        pasted.notes.append(f"read {found[0]}, as deepspeed does")
    place, text = found or ("", "")
    _hosts(options, hosts_of(options, text, place), pasted)
    for name in sorted(set(options) & _DEEPSPEED_OWN):
        pasted.notes.append(f"deepspeed's --{name} {options[name]}".rstrip() + " was left out")
    _entry(words, options, "deepspeed", pasted)


def _hosts(options: dict[str, str], hosts: DeepspeedHosts, pasted: Pasted) -> None:
    """Record the hosts and the numbers of nodes and GPUs of a deepspeed line."""
    nodes, gpus = _count(options, "num_nodes", pasted), _count(options, "num_gpus", pasted)
    slots = dict(list(hosts.slots.items())[:nodes])
    pasted.nodes = len(slots) or nodes or pasted.nodes
    counts = {len(each) for each in slots.values()}
    pasted.nproc = gpus or (min(counts) if counts else "auto")
    pasted.hosts = [host for host in slots if host not in ("localhost", "127.0.0.1")]
    if len(counts) > 1 and not gpus:
        pasted.notes.append(f"the hosts have different numbers of GPUs; orch takes {pasted.nproc} of each")
    if hosts.chosen:
        ids = {",".join(map(str, each)) for each in slots.values()}
        if len(ids) == 1:
            _assign("CUDA_VISIBLE_DEVICES", ids.pop(), pasted)
        else:
            pasted.notes.append("the choices of GPUs differ, and were left out; set gpus of each host in the profile")


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
    options, rest = _options(words, _SRUN_FLAGS, "srun", _SRUN_SHORT)
    tasks = _count(options, "ntasks_per_node", pasted)
    total = _count(options, "ntasks", pasted)
    nodes = _highest(options, "nodes", "-", pasted)
    pasted.nodes = nodes or (max(1, total // tasks) if total and tasks else None)
    if tasks is None and total is not None:
        tasks = max(1, total // (pasted.nodes or 1))
    pasted.nproc, pasted.nproc_is_default = tasks or 1, tasks is None
    pasted.slurm = _for_one_task(options, tasks)
    _note_dropped(options, pasted, ("export", "nodelist", "mpi", "chdir"))
    return rest


def read_allocation(words: Sequence[str], pasted: Pasted) -> None:
    """Add the options of #SBATCH lines to a launch line. The launch line's own options take precedence."""
    options, _ = _options(list(words), _SBATCH_FLAGS, "#SBATCH", {**_SRUN_SHORT, "a": "array", "b": "begin"})
    asked = Pasted()
    nodes, tasks = _highest(options, "nodes", "-", asked), _count(options, "ntasks_per_node", asked)
    total = _count(options, "ntasks", asked)
    starts_each_task = pasted.slurm is not None  # whether srun starts the program once for each task, not only once
    if pasted.nodes is None and (starts_each_task or pasted.launcher):
        pasted.nodes = nodes or (max(1, total // tasks) if total and tasks else None)
        # accelerate's number of processes is the total of all nodes
        if pasted.launcher.startswith("accelerate") and isinstance(pasted.nproc, int):
            pasted.nproc = max(1, pasted.nproc // (pasted.nodes or 1))
    if tasks is None and total is not None:
        tasks = max(1, total // (pasted.nodes or 1))
    if starts_each_task and not pasted.launcher:
        pasted.nproc = tasks if pasted.nproc_is_default and tasks else pasted.nproc
    elif pasted.launcher and pasted.nproc == "auto":
        pasted.nproc = _gpus_per_node(options) or pasted.nproc
    elif not pasted.launcher:
        pasted.nodes, pasted.nproc = 1, 1
    if "array" in options:
        pasted.notes.append(f"--array {options['array']} was left out: orch submit --sweep starts many runs")
    pasted.slurm = {**_for_one_task(options, tasks), **(pasted.slurm or {})}
    pasted.notes += asked.notes
    _note_dropped(options, pasted, ("export", "nodelist", "chdir"), "sbatch")


def _for_one_task(options: dict[str, str], tasks: int | None) -> dict[str, str]:
    """Return the options for one task per node, because orch starts one agent per node. This task gets the cores of all
    tasks of its node.
    """
    cores = options.get("cpus_per_task", "")
    return (
        {**options, "cpus_per_task": str(int(cores) * (tasks or 1))} if re.fullmatch(r"[0-9]{1,5}", cores) else options
    )


def _gpus_per_node(options: Mapping[str, str]) -> int | None:
    found = re.search(r"(?:^|[:=])(\d{1,4})$", options.get("gpus_per_node") or options.get("gres") or "")
    return int(found[1]) if found and int(found[1]) else None


def _note_dropped(options: dict[str, str], pasted: Pasted, names: Iterable[str], program: str = "srun") -> None:
    for name in names:
        if name in options:
            text = f"{program}'s --{name.replace('_', '-')} {options[name]} was left out"
            pasted.notes.append(text + ("; see env and pass_env in the job" if name == "export" else ""))
